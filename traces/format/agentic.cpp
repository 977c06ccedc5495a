// Reads the traces of WEKA's kv-cache-tester: sessions of coding agents, one session per line. Keys of a line:
//   block_size      tokens per block; the same on every line that has the key
//   hash_id_scope   "local" (the default): an id names a block within its session only; otherwise within the file
//   requests        an array of objects. An object with "type": "subagent" is a session that shares the id scope of the
//                   outer session:
//     t             seconds since the start of the outer session
//     requests      as above; their times count from this t
//                   Every other object is a request:
//     t             seconds since the start of the session
//     in, out       tokens
//     think_time    seconds; optional
//     hash_ids      the ids of the full blocks of the input, or instead of it
//     hash_runs     [[first id, number of consecutive ids], ...]
// The traces do not contain the sessions' start times. The reader draws the starts from options.seed as a Poisson
// process, in file order, with a mean gap of options.session_gap_seconds. Memory: the live sessions.
#include <algorithm>
#include <string>
#include <utility>

#include "traces/fields.hpp"
#include "traces/format.hpp"
#include "traces/random.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kLocalIds = std::uint64_t{1} << 32;
constexpr TimeNs kMaxAgenticTimeNs = 9'000'000'000 * kNsPerSecond;  // 285 years
constexpr int kMaxAgentDepth = 16;                                  // sub-agents within sub-agents

struct Run {
  std::uint64_t first = 0, count = 0;
};

struct AgentRequest {
  TimeNs time = 0, think = -1;
  Tokens input = 0, output = 0;
  std::size_t runs_end = 0;  // end of the request's runs in Session::runs
};

struct Session {
  std::uint64_t number = 0;
  std::uint64_t first_id = 0;  // added to every id of the session
  std::vector<AgentRequest> requests;
  std::vector<Run> runs;
  std::size_t next = 0;

  TimeNs time() const { return requests[next].time; }
};

bool later(const std::unique_ptr<Session>& a, const std::unique_ptr<Session>& b) {
  return a->time() != b->time() ? a->time() > b->time() : a->number > b->number;
}

class AgenticReader final : public FormatReader {
 public:
  AgenticReader(TraceLines& lines, const TraceOptions& options);

  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return block_tokens_; }
  bool has_own_blocks() const override { return true; }
  void add_notes(std::vector<std::string>& notes) const override;

 private:
  bool parse_line(JsonObject& object);
  void read_session(const JsonObject& object);
  void read_requests(const JsonObject& agent, const std::string& where, TimeNs start, std::uint64_t first_id,
                     int depth);
  AgentRequest read_request(const JsonObject& object, const std::string& where, Session& session);
  void read_runs(const JsonValue& value, const std::string& where, Session& session) const;
  JsonValue required(const JsonObject& object, const std::string& where, const char* key) const;

  TraceLines& lines_;
  TraceOptions options_;
  simdjson::dom::parser parser_;
  Random random_;
  Tokens block_tokens_ = 64;
  std::uint64_t files_sessions_ = 0, sessions_ = 0, local_sessions_ = 0;
  TimeNs next_start_ = 0;
  bool ended_ = false;
  std::vector<std::unique_ptr<Session>> heap_;  // top: the earliest (time, number)
  std::uint64_t next_private_ = kPrivateBlocks;
};

AgenticReader::AgenticReader(TraceLines& lines, const TraceOptions& options)
    : lines_(lines),
      options_(options),
      parser_(options.max_line_bytes + 1),
      random_(mix64(options.seed ^ 0x6167656e74ULL)) {
  std::string_view first;
  if (!lines_.peek(first)) return;
  const JsonObject object = json_line(lines_, parser_, first);
  JsonValue value;
  if (object.at_key("block_size").get(value) == simdjson::SUCCESS) {
    block_tokens_ = natural_field(lines_, "block_size", value, kMaxBlockTokens);
    if (block_tokens_ == 0) lines_.fail("block_size", "is 0; it is the tokens of a block");
  }
}

JsonValue AgenticReader::required(const JsonObject& object, const std::string& where, const char* key) const {
  JsonValue value;
  if (object.at_key(key).get(value) != simdjson::SUCCESS) lines_.fail(where + key, "is missing");
  return value;
}

bool AgenticReader::next(TraceRequest& request) {
  while (!ended_ && (heap_.empty() || next_start_ <= heap_.front()->time())) {
    std::string_view text;
    ended_ = !lines_.next(text);
    if (!ended_) read_session(json_line(lines_, parser_, text));
  }
  if (heap_.empty()) return false;
  std::pop_heap(heap_.begin(), heap_.end(), later);
  Session& session = *heap_.back();
  const AgentRequest& made = session.requests[session.next];
  request.clear();
  request.arrival = made.time;
  request.input = made.input;
  request.output = made.output;
  request.session = session.number;
  request.think = made.think;
  const std::size_t first = session.next == 0 ? 0 : session.requests[session.next - 1].runs_end;
  for (std::size_t run = first; run < made.runs_end; ++run) {
    for (std::uint64_t i = 0; i < session.runs[run].count; ++i) {
      request.blocks.push_back(session.first_id + session.runs[run].first + i);
    }
  }
  if (made.input % block_tokens_ != 0) request.blocks.push_back(next_private_++);
  request.turn = ++session.next;
  if (session.next < session.requests.size()) {
    std::push_heap(heap_.begin(), heap_.end(), later);
  } else {
    heap_.pop_back();
  }
  return true;
}

void AgenticReader::read_session(const JsonObject& object) {
  JsonValue value;
  if (object.at_key("block_size").get(value) == simdjson::SUCCESS &&
      natural_field(lines_, "block_size", value, kMaxBlockTokens) != block_tokens_) {
    lines_.fail("block_size", "differs from the first line's " + std::to_string(block_tokens_) +
                                  "; blocks are of one size in a trace");
  }
  pass_over_unknown(object, "", {"block_size", "hash_id_scope", "requests"}, passed_over_);
  std::string_view scope;
  const bool has_scope = object.at_key("hash_id_scope").get(value) == simdjson::SUCCESS && !value.is_null();
  if (has_scope && (value.get(scope) != simdjson::SUCCESS || (scope != "local" && scope != "global"))) {
    lines_.fail("hash_id_scope", "must be \"local\" or \"global\"");
  }
  const bool local = !has_scope || scope == "local";
  if (local && ++local_sessions_ >= kLocalIds / 2) lines_.fail("holds more than 2^31 sessions with ids of their own");
  ++files_sessions_;
  read_requests(object, "", next_start_, local ? local_sessions_ * kLocalIds : 0, 0);
  const double gap = random_.exponential(options_.session_gap_seconds) * static_cast<double>(kNsPerSecond);
  if (gap > static_cast<double>(kMaxAgenticTimeNs - next_start_))
    lines_.fail("starts later than 285 years; a smaller gap is right");
  next_start_ += static_cast<TimeNs>(gap);
}

void AgenticReader::read_requests(const JsonObject& agent, const std::string& where, TimeNs start,
                                  std::uint64_t first_id, int depth) {
  if (depth > kMaxAgentDepth) lines_.fail(where + "requests", "lies deeper than 16 agents");
  simdjson::dom::array array;
  if (required(agent, where, "requests").get(array) != simdjson::SUCCESS) {
    lines_.fail(where + "requests", "must be an array of objects");
  }
  auto session = std::make_unique<Session>();
  session->number = ++sessions_;
  session->first_id = first_id;
  std::size_t index = 0;
  for (const JsonValue& element : array) {
    const std::string here = where + "requests[" + std::to_string(index++) + "].";
    JsonObject object;
    if (element.get(object) != simdjson::SUCCESS) lines_.fail(here.substr(0, here.size() - 1), "must be an object");
    const TimeNs offset = time_field(lines_, here + "t", required(object, here, "t"), kNsPerSecond);
    if (offset > kMaxAgenticTimeNs - start) lines_.fail(here + "t", "is too large; times end at 9e9 s");
    std::string_view type;
    if (object.at_key("type").get(type) == simdjson::SUCCESS && type == "subagent") {
      pass_over_unknown(object, "requests[].", {"t", "type", "requests"}, passed_over_);
      read_requests(object, here, start + offset, first_id, depth + 1);
      continue;
    }
    AgentRequest request = read_request(object, here, *session);
    request.time = start + offset;
    if (!session->requests.empty() && request.time < session->requests.back().time) {
      lines_.fail(here + "t", "is earlier than the request's before; a session's requests are sorted by time");
    }
    session->requests.push_back(request);
  }
  if (session->requests.empty()) return;
  heap_.push_back(std::move(session));
  std::push_heap(heap_.begin(), heap_.end(), later);
}

