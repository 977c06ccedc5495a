// kvtwin run: an experiment for real, on this machine.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cli/commands.hpp"
#include "cli/error.hpp"
#include "cli/rank_report.hpp"
#include "cli/real_ranks.hpp"
#include "cli/real_storage.hpp"
#include "cli/serve.hpp"
#include "cli/setup.hpp"

#if KVTWIN_HAVE_REAL
#include "impl/device/arena.hpp"
#include "impl/device/host_device.hpp"
#include "impl/world.hpp"
#if KVTWIN_HAVE_MPI
#include "impl/mpi_ranks.hpp"
#endif
#endif

namespace kvtwin {
namespace {

struct Arguments : ServeArguments {
  std::string device;
};

#if KVTWIN_HAVE_REAL

// How much slower this rank is than the others.
double slow_factor(const Experiment& experiment, const Setup& setup) {
  const double factor = experiment.number("real.slow_factor");
  const auto rank = static_cast<std::size_t>(experiment.integer("real.slow_rank"));
  if (factor != 1 && rank >= setup.engine.ranks) {
    throw InputError(experiment.where("real.slow_rank") + ": is " + std::to_string(rank) + ", and the ranks are 0 to " +
                     std::to_string(setup.engine.ranks - 1) + " (" + experiment.where("parallel.tp") + ")");
  }
  return rank == setup.rank ? factor : 1;
}

HostDeviceConfig host_device_config(const Experiment& experiment, const Setup& setup, RankGroup* ranks) {
  HostDeviceConfig config;
  config.ranks = ranks;
  config.slow_factor = slow_factor(experiment, setup);
  config.shape = setup.engine.shape;
  config.host_layout = setup.engine.host_layout;
  config.device_pages = setup.engine.device_pages;
  config.host_pages = setup.engine.host_pages;
  // Products with as many multiply-adds a token and layer as the model has weights for.
  const std::uint64_t head = setup.model.head_parameters;
  const std::uint64_t linear = setup.model.active_parameters - std::min(head, setup.model.active_parameters);
  config.hidden = setup.model.hidden;
  config.width = static_cast<std::uint32_t>(
      std::max<std::uint64_t>(1, linear / setup.model.layers.size() / std::max(1U, setup.model.hidden)));
  const std::uint64_t pair_flops = setup.model.full_attention.prefill_pair_flops;
  config.pair_work = static_cast<std::uint32_t>(pair_flops / 2 / setup.model.layers.size());
  config.seed = static_cast<std::uint64_t>(experiment.integer("seed"));
  const std::string& flip = experiment.text("real.flip");
  if (flip == "device") {
    config.flip = HostDeviceConfig::Flip::device;
  } else if (flip == "host") {
    config.flip = HostDeviceConfig::Flip::host;
  } else if (flip != "none") {
    throw InputError(experiment.where("real.flip") + ": is \"" + flip + "\"; it must be none, device or host");
  }
  // It would be stored under a check of its own, and served to whoever comes after.
  if (flip != "none" && !setup.engine.storage.empty()) {
    throw InputError(experiment.where("real.flip") + ": would leave a wrong page in the " +
                     (setup.engine.storage.front().tier == Tier::disk ? "disk" : "remote") +
                     " tier, where other runs find it; set it to none, or leave storage tiers out");
  }
  return config;
}

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
  if (experiment.number("sim.straggler_factor") != 1) {
    throw InputError(experiment.where("sim.straggler_factor") +
                     ": slows a rank of a simulation; take real.slow_factor, or kvtwin simulate");
  }
}

// Of all ranks on this machine together: none of them has taken its memory yet.
void refuse_what_does_not_fit(const Experiment& experiment, const HostDeviceConfig& config) {
  const std::size_t ranks = config.ranks == nullptr ? 1 : config.ranks->size_here();
  const Bytes needed = ranks * host_device_bytes(config);
  const std::optional<Bytes> available = memory_available();
  if (!available || needed <= *available / 10 * 9) return;
  char text[200];
  std::snprintf(text, sizeof text, "takes %.2f GiB for %s pools and weights, and this machine has %.2f GiB free",
                static_cast<double>(needed) / 1073741824.0,
                ranks == 1 ? "its" : ("its " + std::to_string(ranks) + " ranks'").c_str(),
                static_cast<double>(*available) / 1073741824.0);
  const auto where = [&](const std::string& tier) {
    const std::string key = "tiers." + tier;
    if (tier == "host" && experiment.number("tiers.host.ratio") != 0) return experiment.where("tiers.host.ratio");
    return experiment.where(key + (experiment.integer(key + ".tokens") != 0 ? ".tokens" : ".gib"));
  };
  throw InputError("this experiment " + std::string(text) + "; make " + where("device") + " or " + where("host") +
                   " smaller, or take a smaller model, e.g. model.name = \"tiny\"");
}

std::string wrong_bytes_sentence(const Verification& verification) {
  std::string sentence = "wrong bytes: ";
  if (!verification.wrong.empty()) sentence += wrong_page_sentence(verification.wrong.front());
  return sentence + " (" + std::to_string(verification.wrong_reads) + " wrong reads in all)";
}

void refuse_device(const Experiment& experiment) {
  const std::string& name = experiment.text("real.device");
  if (name == "cuda") {
    throw InputError(experiment.where("real.device") + ": cuda isn't served yet; take host");
  }
  if (name != "host" && name != "auto") {
    throw InputError(experiment.where("real.device") + ": is \"" + name + "\"; it must be auto, host or cuda");
  }
}

// Of all ranks together; rank 0 tells.
void refuse_what_went_wrong(const Experiment& experiment, const HostDeviceConfig& config, const Verification& seen) {
  if (config.flip != HostDeviceConfig::Flip::none && !seen.flipped) {
    throw WorkError(experiment.where("real.flip") + ": nothing was flipped, because the run " +
                    (config.flip == HostDeviceConfig::Flip::host
                         ? "loaded nothing from the host; make tiers.device smaller"
                         : "completed no page; make cache.page_tokens smaller"));
  }
  if (seen.wrong_reads != 0) throw WorkError(wrong_bytes_sentence(seen));
}

// This process's rank; `ranks` is null if there is one only.
void run_rank(const Arguments& arguments, const Experiment& experiment, RealRanks* ranks) {
  refuse_device(experiment);
  Setup setup = make_setup(experiment);
  if (arguments.to_sglang) return print_sglang_flags(experiment, setup);
  if (ranks != nullptr) setup.rank = ranks->rank();
  share_what_one_rank_writes(setup);
  RankGroup* const group = ranks == nullptr ? nullptr : &ranks->group();
  refuse_what_cannot_run(experiment, setup);
  const HostDeviceConfig config = host_device_config(experiment, setup, group);
  refuse_what_does_not_fit(experiment, config);
  if (ranks != nullptr) ranks->meet();
  std::unique_ptr<Device> device = make_host_device(config);
  RealStorage storage = open_storage(experiment, setup, device->memory(), config.slow_factor);
  const std::unique_ptr<RealWorld> world = make_real_world(std::move(device), std::move(storage.tiers), group);

  ServeArguments with_journal = arguments;
  with_journal.journal = !arguments.out.empty();
  Verification seen;
  ServeTerms terms;
  terms.world = "real";
  terms.device = "host";
  terms.at_once = true;
  terms.checked = true;
  terms.ranks = ranks;
  if (ranks == nullptr || ranks->leads()) terms.notes = storage.notes;
  terms.add_facts = [&](RunFacts& facts) {
    seen = ranks == nullptr ? world->verification() : gather_verification(*ranks, world->verification());
    facts.real =
        RealFacts{world->loop(), seen, ranks == nullptr ? world->storage() : gather_counters(*ranks, world->storage())};
  };
  serve(experiment, setup, *world, with_journal, terms);
  if (ranks == nullptr || ranks->leads()) refuse_what_went_wrong(experiment, config, seen);
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

void run_ranks(const Arguments& arguments, const Experiment& experiment) {
  const std::unique_ptr<RankGroup> group = join_mpi_ranks();
  RealRanks ranks(*group);
  ranks.run([&] {
    refuse_other_sizes(experiment, *group);
    run_rank(arguments, experiment, &ranks);
  });
}

#else

void run_ranks(const Arguments&, const Experiment& experiment) {
  throw InputError(experiment.where("parallel.tp") +
                   ": a real run has one process a rank, and this build is without MPI (KVTWIN_MPI=OFF); set it to 1");
}

#endif

void run(const Arguments& arguments) {
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

void run(const Arguments&) {
  throw InputError("run: this build is without the real world; build the preset release or real");
}

#endif

}  // namespace

void add_run(CLI::App& program) {
  static Arguments arguments;
  CLI::App* command = program.add_subcommand("run", "Serve an experiment's requests for real, on this machine");
  command->footer(
      "Every byte of every page that is read is checked. With --out, the run's inputs are recorded: see kvtwin "
      "replay.\n"
      "Example: kvtwin run experiments/quickstart.toml --device host --out out/run\n"
      "Several ranks: mpirun -np 2 kvtwin run experiments/quickstart.toml --set parallel.tp=2 --out out/ranks");
  add_serve_options(*command, arguments);
  command
      ->add_option("--device", arguments.device,
                   "host (host memory stands in for the GPU), cuda (not served yet), or auto: host, until cuda is")
      ->check(CLI::IsMember({"host", "cuda", "auto"}));
  command->callback([] { run(arguments); });
}

}  // namespace kvtwin
