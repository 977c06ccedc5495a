// Running a sweep's cells, some at once: what `sweep` and `compare --vary` share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "cli/experiment.hpp"
#include "cli/sglang_options.hpp"
#include "cli/sweep_folder.hpp"
#include "cli/sweep_plan.hpp"
#include "cli/sweep_words.hpp"

namespace kvtwin {

struct SweepArguments {
  std::string experiment, out, world, shard;
  std::vector<std::string> sets, lists;
  SglangArguments sglang;
  int jobs = 0;                               // 0 = as many as there are cores
  double min_served = 100 * kMinServedShare;  // %
  bool force = false, json = false;
};

// All but the experiment, --json and what one of them has alone. Returns --vary and the others.
struct SweepOptions {
  CLI::Option* vary = nullptr;
  std::vector<CLI::Option*> others;
};
SweepOptions add_sweep_options(CLI::App& command, SweepArguments& arguments);

// Adds --vary to the plan and checks it, against --set too; applies the options to `base`, the experiment that all
// cells share, and prints its notes.
void finish_plan(const SweepArguments& arguments, SweepPlan& plan, Experiment& base);

struct SweptRows {
  SweepRows rows;  // of all cells; of a shard its own, the others null
  std::optional<Shard> shard;
  std::optional<SweepFolder> folder;
};
// Runs what isn't in --out yet. A cell that fails has a row that says why, and the others go on. InputError or
// WorkError if all fail.
SweptRows run_sweep(const SweepArguments& arguments, const SweepPlan& plan, const Experiment& base);
// Last of all: WorkError if a cell has failed.
void end_with_failures(const SweepPlan& plan, const SweptRows& swept);
// What a shard has to say instead of a result.
std::string shard_text(const SweepArguments& arguments, const SweptRows& swept);

}  // namespace kvtwin
