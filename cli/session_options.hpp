// The options for traffic from averages (SessionsConfig), equal for every command that generates it.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "traces/sessions.hpp"

namespace kvtwin {

// The traffic of an experiment in a planner's words, for the commands that simulate one: --users, --turns, --think ...
struct WorkloadWords {
  std::vector<std::string> values;  // by option
  std::string workload;             // name of a named workload; empty = none
};
// Adds the options and returns them. With `rate`: --requests-per-second too.
std::vector<CLI::Option*> add_workload_words(CLI::App& command, WorkloadWords& words, bool rate = true);
struct WordSettings {
  std::vector<std::string> settings;  // key=value; empty if no option was given
  std::vector<std::string> notes;     // what kvtwin assumed
};
// Returns the settings that the given options stand for. `command`: the command of add_workload_words(). Errors:
// InputError for options that contradict each other.
WordSettings settings_of_words(const CLI::App& command, const WorkloadWords& words);

// Returns the text of an option, e.g. "--output-tokens"; empty if it was not given.
std::string workload_word(const WorkloadWords& words, std::string_view option);

// The options of conversations from averages (kvtwin hitrate).
void add_session_options(CLI::App& command, SessionsConfig& config);

// Returns whether one of the options was given.
bool has_session_options(const CLI::App& command);

// Errors: InputError if an average was not given; there are no defaults for averages.
void require_session_options(const CLI::App& command);

// Returns the generator. Errors: InputError for a value that is out of range.
std::unique_ptr<SessionsGenerator> make_sessions(const SessionsConfig& config);

}  // namespace kvtwin
