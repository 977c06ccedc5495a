// Reads Qwen-Bailian's JSON lines: one chat request per line, with prefix hashes of 16 tokens.
//   chat_id, parent_chat_id   integers; a negative parent: the chat has no parent
//   timestamp                 seconds
//   input_length, output_length, hash_ids; optional turn, type
// A request's session is the root of the chain of parents. The reader remembers the last 2^20 chats. A parent that the
// reader does not know is a root.
#include <deque>
#include <limits>
#include <string>
#include <unordered_map>

#include "traces/fields.hpp"
#include "traces/format.hpp"

namespace kvtwin {
namespace {

constexpr Tokens kQwenBlockTokens = 16;
constexpr std::size_t kMaxRememberedChats = std::size_t{1} << 20;

class QwenReader final : public FormatReader {
 public:
  QwenReader(TraceLines& lines, const TraceOptions& options) : lines_(lines), parser_(options.max_line_bytes + 1) {}

  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return kQwenBlockTokens; }
  bool has_own_blocks() const override { return true; }
  void add_notes(std::vector<std::string>& notes) const override;

 private:
  JsonValue required(const JsonObject& object, std::string_view key) const;
  void read_blocks(const JsonObject& object, TraceRequest& request);
  std::uint64_t root_of(std::int64_t chat, std::int64_t parent);

  TraceLines& lines_;
  simdjson::dom::parser parser_;
  std::unordered_map<std::int64_t, std::int64_t> roots_;  // chat -> root; never iterated
  std::deque<std::int64_t> chats_;                        // the keys of roots_, oldest first
  std::uint64_t orphans_ = 0, next_private_ = kPrivateBlocks;
};

JsonValue QwenReader::required(const JsonObject& object, std::string_view key) const {
  JsonValue value;
  if (object.at_key(key).get(value) != simdjson::SUCCESS) {
    lines_.fail(key,
                "is missing; a Qwen-Bailian request needs chat_id, parent_chat_id, timestamp, input_length, "
                "output_length and hash_ids");
  }
  return value;
}

bool QwenReader::next(TraceRequest& request) {
  std::string_view text;
  if (!lines_.next(text)) return false;
  request.clear();
  const JsonObject object = json_line(lines_, parser_, text);
  pass_over_unknown(
      object, "",
      {"chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids", "turn", "type"},
      passed_over_);
  using Int64 = std::numeric_limits<std::int64_t>;
  const std::int64_t chat = integer_field(lines_, "chat_id", required(object, "chat_id"), 0, Int64::max());
  const std::int64_t parent =
      integer_field(lines_, "parent_chat_id", required(object, "parent_chat_id"), Int64::min(), Int64::max());
  const std::uint64_t root = root_of(chat, parent);
  request.session = root == 0 ? kSessionZero : root;
  request.arrival = time_field(lines_, "timestamp", required(object, "timestamp"), kNsPerSecond);
  request.input = natural_field(lines_, "input_length", required(object, "input_length"), kMaxTraceTokens);
  request.output = natural_field(lines_, "output_length", required(object, "output_length"), kMaxTraceTokens);
  JsonValue value;
  if (object.at_key("turn").get(value) == simdjson::SUCCESS) {
    request.turn = natural_field(lines_, "turn", value, std::numeric_limits<std::uint64_t>::max());
  }
  if (object.at_key("type").get(value) == simdjson::SUCCESS) request.type = id_field(lines_, "type", value);
  read_blocks(object, request);
  return true;
}

// A partial last block may have an id in the file. If not, the block gets a private id.
void QwenReader::read_blocks(const JsonObject& object, TraceRequest& request) {
  if (request.input == 0) lines_.fail("input_length", "is 0; a request has at least 1 input token");
  ids_field(lines_, "hash_ids", required(object, "hash_ids"), kPrivateBlocks - 1, request.blocks);
  const Tokens full = request.input / kQwenBlockTokens;
  const Tokens started = (request.input - 1) / kQwenBlockTokens + 1;
  if (request.blocks.size() != full && request.blocks.size() != started) {
    lines_.fail("hash_ids", "holds " + std::to_string(request.blocks.size()) + " ids, but input_length " +
                                std::to_string(request.input) + " needs " + std::to_string(started) +
                                " blocks of 16 tokens");
  }
  if (request.blocks.size() < started) request.blocks.push_back(next_private_++);
}

std::uint64_t QwenReader::root_of(std::int64_t chat, std::int64_t parent) {
  std::int64_t root = chat;
  if (parent >= 0 && parent != chat) {
    const auto found = roots_.find(parent);
    // If the parent is older than the trace, every chat that continues the parent has this root.
    root = found == roots_.end() ? parent : found->second;
    orphans_ += found == roots_.end() ? 1 : 0;
  }
  if (roots_.emplace(chat, root).second) chats_.push_back(chat);
  if (chats_.size() > kMaxRememberedChats) {
    roots_.erase(chats_.front());
    chats_.pop_front();
  }
  return static_cast<std::uint64_t>(root);
}

void QwenReader::add_notes(std::vector<std::string>& notes) const {
  if (orphans_ > 0) {
    notes.push_back("trace: " + std::to_string(orphans_) +
                    " requests continue a chat that isn't in it (or is more than 2^20 chats back): their sessions "
                    "begin with it");
  }
}

}  // namespace

int matches_qwen(const FirstLine& line) {
  return (line.has("hint") || line.has("hash_ids")) && line.has("chat_id") ? 5 : 0;
}

std::unique_ptr<FormatReader> make_qwen_reader(TraceLines& lines, const TraceOptions& options) {
  return std::make_unique<QwenReader>(lines, options);
}

}  // namespace kvtwin
