// Requests as they come out of a trace file or a generator, one at a time and in order of time.
//
// Files are lines, plain, gzip or zstd (windows up to 2^31 bytes); which one is told from the first bytes, and the
// format from the first line, never from the name. Blank lines are skipped. Formats, by their names:
//   mooncake    JSON lines as Mooncake publishes them, and what TraceWriter writes; see below
//   qwen        Qwen-Bailian's JSON lines (chat_id, parent_chat_id, ..., hash_ids of 16 tokens); traces/format/qwen.cpp
//   agentic     WEKA's sessions of coding agents (requests in a line, hash_ids or hash_runs); traces/format/agentic.cpp
//   azure       Azure's CSV, and
//   burstgpt    BurstGPT's: times and lengths, prefixes made up; traces/lengths.hpp
//   token_ids   JSON lines with the prompts' token ids, of which salted hashes are kept; traces/format/token_ids.cpp
//   sglang      SGLang's request log, level 3, in JSON; the same; traces/format/sglang.cpp
// A file's times may count from any moment (1970, say): a reader returns times that count from the file's first
// request, or from a hint before it.
//
// A line of Mooncake's holds
//   timestamp       ms, integer or decimal (a decimal is read as an IEEE double and rounded to
//                   the nearest ns), never less than the line before
//   input_length    tokens, >= 1
//   output_length   tokens; 0 is served as 1, because a request always makes one token
//   hash_ids        one id per started block of `block_tokens` input tokens: exactly ceil(input / block_tokens)
// and optionally
//   session         integer or string; 0 is a session like any other (it travels as 2^63, because 0 is "none" here)
//   turn            integer
//   tenant, type    integer or string; 0 is the same as absent. Tenants never share a page
//   priority        integer of 32 bits, larger matters more
//   think_time      ms between the answer before it in its session and this request, for closed loops
// A string is carried as a 64-bit hash with its top bit set. A hint line is told by its key `hint`:
//   {"timestamp": ms, "hint": "session_end|tool_call_pending|pin|unpin", "session": S, "value": integer, default 0}
// Other keys are ignored and counted, so that richer traces can be read; a key given twice is refused.
//
// Memory: one read buffer, one line (at most max_line_bytes) with its parse, and what the decompressor needs (a
// zstd frame may ask for its window); never the file. Errors: TraceError, one sentence with file, line and key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "policy/base/types.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

class TraceError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr std::uint64_t kSessionZero = std::uint64_t{1} << 63;
constexpr Tokens kMaxTraceTokens = 1'000'000'000;  // of one request's input or output

// A request, or a hint if is_hint: then only arrival and hint hold anything.
struct TraceRequest {
  TimeNs arrival = 0;                 // since the trace's first request
  Tokens input = 0;                   // >= 1
  Tokens output = 0;                  // >= 1
  std::vector<std::uint64_t> blocks;  // ids of the input's blocks, the last one maybe in part
  std::uint64_t session = 0;          // 0 = none
  std::uint64_t turn = 0;
  std::uint64_t tenant = 0;  // 0 = the default one
  std::int32_t priority = 0;
  std::uint64_t type = 0;  // 0 = none
  TimeNs think = -1;       // from the answer before it in its session to its arrival; below 0: not known
  bool is_hint = false;
  Hint hint;

  // Back to the state above, keeping the memory of `blocks`.
  void clear();
};

class TraceSource {
 public:
  virtual ~TraceSource() = default;
  // Fills `request` and returns true, or returns false at the end. Hand in the same object again and again:
  // its memory is reused.
  virtual bool next(TraceRequest& request) = 0;
  // Tokens of a block.
  virtual Tokens block_tokens() const = 0;
  // How much of it has been read, 0 .. 1, for progress; 0 = not known.
  virtual double fraction_read() const { return 0; }
  // What a reader of results must know of it: what was made up, assumed or passed over, so far. Sentences without a
  // full stop.
  virtual std::vector<std::string> notes() const { return {}; }
};

// "auto", "mooncake", ... in the order above; formats that a build adds follow.
std::span<const std::string_view> trace_format_names();

struct TraceOptions {
  std::string format = "auto";  // a name of trace_format_names()
  // Tokens of a block, 1 .. 2^31; 0: the format's own, which is 512 (mooncake), 16 (qwen), the file's (agentic) or 64.
  // For mooncake it is what an id of the file stands for; for qwen and agentic a multiple of their own.
  Tokens block_tokens = 0;
  Tokens shared_tokens = 0;         // azure, burstgpt: of each prompt's beginning, the same in all; whole blocks of it
  double session_gap_seconds = 30;  // agentic: mean time between the starts of two sessions; 1e-6 .. 1e6
  std::uint64_t seed = 1;           // agentic: of the starts
  std::string salt;                 // token_ids, sglang: of the hashes; empty: one that everybody knows
  std::size_t max_line_bytes = std::size_t{16} << 20;
  Tokens max_input_tokens = Tokens{1} << 24;  // where the file doesn't list a prompt's blocks one by one
  int max_window_log = 31;                    // of zstd frames: the decoder holds at most 2^this bytes; 10 .. 31
};

class TraceReader final : public TraceSource {
 public:
  // Looks at the first line. TraceError.
  explicit TraceReader(const std::string& path, const TraceOptions& options = {});
  // The same over bytes in memory, which must outlive the reader; `name` stands in messages.
  TraceReader(const std::string& name, std::span<const char> bytes, const TraceOptions& options = {});
  ~TraceReader() override;

  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override;
  double fraction_read() const override;
  std::vector<std::string> notes() const override;

  std::string_view format() const;     // as told, never "auto"
  std::uint64_t line() const;          // the last one read, from 1
  std::uint64_t ignored_keys() const;  // so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Writes the format above; block ids and integers as they are. The name's end picks the compression: .zst, .gz,
// else none. finish() flushes and reports a full disk; without it the file is not complete.
class TraceWriter {
 public:
  explicit TraceWriter(const std::string& path);
  ~TraceWriter();

  void write(const TraceRequest& request);
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin
