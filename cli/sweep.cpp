// kvtwin sweep: an experiment under many settings, a cell each, side by side.
#include "lab/sweep/sweep.hpp"

#include "cli/commands.hpp"
#include "cli/sweep_options.hpp"
#include "cli/terminal.hpp"

namespace kvtwin {
namespace {

void sweep_command(const CasesArguments& arguments) {
  Terminal terminal;
  const SweepOutcome outcome = sweep(arguments, terminal.listener());
  terminal.erase();
  print_outcome(outcome, "sweep");
}

}  // namespace

void add_sweep(CLI::App& program) {
  static CasesArguments arguments;
  CLI::App* command = program.add_subcommand(
      "sweep", "Simulate an experiment under many settings: its [sweep], or lists given here; a cell each");
  command->footer(
      "Example: kvtwin sweep experiments/termination.toml --out out/termination\n"
      "         kvtwin figures out/termination\n"
      "         kvtwin sweep experiments/quickstart.toml --vary cache.eviction=lru,fifo --vary "
      "tiers.host.tokens=50000,100000\n"
      "         kvtwin sweep experiments/quickstart.toml --from-sglang-flags \"--page-size 32 "
      "--enable-hierarchical-cache\" --vary tiers.host.ratio=1,2,4\n"
      "Folder:  sweep.csv and sweep.jsonl (a row a cell), sweep.json (what varied, crossovers). A sweep that was ended "
      "goes on where it was. A cell that fails is marked (failure: why) and leaves the others as they are; exit code "
      "1, "
      "and the same command runs it again. Shards write sweep.shard-i-of-n.jsonl; those of other machines are copied "
      "here.");
  command->add_option("experiment", arguments.experiment, "Experiment file (TOML)")->required();
  command->add_option("--case", arguments.cases, "Only this case of the file's [sweep]; may be repeated")
      ->allow_extra_args(false);
  add_sweep_options(*command, arguments);
  command->add_flag("--json", arguments.json, "Print the rows as JSON lines, and last what sweep.json holds");
  command->callback([] { sweep_command(arguments); });
}

}  // namespace kvtwin
