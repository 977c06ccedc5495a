// Runs the cells of a sweep, several at the same time. Both forms of `compare` use it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lab/engine_arguments.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/listener.hpp"
#include "lab/sweep/sweep_folder.hpp"
#include "lab/sweep/sweep_plan.hpp"
#include "lab/sweep/sweep_words.hpp"

namespace kvtwin {

struct SweepArguments {
  std::string experiment, out, world, shard;
  std::vector<std::string> sets, lists;
  std::vector<std::string> notes;  // of the caller, in addition to the experiment's
  EngineArguments server;
  int jobs = 0;                               // cells at the same time; 0 = one per core
  double min_served = 100 * kMinServedShare;  // %
  bool force = false, json = false;
  std::vector<std::string> cases;  // the cases of the file's [sweep] section to run; empty = all
  bool cells = false;              // a line per simulation, without a comparison of settings
};

// Adds the lists of --vary to the plan, and checks the plan. Applies the options to `base`, the experiment of all
// cells, and passes its notes to the listener. Errors: InputError, also if --set sets a varied key.
void finish_plan(const SweepArguments& arguments, SweepPlan& plan, Experiment& base, const Listener& listener);

// The output of a command on a sweep.
struct SweepOutcome {
  std::string text;      // tables, or JSON lines
  std::string folder;    // the folder with the results; empty without --out and for a shard
  std::string failures;  // a sentence about failed cells; empty if no cell failed
};

struct SweptRows {
  SweepRows rows;  // one row per cell; for a shard, rows of other shards' cells may be null
  std::optional<Shard> shard;
  std::optional<SweepFolder> folder;
  std::string engines;  // for the screen: engine_lines()
};
// Runs the cells that have no row in --out yet. A failed cell gets a row with the reason, and the other cells go on.
// Errors: InputError or WorkError if all cells fail.
SweptRows run_sweep(const SweepArguments& arguments, const SweepPlan& plan, const Experiment& base,
                    const Listener& listener);
// Returns a sentence with the number of failed cells and the first one; empty if no cell failed.
std::string failures_sentence(const SweepPlan& plan, const SweptRows& swept);
// Returns the output of a shard, which has no tables.
std::string shard_text(const SweepArguments& arguments, const SweptRows& swept);

}  // namespace kvtwin
