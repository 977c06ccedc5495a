// Framed records: what the journals (journal.hpp, policy/hosted/call_journal.hpp) have in common. Little-endian,
// without gaps:
//
//   header   8 magic | u32 version | u32 text bytes | 32 SHA-256 of the text | u32 check | text | u32 check
//   record   u32 payload bytes | u32 type | u64 number | u32 check | payload | u32 check
//
// Records are numbered 1, 2, 3 ...; the header is record 0. Each check covers the bytes since the check before, and
// depends on all earlier checks. So records cannot be altered, swapped, dropped or taken from another journal. A length
// has its own check, so a killed run (truncated) is never taken for damage (corrupt). The last record has the type of
// the end; bytes after it are damage.
//
// No I/O here: the writer passes bytes to a sink, the reader reads bytes in memory. The reader accepts any bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kvtwin {

constexpr std::size_t kMaxJournalTextBytes = std::size_t{1} << 24;  // bytes

// The first eight bytes of a file.
using JournalMagic = std::array<std::byte, 8>;

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  // The bytes are borrowed for the call. There is one call per record, so a sink that keeps whole calls keeps whole
  // records.
  virtual void write(std::span<const std::byte> bytes) = 0;
};

// Memory: allocates only for a record that is longer than all before it.
class FrameWriter {
 public:
  // Writes the header. Requires: the sink outlives the writer.
  FrameWriter(ByteSink& sink, const JournalMagic& magic, std::uint32_t version, std::string_view text);
  // Makes room for a record in the buffer, and returns where its payload begins.
  std::byte* open(std::uint32_t type, std::size_t payload_bytes);
  void close();

 private:
  ByteSink& sink_;
  std::vector<std::byte> buffer_;
  std::uint64_t number_ = 0;  // of the last record
  std::uint64_t check_ = 0;
};

enum class JournalStatus : std::uint8_t {
  record,
  end,            // the end record has been read, and nothing follows it
  truncated,      // the bytes end before the end record: the run was killed, or is still writing
  corrupt,        // a check, a number or a field's range is wrong; nothing after it is read
  wrong_version,  // a journal of a version that this program does not read
};
std::string_view name_of(JournalStatus status);

// The number of a record, and the offset of its first byte.
struct JournalPlace {
  std::uint64_t number = 0;
  std::size_t offset = 0;
  friend bool operator==(const JournalPlace&, const JournalPlace&) = default;
};

// What a kind of journal has.
struct FrameForm {
  JournalMagic magic{};
  std::uint32_t oldest_version = 1, version = 1;  // that are read
  std::uint32_t end_type = 1;
  std::uint32_t max_type = 1;  // the largest type
  // Returns whether a payload of this type and version may have so many bytes.
  bool (*may_have)(std::uint32_t type, std::uint32_t version, std::size_t payload_bytes) = nullptr;
};

class FrameReader {
 public:
  // The bytes are borrowed for the reader's life, or until extend().
  FrameReader(std::span<const std::byte> bytes, const FrameForm& form) : bytes_(bytes), form_(form) {}
  // Replaces the bytes by a longer version of the same journal, which may be at another address. After `truncated`,
  // peek() continues.
  void extend(std::span<const std::byte> bytes);
  // Reads the header, if this has not been done. Returns `record` if the header is valid.
  JournalStatus header();
  std::string_view text() const;  // requires a header that was read
  const std::array<std::byte, 32>& text_digest() const { return text_digest_; }
  std::uint32_t version() const { return version_; }

  struct Frame {
    std::uint32_t type = 0;
    std::span<const std::byte> payload;
  };
  // Returns `record` and the next frame, whose checks hold. Reads the header first, if this has not been done. The
  // caller then calls accept(), or refuse() if the payload's fields are out of range. Returns `end` behind an accepted
  // end frame.
  JournalStatus peek(Frame& frame);
  void accept();
  JournalStatus refuse() { return stopped_ = JournalStatus::corrupt; }

  // The record that the last peek() returned, or at which it stopped.
  const JournalPlace& place() const { return place_; }
  // The type that the record at place() claims to have; 0 for the header and where the bytes end. Not checked if the
  // record is damaged.
  std::uint32_t type_here() const;

 private:
  JournalStatus parse_header();

  std::span<const std::byte> bytes_;
  const FrameForm& form_;
  JournalPlace place_;
  JournalPlace ahead_;                             // the next record to read
  JournalPlace behind_;                            // the record after the one that peek() returned
  JournalPlace end_;                               // the end record, after it was accepted
  JournalStatus stopped_ = JournalStatus::record;  // corrupt or wrong_version: final
  std::uint64_t check_ = 0, check_behind_ = 0;
  std::uint32_t version_ = 0, type_ = 0;
  std::size_t text_bytes_ = 0;
  std::array<std::byte, 32> text_digest_{};
};

}  // namespace kvtwin
