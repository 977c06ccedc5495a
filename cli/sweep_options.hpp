// The options that say what a sweep's cells are and how they run: what `sweep` and `compare --vary` share.
#pragma once

#include <CLI/CLI.hpp>
#include <vector>

#include "lab/sweep/sweep_run.hpp"

namespace kvtwin {

// All but the experiment, --json and what one of them has alone. Returns --vary and the others.
struct SweepOptions {
  CLI::Option* vary = nullptr;
  std::vector<CLI::Option*> others;
};
SweepOptions add_sweep_options(CLI::App& command, SweepArguments& arguments);

// "sweep" or "compare": the folder's name in words. WorkError if a cell has failed.
void print_outcome(const SweepOutcome& outcome, const char* command);

}  // namespace kvtwin
