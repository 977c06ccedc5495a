// Running a sweep's cells, some at once: what `sweep` and `compare --vary` share.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "lab/listener.hpp"
#include "lab/sglang/sglang_arguments.hpp"
#include "lab/sweep/sweep_folder.hpp"
#include "lab/sweep/sweep_plan.hpp"
#include "lab/sweep/sweep_words.hpp"

namespace kvtwin {

struct SweepArguments {
  std::string experiment, out, world, shard;
  std::vector<std::string> sets, lists;
  SglangArguments sglang;
  int jobs = 0;                               // 0 = as many as there are cores
  double min_served = 100 * kMinServedShare;  // %
  bool force = false, json = false;
};

// Adds --vary to the plan and checks it, against --set too; applies the options to `base`, the experiment that all
// cells share, and tells its notes.
void finish_plan(const SweepArguments& arguments, SweepPlan& plan, Experiment& base, const Listener& listener);

// What a command on a sweep has to tell.
struct SweepOutcome {
  std::string text;      // tables for a person, or JSON lines
  std::string folder;    // that the results were written to; empty if none was, or a shard's
  std::string failures;  // a sentence; empty if no cell failed
};

struct SweptRows {
  SweepRows rows;  // of all cells; of a shard its own, the others null
  std::optional<Shard> shard;
  std::optional<SweepFolder> folder;
};
// Runs what isn't in --out yet. A cell that fails has a row that says why, and the others go on. InputError or
// WorkError if all fail.
SweptRows run_sweep(const SweepArguments& arguments, const SweepPlan& plan, const Experiment& base,
                    const Listener& listener);
// How many cells have failed, and the first of them; empty if none has.
std::string failures_sentence(const SweepPlan& plan, const SweptRows& swept);
// What a shard has to say instead of a result.
std::string shard_text(const SweepArguments& arguments, const SweptRows& swept);

}  // namespace kvtwin
