// What the commands `simulate` and `run` share: the options that name an experiment and its files, and what they print.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "lab/experiment/setup.hpp"
#include "lab/run/serve.hpp"
#include "lab/sglang/sglang_arguments.hpp"

namespace kvtwin {

struct ServeArguments : RunFiles {
  std::string experiment;
  SglangArguments sglang;
  std::vector<std::string> sets;
  bool json = false, help_keys = false;
  bool to_sglang = false;  // only say the experiment as SGLang's flags
};

void add_serve_options(CLI::App& command, ServeArguments& arguments);
// The experiment with everything that the command line changes. `command`: for sentences.
Experiment read_experiment(const ServeArguments& arguments, const char* command);
// --help-keys
void list_keys();
// --to-sglang-flags
void print_sglang_flags(const Experiment& experiment, const Setup& setup);
void print_result(const RunResult& result, bool json);

}  // namespace kvtwin
