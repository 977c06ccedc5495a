// The journal: one engine's stream of inputs as bytes, and after each input how far its decisions had come.
// From it alone a fresh engine decides again (replay.hpp). Everything is little-endian and without gaps:
//
//   header   8 magic | u32 version | u32 text bytes | 32 SHA-256 of the text | u32 check | text | u32 check
//   record   u32 payload bytes | u32 type | u64 number | u32 check | payload | u32 check
//   payload  i64 now | u64 decisions | u64 digest, and by type:
//     1 arrival     u64 request | u64 prompt | u64 output | u64 session | i32 priority | u32 keys | 32 each key
//     2 hint        u64 subject | i64 value | u32 kind
//     3 completion  u64 id | u64 bytes | u64 steps | i64 stalled | u64 pages | u32 status | u32 cause
//     4 timer       u64 id
//     5 reduction   u64 id | u32 values | i64 each; in version 2: u64 id | 16 i64
//     6 end         nothing; the last record of a run that came to its end
//
// Records are numbered 1, 2, 3 ...; the header is record 0. Each check covers the bytes since the one before
// it and depends on all earlier ones, so records can't be altered, swapped, dropped or taken from another
// journal; a length has its own check, so a killed run (truncated) is never mistaken for damage (corrupt). A
// journal without its end record is truncated too, wherever it was cut; bytes after that record are damage.
// The text is the caller's: by custom the resolved experiment, from which the engine's configuration is made.
//
// Version 3 is written. Version 2 is read too: there a reduction always has 16 values, zeros behind those of the
// engine.
//
// No I/O here: the writer hands bytes to a sink, the reader looks at bytes in memory. The writer fails by
// KV_CHECK on inputs that break the seam's field ranges; the reader takes any bytes at all.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "policy/base/types.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

constexpr std::uint32_t kJournalVersion = 3;                    // that is written
constexpr std::uint32_t kJournalVersionOldest = 2;              // that is read
constexpr std::size_t kJournalTextMost = std::size_t{1} << 24;  // bytes
constexpr std::size_t kJournalKeysMost = std::size_t{1} << 26;  // of one arrival
// So that no sum of a request's tokens wraps.
constexpr Tokens kJournalTokensMost = Tokens{1} << 62;

// In the order of Input::what.
enum class InputKind : std::uint8_t { arrival, hint, completion, timer, reduction };
InputKind kind_of(const Input& input);
std::string_view name_of(InputKind kind);

// How far an engine's decisions have come: DecisionLog's count and digest.
struct DecisionMark {
  std::uint64_t count = 0;
  std::uint64_t digest = 0;
  friend bool operator==(const DecisionMark&, const DecisionMark&) = default;
};

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  // The bytes are borrowed for the call. One call a record, so a sink that keeps whole calls keeps whole records.
  virtual void write(std::span<const std::byte> bytes) = 0;
};

// Allocates only when a record is longer than all before it.
class JournalWriter {
 public:
  // Writes the header. The sink outlives the writer.
  JournalWriter(ByteSink& sink, std::string_view text);
  // `after`: the decisions once the input was handled.
  void append(const Input& input, const DecisionMark& after);
  // The run is over: no input follows, and none has been decided on since the last. Once.
  void finish(TimeNs now, const DecisionMark& after);
  std::uint64_t records() const { return records_; }  // inputs, without the header and the end

 private:
  // Room for a record in the buffer, its head and the common payload filled in; where the rest begins.
  std::byte* open(std::uint32_t type, std::size_t payload_bytes, TimeNs now, const DecisionMark& after);
  void close();

  ByteSink& sink_;
  std::vector<std::byte> buffer_;
  std::uint64_t records_ = 0;
  std::uint64_t check_ = 0;
  TimeNs last_now_ = 0;
  DecisionMark last_mark_;
  bool finished_ = false;
};

enum class JournalStatus : std::uint8_t {
  record,
  end,            // the end record has been read, and nothing follows it
  truncated,      // the bytes end before it: the run was killed, or is still writing
  corrupt,        // a check, a number or a field's range is wrong; nothing after it is read
  wrong_version,  // a journal, but of no version that is read
};
std::string_view name_of(JournalStatus status);

struct JournalRecord {
  std::uint64_t number = 0;
  Input input;  // its spans live until the reader's next call
  DecisionMark after;
};

// Which record, and where its first byte lies.
struct JournalPlace {
  std::uint64_t number = 0;
  std::size_t offset = 0;
  friend bool operator==(const JournalPlace&, const JournalPlace&) = default;
};

class JournalReader {
 public:
  // Borrowed for the reader's life, or until extend.
  explicit JournalReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  // The same journal, grown; it may lie elsewhere now. After `truncated`, next goes on.
  void extend(std::span<const std::byte> bytes);

  // Reads the header if that hasn't been done; `record` when it is there. next does the same first.
  JournalStatus header();
  // Of a header that was read.
  std::string_view text() const;
  const std::array<std::byte, 32>& text_digest() const { return text_digest_; }

  JournalStatus next(JournalRecord& record);
  // The record that the last call returned, or stopped at.
  const JournalPlace& place() const { return place_; }
  // What the record there says it is; not checked if it is damaged.
  std::string_view kind_here() const;
  // Of the last record that was read, the end included.
  TimeNs last_now() const { return last_now_; }

 private:
  JournalStatus stop(JournalStatus status);
  JournalStatus parse_header();
  JournalStatus parse_record(JournalRecord& record);
  bool parse_end(const std::byte* payload);
  bool parse_payload(InputKind kind, const std::byte* payload, std::size_t size, JournalRecord& record);

  std::span<const std::byte> bytes_;
  JournalPlace place_;
  JournalPlace ahead_;                             // the next record to read
  JournalStatus stopped_ = JournalStatus::record;  // corrupt or wrong_version for good
  std::uint64_t check_ = 0;
  std::uint32_t version_ = kJournalVersion;
  std::size_t text_bytes_ = 0;
  std::array<std::byte, 32> text_digest_{};
  TimeNs last_now_ = 0;
  DecisionMark last_mark_;
  JournalPlace end_;  // of the end record, once it has been read
  std::vector<PageKey> keys_;
};

}  // namespace kvtwin
