// KV events of an inference engine: what SGLang and vLLM publish when pages enter and leave a tier of their cache.
//
// A message is three frames: topic, sequence number (8 bytes, big-endian, from 0), and a batch in MessagePack:
//   [time in seconds, [event, ...], data parallel rank or nil]
// An event is a map with the class name under "type", or (older vLLM) an array that begins with the class name:
//   BlockStored        block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, ...
//   BlockRemoved       block_hashes, medium
//   AllBlocksCleared
// A hash is an integer of 64 bits or bytes.
//
// The file kv_events.jsonl holds one JSON object per line:
//   {"type": "header", "version": 1, "endpoint": E, "topic": T}       the first line
//   {"seq": N, "ts": seconds, "rank": R, "type": "BlockStored", ...}  an event; its keys as above, absent if nil
//   {"type": "missing", "from": N, "to": M}                           messages N .. M were lost
//   {"type": "restart", "seq": N}                                     sequence numbers began again: another engine
//   {"type": "bad", "seq": N, "why": sentence}                        a message that could not be read
// A hash of bytes is the string "0x" and hex digits. A rank of nil is absent, and so are extra_keys that are all nil.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/json.hpp"
#include "traces/passed_over.hpp"

namespace kvtwin {

// An event of a message.
struct KvEventLine {
  std::string_view type;
  std::uint64_t blocks = 0;  // hashes that it names
  std::string_view json;     // a line of the file, without "seq"
};
using TakeKvEvent = std::function<void(const KvEventLine&)>;

// Decodes a payload and calls `take` with each event. Counts the keys that it does not read in `passed_over`. Returns
// why the payload is no batch, and then has called `take` for no event; or nothing. Any bytes are allowed. Memory: one
// line, at most 7 times the payload's size, whatever lengths it declares. `contents`: with token_ids and extra_keys,
// which tell what the prompts are.
std::string decode_kv_events(std::span<const std::uint8_t> payload, const TakeKvEvent& take, PassedOver& passed_over,
                             bool contents = true);

struct KvEventCounts {
  std::uint64_t messages = 0, bad = 0, missing = 0, restarts = 0;
  std::uint64_t stored_events = 0, stored_blocks = 0, removed_events = 0, removed_blocks = 0, cleared = 0;
  std::string first_problem;  // of the first bad message
  PassedOver passed_over;     // keys of events that are not read
};

// Writes kv_events.jsonl. Every message is flushed, so that a recording that is killed leaves whole lines, but for the
// last one.
class KvEventWriter {
 public:
  // Makes the folder. Errors: InputError if it holds a recording and `force` is false; WorkError.
  // `contents`: as in decode_kv_events().
  KvEventWriter(const std::filesystem::path& folder, const std::string& endpoint, const std::string& topic, bool force,
                bool contents = true);
  ~KvEventWriter();
  KvEventWriter(const KvEventWriter&) = delete;
  KvEventWriter& operator=(const KvEventWriter&) = delete;

  // Returns the sequence numbers, first and last, that are missing before `seq`; nothing if it is the next one, the
  // first one, or a restart.
  std::optional<std::array<std::uint64_t, 2>> missing_before(std::uint64_t seq) const;
  // Begins with sequence number 0: what is missing before the first message is missing.
  void expect_from_zero() { expected_ = 0; }
  // Writes a message; first the numbers that are missing before it. Errors: WorkError.
  void write(std::uint64_t seq, std::span<const std::uint8_t> payload);
  // Writes that the message could not be read, and why. Errors: WorkError.
  void write_unread(std::uint64_t seq, const std::string& why);
  void finish();

  const KvEventCounts& counts() const { return counts_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  void begin(std::uint64_t seq);
  void put(const Json& line);
  void put_line(std::string_view begin, std::string_view rest);
  void put_bad(std::uint64_t seq, const std::string& why);
  void count(const KvEventLine& event);

  std::filesystem::path path_;
  bool contents_;
  std::FILE* out_ = nullptr;
  std::optional<std::uint64_t> expected_;
  KvEventCounts counts_;
};

// A line of the file, in the order of the file.
struct KvEvent {
  enum class Kind : std::uint8_t { stored, removed, cleared, missing, restart, bad };
  Kind kind = Kind::stored;
  std::uint64_t line = 0;
  std::uint64_t seq = 0;
  std::uint64_t count = 0;             // missing: messages
  std::string medium;                  // as the engine wrote it; empty: none
  std::optional<std::uint64_t> group;  // of layers (vLLM's group_idx)
  std::string group_kind;              // stored: vLLM's kv_cache_spec_kind
  std::vector<std::string> hashes;
  std::optional<std::string> parent;
  std::uint64_t block_size = 0;
  std::vector<std::uint32_t> tokens;  // empty if the event has none, or pairs (draft models)
  std::string cache_salt, lora;       // lora: its name or id, as text
  std::uint64_t rank = 0;
};

class KvEventReader {
 public:
  // `path`: a file, or the folder that holds kv_events.jsonl. Errors: InputError.
  explicit KvEventReader(const std::filesystem::path& path);
  ~KvEventReader();
  KvEventReader(const KvEventReader&) = delete;
  KvEventReader& operator=(const KvEventReader&) = delete;

  // Returns false at the end. Errors: InputError with file and line.
  bool next(KvEvent& event);
  // The last line has no end: the recording was killed. Known at the end.
  bool is_cut() const { return cut_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  [[noreturn]] void fail(const std::string& why) const;
  bool read_line(std::string& line);

  std::filesystem::path path_;
  std::FILE* in_ = nullptr;
  std::uint64_t line_ = 0;
  bool cut_ = false;
};

// Parses one line; for tests. Errors: InputError, with `where` in front.
void parse_kv_event(const std::string& text, const std::string& where, KvEvent& event);

}  // namespace kvtwin
