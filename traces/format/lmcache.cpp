// Reads LMCache's log of look-ups: lookup_hashes_*.jsonl in the folder of --lookup-hash-log-dir. Each line is a
// look-up:
//   timestamp      seconds since 1970
//   request_id     string
//   model_name     string
//   chunk_size     tokens of a chunk; equal on all lines
//   seq_len        tokens of the prompt
//   chunk_hashes   "0x...", one hash per whole chunk; a hash covers the prompt up to the end of the chunk
// Other keys (dtypes, shapes) are passed over and named in a note.
//
// A look-up becomes a request, a chunk a block. Prompt tokens that no hash covers become blocks with private ids, and
// are the request's uncached_end: LMCache never holds them, so they take no room in a replay of started blocks
// (LMCache/LMCache, lmcache/tools/cache_simulator/simulator.py: they count in seq_len, and are no entries). The log has
// no answers: each answer is 1 token. Requests of another model than the model of the first line belong to
// another tenant. A second look-up of one of the last kMaxKnown requests (after a preemption) is skipped.
//
// LMCache's threads read the clock before the line is written. So a line may be earlier than the previous line by up
// to kMaxBack: the reader then takes the time of the previous line.
//
// Errors: TraceError, also for an empty file.
// Memory: the last kMaxKnown request ids.
#include <algorithm>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_set>

#include "traces/fields.hpp"
#include "traces/format.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kMaxKnown = 4096;  // requests
constexpr TimeNs kMaxBack = kNsPerSecond;

class LmcacheReader final : public FormatReader {
 public:
  LmcacheReader(TraceLines& lines, const TraceOptions& options)
      : lines_(lines), max_input_(options.max_input_tokens), parser_(options.max_line_bytes + 1) {
    read_first();
  }

  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return chunk_; }
  bool has_own_blocks() const override { return true; }
  void add_notes(std::vector<std::string>& notes) const override;

 private:
  void read_first();
  JsonValue required(const JsonObject& object, std::string_view key) const;
  std::string_view string_field(const JsonObject& object, std::string_view key) const;
  Tokens chunk_size(const JsonObject& object) const;
  TimeNs time_of(const JsonObject& object);
  bool is_repeated(std::string_view model, std::string_view request);
  void read_blocks(const JsonObject& object, TraceRequest& request);

  TraceLines& lines_;
  Tokens max_input_;
  simdjson::dom::parser parser_;
  Tokens chunk_ = 0;
  std::string model_;  // the first line's
  TimeNs last_ = 0;
  std::unordered_set<std::string> known_;  // looked up only
  std::deque<std::string> order_;          // those in known_, oldest first
  std::uint64_t next_private_ = kPrivateBlocks;
  Tokens uncached_tokens_ = 0;
  std::uint64_t requests_ = 0, repeated_ = 0, moved_ = 0, other_models_ = 0;
};

JsonValue LmcacheReader::required(const JsonObject& object, std::string_view key) const {
  JsonValue value;
  if (object.at_key(key).get(value) != simdjson::SUCCESS) {
    lines_.fail(key,
                "is missing; a look-up of LMCache has timestamp, request_id, model_name, chunk_size, seq_len and "
                "chunk_hashes");
  }
  return value;
}

std::string_view LmcacheReader::string_field(const JsonObject& object, std::string_view key) const {
  std::string_view text;
  if (required(object, key).get(text) != simdjson::SUCCESS) lines_.fail(key, "must be a string");
  return text;
}

Tokens LmcacheReader::chunk_size(const JsonObject& object) const {
  const Tokens tokens = natural_field(lines_, "chunk_size", required(object, "chunk_size"), kMaxBlockTokens);
  if (tokens == 0) lines_.fail("chunk_size", "is 0; a chunk has at least 1 token");
  return tokens;
}

void LmcacheReader::read_first() {
  std::string_view text;
  if (!lines_.peek(text)) {
    lines_.fail_whole(
        "holds no request: it is empty; LMCache writes lookup_hashes_*.jsonl if its server has "
        "--lookup-hash-log-dir, at the first prompt of a chunk or more");
  }
  const JsonObject object = json_line(lines_, parser_, text);
  chunk_ = chunk_size(object);
  model_ = string_field(object, "model_name");
}

