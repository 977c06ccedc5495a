// The KV events of an engine as values, and a reader of the recordings that `kvtwin record` writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "policy/base/types.hpp"

namespace kvtwin {

class TraceLines;

// A block id of an engine's hash. The top bit is free, for blocks that only one request has.
std::uint64_t event_block(std::uint64_t hash);
// The same for a hash of bytes, written as "0x" and hex digits.
std::uint64_t event_block(std::string_view hex);

// An event of an engine. The texts and lists need to live as long as the call that takes it.
struct BlockEvent {
  // missing: messages were lost; restart: another engine; other: a line that says nothing about blocks.
  enum class Kind : std::uint8_t { stored, removed, cleared, missing, restart, bad, other };
  Kind kind = Kind::stored;
  std::uint64_t count = 0;  // missing: messages
  TimeNs time = 0;
  std::uint64_t rank = 0;
  std::string_view medium;             // "GPU" or empty: the device
  std::optional<std::uint64_t> group;  // of layers
  std::string_view group_kind;
  Tokens group_window = 0;                // tokens of a sliding window; 0: none
  Tokens block_tokens = 0;                // stored
  std::span<const std::uint64_t> blocks;  // event_block() of each
  std::optional<std::uint64_t> parent;    // the block above the first one
  std::optional<std::string_view> session, lora;

  bool is_of_device() const { return medium.empty() || medium == "GPU"; }
};

// Reads the lines of a recording. Errors: TraceError.
class BlockEventLines {
 public:
  static constexpr std::uint64_t kMaxRank = 63;

  BlockEventLines(TraceLines& lines, std::size_t max_line_bytes);
  ~BlockEventLines();
  BlockEventLines(const BlockEventLines&) = delete;
  BlockEventLines& operator=(const BlockEventLines&) = delete;

  // Returns false at the end. The event's texts and lists are valid until the next call.
  bool next(BlockEvent& event);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A recording in a file, plain, gzip or zstd.
class BlockEventFile {
 public:
  explicit BlockEventFile(const std::string& path);
  ~BlockEventFile();
  BlockEventFile(const BlockEventFile&) = delete;
  BlockEventFile& operator=(const BlockEventFile&) = delete;

  bool next(BlockEvent& event) { return events_->next(event); }
  std::uint64_t line() const;  // number of the line that was read last
  // Throws the error of the line that was read last.
  [[noreturn]] void fail(std::string_view key, std::string_view what) const;

 private:
  std::unique_ptr<TraceLines> lines_;
  std::unique_ptr<BlockEventLines> events_;
};

}  // namespace kvtwin
