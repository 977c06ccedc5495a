// kvtwin simulate: an experiment in a simulated world.
#include <memory>
#include <string>
#include <utility>

#include "cli/commands.hpp"
#include "cli/error.hpp"
#include "cli/serve.hpp"
#include "cli/setup.hpp"
#include "models/calibration_ranges.hpp"
#include "models/text_file.hpp"

namespace kvtwin {
namespace {

struct SimulateCommand : ServeArguments {
  std::string world;
  int draws = 0, jobs = 0;
};

// How far the machine's figures were measured; empty if they weren't.
WorkRanges ranges_of(const Experiment& experiment) {
  if (experiment.text("hardware.file").empty()) return {};
  const std::string path = experiment.path("hardware.file").string();
  return measured_ranges(read_text_file(path, "give a hardware description (JSON)"), path);
}

void simulate(const SimulateCommand& arguments) {
  if (arguments.help_keys) return list_keys();
  Experiment experiment = read_experiment(arguments, "simulate");
  if (!arguments.world.empty()) experiment.set("sim.world=" + arguments.world, "--world");
  Setup setup = make_setup(experiment);
  if (arguments.to_sglang) return print_sglang_flags(experiment, setup);
  std::optional<Draws> draws;
  // First: SimGrid has one world a process, and those of the draws are made from this one.
  if (arguments.draws != 0) {
    if (!arguments.out.empty()) const RunFolder refused_now(arguments.out, arguments.force);  // not after all of them
    draws = simulate_draws(experiment, static_cast<std::size_t>(arguments.draws), arguments.jobs);
  }
  const WorkRanges measured = ranges_of(experiment);
  const RangedCost ranged(*setup.cost);
  if (!measured.empty()) setup.world.cost = &ranged;
  const std::unique_ptr<World> world = make_simulated_world(experiment, setup);
  ServeTerms terms;
  terms.world = experiment.text("sim.world").c_str();
  terms.device = "model";
  terms.dram_bytes_per_second = static_cast<std::uint64_t>(setup.hardware.dram_bandwidth);
  if (!measured.empty() || draws) {
    terms.add_facts = [&](RunFacts& facts) {
      facts.draws = draws;
      if (measured.empty()) return;
      for (std::string& note : extrapolations(measured, ranged.asked(), setup.hardware.name)) {
        facts.notes.push_back(std::move(note));
      }
    };
  }
  serve(experiment, setup, *world, arguments, terms);
}

}  // namespace

void add_simulate(CLI::App& program) {
  static SimulateCommand arguments;
  CLI::App* command = program.add_subcommand("simulate", "Serve an experiment's requests in a simulated world");
  command->footer(
      "Example: kvtwin simulate experiments/quickstart.toml --set tiers.host.gib=64 --out out/host64\n"
      "         kvtwin simulate experiments/quickstart.toml --from-sglang-flags \"--page-size 32 "
      "--enable-hierarchical-cache --hicache-ratio 4\"\n"
      "         kvtwin simulate experiments/chat_hour.toml --to-sglang-flags\n"
      "Keys:    kvtwin simulate --help-keys");
  add_serve_options(*command, arguments);
  command
      ->add_option("--world", arguments.world,
                   "simgrid (links are shared; the default) or events (they are not); sets sim.world")
      ->check(CLI::IsMember({"simgrid", "events"}));
  CLI::Option* draws =
      command
          ->add_option("--draws", arguments.draws,
                       "Simulate so many machines, too, that this one may be as far as its figures are known, and each "
                       "figure at both ends of its interval: how sure the results are, and what they hang on")
          ->check(CLI::Range(2, 10'000));
  command->add_option("--jobs", arguments.jobs, "Of --draws, simulated at once (default: as many as there are cores)")
      ->check(CLI::Range(1, 64))
      ->needs(draws);
  command->add_flag("--journal", arguments.journal, "Record the run's inputs too, for kvtwin replay");
  command->callback([] { simulate(arguments); });
}

}  // namespace kvtwin