bool LmcacheReader::next(TraceRequest& request) {
  while (true) {
    std::string_view text;
    if (!lines_.next(text)) return false;
    request.clear();
    const JsonObject object = json_line(lines_, parser_, text);
    if (const Tokens chunk = chunk_size(object); chunk != chunk_) {
      lines_.fail("chunk_size", "is " + std::to_string(chunk) + ", and was " + std::to_string(chunk_) +
                                    " on the first line; a file has one chunk size");
    }
    pass_over_unknown(object, "", {"timestamp", "request_id", "model_name", "chunk_size", "seq_len", "chunk_hashes"},
                      passed_over_);
    const std::string_view model = string_field(object, "model_name");
    const TimeNs time = time_of(object);
    if (is_repeated(model, string_field(object, "request_id"))) {
      ++repeated_;
      continue;
    }
    request.arrival = time;
    read_blocks(object, request);
    if (model != model_) {
      request.tenant = string_id(model);
      ++other_models_;
    }
    ++requests_;
    return true;
  }
}

TimeNs LmcacheReader::time_of(const JsonObject& object) {
  const TimeNs time = time_field(lines_, "timestamp", required(object, "timestamp"), kNsPerSecond);
  if (time < last_ && last_ - time <= kMaxBack) {
    ++moved_;
  } else {
    last_ = time;
  }
  return last_;
}

bool LmcacheReader::is_repeated(std::string_view model, std::string_view request) {
  if (request.empty()) return false;
  std::string name = std::string(model).append(1, '\n').append(request);
  if (!known_.insert(name).second) return true;
  order_.push_back(std::move(name));
  if (order_.size() > kMaxKnown) {
    known_.erase(order_.front());
    order_.pop_front();
  }
  return false;
}

void LmcacheReader::read_blocks(const JsonObject& object, TraceRequest& request) {
  request.input = natural_field(lines_, "seq_len", required(object, "seq_len"), max_input_);
  if (request.input == 0) lines_.fail("seq_len", "is 0; a request has at least 1 input token");
  simdjson::dom::array hashes;
  if (required(object, "chunk_hashes").get(hashes) != simdjson::SUCCESS) {
    lines_.fail("chunk_hashes", "must be an array of hashes");
  }
  for (const JsonValue& element : hashes) {
    std::string_view hash;
    if (element.get(hash) != simdjson::SUCCESS || hash.find_first_of("0123456789abcdef") == std::string_view::npos) {
      lines_.fail("chunk_hashes", "must hold hashes, like \"0x1f\"; entry " + std::to_string(request.blocks.size()) +
                                      " (from 0) is something else");
    }
    request.blocks.push_back(string_id(hash) & ~kPrivateBlocks);
  }
  if (request.blocks.size() > request.input / chunk_) {
    lines_.fail("chunk_hashes", "holds " + std::to_string(request.blocks.size()) + " hashes, but seq_len " +
                                    std::to_string(request.input) + " has " + std::to_string(request.input / chunk_) +
                                    " whole chunks of " + std::to_string(chunk_) + " tokens");
  }
  request.uncached_end = request.input - request.blocks.size() * chunk_;
  uncached_tokens_ += request.uncached_end;
  while (request.blocks.size() < (request.input - 1) / chunk_ + 1) request.blocks.push_back(next_private_++);
}

void LmcacheReader::add_notes(std::vector<std::string>& notes) const {
  if (requests_ == 0) return;
  notes.push_back(
      "trace: LMCache's log has no lengths of answers, which are taken to be 1 token each, and no prompts shorter than "
      "a chunk");
  if (uncached_tokens_ > 0) {
    notes.push_back("trace: " + std::to_string(uncached_tokens_) +
                    " prompt tokens have no hash, as LMCache never holds them: hitrate and trace info count them as "
                    "misses that take no room");
  }
  if (repeated_ > 0) {
    notes.push_back("trace: " + std::to_string(repeated_) +
                    " look-ups of a request that was looked up before were passed over");
  }
  if (moved_ > 0) {
    notes.push_back("trace: " + std::to_string(moved_) +
                    " look-ups are up to a second earlier than the line before them, and were given its time");
  }
  if (other_models_ > 0) {
    notes.push_back("trace: " + std::to_string(other_models_) + " requests are of other models than the first, " +
                    model_.substr(0, 100) + "; each other model is a tenant of its own");
  }
}

}  // namespace

int matches_lmcache(const FirstLine& line) { return line.has("chunk_hashes") && line.has("chunk_size") ? 6 : 0; }

std::unique_ptr<FormatReader> make_lmcache_reader(TraceLines& lines, const TraceOptions& options) {
  return std::make_unique<LmcacheReader>(lines, options);
}

}  // namespace kvtwin
