#include "cli/sweep_options.hpp"

#include <cstdio>
#include <string>

#include "cli/engine_options.hpp"
#include "cli/one_of.hpp"
#include "cli/say.hpp"
#include "lab/error.hpp"

namespace kvtwin {

SweepOptions add_sweep_options(CLI::App& command, SweepArguments& arguments) {
  SweepOptions options;
  const auto add = [&](CLI::Option* option) {
    options.others.push_back(option);
    return option;
  };
  add(command
          .add_option("--set", arguments.sets,
                      "key=value: set a key in all simulations, e.g. workload.limit=1000; may be repeated")
          ->allow_extra_args(false));
  for (CLI::Option* option : add_engine_options(command, arguments.server)) add(option);
  options.vary =
      command
          .add_option("--vary", arguments.lists,
                      "key=a,b,c: simulate each of these values, e.g. cache.eviction=lru,tide. key+key=a,b,c gives "
                      "several keys the same value. If the option is repeated, every combination is simulated")
          ->allow_extra_args(false);
  add(command.add_option("--jobs", arguments.jobs, "Number of simulations at the same time (default: one per core)")
          ->check(CLI::Range(1, 64)));
  CLI::Option* const out = add(command.add_option("--out", arguments.out, "Folder to write (default: none)"));
  out->check([](const std::string& path) { return std::string(path.empty() ? "must name a folder" : ""); });
  add(command
          .add_option(
              "--shard", arguments.shard,
              "i/n: run only the i-th of n shares of the simulations, into --out; later, the same command without "
              "--shard merges the shares and runs the missing simulations")
          ->needs(out));
  add(command.add_flag("--force", arguments.force, "Delete the results of an earlier sweep in --out, and start again"));
  add(command
          .add_option(
              "--min-served", arguments.min_served,
              "Required share of completed requests, in %. A setting that completes less than this share of the "
              "highest number of completed requests is not marked best, as good, faster or slower; --goal needs this "
              "share of all requests")
          ->check(CLI::Range(0.0, 100.0))
          ->capture_default_str());
  add(command
          .add_option("--world", arguments.world,
                      "Simulated world: simgrid (transfers share links) or events (no sharing); sets sim.world")
          ->check(is_one_of({"simgrid", "events"})));
  return options;
}

void print_outcome(const SweepOutcome& outcome, const char* command) {
  if (!outcome.folder.empty()) std::fprintf(stderr, "%s folder: %s\n", command, outcome.folder.c_str());
  print(outcome.text);
  if (!outcome.failures.empty()) throw WorkError(outcome.failures);
}

}  // namespace kvtwin
