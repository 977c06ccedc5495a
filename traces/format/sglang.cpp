// Reads SGLang's request log (--log-requests --log-requests-level 3 --log-requests-format json). SGLang writes the log
// to standard output or to the files of --log-requests-target, one event per line:
//   [2026-11-24 04:42:12] {"timestamp": ISO date, "event": "request.received", "rid": R, "obj": {...}}
//   [2026-11-24 04:42:12] {"timestamp": ISO date, "event": "request.finished", "rid": R, "obj": {...},
//                          "out": {"meta_info": {...}}}
// The prefix in brackets is optional and may contain the name of a rank. SGLang 0.5.23 writes local dates without a
// zone: TraceOptions::zone says which.
//
// Every finished event becomes one request: obj.input_ids is the prompt, meta_info.completion_tokens the length of the
// answer. The arrival time is the time of the received event; without this event, it is meta_info.e2e_latency before
// the finished event. The session is the first one present of obj.session_params.id, obj.session_id and
// obj.conversation_id. extra_key, cache_salt, lora_path and lora_id together form the tenant, because SGLang shares no
// page between requests that differ in one of these fields; so do image_data, video_data, audio_data and input_embeds,
// because the token ids of an image are the same for all images. out.output_ids is the answer: its blocks are known if
// it has completion_tokens ids. meta_info.cached_tokens, cached_tokens_details (device, host, storage) and e2e_latency
// are what the server measured. kv_hints, which SGLang 0.5.23 writes as the text of a Python object, become hints at
// the request's arrival (traces/kv_hints.hpp). The reader skips other events, and lines without a JSON object (other
// output of the server).
//
// Finished events are ordered by their end, so the reader sorts requests by arrival within a window of
// kSortWindowRequests, and of TraceOptions::release_after. Memory: the hashes and rids of the requests in this window.
// Errors: TraceError, also at the end of a file without a finished event.
#include <algorithm>
#include <deque>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "traces/fields.hpp"
#include "traces/format.hpp"
#include "traces/kv_hints.hpp"
#include "traces/token_ids.hpp"

namespace kvtwin {
namespace {

struct LoggedRequest {
  std::uint64_t order = 0;  // order among equal times
  bool finished = false;
  std::string rid;
  TraceRequest request;
  std::vector<Hint> hints;  // of kv_hints
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Returns the line without the prefix of SGLang's loggers: `[2026-11-24 04:42:12] ` or `[2026-11-24 04:42:12 TP0] `.
// Returns the whole line if there is no such prefix.
std::string_view past_log_prefix(std::string_view line) {
  constexpr std::string_view kBegin = "[0000-00-00 00:00:00";
  constexpr std::size_t kMaxPrefixBytes = 128;  // with the names of ranks
  if (line.size() < kBegin.size()) return line;
  for (std::size_t i = 0; i < kBegin.size(); ++i) {
    if (kBegin[i] == '0' ? !is_digit(line[i]) : line[i] != kBegin[i]) return line;
  }
  const std::size_t end = line.substr(0, kMaxPrefixBytes).find("] ", kBegin.size());
  return end == std::string_view::npos ? line : line.substr(end + 2);
}

// Returns false for a dictionary in Python's notation, {'key': 1}: another logger of the server may print one.
bool is_json_object(std::string_view text) {
  const std::size_t brace = text.find_first_not_of(" \t");
  if (brace == std::string_view::npos || text[brace] != '{') return false;
  const std::size_t next = text.find_first_not_of(" \t", brace + 1);
  return next == std::string_view::npos || text[next] != '\'';
}

bool logged_later(const std::unique_ptr<LoggedRequest>& a, const std::unique_ptr<LoggedRequest>& b) {
  return a->request.arrival != b->request.arrival ? a->request.arrival > b->request.arrival : a->order > b->order;
}

class SglangReader final : public FormatReader {
 public:
  SglangReader(TraceLines& lines, const TraceOptions& options)
      : lines_(lines),
        blocks_(options),
        parser_(options.max_line_bytes + 1),
        release_after_(options.release_after),
        zone_(options.zone) {}

  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return blocks_.block_tokens(); }
  bool has_local_dates() const override { return has_local_dates_; }
  void add_notes(std::vector<std::string>& notes) const override;

 private:
  void read_line(std::string_view text);
  bool is_due() const;
  void require_a_request() const;
  void received(const std::string& rid, TimeNs now);
  void finished(const std::string& rid, TimeNs now, const JsonObject& line);
  LoggedRequest& arrived_before(const std::string& rid, TimeNs now, const JsonObject& meta);
  void read_measured(const JsonObject& meta, TraceRequest& request);
  void read_prompt(const JsonObject& obj, TraceRequest& request);
  void read_rest(const JsonObject& obj, TraceRequest& request);
  void pass_over(const JsonObject& obj);
  LoggedRequest& hold(const std::string& rid, TimeNs arrival);
  JsonValue required(const JsonObject& object, const char* key, const char* name) const;

