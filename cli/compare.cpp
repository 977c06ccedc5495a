// kvtwin compare: an experiment under several settings, or two runs decision by decision.
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/say.hpp"
#include "cli/sweep_options.hpp"
#include "cli/terminal.hpp"
#include "lab/error.hpp"
#include "lab/past_run/compare_runs.hpp"
#include "lab/sweep/compare_settings.hpp"

namespace kvtwin {
namespace {

struct CompareCommand : CompareSettingsArguments {
  std::vector<std::string> runs;
};

void print_comparison(const CompareCommand& arguments) {
  const RunComparison comparison = compare_runs(arguments.runs[0], arguments.runs[1], arguments.json);
  print(comparison.text);
  if (!comparison.cut.empty()) throw InputError(comparison.cut);
  if (!comparison.equal) throw AlreadySaid(3);
}

void compare(CompareCommand& arguments) {
  if (arguments.lists.empty()) {
    if (arguments.runs.size() == 2) return print_comparison(arguments);
    throw InputError(
        "compare needs two run folders, e.g. kvtwin compare out/lru out/fifo, or an experiment and --vary key=a,b,c");
  }
  if (arguments.runs.size() != 1) throw InputError("compare --vary needs one experiment file");
  arguments.experiment = arguments.runs.front();
  Terminal terminal;
  const SweepOutcome outcome = compare_settings(arguments, terminal.listener());
  terminal.erase();
  print_outcome(outcome, "compare");
}

}  // namespace

void add_compare(CLI::App& program) {
  static CompareCommand arguments;
  CLI::App* command = program.add_subcommand(
      "compare",
      "The same work under several settings, with the distance to optimal; or two runs, decision by decision");
  command->footer(
      "Example: kvtwin compare experiments/quickstart.toml --vary cache.eviction=lru,slru,tide --vary "
      "tiers.host.tokens=50000,100000 --out out/compare && kvtwin figures out/compare\n"
      "         kvtwin compare experiments/quickstart.toml --from-sglang-flags \"--page-size 32 "
      "--enable-hierarchical-cache\" --vary cache.write_policy=write_through,write_back\n"
      "         kvtwin simulate experiments/quickstart.toml --out out/lru\n"
      "         kvtwin simulate experiments/quickstart.toml --set cache.eviction=fifo --out out/fifo\n"
      "         kvtwin compare out/lru out/fifo\n"
      "Folder:  compare.csv and compare.jsonl (a row a setting), compare.json (what varied), sweep.csv and sweep.jsonl "
      "(a "
      "row a run); one that was ended goes on where it was\n"
      "Exit:    0 done, of two runs every decision is equal; 2 bad input, or a run that can't be read or is cut short; "
      "3 a "
      "decision differs");
  command->add_option("runs", arguments.runs, "Two run folders, or journals; or an experiment file (TOML)")->required();
  SweepOptions options = add_sweep_options(*command, arguments);
  options.others.push_back(
      command->add_option("--seeds", arguments.seeds, "Runs of each setting, with as many seeds from its own on")
          ->check(CLI::Range(1, 1000))
          ->capture_default_str());
  CLI::Option* const seeds = options.others.back();
  options.others.push_back(
      command
          ->add_option("--draws", arguments.draws,
                       "Each setting also on so many machines that the experiment's may be, as far as its figures are "
                       "known (hardware.spread_percent): what 95 % of them do")
          ->check(CLI::Range(2, 10'000))
          ->excludes(seeds));
  options.others.push_back(command->add_option(
      "--goal", arguments.goal,
      "FIGURE=VALUE, e.g. ttft_p90_s=2: from which size on of the tier that has the most is it met?"));
  options.others.back()->check(
      [](const std::string& goal) { return std::string(goal.empty() ? "must be FIGURE=VALUE" : ""); });
  for (CLI::Option* option : options.others) option->needs(options.vary);
  command->add_flag("--json", arguments.json, "Print it as JSON; of settings one object a line");
  command->callback([] { compare(arguments); });
}

}  // namespace kvtwin
