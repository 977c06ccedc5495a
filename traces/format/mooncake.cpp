// Reads Mooncake's JSON lines, also as AIPerf writes them. The header comment of trace.hpp describes the keys.
//
// If the first line has session_id (AIPerf), a line may have a delay instead of a timestamp: it arrives that long after
// its session's line before it. Such a file may be out of order by kSortWindowRequests requests; they are sorted.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "traces/fields.hpp"
#include "traces/format.hpp"
#include "traces/kv_hints.hpp"

namespace kvtwin {
namespace {

constexpr Tokens kMooncakeBlockTokens = 512;
constexpr TimeNs kMaxMooncakeTimeNs = 9'000'000'000 * kNsPerSecond;  // 285 years

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
  key_system_length = 1U << 12,
  key_kv_hints = 1U << 13,
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
    {"system_length", key_system_length},
    {"session", key_session},
    {"session_id", key_session},
    {"turn", key_turn},
    {"tenant", key_tenant},
    {"priority", key_priority},
    {"type", key_type},
    {"hint", key_hint},
    {"value", key_value},
    {"think_time", key_think_time},
    {"delay", key_think_time},
    {"kv_hints", key_kv_hints},
};

// The block sizes with which each line so far has the number of ids that its input needs.
class FittingSizes {
 public:
  void add(Tokens input, std::uint64_t ids) {
    if (input == 0) return;
    least_ = ids == 0 ? kMaxBlockTokens + 1 : std::max<Tokens>(least_, (input - 1) / ids + 1);
    if (ids > 1) most_ = std::min<Tokens>(most_, (input - 1) / (ids - 1));
  }
  // Returns what to do about it.
  std::string advice() const {
    if (least_ > most_) return "no block size fits every line, so the file is not whole or not of this format";
    Tokens size = least_, powers = 0;
    for (Tokens power = 1; power <= most_; power *= 2) {
      if (power < least_) continue;
      if (powers++ == 0) size = power;
    }
    const std::string text = std::to_string(size);
    const std::string options =
        "--block-tokens " + text + " (hitrate: --trace-block-tokens) or workload.block_tokens=" + text;
    if (least_ == most_ || powers == 1) return text + " tokens fit every line: give " + options;
    return std::to_string(least_) + " to " + std::to_string(most_) +
           " tokens fit every line: give the right one, e.g. " + options;
  }

 private:
  Tokens least_ = 1, most_ = kMaxBlockTokens;
};

constexpr HintKind kHints[] = {HintKind::session_end, HintKind::tool_call_pending, HintKind::pin,  HintKind::unpin,
                               HintKind::demote,      HintKind::prefetch,          HintKind::share};

class MooncakeReader final : public FormatReader {
 public:
  MooncakeReader(TraceLines& lines, const TraceOptions& options)
      : lines_(lines),
        block_tokens_(options.block_tokens == 0 ? kMooncakeBlockTokens : options.block_tokens),
        parser_(options.max_line_bytes + 1) {}

  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return block_tokens_; }
  void add_notes(std::vector<std::string>& notes) const override;

 private:
  struct Sorted {
    std::uint64_t order = 0;  // among equal times
    TraceRequest request;
  };

  bool read(TraceRequest& request);
  void read_delay(TraceRequest& request);
  static bool later(const std::unique_ptr<Sorted>& a, const std::unique_ptr<Sorted>& b);
  [[noreturn]] void refuse_block_size(const TraceRequest& request, Tokens blocks);
  void read_keys(const JsonObject& object, TraceRequest& request);
  void read_key(Key key, std::string_view name, const JsonValue& value, TraceRequest& request);
  void read_hint(const JsonValue& value, TraceRequest& request);
  void check_request(TraceRequest& request);
  void read_kv_hints(const JsonObject& object, const TraceRequest& request);
  void check_hint(TraceRequest& request);