  TraceLines& lines_;
  TokenBlocks blocks_;
  simdjson::dom::parser parser_;
  bool ended_ = false, emitted_ = false;
  TimeNs last_ = 0;         // arrival of the last request that next() returned
  bool of_server_ = false;  // a line has the arguments of a server
  std::uint64_t order_ = 0, never_finished_ = 0, other_lines_ = 0, prompt_tokens_ = 0, cached_tokens_ = 0;
  std::uint64_t without_envelope_ = 0, answers_without_blocks_ = 0, with_media_ = 0;
  KvHints kv_hints_;
  std::vector<Hint> hints_;  // of the last request, of which next_hint_ and those behind it are still to be returned
  std::size_t next_hint_ = 0;
  const TimeNs release_after_, zone_;
  bool has_local_dates_ = false;
  TimeNs now_ = 0;                                          // of the latest line
  std::vector<std::unique_ptr<LoggedRequest>> heap_;        // top: the earliest
  std::unordered_map<std::string, LoggedRequest*> by_rid_;  // requests that have not finished; never iterated
};

JsonValue SglangReader::required(const JsonObject& object, const char* key, const char* name) const {
  JsonValue value;
  if (object.at_key(key).get(value) != simdjson::SUCCESS) lines_.fail(name, "is missing");
  return value;
}

bool SglangReader::next(TraceRequest& request) {
  if (next_hint_ < hints_.size()) {
    request.clear();
    request.arrival = last_;
    request.is_hint = true;
    request.hint = hints_[next_hint_++];
    return true;
  }
  while (true) {
    while (!ended_ && heap_.size() <= kSortWindowRequests && !is_due()) {
      std::string_view text;
      ended_ = !lines_.next(text);
      if (!ended_) read_line(text);
    }
    if (heap_.empty()) {
      ended_ = !lines_.is_silent();
      if (ended_) require_a_request();
      return false;
    }
    std::pop_heap(heap_.begin(), heap_.end(), logged_later);
    const std::unique_ptr<LoggedRequest> logged = std::move(heap_.back());
    heap_.pop_back();
    if (!logged->finished) {
      const auto found = by_rid_.find(logged->rid);
      if (found != by_rid_.end() && found->second == logged.get()) by_rid_.erase(found);
      ++never_finished_;
      continue;
    }
    std::swap(request, logged->request);
    hints_ = std::move(logged->hints);
    next_hint_ = 0;
    emitted_ = true;
    last_ = request.arrival;
    return true;
  }
}

// Returns true if a log that is being written is far enough behind the first arrival.
bool SglangReader::is_due() const {
  return release_after_ > 0 && !heap_.empty() && now_ - heap_.front()->request.arrival > release_after_;
}

void SglangReader::require_a_request() const {
  if (emitted_) return;
  if (never_finished_ > 0) {
    lines_.fail_whole("holds " + std::to_string(never_finished_) +
                      " requests that were received, and none that finished; take a log that goes on until requests "
                      "have finished");
  }
  if (of_server_) {
    lines_.fail_whole(
        "is the log of an SGLang server without requests; --from-server-log reads the server's arguments, and "
        "a log with requests is written with --log-requests --log-requests-level 3 --log-requests-format "
        "json");
  }
  lines_.fail_whole("holds no request: none of its " + std::to_string(other_lines_) +
                    " lines is an event of SGLang's request log; log with --log-requests --log-requests-level 3 "
                    "--log-requests-format json");
}

void SglangReader::read_line(std::string_view text) {
  text = past_log_prefix(text);
  if (!is_json_object(text)) {
    of_server_ = of_server_ || text.find("server_args=") != std::string_view::npos;
    ++other_lines_;
    return;
  }
  const JsonObject line = json_line(lines_, parser_, text);
  std::string_view event, rid, date;
  const bool known = line.at_key("event").get(event) == simdjson::SUCCESS &&
                     (event == "request.received" || event == "request.finished");
  // A batch has one received event, without a single rid, and one finished event per request.
  if (!known || (event == "request.received" && line.at_key("rid").get(rid) != simdjson::SUCCESS)) {
    ++other_lines_;
    return;
  }
  if (required(line, "rid", "rid").get(rid) != simdjson::SUCCESS) lines_.fail("rid", "must be a string");
  if (required(line, "timestamp", "timestamp").get(date) != simdjson::SUCCESS) date = {};
  const TimeNs now = date_field(lines_, "timestamp", date, zone_, &has_local_dates_);
  now_ = std::max(now_, now);
  event == "request.received" ? received(std::string(rid), now) : finished(std::string(rid), now, line);
}

void SglangReader::received(const std::string& rid, TimeNs now) {
  by_rid_[rid] = &hold(rid, now);  // replaces an earlier request with this rid that has not finished
}

LoggedRequest& SglangReader::hold(const std::string& rid, TimeNs arrival) {
  if (emitted_ && arrival < last_ && release_after_ == 0) {
    lines_.fail(
        "the request arrived before others that have been read already; a log's requests may be out of order "
        "by " +
        std::to_string(kSortWindowRequests) + " requests at most");
  }
  auto logged = std::make_unique<LoggedRequest>();
  logged->order = order_++;
  logged->rid = rid;
  logged->request.arrival = arrival;
  heap_.push_back(std::move(logged));
  LoggedRequest& held = *heap_.back();
  std::push_heap(heap_.begin(), heap_.end(), logged_later);
  return held;
}

LoggedRequest& SglangReader::arrived_before(const std::string& rid, TimeNs now, const JsonObject& meta) {
  const auto found = by_rid_.find(rid);
  if (found != by_rid_.end()) {
    LoggedRequest& held = *found->second;
    by_rid_.erase(found);
    return held;
  }
  const TimeNs latency = time_field(lines_, "out.meta_info.e2e_latency",
                                    required(meta, "e2e_latency", "out.meta_info.e2e_latency"), kNsPerSecond);
  if (latency > now) lines_.fail("out.meta_info.e2e_latency", "is longer than there is time before the timestamp");
  return hold(rid, now - latency);
}

void SglangReader::finished(const std::string& rid, TimeNs now, const JsonObject& line) {
  JsonObject obj, out, meta;
  if (required(line, "obj", "obj").get(obj) != simdjson::SUCCESS) lines_.fail("obj", "must be an object");
  if (required(line, "out", "out").get(out) != simdjson::SUCCESS ||
      required(out, "meta_info", "out.meta_info").get(meta) != simdjson::SUCCESS) {
    lines_.fail("out.meta_info", "must be an object");
  }
  TraceRequest request;
  pass_over(obj);
  read_prompt(obj, request);
  read_rest(obj, request);
  request.output =
      natural_field(lines_, "out.meta_info.completion_tokens",
                    required(meta, "completion_tokens", "out.meta_info.completion_tokens"), kMaxTraceTokens);
  JsonValue value;
  if (out.at_key("output_ids").get(value) == simdjson::SUCCESS && !value.is_null()) {
    answers_without_blocks_ += blocks_.read_answer(value, request) ? 0 : 1;
  }
  std::vector<Hint> hints;
  if (obj.at_key("kv_hints").get(value) == simdjson::SUCCESS && !value.is_null()) {
    without_envelope_ += kv_hints_.read(value, request.session, hints) ? 0 : 1;
  }
  read_measured(meta, request);
  LoggedRequest& logged = arrived_before(rid, now, meta);
  logged.hints = std::move(hints);
  request.arrival = logged.request.arrival;
  logged.request = std::move(request);
  logged.finished = true;
}

void SglangReader::read_measured(const JsonObject& meta, TraceRequest& request) {
  JsonValue value;
  if (meta.at_key("e2e_latency").get(value) == simdjson::SUCCESS) {
    request.measured_latency = time_field(lines_, "out.meta_info.e2e_latency", value, kNsPerSecond);
  }
  if (meta.at_key("cached_tokens").get(value) != simdjson::SUCCESS) return;
  MeasuredHits hits;
  hits.total = natural_field(lines_, "out.meta_info.cached_tokens", value, kMaxTraceTokens);
  JsonObject details;
  if (meta.at_key("cached_tokens_details").get(details) == simdjson::SUCCESS) {
    const auto tokens = [&](const char* key, const char* name) -> Tokens {
      if (details.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) return 0;
      return natural_field(lines_, name, value, kMaxTraceTokens);
    };
    hits.device = tokens("device", "out.meta_info.cached_tokens_details.device");
    hits.host = tokens("host", "out.meta_info.cached_tokens_details.host");
    hits.storage = tokens("storage", "out.meta_info.cached_tokens_details.storage");
  }
  hits.by_tier = hits.device + hits.host + hits.storage == hits.total;  // SGLang writes no details of 0 tokens
  cached_tokens_ += hits.total;
  prompt_tokens_ += request.input;
  request.measured_hits = hits;
}

void SglangReader::read_prompt(const JsonObject& obj, TraceRequest& request) {
  JsonValue ids;
  if (obj.at_key("input_ids").get(ids) == simdjson::SUCCESS && !ids.is_null()) {
    simdjson::dom::array array;
    JsonValue middle;
    // At log levels below 3, SGLang replaces the middle of a long list by "...".
    if (ids.get(array) == simdjson::SUCCESS && array.at(1024).get(middle) == simdjson::SUCCESS && middle.is_string()) {
      lines_.fail("obj.input_ids", "is cut short; log with --log-requests-level 3");
    }
    return blocks_.read(lines_, "obj.input_ids", ids, request);
  }
  std::string_view text;
  const bool has_text = obj.at_key("text").get(text) == simdjson::SUCCESS;
  lines_.fail("obj.input_ids",
              has_text ? "is missing: the request carries text only, and kvtwin has no tokenizer; chat requests are "
                         "logged with their token ids"
                       : "is missing; log with --log-requests-level 3");
}

void SglangReader::read_rest(const JsonObject& obj, TraceRequest& request) {
  using Int32 = std::numeric_limits<std::int32_t>;
  JsonValue value;
  JsonObject session;
  std::string_view text;
  const auto has_text = [&text](const JsonObject& object, const char* key) {
    return object.at_key(key).get(text) == simdjson::SUCCESS && !text.empty();
  };
  const bool in_params = obj.at_key("session_params").get(session) == simdjson::SUCCESS && has_text(session, "id");
  if (in_params || has_text(obj, "session_id") || has_text(obj, "conversation_id")) request.session = string_id(text);
  std::string space;
  for (const char* key : {"extra_key", "cache_salt", "lora_path", "lora_id"}) {
    if (has_text(obj, key)) append_namespace_part(space, key, text);
  }
  bool has_media = false;
  for (const char* key : {"image_data", "video_data", "audio_data", "input_embeds"}) {
    if (obj.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) continue;
    const std::string media = simdjson::minify(value);
    if (media == "[]" || media == "\"\"") continue;
    append_namespace_part(space, key, media);
    has_media = true;
  }
  with_media_ += has_media ? 1 : 0;
  if (!space.empty()) request.tenant = string_id(space);
  if (obj.at_key("priority").get(value) == simdjson::SUCCESS && !value.is_null()) {
    request.priority =
        static_cast<std::int32_t>(integer_field(lines_, "obj.priority", value, Int32::min(), Int32::max()));
  }
}

// Names the fields of a request that change how a server treats the request, and that are not read. The other fields
// say how the answer is chosen, and change neither the cache nor the times.
void SglangReader::pass_over(const JsonObject& obj) {
  for (const char* key : {"bootstrap_room", "data_parallel_rank", "routed_dp_rank", "return_hidden_states"}) {
    JsonValue value;
    bool flag = true;
    if (obj.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) continue;
    if (value.get(flag) == simdjson::SUCCESS && !flag) continue;
    passed_over_.add(std::string("obj.") + key);
  }
}

void SglangReader::add_notes(std::vector<std::string>& notes) const {
  blocks_.add_notes(notes);
  if (never_finished_ > 0) {
    notes.push_back("trace: " + std::to_string(never_finished_) +
                    " requests that the log doesn't say to have finished were passed over");
  }
  if (other_lines_ > 0) {
    notes.push_back("trace: " + std::to_string(other_lines_) + " lines that are no requests' events were passed over");
  }
  if (answers_without_blocks_ > 0) {
    notes.push_back("trace: out.output_ids of " + std::to_string(answers_without_blocks_) +
                    " requests are not completion_tokens token ids: later prompts hit nothing in these answers");
  }
  if (with_media_ > 0) {
    notes.push_back("trace: " + std::to_string(with_media_) +
                    " requests have images, video, audio or embeddings: they share pages only with requests that have "
                    "the same ones, so hits before the first one are too few; the times of encoders aren't counted");
  }
  kv_hints_.add_notes(notes);
  if (without_envelope_ > 0) {
    notes.push_back("trace: kv_hints of " + std::to_string(without_envelope_) +
                    " requests are no envelope with actions");
  }
  if (prompt_tokens_ > 0) {
    notes.push_back("trace: the server itself had cached " + std::to_string(cached_tokens_) + " of " +
                    std::to_string(prompt_tokens_) + " prompt tokens");
  }
}

}  // namespace

int matches_sglang(const FirstLine& line) {
  const bool has_prefix = past_log_prefix(line.text()).size() != line.text().size();
  return has_prefix || (line.has("event") && line.has("rid")) ? 6 : 0;
}

std::unique_ptr<FormatReader> make_sglang_reader(TraceLines& lines, const TraceOptions& options) {
  return std::make_unique<SglangReader>(lines, options);
}

}  // namespace kvtwin
