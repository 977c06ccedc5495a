// Reads requests from a trace file or a generator, one at a time and in order of time.
//
// A file consists of lines: plain, gzip, or zstd (windows of up to 2^31 bytes). The first bytes determine the
// compression, and the first line determines the format; the file name does not matter. Blank lines are skipped.
//
//   format      content                                                               description
//   mooncake    JSON lines of Mooncake's traces; TraceWriter writes this format       below
//   qwen        Qwen-Bailian's JSON lines, with hash_ids of 16 tokens                 traces/format/qwen.cpp
//   agentic     WEKA's sessions of coding agents, with hash_ids or hash_runs          traces/format/agentic.cpp
//   azure       Azure's CSV: times and lengths; block ids are generated               traces/lengths.hpp
//   burstgpt    BurstGPT's CSV: times and lengths; block ids are generated            traces/lengths.hpp
//   token_ids   JSON lines with token ids of prompts; block ids are salted hashes     traces/format/token_ids.cpp
//   sglang      SGLang's request log, level 3, JSON; block ids are salted hashes      traces/format/sglang.cpp
//   lmcache     LMCache's log of look-ups; block ids are hashes of LMCache's hashes   traces/format/lmcache.cpp
//   vllm        vLLM's log with requests at level DEBUG; block ids are salted hashes  traces/format/vllm.cpp
//   kv_events   kvtwin record's KV events; requests are inferred from stores          traces/format/kv_events.cpp
//   vllm_bench  result of vllm bench serve: times and lengths                         traces/format/vllm_bench.cpp
//
// The times of a file may count from any moment, for example from 1970. A reader returns times that count from the
// first request or hint of the file.
//
// Keys of a line of the mooncake format:
//   timestamp       ms, integer or decimal (rounded to the nearest ns); not less than on the previous line
//   input_length    tokens, >= 1
//   output_length   tokens; 0 becomes 1, because a request always makes one token
//   hash_ids        one id per started block of `block_tokens` input tokens: exactly ceil(input / block_tokens) ids
// Optional keys:
//   session         integer or string; 0 is a valid session (stored as 2^63, because 0 means "no session" in memory);
//                   or session_id, as AIPerf writes it
//   turn            integer
//   system_length   tokens of the system prompt, with which the input begins; 0 is the same as absent: not known
//   tenant, type    integer or string; 0 is the same as absent. Tenants never share a page
//   priority        32-bit integer; a larger value is more important
//   think_time      ms from the previous answer of the session to this request, for closed loops; or delay, as AIPerf
//                   writes it, which stands in place of the timestamp if the first line of the file has session_id
// A string is stored as a 64-bit hash with the top bit set. A line with the key `hint` is a hint:
//   {"timestamp": ms, "hint": HINT, "session": S, "value": N}
// HINT is session_end, tool_call_pending, pin, unpin, demote, prefetch or share.
// N is an integer of at least 0, and 0 unless given.
// Other keys are passed over and named in a note, so that traces with more keys can be read. A repeated key is an
// error.
//
// Memory: one read buffer, one line (at most max_line_bytes) and its parse, and the memory of the decompressor (for
// zstd up to the window that the frame needs); never the whole file. Errors: TraceError, one sentence with file, line
// and key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "policy/base/types.hpp"
#include "policy/seam/substrate.hpp"
#include "traces/drawn_traffic.hpp"

namespace kvtwin {

class ByteStream;

class TraceError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};
// One line is wrong. TraceReader::next() may be called again, and goes on behind this line if the format is one of
// lines; a format that is not one throws again, and TraceReader::line() is the same.
class TraceLineError : public TraceError {
  using TraceError::TraceError;
};

constexpr std::uint64_t kSessionZero = std::uint64_t{1} << 63;
constexpr Tokens kMaxTraceTokens = 1'000'000'000;  // limit for the input and for the output of one request

// Prompt tokens that the engine which wrote the trace found in its own cache. Only for comparisons with a simulation.
struct MeasuredHits {
  Tokens total = 0;
  bool by_tier = false;  // the tokens per tier below are known
  Tokens device = 0, host = 0, storage = 0;
};

// A request; or, if is_hint, a hint, of which only `arrival` and `hint` are used.
struct TraceRequest {
  TimeNs arrival = 0;                 // since the first line of the trace
  Tokens input = 0;                   // >= 1
  Tokens output = 0;                  // >= 1
  Tokens system = 0;                  // tokens of the system prompt, at the start of the input; 0: not known
  std::vector<std::uint64_t> blocks;  // ids of the input's blocks; the last block may be partial
  // Tokens at the end of the input that the cache of the trace's engine never holds (lmcache). `blocks` has ids for
  // them too, because the cache of another engine may hold them.
  Tokens uncached_end = 0;
  // Ids of the whole blocks that begin with token floor(input / block_tokens) * block_tokens of prompt and answer: a
  // partial last block of the input, completed by the answer, and the answer's blocks. Empty: not known.
  std::vector<std::uint64_t> answer_blocks;
  std::uint64_t session = 0;  // 0 = none
  std::uint64_t turn = 0;
  std::uint64_t tenant = 0;  // 0 = the default tenant
  std::int32_t priority = 0;
  std::uint64_t type = 0;  // 0 = none
  TimeNs think = -1;       // think time, from the previous answer of the session to `arrival`; below 0: unknown
  std::optional<MeasuredHits> measured_hits;
  TimeNs measured_latency = -1;  // from the arrival to the end of the answer; below 0: unknown
  bool is_hint = false;
  Hint hint;

