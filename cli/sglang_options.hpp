// The options --from-sglang-flags, --from-sglang-server-info and --sglang-version, equal for every command that takes
// an experiment.
#pragma once

#include <CLI/CLI.hpp>
#include <vector>

#include "lab/sglang/sglang_arguments.hpp"

namespace kvtwin {

// Adds the options. Returns them in that order.
std::vector<CLI::Option*> add_sglang_options(CLI::App& command, SglangArguments& arguments);

}  // namespace kvtwin
