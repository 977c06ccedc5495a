// Reads JSON lines with one request per line and the prompt as token ids:
//   input_ids or prompt_token_ids   array of 32-bit integers, at least one
//   output_length or output_ids     number of tokens, or an array whose length counts
//   timestamp                       ms; on every line or on no line
//   session (or session_id), turn, tenant, priority, type, think_time (or delay)   optional, as in Mooncake's format
//                                   (trace.hpp)
#include "traces/token_ids.hpp"

#include <limits>

#include "traces/fields.hpp"
#include "traces/format.hpp"

namespace kvtwin {
namespace {

constexpr TimeNs kGapWithoutTimesNs = kNsPerSecond;  // between two requests, if the lines have no timestamp

class TokenIdsReader final : public FormatReader {
 public:
  TokenIdsReader(TraceLines& lines, const TraceOptions& options)
      : lines_(lines), blocks_(options), parser_(options.max_line_bytes + 1) {}

  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return blocks_.block_tokens(); }
  void add_notes(std::vector<std::string>& notes) const override;

 private:
  void read_time(const JsonObject& object, TraceRequest& request);
  void read_output(const JsonObject& object, TraceRequest& request) const;
  void read_rest(const JsonObject& object, TraceRequest& request) const;

  TraceLines& lines_;
  TokenBlocks blocks_;
  simdjson::dom::parser parser_;
  std::uint64_t requests_ = 0;
  bool timed_ = true;  // lines have a timestamp; valid after the first request
};

bool TokenIdsReader::next(TraceRequest& request) {
  std::string_view text;
  if (!lines_.next(text)) return false;
  request.clear();
  const JsonObject object = json_line(lines_, parser_, text);
  JsonValue value;
  if (object.at_key("input_ids").get(value) == simdjson::SUCCESS) {
    blocks_.read(lines_, "input_ids", value, request);
  } else if (object.at_key("prompt_token_ids").get(value) == simdjson::SUCCESS) {
    blocks_.read(lines_, "prompt_token_ids", value, request);
  } else {
    lines_.fail("input_ids", "is missing, as prompt_token_ids is; a request needs its prompt's token ids");
  }
  pass_over_unknown(object, "",
                    {"input_ids", "prompt_token_ids", "output_length", "output_ids", "timestamp", "session",
                     "session_id", "turn", "tenant", "type", "priority", "think_time", "delay"},
                    passed_over_);
  read_time(object, request);
  read_output(object, request);
  read_rest(object, request);
  ++requests_;
  return true;
}

void TokenIdsReader::read_time(const JsonObject& object, TraceRequest& request) {
  JsonValue value;
  const bool timed = object.at_key("timestamp").get(value) == simdjson::SUCCESS;
  if (requests_ == 0) timed_ = timed;
  if (timed != timed_) {
    lines_.fail("timestamp", timed ? "is given, and was not on the lines before; all have one, or none"
                                   : "is missing, and was given on the lines before; all have one, or none");
  }
  request.arrival =
      timed ? time_field(lines_, "timestamp", value, kNsPerMs) : static_cast<TimeNs>(requests_) * kGapWithoutTimesNs;
}

void TokenIdsReader::read_output(const JsonObject& object, TraceRequest& request) const {
  JsonValue value;
  simdjson::dom::array array;
  if (object.at_key("output_length").get(value) == simdjson::SUCCESS) {
    request.output = natural_field(lines_, "output_length", value, kMaxTraceTokens);
  } else if (object.at_key("output_ids").get(array) == simdjson::SUCCESS) {
    for ([[maybe_unused]] const JsonValue& id : array) ++request.output;  // simdjson's size() stops counting at 2^24
  } else {
    lines_.fail("output_length",
                "is missing, and there is no array output_ids; one of them says how long the answer is");
  }
}

void TokenIdsReader::read_rest(const JsonObject& object, TraceRequest& request) const {
  using Int32 = std::numeric_limits<std::int32_t>;
  JsonValue value;
  const auto has = [&](const char* key) { return object.at_key(key).get(value) == simdjson::SUCCESS; };
  for (const char* key : {"session_id", "session"}) {
    if (has(key) && !value.is_null()) request.session = session_field(lines_, key, value);
  }
  for (const char* key : {"delay", "think_time"}) {
    if (has(key) && !value.is_null()) request.think = time_field(lines_, key, value, kNsPerMs);
  }
  if (has("turn")) request.turn = natural_field(lines_, "turn", value, std::numeric_limits<std::uint64_t>::max());
  if (has("tenant")) request.tenant = id_field(lines_, "tenant", value);
  if (has("type")) request.type = id_field(lines_, "type", value);
  if (has("priority")) {
    request.priority = static_cast<std::int32_t>(integer_field(lines_, "priority", value, Int32::min(), Int32::max()));
  }
}

void TokenIdsReader::add_notes(std::vector<std::string>& notes) const {
  blocks_.add_notes(notes);
  if (requests_ > 0 && !timed_) {
    notes.push_back("trace: its lines have no timestamp: requests are taken to come a second apart, in file order");
  }
}

}  // namespace

int matches_token_ids(const FirstLine& line) { return line.has("input_ids") || line.has("prompt_token_ids") ? 3 : 0; }

std::unique_ptr<FormatReader> make_token_ids_reader(TraceLines& lines, const TraceOptions& options) {
  return std::make_unique<TokenIdsReader>(lines, options);
}

}  // namespace kvtwin
