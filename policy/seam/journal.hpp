// The journal: one engine's inputs as bytes, and after each input the count and digest of its decisions. A new engine
// can decide again from the journal alone (replay.hpp). Framed records (frames.hpp) with these payloads:
//
//   payload  i64 now | u64 decisions | u64 digest, and by type:
//     1 arrival     u64 request | u64 prompt | u64 output | u64 session | i32 priority | u32 keys | 32 each key |
//                   u32 part | u32 peer | u32 attempt | u64 system prompt; before version 7 without the last, before
//                   version 4 without the last four
//     2 hint        u64 subject | i64 value | u32 kind
//     3 completion  u64 id | u64 bytes | u64 steps | i64 stalled | u64 pages | u32 status | u32 cause |
//                   u32 usable lengths | u64 each; before version 6 without the last two
//     4 timer       u64 id
//     5 reduction   u64 id | u32 values | i64 each; in version 2: u64 id | 16 i64
//     6 end         nothing; the last record of a run that came to its end
//     7 notice      u64 request | u64 first | u32 kind | u32 attempt | u32 peer | u32 slots | u32 each slot
//
// A journal without its end record is truncated, wherever it was cut. The text belongs to the caller: by convention the
// resolved experiment, from which the engine's configuration is made.
//
// Version 7 is written. Versions 2 to 6 are read too. Before version 5, no completion has the cause `lease`. Before
// version 4 there is one engine, and no notice. In version 2, a reduction always has 16 values, with zeros after the
// engine's own.
//
// Errors: the writer fails by KV_CHECK on inputs outside the seam's field ranges. The reader accepts any bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "policy/base/types.hpp"
#include "policy/seam/frames.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

constexpr std::uint32_t kJournalVersion = 7;                   // the version that is written
constexpr std::uint32_t kOldestJournalVersion = 2;             // the oldest version that is read
constexpr std::size_t kMaxJournalKeys = std::size_t{1} << 26;  // of one arrival
// So that no sum of a request's tokens overflows.
constexpr Tokens kMaxJournalTokens = Tokens{1} << 62;

// In the order of Input::what.
enum class InputKind : std::uint8_t { arrival, hint, completion, timer, reduction, notice };
InputKind kind_of(const Input& input);
std::string_view name_of(InputKind kind);

// The state of an engine's decisions: DecisionLog's count and digest.
struct DecisionMark {
  std::uint64_t count = 0;
  std::uint64_t digest = 0;
  friend bool operator==(const DecisionMark&, const DecisionMark&) = default;
};

// Memory: allocates only for a record that is longer than all before it.
class JournalWriter {
 public:
  // Writes the header. Requires: the sink outlives the writer.
  JournalWriter(ByteSink& sink, std::string_view text);
  // `after`: the decisions after the input was handled.
  void append(const Input& input, const DecisionMark& after);
  // The run is over: no input follows, and no decision was made since the last input. Call it once.
  void finish(TimeNs now, const DecisionMark& after);
  std::uint64_t records() const { return records_; }  // inputs; header and end are not counted

 private:
  // Begins a record, fills in the common payload, and returns where the rest begins.
  std::byte* open(std::uint32_t type, std::size_t payload_bytes, TimeNs now, const DecisionMark& after);

  FrameWriter frames_;
  std::uint64_t records_ = 0;
  TimeNs last_now_ = 0;
  DecisionMark last_mark_;
  bool finished_ = false;
};

struct JournalRecord {
  std::uint64_t number = 0;
  Input input;  // its spans are valid until the reader's next call
  DecisionMark after;
};

class JournalReader {
 public:
  // The bytes are borrowed for the reader's life, or until extend().
  explicit JournalReader(std::span<const std::byte> bytes);
  // Replaces the bytes by a longer version of the same journal, which may be at another address. After `truncated`,
  // next() continues.
  void extend(std::span<const std::byte> bytes) { frames_.extend(bytes); }

  // Reads the header, if this has not been done. Returns `record` if the header is valid. next() reads the header
  // first, too.
  JournalStatus header() { return frames_.header(); }
  // Require a header that was read.
  std::string_view text() const { return frames_.text(); }
  const std::array<std::byte, 32>& text_digest() const { return frames_.text_digest(); }

  JournalStatus next(JournalRecord& record);
  // The record that the last call returned, or at which it stopped.
  const JournalPlace& place() const { return frames_.place(); }
  // The kind that the record at place() claims to be. Not checked if the record is damaged.
  std::string_view kind_here() const;
  // Time of the last record that was read, including the end record.
  TimeNs last_now() const { return last_now_; }

 private:
  bool parse_end(const std::byte* payload);
  bool parse_payload(InputKind kind, const std::byte* payload, std::size_t size, JournalRecord& record);

  FrameReader frames_;
  TimeNs last_now_ = 0;
  DecisionMark last_mark_;
  std::vector<PageKey> keys_;
  std::vector<SlotId> slots_;
  std::vector<Pages> usable_;
};

}  // namespace kvtwin
