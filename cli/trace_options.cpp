#include "cli/trace_options.hpp"

#include "lab/names.hpp"

namespace kvtwin {

TraceOptions TraceArguments::chosen() const {
  TraceOptions result = options;
  result.format = checked_name("format", format, trace_format_names(), "--format");
  return result;
}

void add_trace_options(CLI::App& command, TraceArguments& arguments, const std::string& block_tokens) {
  TraceOptions& options = arguments.options;
  command
      .add_option("--format", arguments.format,
                  "Format of the trace; auto = detected from the first line [" + one_of(trace_format_names()) + "]")
      ->capture_default_str();
  command
      .add_option(block_tokens, options.block_tokens,
                  "Tokens per block id of the trace (default: the format's own value, 512 for mooncake); for qwen and "
                  "agentic a multiple of the format's own value, which joins blocks")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 31));
  command.add_option(
      "--shared-tokens", options.shared_tokens,
      "azure, burstgpt: number of tokens at the start of each prompt that all prompts share; these traces only "
      "have lengths (default: 0)");
  command
      .add_option("--session-gap", options.session_gap_seconds,
                  "agentic: mean time between the starts of two sessions, in seconds; the starts are drawn")
      ->check(CLI::Range(1e-6, 1e6))
      ->capture_default_str();
}

}  // namespace kvtwin
