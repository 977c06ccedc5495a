// The journal: one engine's inputs as bytes, and after each input the count and digest of its decisions. A new engine
// can decide again from the journal alone (replay.hpp). Little-endian, without gaps:
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
// Records are numbered 1, 2, 3 ...; the header is record 0. Each check covers the bytes since the check before, and
// depends on all earlier checks. So records cannot be altered, swapped, dropped or taken from another journal. A length
// has its own check, so a killed run (truncated) is never taken for damage (corrupt). A journal without its end record
// is truncated too, wherever it was cut. Bytes after the end record are damage. The text belongs to the caller: by
// convention the resolved experiment, from which the engine's configuration is made.
//
// Version 3 is written. Version 2 is read too: there, a reduction always has 16 values, with zeros after the engine's
// own.
//
// No I/O here: the writer passes bytes to a sink, the reader reads bytes in memory. Errors: the writer fails by
// KV_CHECK on inputs outside the seam's field ranges. The reader accepts any bytes.
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

constexpr std::uint32_t kJournalVersion = 3;                        // the version that is written
constexpr std::uint32_t kOldestJournalVersion = 2;                  // the oldest version that is read
constexpr std::size_t kMaxJournalTextBytes = std::size_t{1} << 24;  // bytes
constexpr std::size_t kMaxJournalKeys = std::size_t{1} << 26;       // of one arrival
// So that no sum of a request's tokens overflows.
constexpr Tokens kMaxJournalTokens = Tokens{1} << 62;

// In the order of Input::what.
enum class InputKind : std::uint8_t { arrival, hint, completion, timer, reduction };
InputKind kind_of(const Input& input);
std::string_view name_of(InputKind kind);

// The state of an engine's decisions: DecisionLog's count and digest.
struct DecisionMark {
  std::uint64_t count = 0;
  std::uint64_t digest = 0;
  friend bool operator==(const DecisionMark&, const DecisionMark&) = default;
};

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  // The bytes are borrowed for the call. There is one call per record, so a sink that keeps whole calls keeps whole
  // records.
  virtual void write(std::span<const std::byte> bytes) = 0;
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
  // Makes room for a record in the buffer, fills in its head and the common payload, and returns where the rest begins.
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
  truncated,      // the bytes end before the end record: the run was killed, or is still writing
  corrupt,        // a check, a number or a field's range is wrong; nothing after it is read
  wrong_version,  // a journal of a version that this program does not read
};
std::string_view name_of(JournalStatus status);

struct JournalRecord {
  std::uint64_t number = 0;
  Input input;  // its spans are valid until the reader's next call
  DecisionMark after;
};

// The number of a record, and the offset of its first byte.
struct JournalPlace {
  std::uint64_t number = 0;
  std::size_t offset = 0;
  friend bool operator==(const JournalPlace&, const JournalPlace&) = default;
};

class JournalReader {
 public:
  // The bytes are borrowed for the reader's life, or until extend().
  explicit JournalReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  // Replaces the bytes by a longer version of the same journal, which may be at another address. After `truncated`,
  // next() continues.
  void extend(std::span<const std::byte> bytes);

  // Reads the header, if this has not been done. Returns `record` if the header is valid. next() reads the header
  // first, too.
  JournalStatus header();
  // Require a header that was read.
  std::string_view text() const;
  const std::array<std::byte, 32>& text_digest() const { return text_digest_; }

  JournalStatus next(JournalRecord& record);
  // The record that the last call returned, or at which it stopped.
  const JournalPlace& place() const { return place_; }
  // The kind that the record at place() claims to be. Not checked if the record is damaged.
  std::string_view kind_here() const;
  // Time of the last record that was read, including the end record.
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
  JournalStatus stopped_ = JournalStatus::record;  // corrupt or wrong_version: final
  std::uint64_t check_ = 0;
  std::uint32_t version_ = kJournalVersion;
  std::size_t text_bytes_ = 0;
  std::array<std::byte, 32> text_digest_{};
  TimeNs last_now_ = 0;
  DecisionMark last_mark_;
  JournalPlace end_;  // place of the end record, after it was read
  std::vector<PageKey> keys_;
};

}  // namespace kvtwin
