// The options --from-sglang-flags and --from-sglang-server-info, equal for every command that takes an experiment.
#pragma once

#include <CLI/CLI.hpp>
#include <vector>

#include "lab/sglang/sglang_arguments.hpp"

namespace kvtwin {

// Adds both options. Returns them in that order.
std::vector<CLI::Option*> add_sglang_options(CLI::App& command, SglangArguments& arguments);

}  // namespace kvtwin
