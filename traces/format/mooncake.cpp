// Reads Mooncake's JSON lines. The header comment of trace.hpp describes the keys.
#include <algorithm>
#include <limits>
#include <string>

#include "traces/fields.hpp"
#include "traces/format.hpp"

namespace kvtwin {
namespace {

constexpr Tokens kMooncakeBlockTokens = 512;

// The known keys, as bits of MooncakeReader::seen_: to detect repeated and missing keys.
enum Key : unsigned {
  key_timestamp = 1U << 0,
  key_input_length = 1U << 1,
  key_output_length = 1U << 2,
  key_hash_ids = 1U << 3,
  key_session = 1U << 4,
  key_turn = 1U << 5,
  key_tenant = 1U << 6,
  key_priority = 1U << 7,
  key_type = 1U << 8,
  key_hint = 1U << 9,
  key_value = 1U << 10,
  key_think_time = 1U << 11,
};

struct KeyName {
  std::string_view name;
  Key key;
};
constexpr KeyName kKeys[] = {
    {"timestamp", key_timestamp},
    {"input_length", key_input_length},
    {"output_length", key_output_length},
    {"hash_ids", key_hash_ids},
    {"session", key_session},
    {"turn", key_turn},
    {"tenant", key_tenant},
    {"priority", key_priority},
    {"type", key_type},
    {"hint", key_hint},
    {"value", key_value},
    {"think_time", key_think_time},
};

struct HintName {
  std::string_view name;
  HintKind kind;
};
constexpr HintName kHints[] = {{"session_end", HintKind::session_end},
                               {"tool_call_pending", HintKind::tool_call_pending},
                               {"pin", HintKind::pin},
                               {"unpin", HintKind::unpin}};

class MooncakeReader final : public FormatReader {
 public:
  MooncakeReader(TraceLines& lines, const TraceOptions& options)
      : lines_(lines),
        block_tokens_(options.block_tokens == 0 ? kMooncakeBlockTokens : options.block_tokens),
        parser_(options.max_line_bytes + 1) {}

  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return block_tokens_; }
  std::uint64_t ignored_keys() const override { return ignored_; }

 private:
  void read_keys(const JsonObject& object, TraceRequest& request);
  void read_key(Key key, std::string_view name, const JsonValue& value, TraceRequest& request);
  void read_hint(const JsonValue& value, TraceRequest& request);
  void check_request(TraceRequest& request);
  void check_hint(TraceRequest& request);

  TraceLines& lines_;
  Tokens block_tokens_;
  simdjson::dom::parser parser_;
  std::uint64_t ignored_ = 0;
  unsigned seen_ = 0;  // the keys of this line, as bits of Key
};

bool MooncakeReader::next(TraceRequest& request) {
  std::string_view text;
  if (!lines_.next(text)) return false;
  request.clear();
  const JsonObject object = json_line(lines_, parser_, text);
  seen_ = 0;
  read_keys(object, request);
  if ((seen_ & key_timestamp) == 0) {
    lines_.fail("timestamp", "is missing; every line needs its time in milliseconds");
  }
  request.is_hint ? check_hint(request) : check_request(request);
  return true;
}

void MooncakeReader::read_keys(const JsonObject& object, TraceRequest& request) {
  for (const auto& [key, value] : object) {
    const std::string_view wanted = key;
    const auto* const known =
        std::find_if(std::begin(kKeys), std::end(kKeys), [&](const KeyName& k) { return k.name == wanted; });
    if (known == std::end(kKeys)) {
      ++ignored_;
      continue;
    }
    if ((seen_ & known->key) != 0) lines_.fail(known->name, "is given twice; once is right");
    seen_ |= known->key;
    read_key(known->key, known->name, value, request);
  }
}

void MooncakeReader::read_key(Key key, std::string_view name, const JsonValue& value, TraceRequest& request) {
  constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();
  using Int32 = std::numeric_limits<std::int32_t>;
  using Int64 = std::numeric_limits<std::int64_t>;
  switch (key) {
    case key_timestamp: request.arrival = time_field(lines_, name, value, kNsPerMs); break;
    case key_input_length: request.input = natural_field(lines_, name, value, kMaxTraceTokens); break;
    case key_output_length: request.output = natural_field(lines_, name, value, kMaxTraceTokens); break;
    case key_hash_ids: ids_field(lines_, name, value, kAny, request.blocks); break;
    case key_session: request.session = session_field(lines_, name, value); break;
    case key_think_time: request.think = time_field(lines_, name, value, kNsPerMs); break;
    case key_turn: request.turn = natural_field(lines_, name, value, kAny); break;
    case key_tenant: request.tenant = id_field(lines_, name, value); break;
    case key_type: request.type = id_field(lines_, name, value); break;
    case key_priority:
      request.priority = static_cast<std::int32_t>(integer_field(lines_, name, value, Int32::min(), Int32::max()));
      break;
    case key_value: request.hint.value = integer_field(lines_, name, value, Int64::min(), Int64::max()); break;
    case key_hint: read_hint(value, request); break;
  }
}

void MooncakeReader::read_hint(const JsonValue& value, TraceRequest& request) {
  std::string_view text;
  if (value.get(text) != simdjson::SUCCESS) text = {};
  const auto* const hint =
      std::find_if(std::begin(kHints), std::end(kHints), [&](const HintName& h) { return h.name == text; });
  if (hint == std::end(kHints)) {
    lines_.fail("hint", "must be one of \"session_end\", \"tool_call_pending\", \"pin\", \"unpin\"");
  }
  request.is_hint = true;
  request.hint.kind = hint->kind;
}

void MooncakeReader::check_request(TraceRequest& request) {
  if ((seen_ & key_value) != 0) {
    ++ignored_;  // only a hint has a value
    request.hint = {};
  }
  for (const KeyName& k : kKeys) {
    if ((k.key & (key_input_length | key_output_length | key_hash_ids)) != 0 && (seen_ & k.key) == 0) {
      lines_.fail(k.name, "is missing; a request needs timestamp, input_length, output_length and hash_ids");
    }
  }
  if (request.input == 0) lines_.fail("input_length", "is 0; a request has at least 1 input token");
  const Tokens blocks = (request.input - 1) / block_tokens_ + 1;
  if (request.blocks.size() != blocks) {
    lines_.fail("hash_ids", "holds " + std::to_string(request.blocks.size()) + " ids, but input_length " +
                                std::to_string(request.input) + " needs " + std::to_string(blocks) + " blocks of " +
                                std::to_string(block_tokens_) +
                                " tokens (the file doesn't say their size; another one must be told)");
  }
}

void MooncakeReader::check_hint(TraceRequest& request) {
  if ((seen_ & key_session) == 0) lines_.fail("session", "is missing; a hint names the session that it is about");
  if ((seen_ & (key_input_length | key_output_length | key_hash_ids)) != 0) {
    lines_.fail("hint", "stands in a line with input_length, output_length or hash_ids; a line is a request or a hint");
  }
  request.hint.subject = request.session;
  const TimeNs arrival = request.arrival;
  const Hint hint = request.hint;
  request.clear();
  request.arrival = arrival;
  request.is_hint = true;
  request.hint = hint;
}

}  // namespace

// A JSON object without the typical keys of another format counts as mooncake (confidence 1).
int matches_mooncake(const FirstLine& line) {
  if (!line.is_object()) return 0;
  return line.has("hint") || line.has("hash_ids") ? 4 : 1;
}

std::unique_ptr<FormatReader> make_mooncake_reader(TraceLines& lines, const TraceOptions& options) {
  return std::make_unique<MooncakeReader>(lines, options);
}

}  // namespace kvtwin
