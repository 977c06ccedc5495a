// Starts this program again as a child process, for commands that need many runs or simulations. Reason: SimGrid has
// one world per process.
#pragma once

#include <string>
#include <vector>

#include "lab/validate/kvtwin_program.hpp"

namespace kvtwin {

// Runs kvtwin with these arguments, waits for its end, and returns its exit code and output.
// Errors: WorkError if the child cannot start or is killed by a signal.
ProgramOutput run_own_program(const std::vector<std::string>& arguments);

}  // namespace kvtwin
