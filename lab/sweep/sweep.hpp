// Simulates an experiment under many settings: the [sweep] section of its file, and lists of the caller. Each
// combination is a cell.
#pragma once

#include <string>
#include <vector>

#include "lab/sweep/sweep_run.hpp"

namespace kvtwin {

struct CasesArguments : SweepArguments {
  std::vector<std::string> cases;  // the cases of the file to run; empty = all
};

// Returns the names of the sweep's cells in their order, as JSON: ["cache.eviction=lru", ...]. Runs nothing.
// Errors: InputError for everything that can be checked before the first cell runs.
std::string cell_names(const CasesArguments& arguments, const Listener& listener);

// Runs the sweep, and writes sweep.csv, sweep.jsonl and sweep.json into `out` if it is set. Errors: InputError,
// WorkError.
SweepOutcome sweep(const CasesArguments& arguments, const Listener& listener);

}  // namespace kvtwin
