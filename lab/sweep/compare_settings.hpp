// Compares settings of an experiment: simulates lists of the caller, then makes the comparison of
// lab/sweep/comparison.hpp. A file with a [sweep] section says itself what is shown, and gets the form of
// lab/sweep/sweep.hpp.
#pragma once

#include "lab/sweep/sweep_run.hpp"

namespace kvtwin {

struct CompareSettingsArguments : SweepArguments {
  int seeds = 1;        // seeds per setting
  int draws = 0;        // hardware variants per setting; 0 = none
  std::string goal;     // FIGURE=VALUE; empty = none
  std::string command;  // as given, for compare.json
};

// Runs the simulations. If `out` is set, writes sweep.csv and sweep.jsonl (a row per simulation) and compare.json, and
// for a comparison also compare.csv and compare.jsonl (a row per setting). Errors: InputError, WorkError.
SweepOutcome compare_settings(const CompareSettingsArguments& arguments, const Listener& listener);

}  // namespace kvtwin
