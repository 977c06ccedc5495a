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
                  "Of the trace; auto: told from its first line [" + one_of(trace_format_names()) + "]")
      ->capture_default_str();
  command
      .add_option(block_tokens, options.block_tokens,
                  "Tokens of a block id (default: the trace's own, 512 for Mooncake); joins the smaller ones of qwen "
                  "and agentic")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 31));
  command.add_option("--shared-tokens", options.shared_tokens,
                     "azure, burstgpt: tokens that all prompts begin with; the files don't say");
  command
      .add_option("--session-gap", options.session_gap_seconds,
                  "agentic: mean seconds between the starts of sessions, which are drawn")
      ->check(CLI::Range(1e-6, 1e6))
      ->capture_default_str();
}

}  // namespace kvtwin
