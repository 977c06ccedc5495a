// The options that set an experiment's keys by SGLang's flags; the same for every command that takes an experiment.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/experiment.hpp"

namespace kvtwin {

struct SglangArguments {
  std::optional<std::string> flags, server_info;  // the flag line; a file
};

// Returns the options.
std::vector<CLI::Option*> add_sglang_options(CLI::App& command, SglangArguments& arguments);

// Sets the keys and adds the notes, but for notes on the keys in `set_later`, which the caller sets afterwards. A key
// may have its value behind it, as in --set. InputError.
void apply_sglang(const SglangArguments& arguments, std::span<const std::string> set_later, Experiment& experiment);

}  // namespace kvtwin
