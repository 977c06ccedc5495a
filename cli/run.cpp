// kvtwin run: an experiment for real, on this machine.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cli/commands.hpp"
#include "cli/error.hpp"
#include "cli/machine.hpp"
#include "cli/rank_report.hpp"
#include "cli/real_ranks.hpp"
#include "cli/real_storage.hpp"
#include "cli/serve.hpp"
#include "cli/setup.hpp"

#if KVTWIN_HAVE_REAL
#include "cli/real_device.hpp"
#include "impl/world.hpp"
#if KVTWIN_HAVE_MPI
#include "impl/mpi_ranks.hpp"
#endif
#endif

namespace kvtwin {
namespace {

struct RunCommand : ServeArguments {
  std::string device;
};

#if KVTWIN_HAVE_REAL

// A latent is the same on all ranks: where all of them read what one has written, all know it by one name.
void share_what_one_rank_writes(Setup& setup) {
  if (setup.engine.storage_writers == 1 && !setup.rank_spaces.empty()) {
    std::ranges::fill(setup.rank_spaces, setup.rank_spaces.front());
  }
}

void refuse_what_cannot_run(const Experiment& experiment, const Setup& setup) {
  const std::string refusal = refuse_in_run(setup.model);
  if (!refusal.empty()) throw InputError(experiment.where("model.name") + ": " + refusal);
  if (setup.draft) {
    throw InputError(experiment.where("model.draft.kind") +
                     ": draft models are simulated only so far; set it to none, or take kvtwin simulate");
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

// Of all ranks together; rank 0 tells.
void refuse_what_went_wrong(const Experiment& experiment, const DeviceConfig& config, const Verification& seen) {
  if (config.flip != DeviceConfig::Flip::none && !seen.flipped) {
    throw WorkError(experiment.where("real.flip") + ": nothing was flipped, because the run " +
                    (config.flip == DeviceConfig::Flip::host ? "loaded nothing from the host; make tiers.device smaller"
                                                             : "completed no page; make cache.page_tokens smaller"));
  }
  if (seen.wrong_reads != 0) throw WorkError(wrong_bytes_sentence(seen));
}

// This process's rank; `ranks` is null if there is one only.
void run_rank(const RunCommand& arguments, const Experiment& experiment, RealRanks* ranks) {
  Setup setup = make_setup(experiment);
  if (arguments.to_sglang) return print_sglang_flags(experiment, setup);
  if (ranks != nullptr) setup.rank = ranks->rank();
  share_what_one_rank_writes(setup);
  RankGroup* const group = ranks == nullptr ? nullptr : &ranks->group();
  refuse_what_cannot_run(experiment, setup);
  const RealDevice chosen = choose_device(experiment, setup, group);
  if (ranks != nullptr) ranks->meet();
  std::unique_ptr<Device> device = chosen.make();
  RealStorage storage = open_storage(experiment, setup, device->memory(), chosen.config.slow_factor);
  const std::unique_ptr<RealWorld> world = make_real_world(std::move(device), std::move(storage.tiers), group);

  ServeArguments with_journal = arguments;
  with_journal.journal = !arguments.out.empty();
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
  serve(experiment, setup, *world, with_journal, terms);
  if (ranks == nullptr || ranks->leads()) refuse_what_went_wrong(experiment, chosen.config, seen);
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

void run_ranks(const RunCommand& arguments, const Experiment& experiment) {
  const std::unique_ptr<RankGroup> group = join_mpi_ranks();
  RealRanks ranks(*group);
  ranks.run([&] {
    refuse_other_sizes(experiment, *group);
    run_rank(arguments, experiment, &ranks);
  });
}

#else

void run_ranks(const RunCommand&, const Experiment& experiment) {
  throw InputError(experiment.where("parallel.tp") +
                   ": a real run has one process a rank, and this build is without MPI (KVTWIN_MPI=OFF); set it to 1");
}

#endif

void run(const RunCommand& arguments) {
  if (arguments.help_keys) return list_keys();
  Experiment experiment = read_experiment(arguments, "run");
  if (!arguments.device.empty()) experiment.set("real.device=" + arguments.device, "--device");
  const bool several = experiment.integer("parallel.tp") > 1;
  // Whatever it was: a policy a process.
  if (several) experiment.set("parallel.rank_model=instances", "kvtwin run");
  if (!several || arguments.to_sglang) return run_rank(arguments, experiment, nullptr);
  run_ranks(arguments, experiment);
}

#else

void run(const RunCommand&) {
  throw InputError("run: this build is without the real world; build the preset release or real");
}

#endif

}  // namespace

void add_run(CLI::App& program) {
  static RunCommand arguments;
  CLI::App* command = program.add_subcommand("run", "Serve an experiment's requests for real, on this machine");
  command->footer(
      "Every byte of every page that is read is checked. With --out, the run's inputs are recorded: see kvtwin "
      "replay.\n"
      "Example: kvtwin run experiments/quickstart.toml --device host --out out/run\n"
      "Several ranks: mpirun -np 2 kvtwin run experiments/quickstart.toml --set parallel.tp=2 --out out/ranks");
  add_serve_options(*command, arguments);
  command
      ->add_option("--device", arguments.device,
                   "host (host memory stands in for the GPU), cuda, or auto: cuda where there is a GPU, else host")
      ->check(CLI::IsMember({"host", "cuda", "auto"}));
  command->callback([] { run(arguments); });
}

}  // namespace kvtwin
