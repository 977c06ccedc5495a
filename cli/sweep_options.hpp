// The options of `compare` with simulations: the cells, and how the cells run.
#pragma once

#include <CLI/CLI.hpp>
#include <vector>

#include "lab/sweep/sweep_run.hpp"

namespace kvtwin {

struct SweepOptions {
  CLI::Option* vary = nullptr;
  std::vector<CLI::Option*> others;
};
// Adds the common options, but not the experiment and not --json. Returns the added options.
SweepOptions add_sweep_options(CLI::App& command, SweepArguments& arguments);

// Prints the text on stdout, and the folder on stderr.
// Errors: WorkError if a cell has failed.
void print_outcome(const SweepOutcome& outcome, const char* command);

}  // namespace kvtwin
