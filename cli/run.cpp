// kvtwin run: an experiment for real, on this machine.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cli/commands.hpp"
#include "cli/error.hpp"
#include "cli/serve.hpp"
#include "cli/setup.hpp"

#if KVTWIN_HAVE_REAL
#include "impl/device/arena.hpp"
#include "impl/device/host_device.hpp"
#include "impl/world.hpp"
#endif

namespace kvtwin {
namespace {

struct Arguments : ServeArguments {
  std::string device;
};

#if KVTWIN_HAVE_REAL

HostDeviceConfig host_device_config(const Experiment& experiment, const Setup& setup) {
  HostDeviceConfig config;
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
  return config;
}

void refuse_what_cannot_run(const Experiment& experiment, const Setup& setup) {
  const std::string refusal = refuse_in_run(setup.model);
  if (!refusal.empty()) throw InputError(experiment.where("model.name") + ": " + refusal);
  for (const StorageTierConfig& tier : setup.engine.storage) {
    const std::string key = tier.tier == Tier::disk ? "tiers.disk" : "tiers.remote";
    const std::string unit = experiment.integer(key + ".tokens") != 0 ? ".tokens" : ".gib";
    throw InputError(experiment.where(key + unit) +
                     ": real storage isn't served yet; leave it out, or take kvtwin simulate");
  }
  if (setup.draft) {
    throw InputError(experiment.where("model.draft.kind") +
                     ": draft models are simulated only so far; set it to none, or take kvtwin simulate");
  }
  if (setup.world.engines != 1) {
    throw InputError(experiment.where("cluster.engines") +
                     ": one engine is served for real so far; set it to 1, or take kvtwin simulate");
  }
  if (setup.world.instances) {
    throw InputError(experiment.where("parallel.rank_model") +
                     ": instances is for simulations; set it to lockstep, or take kvtwin simulate");
  }
  if (setup.engine.ranks != 1) {
    throw InputError(experiment.where("parallel.tp") +
                     ": a real run has one process a rank, and several aren't served yet; set it to 1");
  }
}

void refuse_what_does_not_fit(const Experiment& experiment, const HostDeviceConfig& config) {
  const Bytes needed = host_device_bytes(config);
  const std::optional<Bytes> available = memory_available();
  if (!available || needed <= *available / 10 * 9) return;
  char text[160];
  std::snprintf(text, sizeof text, "takes %.2f GiB for its pools and weights, and this machine has %.2f GiB free",
                static_cast<double>(needed) / 1073741824.0, static_cast<double>(*available) / 1073741824.0);
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

void run(const Arguments& arguments) {
  if (arguments.help_keys) return list_keys();
  Experiment experiment = read_experiment(arguments, "run");
  if (!arguments.device.empty()) experiment.set("real.device=" + arguments.device, "--device");
  const std::string& name = experiment.text("real.device");
  if (name == "cuda") {
    throw InputError(experiment.where("real.device") + ": cuda isn't served yet; take host");
  }
  if (name != "host" && name != "auto") {
    throw InputError(experiment.where("real.device") + ": is \"" + name + "\"; it must be auto, host or cuda");
  }
  const Setup setup = make_setup(experiment);
  if (arguments.to_sglang) return print_sglang_flags(experiment, setup);
  refuse_what_cannot_run(experiment, setup);
  const HostDeviceConfig config = host_device_config(experiment, setup);
  refuse_what_does_not_fit(experiment, config);
  const std::unique_ptr<RealWorld> world = make_real_world(make_host_device(config));

  ServeArguments with_journal = arguments;
  with_journal.journal = !arguments.out.empty();
  ServeTerms terms;
  terms.world = "real";
  terms.device = "host";
  terms.at_once = true;
  terms.checked = true;
  terms.add_facts = [&](RunFacts& facts) { facts.real = RealFacts{world->loop(), world->verification()}; };
  serve(experiment, setup, *world, with_journal, terms);
  if (config.flip != HostDeviceConfig::Flip::none && !world->verification().flipped) {
    throw WorkError(experiment.where("real.flip") + ": nothing was flipped, because the run " +
                    (config.flip == HostDeviceConfig::Flip::host
                         ? "loaded nothing from the host; make tiers.device smaller"
                         : "completed no page; make cache.page_tokens smaller"));
  }
  if (world->verification().wrong_reads != 0) throw WorkError(wrong_bytes_sentence(world->verification()));
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
      "Example: kvtwin run experiments/quickstart.toml --device host --out out/run");
  add_serve_options(*command, arguments);
  command
      ->add_option("--device", arguments.device,
                   "host (host memory stands in for the GPU), cuda (not served yet), or auto: host, until cuda is")
      ->check(CLI::IsMember({"host", "cuda", "auto"}));
  command->callback([] { run(arguments); });
}

}  // namespace kvtwin
