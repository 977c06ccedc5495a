// The form of `compare` with a line per simulation: the [sweep] section of the experiment's file, and lists of the
// caller. Each combination is a cell.
#pragma once

#include <string>
#include <vector>

#include "lab/sweep/sweep_run.hpp"

namespace kvtwin {

// Returns the names of the sweep's cells in their order, as JSON: ["cache.eviction=lru", ...]. Runs nothing.
// Errors: InputError for everything that can be checked before the first cell runs.
std::string cell_names(const SweepArguments& arguments, const Listener& listener);

// Returns whether the experiment's file has a [sweep] section that varies something. Errors: InputError.
bool has_sweep_section(const std::string& experiment);

// Runs the cells, and writes sweep.csv, sweep.jsonl and compare.json into `out` if it is set. Errors: InputError,
// WorkError.
SweepOutcome sweep(const SweepArguments& arguments, const Listener& listener);

}  // namespace kvtwin
