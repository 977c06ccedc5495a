#include "traces/block_events.hpp"

#include <vector>

#include "traces/byte_stream.hpp"
#include "traces/fields.hpp"
#include "traces/format.hpp"
#include "traces/lines.hpp"
#include "traces/random.hpp"

namespace kvtwin {

std::uint64_t event_block(std::uint64_t hash) { return mix64(hash) & ~kPrivateBlocks; }
std::uint64_t event_block(std::string_view hex) { return string_id(hex) & ~kPrivateBlocks; }

struct BlockEventLines::State {
  State(TraceLines& from, std::size_t max_line_bytes) : lines(from), parser(max_line_bytes + 1) {}

  bool next(BlockEvent& event);
  JsonValue required(const JsonObject& object, std::string_view key) const;
  std::uint64_t hash(std::string_view key, const JsonValue& value) const;
  void read_hashes(const JsonObject& event);
  void read_blocks(const JsonObject& line, BlockEvent& event);

  TraceLines& lines;
  simdjson::dom::parser parser;
  std::vector<std::uint64_t> hashes;
};

JsonValue BlockEventLines::State::required(const JsonObject& object, std::string_view key) const {
  JsonValue value;
  if (object.at_key(key).get(value) != simdjson::SUCCESS) lines.fail(key, "is missing; kvtwin record writes it");
  return value;
}

std::uint64_t BlockEventLines::State::hash(std::string_view key, const JsonValue& value) const {
  std::uint64_t number = 0;
  std::int64_t negative = 0;
  std::string_view text;
  if (value.get(number) == simdjson::SUCCESS) return event_block(number);
  if (value.get(negative) == simdjson::SUCCESS) return event_block(static_cast<std::uint64_t>(negative));
  if (value.get(text) == simdjson::SUCCESS && text.starts_with("0x")) return event_block(text);
  lines.fail(key, "must hold hashes: integers, or texts like \"0x1f\"");
}

void BlockEventLines::State::read_hashes(const JsonObject& event) {
  simdjson::dom::array array;
  if (required(event, "block_hashes").get(array) != simdjson::SUCCESS) lines.fail("block_hashes", "must be an array");
  hashes.clear();
  for (const JsonValue& value : array) hashes.push_back(hash("block_hashes", value));
}

bool BlockEventLines::State::next(BlockEvent& event) {
  using enum BlockEvent::Kind;
  std::string_view text, type;
  if (!lines.next(text)) return false;
  const JsonObject line = json_line(lines, parser, text);
  if (required(line, "type").get(type) != simdjson::SUCCESS) lines.fail("type", "must be a string");
  event = {};
  event.kind = type == "BlockStored"        ? stored
               : type == "BlockRemoved"     ? removed
               : type == "AllBlocksCleared" ? cleared
               : type == "missing"          ? missing
               : type == "restart"          ? restart
               : type == "bad"              ? bad
                                            : other;
  if (event.kind == missing) {
    const auto from = natural_field(lines, "from", required(line, "from"), UINT64_MAX - 1);
    const auto to = natural_field(lines, "to", required(line, "to"), UINT64_MAX - 1);
    if (to < from) lines.fail("to", "must be at least \"from\"");
    event.count = to - from + 1;
  }
  if (event.kind == stored || event.kind == removed) read_blocks(line, event);
  return true;
}

void BlockEventLines::State::read_blocks(const JsonObject& line, BlockEvent& event) {
  const auto text_of = [&](const char* key) {
    std::string_view text;
    return line.at_key(key).get(text) == simdjson::SUCCESS ? std::optional(text) : std::nullopt;
  };
  JsonValue value;
  event.time = time_field(lines, "ts", required(line, "ts"), kNsPerSecond);
  if (line.at_key("rank").get(value) == simdjson::SUCCESS) event.rank = natural_field(lines, "rank", value, kMaxRank);
  event.medium = text_of("medium").value_or("");
  if (line.at_key("group_idx").get(value) == simdjson::SUCCESS) {
    event.group = natural_field(lines, "group_idx", value, 1 << 20);
  }
  event.group_kind = text_of("kv_cache_spec_kind").value_or("");
  if (line.at_key("kv_cache_spec_sliding_window").get(value) == simdjson::SUCCESS && !value.is_null()) {
    event.group_window = natural_field(lines, "kv_cache_spec_sliding_window", value, kMaxTraceTokens);
  }
  read_hashes(line);
  event.blocks = hashes;
  if (event.kind == BlockEvent::Kind::removed) return;
  event.block_tokens = natural_field(lines, "block_size", required(line, "block_size"), kMaxBlockTokens);
  if (line.at_key("parent_block_hash").get(value) == simdjson::SUCCESS && !value.is_null()) {
    event.parent = hash("parent_block_hash", value);
  }
  event.session = text_of("session_id");
  event.lora = text_of("lora_name");
}

BlockEventLines::BlockEventLines(TraceLines& lines, std::size_t max_line_bytes)
    : state_(std::make_unique<State>(lines, max_line_bytes)) {}
BlockEventLines::~BlockEventLines() = default;
bool BlockEventLines::next(BlockEvent& event) { return state_->next(event); }

BlockEventFile::BlockEventFile(const std::string& path) {
  const TraceOptions options;
  try {
    lines_ = std::make_unique<TraceLines>(path, open_file_stream(path, options.max_window_log), options.max_line_bytes);
  } catch (const ByteStreamError& error) {
    throw TraceError("trace \"" + path + "\" " + error.what() + ".");
  }
  events_ = std::make_unique<BlockEventLines>(*lines_, options.max_line_bytes);
}
BlockEventFile::~BlockEventFile() = default;
std::uint64_t BlockEventFile::line() const { return lines_->number(); }

void BlockEventFile::fail(std::string_view key, std::string_view what) const { lines_->fail(key, what); }

}  // namespace kvtwin
