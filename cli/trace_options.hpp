// The options for reading a trace file, equal for every command that takes a trace.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "traces/trace.hpp"

namespace kvtwin {

struct TraceArguments {
  TraceOptions options;
  std::string format = "auto";

  // Returns the options with the checked format. Errors: InputError for an unknown format.
  TraceOptions chosen() const;
};

// `block_tokens`: the name of the option for the tokens per block, e.g. "--block-tokens".
void add_trace_options(CLI::App& command, TraceArguments& arguments, const std::string& block_tokens);

}  // namespace kvtwin
