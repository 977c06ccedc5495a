// An experiment under many settings, a cell each, side by side: its file's [sweep] and more lists.
#pragma once

#include <string>
#include <vector>

#include "lab/sweep/sweep_run.hpp"

namespace kvtwin {

struct CasesArguments : SweepArguments {
  std::vector<std::string> cases;  // of the file's, those to run; empty = all
};

// Writes sweep.csv, sweep.jsonl and sweep.json into `out`, if it names a folder. InputError or WorkError.
SweepOutcome sweep(const CasesArguments& arguments, const Listener& listener);

}  // namespace kvtwin
