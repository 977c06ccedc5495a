// An experiment as the command of a server of each engine, to paste.
#pragma once

#include <string>
#include <vector>

#include "lab/engine_flags/flag_reader.hpp"
#include "lab/experiment/experiment.hpp"

namespace kvtwin {

struct EngineCommand {
  const char* engine;  // sglang, vllm
  ServerLine line;     // with the program
};
// Errors: InputError, as make_setup().
std::vector<EngineCommand> engine_commands(const Experiment& experiment);

}  // namespace kvtwin
