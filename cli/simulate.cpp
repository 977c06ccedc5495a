// kvtwin simulate: serves an experiment in a simulated world.
#include "lab/simulate.hpp"

#include <string>

#include "cli/commands.hpp"
#include "cli/one_of.hpp"
#include "cli/serve_options.hpp"
#include "cli/session_options.hpp"
#include "cli/terminal.hpp"

namespace kvtwin {
namespace {

struct SimulateCommand : ServeArguments {
  std::string world;
  WorkloadWords words;
  int draws = 0, jobs = 0;
};

void simulate_command(const CLI::App& command, SimulateCommand& arguments) {
  if (arguments.help_keys) return list_keys();
  const WordSettings words = settings_of_words(command, arguments.words);
  arguments.sets.insert(arguments.sets.begin(), words.settings.begin(), words.settings.end());
  Experiment experiment = read_experiment(arguments, "simulate");
  for (const std::string& note : words.notes) experiment.note(note);
  if (!arguments.world.empty()) experiment.set("sim.world=" + arguments.world, "--world");
  if (arguments.prints_flags()) return print_flags(arguments, experiment);
  Terminal terminal;
  Observers observers;
  observers.listener = run_listener(terminal, arguments.json);
  observers.files = arguments;
  observers.draws = arguments.draws;
  observers.jobs = arguments.jobs;
  const RunResult result = simulate(experiment, observers);
  terminal.erase();
  print_result(result, arguments.json);
}

}  // namespace

void add_simulate(CLI::App& program) {
  static SimulateCommand arguments;
  CLI::App* command = program.add_subcommand("simulate", "Serve an experiment's requests in a simulated world");
  command->footer(
      "Example: kvtwin simulate experiments/quickstart.toml --set tiers.host.gib=64 --out out/host64\n"
      "         kvtwin simulate experiments/quickstart.toml --from-sglang-flags \"--page-size 32 "
      "--enable-hierarchical-cache --hicache-ratio 4\"\n"
      "         kvtwin simulate experiments/quickstart.toml --from-vllm-flags \"vllm serve Qwen/Qwen3-32B "
      "--tensor-parallel-size 2\"\n"
      "         kvtwin simulate experiments/chat_hour.toml --to-sglang-flags\n"
      "Keys:    kvtwin simulate --help-keys");
  add_serve_options(*command, arguments);
  command
      ->add_option("--world", arguments.world,
                   "Simulated world: simgrid (transfers share links) or events (no sharing); sets sim.world")
      ->check(is_one_of({"simgrid", "events"}));
  CLI::Option* draws =
      command
          ->add_option("--draws", arguments.draws,
                       "Repeat the simulation on N hardware variants drawn from the calibration's confidence "
                       "intervals, and report the spread of the results. Also report the hardware figures with the "
                       "largest effect: each figure is moved to both ends of its interval")
          ->check(CLI::Range(2, 10'000));
  command
      ->add_option("--jobs", arguments.jobs, "Number of --draws simulations at the same time (default: one per core)")
      ->check(CLI::Range(1, 64))
      ->needs(draws);
  command->add_flag("--journal", arguments.journal,
                    "Write journal.kvj into the run folder: the inputs of the run, for kvtwin replay");
  add_workload_words(*command, arguments.words);
  command->callback([command] { simulate_command(*command, arguments); });
}

}  // namespace kvtwin
