#include "lab/run/real_run.hpp"

#include "lab/error.hpp"

#if KVTWIN_HAVE_REAL
#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "impl/world.hpp"
#include "lab/experiment/faults.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/run/machine.hpp"
#include "lab/run/rank_report.hpp"
#include "lab/run/real_device.hpp"
#include "lab/run/real_engines.hpp"
#include "lab/run/real_hand_overs.hpp"
#include "lab/run/real_ranks.hpp"
#include "lab/run/real_storage.hpp"
#if KVTWIN_HAVE_MPI
#include "impl/runtime/mpi_ranks.hpp"
#endif
#endif

namespace kvtwin {

#if KVTWIN_HAVE_REAL

namespace {

// An MLA latent is the same on all ranks. If one rank writes the pages and all ranks read them, all ranks use the
// storage space of that rank.
void share_what_one_rank_writes(Setup& setup) {
  if (setup.engine.storage_writers == 1 && !setup.rank_spaces.empty()) {
    std::ranges::fill(setup.rank_spaces, setup.rank_spaces.front());
  }
}

// Windows and states run where the engine has SGLang's pools for them.
void refuse_model(const Experiment& experiment, const Setup& setup) {
  if (!setup.engine.pools.empty() && setup.model.inexact.empty()) return;
  const std::string refusal = refuse_in_run(setup.model);
  if (refusal.empty()) return;
  const bool blocks = !setup.engine.block_groups.groups.empty() && setup.model.inexact.empty();
  throw InputError(experiment.where("model.name") + ": " + refusal +
                   (blocks ? " With engine = sglang, a real run moves its windows and states." : ""));
}

void refuse_what_cannot_run(const Experiment& experiment, const Setup& setup) {
  refuse_model(experiment, setup);
  for (const Setup* of : {&setup, static_cast<const Setup*>(setup.decode.get())}) {
    if (of == nullptr || !of->draft) continue;
    const std::string draft_refusal = refuse_in_run(of->draft->model);
    if (!draft_refusal.empty()) throw InputError(experiment.where("model.draft.config") + ": " + draft_refusal);
  }
  if (experiment.flag("report.bounds") && setup.world.engines > 1) {
    throw InputError(experiment.where("report.bounds") +
                     ": needs the inputs of all engines in one process; set it to false, or take kvtwin simulate");
  }
  if (experiment.flag("report.bounds") && setup.has_storage()) {
    throw InputError(experiment.where("report.bounds") +
                     ": a real storage tier may hold pages from before the run, which no bound knows of; set it to "
                     "false, or take kvtwin simulate");
  }
  if (setup.copies_on_host < setup.engine_gpus()) {
    throw InputError(experiment.where("cache.host_copies") +
                     ": is node, and in a real run each rank is a process with host memory of its own; set it to rank, "
                     "or use kvtwin simulate");
  }
  refuse_roles(experiment, setup);
  refuse_faults_of_simulations(experiment);
}

std::string wrong_bytes_sentence(const Verification& verification) {
  std::string sentence = "wrong bytes: ";
  if (!verification.wrong.empty()) sentence += wrong_page_sentence(verification.wrong.front());
  return sentence + " (" + std::to_string(verification.wrong_reads) + " wrong reads in all)";
}

// `seen`: the verification of all ranks. Called on rank 0.
void refuse_what_went_wrong(const Experiment& experiment, const DeviceConfig& config, const Verification& seen) {
  if (config.flip != DeviceConfig::Flip::none && !seen.flipped) {
    throw WorkError(where_of(experiment, faults_of(experiment, "flip").front()) +
                    ": nothing was flipped, because the run " +
                    (config.flip == DeviceConfig::Flip::host ? "loaded nothing from the host; make tiers.device smaller"
                                                             : "completed no page; make cache.page_tokens smaller"));
  }
  if (seen.wrong_reads != 0) throw WorkError(wrong_bytes_sentence(seen));
}

// The origin of values that a real run requires.
constexpr const char* kByRun = "kvtwin run";

// Each process has a policy of its own, so the rank model is instances. The experiment of several engines keeps its own
// rank model, because kvtwin simulate has no instances of several engines.
Experiment as_processes(Experiment experiment) {
  if (experiment.integer("parallel.tp") > 1) experiment.set("parallel.rank_model=instances", kByRun);
  return experiment;
}

// The processes of the run, seen from this one. All null if there is only one.
struct Processes {
  RealRanks* all = nullptr;
  RankGroup* of_engine = nullptr;  // the ranks of this process's engine
  Mail* mail = nullptr;            // null if there is one engine
};

// Runs the rank of this process.
void run_rank(const Experiment& experiment, const RunFiles& files, const RealRun& run, const Processes& processes) {
  RealRanks* const ranks = processes.all;
  RankGroup* const group = processes.of_engine;
  Setup setup = make_setup(as_processes(experiment));
  if (ranks != nullptr) {
    setup.rank = ranks->rank() % setup.engine.ranks;
    setup.engine_number = ranks->rank() / setup.engine.ranks;
  }
  if (setup.decode != nullptr) {
    setup.decode->rank = setup.rank;
    setup.decode->engine_number = setup.engine_number;
  }
  share_what_one_rank_writes(setup);
  refuse_what_cannot_run(experiment, setup);
  std::optional<RealEngines> engines;
  if (processes.mail != nullptr) {
    setup.roles.engines_die = true;
    engines.emplace(*processes.mail, setup, ranks->rank());
  }
  const Setup& own = setup.is_decode_engine(0) ? *setup.decode : setup;
  const RealDevice chosen = choose_device(experiment, own, group);
  if (ranks != nullptr) ranks->meet();
  std::unique_ptr<Device> device = chosen.make();
  if (ranks != nullptr) ranks->meet();  // opening a tier may be a work of all processes
  std::unique_ptr<HandOverLane> hand_overs =
      open_hand_overs(experiment, setup, *device, engines ? &*engines : nullptr, ranks);
  RealStorage storage = open_storage(experiment, own, *device, chosen.config.slow_factor, run.secrets, ranks);
  const std::unique_ptr<RealWorld> world =
      make_real_world(std::move(device), std::move(storage.tiers), group, ranks == nullptr ? nullptr : &ranks->group(),
                      std::move(hand_overs));

  RunFiles with_journal = files;
  with_journal.journal = !files.out.empty();
  Verification seen;
  ServeTerms terms;
  terms.world = "real";
  terms.device = chosen.name;
  terms.at_once = true;
  terms.checked = true;
  terms.ranks = ranks;
  terms.engines = engines ? &*engines : nullptr;
  if (ranks == nullptr || ranks->leads()) {
    terms.notes = chosen.notes;
    terms.notes.insert(terms.notes.end(), storage.notes.begin(), storage.notes.end());
    if (setup.decode != nullptr && experiment.origin("cluster.hand_over") == kByRun) {
      terms.notes.emplace_back(
          "cluster.hand_over = layers: a real run writes the pages of a pass after the pass, so this is chunks");
    }
  }
  terms.add_facts = [&](RunFacts& facts) {
    for (std::string& note : world->notes()) facts.notes.push_back(std::move(note));
    const std::vector<bool> lost = engines ? engines->lost_processes() : std::vector<bool>{};
    for (std::size_t process = 0; process < lost.size(); process += setup.engine.ranks) {
      if (!lost[process]) continue;
      facts.notes.push_back("engine " + std::to_string(process / setup.engine.ranks) +
                            " has died; the others served its requests");
    }
    seen = ranks == nullptr ? world->verification() : gather_verification(*ranks, world->verification());
    facts.real =
        RealFacts{world->loop(), seen, ranks == nullptr ? world->storage() : gather_counters(*ranks, world->storage()),
                  this_machine(std::string_view(chosen.name) == "cuda")};
    if (!engines) return;
    const std::vector<LoopReport> loops = gather_loops(*ranks, world->loop());
    facts.engines.resize(loops.size() / engines->ranks());
    for (std::size_t engine = 0; engine < facts.engines.size(); ++engine) {
      facts.engines[engine].loop = loops[engine * engines->ranks()];
    }
  };
  const RunResult result = serve(experiment, setup, *world, with_journal, terms, run.listener);
  if (ranks != nullptr && !ranks->leads()) return;
  if (run.served) run.served(result);
  refuse_what_went_wrong(experiment, chosen.config, seen);
}

#if KVTWIN_HAVE_MPI

void refuse_other_sizes(const Experiment& experiment, const RankGroup& group) {
  const std::int64_t ranks = experiment.integer("parallel.tp"), engines = total_engines(experiment);
  const std::string wanted = std::to_string(ranks * engines);
  if (std::to_string(group.size()) == wanted) return;
  const std::string of_ranks = experiment.where("parallel.tp") + ": is " + std::to_string(ranks) + ", ";
  const std::int64_t prefill = experiment.integer("cluster.prefill");
  const std::string of_engines =
      prefill == 0 ? experiment.where("cluster.engines") + ": is " + std::to_string(engines) + ", "
                   : experiment.where("cluster.prefill") + ": is " + std::to_string(prefill) + ", " +
                         experiment.where("cluster.decode") + " is " + std::to_string(engines - prefill) + ", ";
  const std::string of_both = of_engines + experiment.where("parallel.tp") + " is " + std::to_string(ranks) + ", ";
  throw InputError(
      (engines == 1 ? of_ranks
       : ranks == 1 ? of_engines
                    : of_both) +
      "and " + (group.size() == 1 ? "one process was" : std::to_string(group.size()) + " processes were") +
      " started; a real run has one " + (engines == 1 ? "a rank" : "for each rank of each engine") + ": mpirun -np " +
      wanted +
      " kvtwin run ... (with Open MPI also --allow-run-as-root as root, and --oversubscribe for more ranks "
      "than cores)");
}

void run_processes(const Experiment& experiment, const RunFiles& files, const RealRun& run) {
  const auto all = static_cast<std::size_t>(experiment.integer("parallel.tp") * total_engines(experiment));
  const std::unique_ptr<RankGroup> group = join_mpi_ranks(all);
  RealRanks ranks(*group, run.say);
  std::unique_ptr<RankGroup> of_engine;
  std::unique_ptr<Mail> mail;
  ranks.run([&] {
    refuse_other_sizes(experiment, *group);
    if (total_engines(experiment) == 1) return run_rank(experiment, files, run, {&ranks, group.get()});
    const auto per_engine = static_cast<std::size_t>(experiment.integer("parallel.tp"));
    ranks.set_ranks_per_engine(per_engine);
    of_engine = join_engine_ranks(per_engine);
    mail = open_mpi_mail();
    run_rank(experiment, files, run, {&ranks, of_engine.get(), mail.get()});
  });
}

#else

void run_processes(const Experiment& experiment, const RunFiles&, const RealRun&) {
  const bool engines = total_engines(experiment) > 1;
  throw InputError(
      experiment.where(engines ? "cluster.engines" : "parallel.tp") + ": a real run has one process a " +
      (engines ? "engine" : "rank") +
      ", and this program is without MPI, as that of the wheel; set it to 1, or take the Debian package or a build "
      "of the preset release");
}

#endif

}  // namespace

void prepare_real_run(Experiment& experiment) {
  if (experiment.integer("parallel.attention_dp") > 1) {
    throw InputError(experiment.where("parallel.attention_dp") + ": is " +
                     std::to_string(experiment.integer("parallel.attention_dp")) +
                     ", and a real run has no data parallelism of attention; leave it out, or use kvtwin simulate");
  }
  // The passes of a real run are real.
  for (const char* times : {"serving.engine", "hardware.operators"}) {
    if (!experiment.is_given(times)) experiment.set(std::string(times) + "=none", kByRun);
  }
  if (total_engines(experiment) == 1) experiment = as_processes(std::move(experiment));
  if (experiment.integer("cluster.prefill") > 0 && experiment.text("cluster.hand_over") == "layers") {
    experiment.set("cluster.hand_over=chunks", kByRun);
  }
}

void run_real(const Experiment& experiment, const RunFiles& files, const RealRun& run) {
  if (experiment.integer("parallel.tp") > 1 || total_engines(experiment) > 1) {
    return run_processes(experiment, files, run);
  }
  run_rank(experiment, files, run, {});
}

#else

void prepare_real_run(Experiment&) {
  throw InputError("run: this build is without the real world; build the preset release or real");
}

void run_real(const Experiment& experiment, const RunFiles&, const RealRun&) {
  Experiment refused = experiment;
  prepare_real_run(refused);
}

#endif

}  // namespace kvtwin