  TraceLines& lines_;
  Tokens block_tokens_;
  simdjson::dom::parser parser_;
  unsigned seen_ = 0;  // the keys of this line, as bits of Key
  KvHints envelopes_;
  std::vector<Hint>
      hints_;  // of the last line, of which next_hint_ and those behind it are still to be returned, at hints_at_
  std::size_t next_hint_ = 0;
  TimeNs hints_at_ = 0;
  FittingSizes sizes_;
  bool begun_ = false, sorts_ = false, ended_ = false;
  std::uint64_t order_ = 0, delayed_ = 0;
  TimeNs last_ = 0;                                      // of the last request that next() returned, if sorts_
  std::vector<std::unique_ptr<Sorted>> sorted_;          // top: the earliest (time, order)
  std::unordered_map<std::uint64_t, TimeNs> last_turn_;  // by session; never iterated
};

bool MooncakeReader::later(const std::unique_ptr<Sorted>& a, const std::unique_ptr<Sorted>& b) {
  return a->request.arrival != b->request.arrival ? a->request.arrival > b->request.arrival : a->order > b->order;
}

bool MooncakeReader::next(TraceRequest& request) {
  if (!begun_) {
    std::string_view first;
    sorts_ = lines_.peek(first) && first.find("\"session_id\"") != std::string_view::npos;
    begun_ = true;
  }
  if (!sorts_) return read(request);
  while (!ended_ && sorted_.size() <= kSortWindowRequests) {
    auto next = std::make_unique<Sorted>();
    ended_ = !read(next->request);
    if (ended_) break;
    if (next->request.arrival < last_) {
      lines_.fail("timestamp",
                  "is earlier than that of a request that has been read already; the requests of such a "
                  "trace may be out of order by " +
                      std::to_string(kSortWindowRequests) + " at most (sort the sessions by their first timestamp)");
    }
    next->order = order_++;
    sorted_.push_back(std::move(next));
    std::push_heap(sorted_.begin(), sorted_.end(), later);
  }
  if (sorted_.empty()) return false;
  std::pop_heap(sorted_.begin(), sorted_.end(), later);
  std::swap(request, sorted_.back()->request);
  sorted_.pop_back();
  last_ = request.arrival;
  return true;
}

// Reads the next line.
bool MooncakeReader::read(TraceRequest& request) {
  if (next_hint_ < hints_.size()) {
    request.clear();
    request.arrival = hints_at_;
    request.is_hint = true;
    request.hint = hints_[next_hint_++];
    return true;
  }
  std::string_view text;
  if (!lines_.next(text)) return false;
  request.clear();
  const JsonObject object = json_line(lines_, parser_, text);
  seen_ = 0;
  read_keys(object, request);
  if ((seen_ & key_timestamp) == 0) read_delay(request);
  if (sorts_ && request.session != 0) last_turn_[request.session] = request.arrival;
  request.is_hint ? check_hint(request) : check_request(request);
  if (!request.is_hint && (seen_ & key_kv_hints) != 0) read_kv_hints(object, request);
  return true;
}

// The line has no timestamp.
void MooncakeReader::read_delay(TraceRequest& request) {
  if (!sorts_ || (seen_ & key_think_time) == 0) {
    lines_.fail("timestamp", sorts_ ? "is missing, as delay is; a line has one of them"
                                    : "is missing; every line needs its time in milliseconds (in a file whose first "
                                      "line has session_id: or its delay after the turn before)");
  }
  const auto before = last_turn_.find(request.session);
  if (request.session == 0 || before == last_turn_.end()) {
    lines_.fail("delay", "stands in the first line of its session; the first turn has a timestamp");
  }
  if (request.think > kMaxMooncakeTimeNs - before->second) lines_.fail("delay", "is too large; times end at 9e12 ms");
  request.arrival = before->second + request.think;
  ++delayed_;
}

void MooncakeReader::read_kv_hints(const JsonObject& object, const TraceRequest& request) {
  JsonValue value;
  if (object.at_key("kv_hints").get(value) != simdjson::SUCCESS || value.is_null()) return;
  hints_.clear();
  next_hint_ = 0;
  if (!envelopes_.read(value, request.session, hints_)) {
    lines_.fail("kv_hints", "must be an object with actions, each with an action_type");
  }
  hints_at_ = request.arrival;
}

void MooncakeReader::add_notes(std::vector<std::string>& notes) const {
  envelopes_.add_notes(notes);
  if (delayed_ == 0) return;
  notes.push_back("trace: " + std::to_string(delayed_) +
                  " requests have a delay after the answer before, and no timestamp: in an open loop they arrive as if "
                  "answers took no time; workload.loop=closed waits for the answers");
}

