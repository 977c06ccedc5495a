// Compares settings of an experiment: a sweep over lists of the caller, then the comparison of
// lab/sweep/comparison.hpp.
#pragma once

#include "lab/sweep/sweep_run.hpp"

namespace kvtwin {

struct CompareSettingsArguments : SweepArguments {
  int seeds = 1;        // seeds per setting
  int draws = 0;        // hardware variants per setting; 0 = none
  std::string goal;     // FIGURE=VALUE; empty = none
  std::string command;  // as given, for compare.json
};

// Runs the comparison. If `out` is set: writes compare.csv, compare.jsonl and compare.json next to the files of the
// sweep. Errors: InputError, WorkError.
SweepOutcome compare_settings(const CompareSettingsArguments& arguments, const Listener& listener);

}  // namespace kvtwin
