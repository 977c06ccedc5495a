// The options --from-sglang-flags, --from-sglang-server-info and --sglang-version, equal for every command that takes
// an experiment.
#pragma once

#include <CLI/CLI.hpp>
#include <vector>

#include "lab/engine_flags/engine_arguments.hpp"

namespace kvtwin {

// Adds the options. Returns them in that order.
std::vector<CLI::Option*> add_engine_options(CLI::App& command, EngineArguments& arguments);

}  // namespace kvtwin
