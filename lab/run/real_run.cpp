#include "lab/run/real_run.hpp"

#include "lab/error.hpp"

#if KVTWIN_HAVE_REAL
#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "impl/world.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/run/machine.hpp"
#include "lab/run/rank_report.hpp"
#include "lab/run/real_device.hpp"
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

void refuse_what_cannot_run(const Experiment& experiment, const Setup& setup) {
  const std::string refusal = refuse_in_run(setup.model);
  if (!refusal.empty()) throw InputError(experiment.where("model.name") + ": " + refusal);
  if (setup.draft) {
    const std::string draft_refusal = refuse_in_run(setup.draft->model);
    if (!draft_refusal.empty()) throw InputError(experiment.where("model.draft.config") + ": " + draft_refusal);
  }
  if (setup.world.engines != 1) {
    throw InputError(experiment.where("cluster.engines") +
                     ": one engine is served for real so far; set it to 1, or take kvtwin simulate");
  }
  if (experiment.flag("report.bounds") && setup.has_storage()) {
    throw InputError(experiment.where("report.bounds") +
                     ": a real storage tier may hold pages from before the run, which no bound knows of; set it to "
                     "false, or take kvtwin simulate");
  }
  if (experiment.number("sim.straggler_factor") != 1) {
    throw InputError(experiment.where("sim.straggler_factor") +
                     ": slows a rank of a simulation; take real.slow_factor, or kvtwin simulate");
  }
}

std::string wrong_bytes_sentence(const Verification& verification) {
  std::string sentence = "wrong bytes: ";
  if (!verification.wrong.empty()) sentence += wrong_page_sentence(verification.wrong.front());
  return sentence + " (" + std::to_string(verification.wrong_reads) + " wrong reads in all)";
}

// `seen`: the verification of all ranks. Called on rank 0.
void refuse_what_went_wrong(const Experiment& experiment, const DeviceConfig& config, const Verification& seen) {
  if (config.flip != DeviceConfig::Flip::none && !seen.flipped) {
    throw WorkError(experiment.where("real.flip") + ": nothing was flipped, because the run " +
                    (config.flip == DeviceConfig::Flip::host ? "loaded nothing from the host; make tiers.device smaller"
                                                             : "completed no page; make cache.page_tokens smaller"));
  }
  if (seen.wrong_reads != 0) throw WorkError(wrong_bytes_sentence(seen));
}

// Runs the rank of this process. `ranks`: null if there is only one rank.
void run_rank(const Experiment& experiment, const RunFiles& files, const RealRun& run, RealRanks* ranks) {
  Setup setup = make_setup(experiment);
  if (ranks != nullptr) setup.rank = ranks->rank();
  share_what_one_rank_writes(setup);
  RankGroup* const group = ranks == nullptr ? nullptr : &ranks->group();
  refuse_what_cannot_run(experiment, setup);
  const RealDevice chosen = choose_device(experiment, setup, group);
  if (ranks != nullptr) ranks->meet();
  std::unique_ptr<Device> device = chosen.make();
  RealStorage storage =
      open_storage(experiment, setup, device->memory(), device->draft_memory(), chosen.config.slow_factor, run.secrets);
  const std::unique_ptr<RealWorld> world = make_real_world(std::move(device), std::move(storage.tiers), group);

  RunFiles with_journal = files;
  with_journal.journal = !files.out.empty();
  Verification seen;
  ServeTerms terms;
  terms.world = "real";
  terms.device = chosen.name;
  terms.at_once = true;
  terms.checked = true;
  terms.ranks = ranks;
  if (ranks == nullptr || ranks->leads()) {
    terms.notes = chosen.notes;
    terms.notes.insert(terms.notes.end(), storage.notes.begin(), storage.notes.end());
  }
  terms.add_facts = [&](RunFacts& facts) {
    for (std::string& note : world->notes()) facts.notes.push_back(std::move(note));
    seen = ranks == nullptr ? world->verification() : gather_verification(*ranks, world->verification());
    facts.real =
        RealFacts{world->loop(), seen, ranks == nullptr ? world->storage() : gather_counters(*ranks, world->storage()),
                  this_machine(std::string_view(chosen.name) == "cuda")};
  };
  const RunResult result = serve(experiment, setup, *world, with_journal, terms, run.listener);
  if (ranks != nullptr && !ranks->leads()) return;
  if (run.served) run.served(result);
  refuse_what_went_wrong(experiment, chosen.config, seen);
}

#if KVTWIN_HAVE_MPI

void refuse_other_sizes(const Experiment& experiment, const RankGroup& group) {
  const std::string wanted = std::to_string(experiment.integer("parallel.tp"));
  if (std::to_string(group.size()) == wanted) return;
  throw InputError(
      experiment.where("parallel.tp") + ": is " + wanted + ", and " +
      (group.size() == 1 ? "one process was" : std::to_string(group.size()) + " processes were") +
      " started; a real run has one a rank: mpirun -np " + wanted +
      " kvtwin run ... (with Open MPI also --allow-run-as-root as root, and --oversubscribe for more ranks "
      "than cores)");
}

void run_ranks(const Experiment& experiment, const RunFiles& files, const RealRun& run) {
  const std::unique_ptr<RankGroup> group = join_mpi_ranks();
  RealRanks ranks(*group, run.say);
  ranks.run([&] {
    refuse_other_sizes(experiment, *group);
    run_rank(experiment, files, run, &ranks);
  });
}

#else

void run_ranks(const Experiment& experiment, const RunFiles&, const RealRun&) {
  throw InputError(experiment.where("parallel.tp") +
                   ": a real run has one process a rank, and this build is without MPI (KVTWIN_MPI=OFF); set it to 1");
}

#endif

}  // namespace

void prepare_real_run(Experiment& experiment) {
  if (experiment.integer("parallel.attention_dp") > 1) {
    throw InputError(experiment.where("parallel.attention_dp") + ": is " +
                     std::to_string(experiment.integer("parallel.attention_dp")) +
                     ", and a real run has no data parallelism of attention; leave it out, or use kvtwin simulate");
  }
  // Each process has a policy of its own, so the rank model is always instances.
  if (experiment.integer("parallel.tp") > 1) experiment.set("parallel.rank_model=instances", "kvtwin run");
}

void run_real(const Experiment& experiment, const RunFiles& files, const RealRun& run) {
  if (experiment.integer("parallel.tp") > 1) return run_ranks(experiment, files, run);
  run_rank(experiment, files, run, nullptr);
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
