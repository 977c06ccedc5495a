// An experiment under several settings: a sweep whose lists come from the caller, and what it says of the
// settings (lab/sweep/comparison.hpp).
#pragma once

#include "lab/sweep/sweep_run.hpp"

namespace kvtwin {

struct CompareSettingsArguments : SweepArguments {
  int seeds = 1, draws = 0;
  std::string goal;  // FIGURE=VALUE; empty = none
};

// Writes compare.csv, compare.jsonl and compare.json into `out` beside the sweep's files.
SweepOutcome compare_settings(const CompareSettingsArguments& arguments, const Listener& listener);

}  // namespace kvtwin
