// kvtwin sweep: simulates an experiment under many settings; each combination of settings is a cell.
#include "lab/sweep/sweep.hpp"

#include "cli/commands.hpp"
#include "cli/say.hpp"
#include "cli/sweep_options.hpp"
#include "cli/terminal.hpp"

namespace kvtwin {
namespace {

struct SweepCommand : CasesArguments {
  bool list = false;
};

void sweep_command(const SweepCommand& arguments) {
  Terminal terminal;
  if (arguments.list) return print(cell_names(arguments, terminal.listener()));
  const SweepOutcome outcome = sweep(arguments, terminal.listener());
  terminal.erase();
  print_outcome(outcome, "sweep");
}

}  // namespace

void add_sweep(CLI::App& program) {
  static SweepCommand arguments;
  CLI::App* command = program.add_subcommand(
      "sweep", "Simulate every combination of settings in the file's [sweep] section and in --vary");
  command->footer(
      "Example: kvtwin sweep experiments/termination.toml --out out/termination\n"
      "         kvtwin figures out/termination\n"
      "         kvtwin sweep experiments/quickstart.toml --vary cache.eviction=lru,fifo --vary "
      "tiers.host.tokens=50000,100000\n"
      "         kvtwin sweep experiments/quickstart.toml --from-sglang-flags \"--page-size 32 "
      "--enable-hierarchical-cache\" --vary tiers.host.ratio=1,2,4\n"
      "Folder:  sweep.csv and sweep.jsonl (one row per combination), sweep.json (varied keys, crossovers). If a sweep "
      "was interrupted, the same command continues it. If a simulation fails, its row has the reason (failure), the "
      "rest of the sweep goes on, and the exit code is 1; the same command runs the failed simulation again. A shard "
      "writes sweep.shard-i-of-n.jsonl; copy the shards of other machines into this folder.");
  command->add_option("experiment", arguments.experiment, "Experiment file (TOML)")->required();
  command->add_option("--case", arguments.cases, "Run only this case of the file's [sweep] section; may be repeated")
      ->allow_extra_args(false);
  add_sweep_options(*command, arguments);
  command->add_flag("--json", arguments.json, "Print one JSON object per row, then the content of sweep.json");
  command->add_flag("--list", arguments.list, "Print the names of the simulations as a JSON array, and run nothing");
  command->callback([] { sweep_command(arguments); });
}

}  // namespace kvtwin
