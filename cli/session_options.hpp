// The options for traffic from averages (SessionsConfig), equal for every command that generates it.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>

#include "traces/sessions.hpp"

namespace kvtwin {

// Adds all options; without `shared_names`, the command has --requests-per-second, --output-tokens and --prefix-tokens
// of its own.
void add_session_options(CLI::App& command, SessionsConfig& config, bool shared_names);

// Returns whether one of the options was given.
bool has_session_options(const CLI::App& command);

// Errors: InputError if an average was not given; there are no defaults for averages.
void require_session_options(const CLI::App& command);

// Returns the generator. Errors: InputError for a value that is out of range.
std::unique_ptr<SessionsGenerator> make_sessions(const SessionsConfig& config);

}  // namespace kvtwin
