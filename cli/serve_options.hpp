// The options and the output that the commands `simulate` and `run` have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/terminal.hpp"
#include "lab/engine_arguments.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/listener.hpp"
#include "lab/run/serve.hpp"

namespace kvtwin {

struct ServeArguments : RunFiles {
  std::string experiment;
  EngineArguments server;
  std::vector<std::string> sets;
  bool json = false, help_keys = false;
  bool to_sglang = false, to_vllm = false;  // print the experiment as the engine's flags, and run nothing
  bool prints_flags() const { return to_sglang || to_vllm; }
};

void add_serve_options(CLI::App& command, ServeArguments& arguments);
// Returns the experiment of the file, with SGLang's flags and --set applied. `command`: the name for error texts.
// Errors: InputError.
Experiment read_experiment(const ServeArguments& arguments, const char* command);
// --help-keys: prints all keys on stdout.
void list_keys();
// --to-sglang-flags, --to-vllm-flags: prints the flags on stdout, and the notes on stderr.
void print_flags(const ServeArguments& arguments, const Experiment& experiment);
// Returns the listener of a run. The summary has the notes, so a run tells them only before a report in JSON.
Listener run_listener(Terminal& terminal, bool json);
// Prints the summary or report.json on stdout, and the name of the run folder on stderr.
void print_result(const RunResult& result, bool json);

}  // namespace kvtwin