AgentRequest AgenticReader::read_request(const JsonObject& object, const std::string& where, Session& session) {
  pass_over_unknown(object, "requests[].", {"t", "type", "in", "out", "think_time", "hash_ids", "hash_runs"},
                    passed_over_);
  AgentRequest request;
  request.input = natural_field(lines_, where + "in", required(object, where, "in"), options_.max_input_tokens);
  request.output = natural_field(lines_, where + "out", required(object, where, "out"), kMaxTraceTokens);
  if (request.input == 0) lines_.fail(where + "in", "is 0; a request has at least 1 input token");
  const std::size_t before = session.runs.size();
  JsonValue value;
  if (object.at_key("think_time").get(value) == simdjson::SUCCESS && !value.is_null()) {
    request.think = time_field(lines_, where + "think_time", value, kNsPerSecond);
  }
  const bool runs = object.at_key("hash_runs").get(value) == simdjson::SUCCESS;
  if (!runs) value = required(object, where, "hash_ids");
  read_runs(value, where + (runs ? "hash_runs" : "hash_ids"), session);
  request.runs_end = session.runs.size();
  std::uint64_t blocks = 0;
  for (std::size_t run = before; run < request.runs_end; ++run) blocks += session.runs[run].count;
  if (blocks != request.input / block_tokens_) {
    lines_.fail(where + (runs ? "hash_runs" : "hash_ids"),
                "holds " + std::to_string(blocks) + " ids, but in " + std::to_string(request.input) + " has " +
                    std::to_string(request.input / block_tokens_) + " full blocks of " + std::to_string(block_tokens_) +
                    " tokens");
  }
  return request;
}

// A pair in hash_runs is one run; a plain id is a run of length 1. Consecutive runs are joined.
void AgenticReader::read_runs(const JsonValue& value, const std::string& where, Session& session) const {
  const std::size_t before = session.runs.size();
  const auto add = [&](std::uint64_t first, std::uint64_t count) {
    if (count == 0) return;
    const std::uint64_t end = session.first_id == 0 ? kPrivateBlocks : kLocalIds;
    if (count > kMaxTraceTokens || first >= end || count > end - first) {
      lines_.fail(where, "must hold ids from 0 to " + std::to_string(end - 1));
    }
    const bool joins = session.runs.size() > before && session.runs.back().first + session.runs.back().count == first;
    if (joins) {
      session.runs.back().count += count;
    } else {
      session.runs.push_back({first, count});
    }
  };
  simdjson::dom::array array;
  if (value.get(array) != simdjson::SUCCESS) lines_.fail(where, "must be an array");
  for (const JsonValue& element : array) {
    std::uint64_t id = 0, count = 1;
    simdjson::dom::array pair;
    if (element.get(pair) == simdjson::SUCCESS) {
      if (pair.size() != 2 || pair.at(0).get(id) != simdjson::SUCCESS || pair.at(1).get(count) != simdjson::SUCCESS) {
        lines_.fail(where, "must hold pairs of a first id and how many follow one another");
      }
    } else if (element.get(id) != simdjson::SUCCESS) {
      lines_.fail(where, "must hold integers >= 0, or pairs of them");
    }
    add(id, count);
  }
}

void AgenticReader::add_notes(std::vector<std::string>& notes) const {
  notes.push_back("trace: when sessions started isn't in the file; their starts are drawn");
  if (local_sessions_ > 0) {
    notes.push_back("trace: its block ids mean something within a session only: sessions share nothing here");
  }
}

}  // namespace

int matches_agentic(const FirstLine& line) { return line.has("requests") ? 2 : 0; }

std::unique_ptr<FormatReader> make_agentic_reader(TraceLines& lines, const TraceOptions& options) {
  return std::make_unique<AgenticReader>(lines, options);
}

}  // namespace kvtwin
