// The subcommands. Each function adds one subcommand to the program, with options, help and a callback that runs it.
// Call each function at most once.
//
// Errors: callbacks throw InputError (exit code 2), WorkError (1), AlreadySaid (its own code), or a TraceError or
// ModelError (2). Any other exception is a defect.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace kvtwin {

void add_simulate(CLI::App& program);
void add_run(CLI::App& program);
void add_replay(CLI::App& program);
void add_explain(CLI::App& program);
void add_compare(CLI::App& program, const std::string& command_line);
void add_validate(CLI::App& program);
void add_record(CLI::App& program);
void add_watch(CLI::App& program);
void add_hitrate(CLI::App& program);
void add_trace(CLI::App& program);
void add_presets(CLI::App& program);
void add_calibrate(CLI::App& program);
// `command_line`: the words of the command, for the plan.
void add_plan(CLI::App& program, const std::string& command_line);
void add_figures(CLI::App& program);
void add_report(CLI::App& program);
void add_import_ops(CLI::App& program);
void add_check(CLI::App& program);
// Requires: the last subcommand to be added.
void add_completion(CLI::App& program);

}  // namespace kvtwin
