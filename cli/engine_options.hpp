// The options that set keys as a server has them (--from-sglang-flags, --from-vllm-flags, --from-server-log, ...),
// equal for every command that takes an experiment.
#pragma once

#include <CLI/CLI.hpp>
#include <vector>

#include "lab/engine_arguments.hpp"

namespace kvtwin {

// Adds the options. Returns them in that order.
std::vector<CLI::Option*> add_engine_options(CLI::App& command, EngineArguments& arguments);

}  // namespace kvtwin
