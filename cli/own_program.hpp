// This program as a child of its own: what runs or simulates once a process, called by commands that do so many times.
#pragma once

#include <string>
#include <vector>

#include "lab/validate/kvtwin_program.hpp"

namespace kvtwin {

// Waits for its end. WorkError if it can't be started, or was killed.
Said run_own_program(const std::vector<std::string>& arguments);

}  // namespace kvtwin