  // Resets all fields to the values above. Keeps the memory of the block lists.
  void clear();
  // Returns the number of blocks of `tokens` tokens that a cache of started blocks may hold.
  std::uint64_t held_blocks(Tokens tokens) const {
    return uncached_end == 0 ? (input - 1) / tokens + 1 : (input - uncached_end) / tokens;
  }
};

// Requests of users, for a closed loop that takes a user's next request when the answer to the last one has come.
class UserTraffic {
 public:
  virtual ~UserTraffic() = default;
  virtual std::uint64_t users() const = 0;
  // Returns the arrival of the user's first request. Requires: next_of() was not called yet.
  virtual TimeNs first_of(std::uint64_t user) const = 0;
  // Returns the time from which on no request arrives; 0 = no limit.
  virtual TimeNs end() const = 0;
  // Fills `request` with the user's next request; `think` is the time from the user's last answer. Returns false if the
  // traffic has no request left.
  virtual bool next_of(std::uint64_t user, TraceRequest& request) = 0;
  // The closed loop has reached this time, to show progress.
  virtual void reached(TimeNs time) = 0;
};

class TraceSource {
 public:
  virtual ~TraceSource() = default;
  // Returns the conversations drawn so far; nothing if the source draws none from averages.
  virtual std::optional<DrawnTraffic> drawn() const { return std::nullopt; }
  // Returns the requests by user, if the source has users; otherwise null.
  virtual UserTraffic* user_traffic() { return nullptr; }
  // Fills `request` and returns true, or returns false at the end. A caller that passes the same object again and again
  // reuses the memory of the object.
  virtual bool next(TraceRequest& request) = 0;
  // Returns the number of tokens per block.
  virtual Tokens block_tokens() const = 0;
  // Returns the part of the trace that has been read, 0 .. 1, to show progress; 0 = unknown.
  virtual double fraction_read() const { return 0; }
  // Returns notes for readers of the results: everything that was generated, assumed or skipped so far. The sentences
  // have no full stop.
  virtual std::vector<std::string> notes() const { return {}; }
};

// Returns "auto" and the names of all formats, including formats that a build adds.
std::span<const std::string_view> trace_format_names();

struct TraceOptions {
  std::string format = "auto";  // a name of trace_format_names()
  // Tokens per block, 1 .. 2^31. 0: the format's default, which is 512 (mooncake), 16 (qwen), the block size in the
  // file (agentic, lmcache) or 64. mooncake: the number of tokens that one id of the file means. qwen, agentic,
  // lmcache: a multiple of the default; the reader joins blocks.
  Tokens block_tokens = 0;
  Tokens shared_tokens = 0;         // azure, burstgpt: length of the prefix that all prompts share, in whole blocks
  double session_gap_seconds = 30;  // agentic: mean time between the starts of two sessions; 1e-6 .. 1e6
  std::uint64_t seed = 1;           // agentic: seed of the sessions' starts
  std::string salt;                 // token_ids, sglang, vllm: salt of the hashes; empty: a salt that is publicly known
  std::size_t max_line_bytes = std::size_t{16} << 20;
  Tokens max_input_tokens = Tokens{1} << 24;  // agentic, azure, burstgpt: the longest prompt
  // sglang, vllm: of a log that is being written; 0: the file is complete. A request is returned at the latest when the
  // log's own times are this far behind its arrival, and one that is logged later than this has the arrival of the one
  // before it. At ByteStream::is_silent(), next() returns the requests so far and then false; it may be called again.
  // If the first line is broken, next() throws its error first.
  TimeNs release_after = 0;
  TimeNs zone = 0;          // sglang: east of UTC, of dates that have no zone; tells TraceReader::begin() alone
  int max_window_log = 31;  // 10 .. 31: a zstd frame may need a window of 2^max_window_log bytes
};

class TraceReader final : public TraceSource {
 public:
  // Opens the file and detects the format from the first line. Errors: TraceError.
  explicit TraceReader(const std::string& path, const TraceOptions& options = {});
  // Reads from memory instead. Requires: `bytes` outlives the reader. Error messages name the file `name`.
  TraceReader(const std::string& name, std::span<const char> bytes, const TraceOptions& options = {});
  // Reads from a stream, for example of a file that grows.
  TraceReader(const std::string& name, std::unique_ptr<ByteStream> bytes, const TraceOptions& options);
  ~TraceReader() override;

  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override;
  double fraction_read() const override;
  std::vector<std::string> notes() const override;

  std::string_view format() const;     // the detected or given format, never "auto"
  TimeNs begin() const;                // the time of the first request or hint, as the file tells it
  bool has_local_dates() const;        // a date had no zone so far, and was taken to be of TraceOptions::zone
  std::uint64_t line() const;          // number of the last line that was read, counted from 1
  std::uint64_t ignored_keys() const;  // number so far; notes() names them

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Writes the mooncake format, with the block ids and integers unchanged. The end of the file name selects the
// compression: .zst, .gz, otherwise none. Call finish() at the end: finish() flushes, and throws TraceError if the disk
// is full. Without finish() the file is incomplete.
class TraceWriter {
 public:
  explicit TraceWriter(const std::string& path);
  ~TraceWriter();

  void write(const TraceRequest& request);
  // Writes what is kept back, so that a reader of a file without compression sees every request so far.
  void flush();
  std::uint64_t bytes() const;  // of the lines so far, before compression
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin
