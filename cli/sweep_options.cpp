#include "cli/sweep_options.hpp"

#include <cstdio>
#include <string>

#include "cli/say.hpp"
#include "cli/sglang_options.hpp"
#include "lab/error.hpp"

namespace kvtwin {

SweepOptions add_sweep_options(CLI::App& command, SweepArguments& arguments) {
  SweepOptions options;
  const auto add = [&](CLI::Option* option) {
    options.others.push_back(option);
    return option;
  };
  add(command.add_option("--set", arguments.sets, "key=value for all cells; may be repeated")->allow_extra_args(false));
  for (CLI::Option* option : add_sglang_options(command, arguments.sglang)) add(option);
  options.vary = command
                     .add_option("--vary", arguments.lists,
                                 "key=a,b,c: values to run with; key+key=a,b,c gives several keys the same value; may "
                                 "be repeated")
                     ->allow_extra_args(false);
  add(command.add_option("--jobs", arguments.jobs, "Cells simulated at once (default: as many as there are cores)")
          ->check(CLI::Range(1, 64)));
  CLI::Option* const out = add(command.add_option("--out", arguments.out, "Folder to write"));
  out->check([](const std::string& path) { return std::string(path.empty() ? "must name a folder" : ""); });
  add(command
          .add_option("--shard", arguments.shard,
                      "i/n: run the i-th of n shares of the cells into --out; the same command without it takes what "
                      "the shards have, and makes the rest")
          ->needs(out));
  add(command.add_flag("--force", arguments.force, "Begin anew, whatever the folder holds of an earlier sweep"));
  add(command
          .add_option("--min-served", arguments.min_served,
                      "A setting that completes less than this % of what the setting that completes most does is not "
                      "called the best, as good, faster or slower; --goal wants this % of all requests completed")
          ->check(CLI::Range(0.0, 100.0))
          ->capture_default_str());
  add(command.add_option("--world", arguments.world, "simgrid or events; sets sim.world")
          ->check(CLI::IsMember({"simgrid", "events"})));
  return options;
}

void print_outcome(const SweepOutcome& outcome, const char* command) {
  if (!outcome.folder.empty()) std::fprintf(stderr, "%s folder: %s\n", command, outcome.folder.c_str());
  print(outcome.text);
  if (!outcome.failures.empty()) throw WorkError(outcome.failures);
}

}  // namespace kvtwin
