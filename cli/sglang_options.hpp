// The options that set an experiment's keys by SGLang's flags; the same for every command that takes an experiment.
#pragma once

#include <CLI/CLI.hpp>
#include <vector>

#include "lab/sglang/sglang_arguments.hpp"

namespace kvtwin {

// Returns the options.
std::vector<CLI::Option*> add_sglang_options(CLI::App& command, SglangArguments& arguments);

}  // namespace kvtwin
