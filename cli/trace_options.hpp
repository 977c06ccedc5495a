// The options that say how a trace file is read; the same for every command that takes one.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "traces/trace.hpp"

namespace kvtwin {

struct TraceArguments {
  TraceOptions options;
  std::string format = "auto";

  TraceOptions chosen() const;  // InputError
};

// `block_tokens`: the name of the option that says what a block is.
void add_trace_options(CLI::App& command, TraceArguments& arguments, const std::string& block_tokens);

}  // namespace kvtwin
