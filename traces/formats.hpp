// The formats behind TraceReader, each a reader of lines. Internal to traces/.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "traces/lines.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

class FormatReader {
 public:
  virtual ~FormatReader() = default;
  virtual bool next(TraceRequest& request) = 0;
  virtual Tokens block_tokens() const = 0;
  // True if block_tokens() is the file's, whatever the options say.
  virtual bool has_own_blocks() const { return false; }
  virtual void add_notes(std::vector<std::string>& /*notes*/) const {}
  virtual std::uint64_t ignored_keys() const { return 0; }
};

// Each throws TraceError on its first line's faults. `lines` outlives the reader.
std::unique_ptr<FormatReader> make_mooncake_reader(TraceLines& lines, const TraceOptions& options);
std::unique_ptr<FormatReader> make_qwen_reader(TraceLines& lines, const TraceOptions& options);
std::unique_ptr<FormatReader> make_agentic_reader(TraceLines& lines, const TraceOptions& options);
std::unique_ptr<FormatReader> make_azure_reader(TraceLines& lines, const TraceOptions& options);
std::unique_ptr<FormatReader> make_burstgpt_reader(TraceLines& lines, const TraceOptions& options);
std::unique_ptr<FormatReader> make_token_ids_reader(TraceLines& lines, const TraceOptions& options);
std::unique_ptr<FormatReader> make_sglang_reader(TraceLines& lines, const TraceOptions& options);

// The message of a line that one of SGLang's loggers wrote: what follows `[2026-11-24 04:42:12] `, or
// `[2026-11-24 04:42:12 TP0] `. The whole line if it has no such prefix.
std::string_view past_log_prefix(std::string_view line);

constexpr Tokens kMooncakeBlockTokens = 512;
constexpr Tokens kLargestBlock = Tokens{1} << 31;
// Ids of blocks that are one request's alone lie from here on; a file's own ids lie below where the format says so.
constexpr std::uint64_t kPrivateBlocks = std::uint64_t{1} << 63;

}  // namespace kvtwin