void MooncakeReader::read_keys(const JsonObject& object, TraceRequest& request) {
  for (const auto& [key, value] : object) {
    const std::string_view wanted = key;
    const auto* const known =
        std::find_if(std::begin(kKeys), std::end(kKeys), [&](const KeyName& k) { return k.name == wanted; });
    if (known == std::end(kKeys)) {
      passed_over_.add(key);
      continue;
    }
    if (sorts_ && value.is_null()) continue;  // AIPerf writes a key that it has no value for as null
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
    case key_system_length: request.system = natural_field(lines_, name, value, kMaxTraceTokens); break;
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
    case key_kv_hints: break;  // read_kv_hints() needs the session
  }
}

void MooncakeReader::read_hint(const JsonValue& value, TraceRequest& request) {
  std::string_view text;
  if (value.get(text) != simdjson::SUCCESS) text = {};
  const auto* const hint =
      std::find_if(std::begin(kHints), std::end(kHints), [&](HintKind h) { return name_of(h) == text; });
  if (hint == std::end(kHints)) {
    lines_.fail("hint",
                "must be one of \"session_end\", \"tool_call_pending\", \"pin\", \"unpin\", \"demote\", \"prefetch\", "
                "\"share\"");
  }
  request.is_hint = true;
  request.hint.kind = *hint;
}

void MooncakeReader::check_request(TraceRequest& request) {
  if ((seen_ & key_value) != 0) {
    passed_over_.add("value");  // only a hint has one
    request.hint = {};
  }
  for (const KeyName& k : kKeys) {
    if ((k.key & (key_input_length | key_output_length | key_hash_ids)) != 0 && (seen_ & k.key) == 0) {
      lines_.fail(k.name, "is missing; a request needs timestamp, input_length, output_length and hash_ids");
    }
  }
  if (request.input == 0) lines_.fail("input_length", "is 0; a request has at least 1 input token");
  if (request.system > request.input) {
    lines_.fail("system_length", "is " + std::to_string(request.system) +
                                     "; a system prompt is a part of the input of " + std::to_string(request.input) +
                                     " tokens");
  }
  const Tokens blocks = (request.input - 1) / block_tokens_ + 1;
  sizes_.add(request.input, request.blocks.size());
  if (request.blocks.size() != blocks) refuse_block_size(request, blocks);
}

// Looks at the lines that follow, too: the advice is a size that fits them all.
void MooncakeReader::refuse_block_size(const TraceRequest& request, Tokens blocks) {
  constexpr int kMaxLines = 10'000;
  const std::uint64_t line = lines_.number();
  std::string_view text;
  try {
    for (int i = 0; i < kMaxLines && lines_.next(text); ++i) {
      JsonValue value;
      simdjson::dom::array ids;
      std::uint64_t input = 0;
      const bool is_request = parser_.parse(text.data(), text.size(), false).get(value) == simdjson::SUCCESS &&
                              value["input_length"].get(input) == simdjson::SUCCESS &&
                              value["hash_ids"].get(ids) == simdjson::SUCCESS;
      if (is_request) sizes_.add(input, ids.size());
    }
  } catch (const TraceError&) {  // the lines up to there count
  }
  lines_.fail_at(line, "hash_ids",
                 "holds " + std::to_string(request.blocks.size()) + " ids, but input_length " +
                     std::to_string(request.input) + " needs " + std::to_string(blocks) + " blocks of " +
                     std::to_string(block_tokens_) + " tokens; the file does not say their size, and " +
                     sizes_.advice());
}

void MooncakeReader::check_hint(TraceRequest& request) {
  if ((seen_ & key_session) == 0) lines_.fail("session", "is missing; a hint names the session that it is about");
  if ((seen_ & (key_input_length | key_output_length | key_hash_ids)) != 0) {
    lines_.fail("hint", "stands in a line with input_length, output_length or hash_ids; a line is a request or a hint");
  }
  if (request.hint.value < 0) {
    lines_.fail("value", "is " + std::to_string(request.hint.value) +
                             "; a hint's value is a number of milliseconds from 0 on, and 0 is no limit");
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
