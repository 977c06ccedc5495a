// Completion scripts of shells, from the options and the keys.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace kvtwin {

// Returns a script for bash, zsh or fish: commands, options with the beginning of their help, and values: names of
// presets, choices, and the keys of --set and --vary with their choices. Files elsewhere.
// Requires: every subcommand and option of the program has been added.
std::string bash_completion(const CLI::App& program);
std::string zsh_completion(const CLI::App& program);
std::string fish_completion(const CLI::App& program);

}  // namespace kvtwin
