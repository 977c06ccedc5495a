// kvtwin compare EXPERIMENT.toml --vary: a sweep whose lists come from the command line, and what it says of the
// settings (cli/comparison.hpp).
#pragma once

#include "cli/sweep_run.hpp"

namespace kvtwin {

struct CompareSettingsArguments : SweepArguments {
  int seeds = 1, draws = 0;
  std::string goal;  // FIGURE=VALUE; empty = none
};

// Writes compare.csv, compare.jsonl and compare.json into --out beside the sweep's files.
void compare_settings(const CompareSettingsArguments& arguments);

}  // namespace kvtwin
