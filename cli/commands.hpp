// The subcommands. Each adds itself to the program with its options and an example, and runs when chosen.
// They throw InputError (exit 2) or WorkError (exit 1); what else is thrown is a defect.
#pragma once

#include <CLI/CLI.hpp>

namespace kvtwin {

void add_simulate(CLI::App& program);
void add_run(CLI::App& program);
void add_replay(CLI::App& program);
void add_explain(CLI::App& program);
void add_compare(CLI::App& program);
void add_sweep(CLI::App& program);
void add_validate(CLI::App& program);
void add_hitrate(CLI::App& program);
void add_trace(CLI::App& program);
void add_presets(CLI::App& program);
void add_calibrate(CLI::App& program);
void add_figures(CLI::App& program);

}  // namespace kvtwin
