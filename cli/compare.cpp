// kvtwin compare: simulates one experiment under several settings, or compares the decisions of two runs.
#include <filesystem>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/say.hpp"
#include "cli/session_options.hpp"
#include "cli/sweep_options.hpp"
#include "cli/terminal.hpp"
#include "lab/error.hpp"
#include "lab/past_run/compare_runs.hpp"
#include "lab/sweep/compare_settings.hpp"
#include "lab/sweep/sweep.hpp"

namespace kvtwin {
namespace {

struct CompareCommand : CompareSettingsArguments {
  std::vector<std::string> runs;
  WorkloadWords words;
  SweepOptions options;
  bool list = false;
};

void print_comparison(const CompareCommand& arguments) {
  const RunComparison comparison = compare_runs(arguments.runs[0], arguments.runs[1], arguments.json);
  print(comparison.text);
  if (!comparison.cut.empty()) throw InputError(comparison.cut);
  if (!comparison.equal) throw AlreadySaid(3);
}

// Two runs are compared without simulations.
void refuse_options_of_simulations(const CompareCommand& arguments) {
  for (const CLI::Option* option : arguments.options.others) {
    if (!option->empty()) throw InputError(option->get_name() + " requires --vary, and one experiment file");
  }
}

void compare(const CLI::App& command, CompareCommand& arguments) {
  const WordSettings words = settings_of_words(command, arguments.words);
  const bool is_file = arguments.runs.size() == 1 && !std::filesystem::is_directory(arguments.runs.front());
  if (arguments.lists.empty() && !is_file) {
    refuse_options_of_simulations(arguments);
    if (arguments.runs.size() == 2) return print_comparison(arguments);
    throw InputError(
        "compare needs two run folders, e.g. kvtwin compare out/lru out/fifo, or an experiment and --vary key=a,b,c");
  }
  if (arguments.runs.size() != 1) throw InputError("compare --vary needs one experiment file");
  arguments.experiment = arguments.runs.front();
  arguments.sets.insert(arguments.sets.begin(), words.settings.begin(), words.settings.end());
  arguments.notes = words.notes;
  Terminal terminal;
  if (arguments.list) return print(cell_names(arguments, terminal.listener()));
  const SweepOutcome outcome = compare_settings(arguments, terminal.listener());
  terminal.erase();
  print_outcome(outcome, "compare");
}

}  // namespace

namespace {

CLI::App* add_command(CLI::App& program, const char* name, CompareCommand& arguments) {
  CLI::App* command = program.add_subcommand(
      name,
      "Compare settings of one experiment, with the distance to optimal; or compare two runs, decision by decision");
  command->footer(
      "Example: kvtwin compare experiments/quickstart.toml --vary cache.eviction=lru,slru,tide --vary "
      "tiers.host.tokens=50000,100000 --out out/compare && kvtwin figures out/compare\n"
      "         kvtwin compare experiments/quickstart.toml --from-sglang-flags \"--page-size 32 "
      "--enable-hierarchical-cache\" --vary cache.write_policy=write_through,write_back\n"
      "         kvtwin compare experiments/termination.toml --out out/termination\n"
      "         kvtwin simulate experiments/quickstart.toml --out out/lru\n"
      "         kvtwin simulate experiments/quickstart.toml --set cache.eviction=fifo --out out/fifo\n"
      "         kvtwin compare out/lru out/fifo\n"
      "File:    A [sweep] section has lists of values, named cases and the figures to show (docs/planning.md). With "
      "it, or "
      "with --cells, there is a line per simulation, without marks and without the distance to optimal.\n"
      "Folder:  sweep.csv and sweep.jsonl (one row per simulation), and compare.json (the varied keys, the "
      "recommendation, the crossovers of a [sweep] section). compare.csv and compare.jsonl (one row per setting) are "
      "written without --cells and without a [sweep] section. If a comparison was interrupted, the same command "
      "continues it. If a simulation fails, its row has "
      "the "
      "reason (failure), the rest goes on, and the exit code is 1; the same command runs the failed simulation again. "
      "A "
      "shard writes sweep.shard-i-of-n.jsonl; copy the shards of other machines into this folder.\n"
      "Exit:    0 done, and two runs have equal decisions; 2 bad input, or a run that cannot be read or is cut "
      "short; 3 a decision differs");
  command
      ->add_option("runs", arguments.runs,
                   "Two run folders or journals; or one experiment file (TOML), with --vary or a [sweep] section")
      ->required();
  SweepOptions& options = arguments.options = add_sweep_options(*command, arguments);
  options.others.push_back(
      command
          ->add_option("--case", arguments.cases, "Run only this case of the file's [sweep] section; may be repeated")
          ->allow_extra_args(false));
  options.others.push_back(
      command->add_flag("--cells", arguments.cells, "A line per simulation, without a comparison"));
  options.others.push_back(command->add_flag("--list", arguments.list,
                                             "Print the names of the simulations of --cells or of the [sweep] section "
                                             "as a JSON array, and run nothing"));
  options.others.push_back(
      command
          ->add_option(
              "--seeds", arguments.seeds,
              "Simulate each setting with N seeds, from the experiment's seed on, and print means with 95 % intervals")
          ->check(CLI::Range(1, 1000))
          ->capture_default_str());
  CLI::Option* const seeds = options.others.back();
  options.others.push_back(
      command
          ->add_option(
              "--draws", arguments.draws,
              "Simulate each setting also on N hardware variants drawn from the calibration's confidence intervals "
              "(or hardware.spread_percent), and print the range of 95 % of the variants")
          ->check(CLI::Range(2, 10'000))
          ->excludes(seeds));
  options.others.push_back(command->add_option(
      "--goal", arguments.goal,
      "FIGURE=VALUE, e.g. ttft_p90_s=2: print the smallest size that meets the goal, for the tier with the most "
      "--vary values; kvtwin presets lists the figures"));
  options.others.back()->check(
      [](const std::string& goal) { return std::string(goal.empty() ? "must be FIGURE=VALUE" : ""); });
  for (CLI::Option* option : add_workload_words(*command, arguments.words)) options.others.push_back(option);
  command->add_flag("--json", arguments.json, "Print JSON; for settings, one object per line");
  return command;
}

}  // namespace

void add_compare(CLI::App& program, const std::string& command_line) {
  static CompareCommand arguments, of_sweep;
  arguments.command = of_sweep.command = command_line;
  CLI::App* const command = add_command(program, "compare", arguments);
  command->callback([command] { compare(*command, arguments); });
  CLI::App* const earlier = add_command(program, "sweep", of_sweep)->group("");  // an earlier name, in no list
  earlier->callback([earlier] {
    Terminal().note("sweep is `kvtwin compare --cells` now, and works as before");
    of_sweep.cells = true;
    compare(*earlier, of_sweep);
  });
}

}  // namespace kvtwin
