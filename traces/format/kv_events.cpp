// Reads a recording of KV events (kvtwin record), of a vLLM or SGLang server, as a workload. It needs neither token ids
// nor text: a block's hash is its id.
//
// Events say which blocks a server stored and removed, not which requests came. What a request stored hangs below the
// prefix that it reused, so requests are inferred:
//   - A store whose parent is the last block of a request goes on with this request, if it comes soon (goes_on()). Any
//     other store begins a request; its prompt begins with the chain of its parent.
//   - A store of blocks that are there, from the first block of a prompt on, is a report of reuse (vLLM:
//     kv_cache_report_mode "full"). It begins a request, too.
//   - The first stores of a request are its prompt. Later ones of a single block are its answer, but for one that
//     follows a store of about the most blocks of any: this is the end of a prompt that was computed in parts.
//   - Arrival: the time of the first store, which is after the queue and the first pass.
//   - Tokens behind the last full block are not known: a prompt has half a block of them, and so has an answer that
//   fills
//     no block.
// A request that stores no block and reports no reuse is not there. add_notes() counts and says all this.
//
// Only blocks on the GPU count; of several groups of layers (group_idx) the first one with full attention, or else the
// first one. Errors: TraceError.
// Memory: the blocks that are cached, and those above them; kSortWindowRequests requests.
#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "policy/base/mix.hpp"
#include "traces/fields.hpp"
#include "traces/format.hpp"
#include "traces/random.hpp"

namespace kvtwin {
namespace {

constexpr TimeNs kMostToChunk = 2 * kNsPerSecond;    // from a part of a prompt to the next one
constexpr TimeNs kMostPerToken = kNsPerSecond / 10;  // of an answer
constexpr TimeNs kMostOfAnswer = 4;                  // to the next one, in intervals between the last two
constexpr std::uint64_t kMostRanks = 64;

// A request that the events show.
struct Shown {
  TraceRequest request;
  std::vector<std::uint64_t> prompt, answer;  // whole blocks
  std::uint64_t rank = 0, tail = 0;
  std::size_t last_blocks = 0;
  TimeNs last = 0, interval = 0;
  bool ended = false;
};

struct Known {
  std::uint64_t parent = 0;
  bool has_parent = false;
  std::uint32_t children = 0;
  std::uint64_t ranks = 0;  // a bit for each rank that has the block
};

class KvEventsReader final : public FormatReader {
 public:
  KvEventsReader(TraceLines& lines, const TraceOptions& options) : lines_(lines), parser_(options.max_line_bytes + 1) {
    // The first message of a server with several groups has a store of each.
    constexpr int kMostEvents = 256;
    for (int i = 0; (block_ == 0 || (group_ && !group_is_full_ && i < kMostEvents)) && read_event(); ++i) {
    }
    if (block_ == 0) {
      lines_.fail_whole("holds no stored block of a GPU; record from before the first request on, with KV events on");
    }
  }

  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return block_; }
  bool has_own_blocks() const override { return true; }
  void add_notes(std::vector<std::string>& notes) const override;

 private:
  bool read_event();
  JsonValue required(const JsonObject& object, std::string_view key) const;
  std::uint64_t hash(std::string_view key, const JsonValue& value) const;
  void read_hashes(const JsonObject& event);
  bool of_group(const JsonObject& event);
  void stored(const JsonObject& event, std::uint64_t rank);
  void removed(std::uint64_t rank);
  void forget(std::uint64_t id);
  TimeNs most_to_next(const Shown& shown) const;
  bool goes_on(const Shown& shown, const JsonObject& event) const;
  Shown& begin(std::optional<std::uint64_t> parent, std::uint64_t rank);
  void keep(std::optional<std::uint64_t> parent, std::uint64_t rank);
  void fill(Shown& shown, TraceRequest& request);

  TraceLines& lines_;
  simdjson::dom::parser parser_;
  Tokens block_ = 0;
  std::unordered_map<std::uint64_t, Known> known_;
  std::deque<std::unique_ptr<Shown>> shown_;           // by arrival
  std::unordered_map<std::uint64_t, Shown*> by_tail_;  // by last block and rank
  std::vector<std::uint64_t> hashes_;
  std::optional<std::uint64_t> group_;
  bool group_is_full_ = false;
  std::size_t largest_ = 0;  // blocks of one store
  TimeNs now_ = 0;
  std::uint64_t next_private_ = kPrivateBlocks;
  std::uint64_t late_ = 0;  // blocks of answers that came after a pause
  std::uint64_t requests_ = 0, below_unknown_ = 0, without_answer_ = 0, reports_ = 0, other_media_ = 0, lora_ = 0;
  std::uint64_t missing_ = 0, restarts_ = 0;
};

JsonValue KvEventsReader::required(const JsonObject& object, std::string_view key) const {
  JsonValue value;
  if (object.at_key(key).get(value) != simdjson::SUCCESS) lines_.fail(key, "is missing; kvtwin record writes it");
  return value;
}

std::uint64_t KvEventsReader::hash(std::string_view key, const JsonValue& value) const {
  std::uint64_t number = 0;
  std::int64_t negative = 0;
  std::string_view text;
  if (value.get(number) == simdjson::SUCCESS) return mix64(number) & ~kPrivateBlocks;
  if (value.get(negative) == simdjson::SUCCESS) return mix64(static_cast<std::uint64_t>(negative)) & ~kPrivateBlocks;
  if (value.get(text) == simdjson::SUCCESS && text.starts_with("0x")) return string_id(text) & ~kPrivateBlocks;
  lines_.fail(key, "must hold hashes: integers, or texts like \"0x1f\"");
}

void KvEventsReader::read_hashes(const JsonObject& event) {
  simdjson::dom::array array;
  if (required(event, "block_hashes").get(array) != simdjson::SUCCESS) lines_.fail("block_hashes", "must be an array");
  hashes_.clear();
  for (const JsonValue& value : array) hashes_.push_back(hash("block_hashes", value));
}

// Returns whether the event counts. Of a server with several groups, those with windows hold a part of each prompt
// only.
bool KvEventsReader::of_group(const JsonObject& event) {
  JsonValue value;
  std::string_view medium, kind;
  if (event.at_key("medium").get(medium) == simdjson::SUCCESS && medium != "GPU") {
    ++other_media_;
    return false;
  }
  if (event.at_key("group_idx").get(value) != simdjson::SUCCESS) return true;
  const std::uint64_t group = natural_field(lines_, "group_idx", value, 1 << 20);
  const bool full = event.at_key("kv_cache_spec_kind").get(kind) == simdjson::SUCCESS &&
                    (kind == "full_attention" || kind == "mla_attention");
  if (!group_ || (full && !group_is_full_ && requests_ == 0)) {
    group_ = group;
    group_is_full_ = full;
    block_ = 0;
    known_.clear();
    shown_.clear();
    by_tail_.clear();
    reports_ = below_unknown_ = late_ = lora_ = largest_ = 0;
  }
  return group == *group_;
}

bool KvEventsReader::read_event() {
  std::string_view text, type;
  if (!lines_.next(text)) return false;
  const JsonObject event = json_line(lines_, parser_, text);
  if (required(event, "type").get(type) != simdjson::SUCCESS) lines_.fail("type", "must be a string");
  if (type == "missing") {
    missing_ += natural_field(lines_, "to", required(event, "to"), UINT64_MAX) -
                natural_field(lines_, "from", required(event, "from"), UINT64_MAX) + 1;
  }
  if (type == "restart" || type == "AllBlocksCleared") {
    restarts_ += type == "restart" ? 1 : 0;
    for (const auto& shown : shown_) shown->ended = true;
    by_tail_.clear();
    known_.clear();
  }
  if (type != "BlockStored" && type != "BlockRemoved") return true;
  now_ = std::max(now_, time_field(lines_, "ts", required(event, "ts"), kNsPerSecond));
  JsonValue value;
  std::uint64_t rank = 0;
  if (event.at_key("rank").get(value) == simdjson::SUCCESS) rank = natural_field(lines_, "rank", value, kMostRanks - 1);
  if (!of_group(event)) return true;
  read_hashes(event);
  if (type == "BlockRemoved") {
    removed(rank);
    return true;
  }
  const Tokens tokens = natural_field(lines_, "block_size", required(event, "block_size"), kMaxBlockTokens);
  if (tokens == 0) lines_.fail("block_size", "is 0; a block has at least 1 token");
  if (block_ == 0) block_ = tokens;
  if (tokens != block_) {
    lines_.fail("block_size", "is " + std::to_string(tokens) + ", and was " + std::to_string(block_) +
                                  " before; a group of layers has one block size");
  }
  if (!hashes_.empty()) stored(event, rank);
  return true;
}

// Forgets a block that no rank has, and that no known block follows; and so the blocks above it.
void KvEventsReader::forget(std::uint64_t id) {
  for (auto at = known_.find(id); at != known_.end() && at->second.ranks == 0 && at->second.children == 0;) {
    const Known gone = at->second;
    known_.erase(at);
    if (!gone.has_parent) return;
    at = known_.find(gone.parent);
    --at->second.children;
  }
}

void KvEventsReader::removed(std::uint64_t rank) {
  for (const std::uint64_t id : hashes_) {
    const auto at = known_.find(id);
    if (at == known_.end()) continue;
    at->second.ranks &= ~(std::uint64_t{1} << rank);
    if (const auto open = by_tail_.find(mix64(id + rank)); open != by_tail_.end()) {
      open->second->ended = true;
      by_tail_.erase(open);
    }
    forget(id);
  }
}

// Adds the blocks of the event to the known ones.
void KvEventsReader::keep(std::optional<std::uint64_t> parent, std::uint64_t rank) {
  for (const std::uint64_t id : hashes_) {
    const auto [at, is_new] = known_.try_emplace(id);
    at->second.ranks |= std::uint64_t{1} << rank;
    if (is_new && parent) {
      if (const auto above = known_.find(*parent); above != known_.end() && *parent != id) {
        ++above->second.children;
        at->second.parent = *parent;
        at->second.has_parent = true;
      }
    }
    parent = id;
  }
}

bool KvEventsReader::goes_on(const Shown& shown, const JsonObject& event) const {
  std::string_view session;
  if (event.at_key("session_id").get(session) == simdjson::SUCCESS && string_id(session) != shown.request.session) {
    return false;
  }
  const TimeNs gap = now_ - shown.last;
  if (shown.answer.empty() && gap <= kMostToChunk) return true;
  return hashes_.size() == 1 && gap <= most_to_next(shown);
}

// From the last store of a request to the next block of its answer.
TimeNs KvEventsReader::most_to_next(const Shown& shown) const {
  const TimeNs first = static_cast<TimeNs>(block_) * kMostPerToken;
  return std::max(kMostToChunk, shown.interval == 0 ? first : kMostOfAnswer * shown.interval);
}

Shown& KvEventsReader::begin(std::optional<std::uint64_t> parent, std::uint64_t rank) {
  shown_.push_back(std::make_unique<Shown>());
  Shown& shown = *shown_.back();
  shown.request.arrival = now_;
  shown.rank = rank;
  if (!parent) return shown;
  std::uint64_t id = *parent;
  auto at = known_.find(id);
  if (at == known_.end()) {
    ++below_unknown_;
    shown.prompt.push_back(id);
    return shown;
  }
  while (true) {
    shown.prompt.push_back(id);
    if (!at->second.has_parent) break;
    id = at->second.parent;
    at = known_.find(id);
  }
  std::ranges::reverse(shown.prompt);
  return shown;
}

void KvEventsReader::stored(const JsonObject& event, std::uint64_t rank) {
  JsonValue value;
  std::optional<std::uint64_t> parent;
  if (event.at_key("parent_block_hash").get(value) == simdjson::SUCCESS && !value.is_null()) {
    parent = hash("parent_block_hash", value);
  }
  const auto is_here = [&](std::uint64_t id) {
    const auto at = known_.find(id);
    return at != known_.end() && (at->second.ranks >> rank & 1) != 0;
  };
  const bool is_report = !parent && std::ranges::all_of(hashes_, is_here);
  if (is_report) ++reports_;
  const auto open = parent ? by_tail_.find(mix64(*parent + rank)) : by_tail_.end();
  Shown* shown = open == by_tail_.end() ? nullptr : open->second;
  if (shown != nullptr) {
    by_tail_.erase(open);
    if (!goes_on(*shown, event)) {
      shown->ended = true;
      shown = nullptr;
    }
  }
  if (shown == nullptr) {
    shown = &begin(parent, rank);
    std::string_view text;
    if (event.at_key("session_id").get(text) == simdjson::SUCCESS) shown->request.session = string_id(text);
    if (event.at_key("lora_name").get(text) == simdjson::SUCCESS) {
      shown->request.tenant = string_id(text);
      ++lora_;
    }
    shown->prompt.insert(shown->prompt.end(), hashes_.begin(), hashes_.end());
  } else if (shown->answer.empty() && (hashes_.size() > 1 || (largest_ > 2 && shown->last_blocks + 1 >= largest_))) {
    shown->prompt.insert(shown->prompt.end(), hashes_.begin(), hashes_.end());
  } else {
    if (now_ - shown->last > kMostToChunk) ++late_;
    if (!shown->answer.empty()) shown->interval = now_ - shown->last;
    shown->answer.insert(shown->answer.end(), hashes_.begin(), hashes_.end());
  }
  if (!is_report) largest_ = std::max(largest_, hashes_.size());
  keep(parent, rank);
  shown->last_blocks = is_report ? 0 : hashes_.size();
  shown->last = now_;
  shown->tail = hashes_.back();
  by_tail_[mix64(shown->tail + rank)] = shown;
}

void KvEventsReader::fill(Shown& shown, TraceRequest& request) {
  request = std::move(shown.request);
  const Tokens rest = block_ / 2;
  request.input = shown.prompt.size() * block_ + rest;
  request.blocks = std::move(shown.prompt);
  if (rest > 0) request.blocks.push_back(next_private_++);
  request.output = std::max<Tokens>(1, shown.answer.empty() ? rest : shown.answer.size() * block_);
  if (shown.answer.empty()) ++without_answer_;
  request.answer_blocks = std::move(shown.answer);
  ++requests_;
}

bool KvEventsReader::next(TraceRequest& request) {
  request.clear();
  const auto front_ended = [&] {
    if (shown_.empty()) return false;
    const Shown& front = *shown_.front();
    return front.ended || now_ - front.last > most_to_next(front) || shown_.size() > kSortWindowRequests;
  };
  while (!front_ended() && read_event()) {
  }
  if (shown_.empty()) return false;
  Shown& front = *shown_.front();
  if (const auto open = by_tail_.find(mix64(front.tail + front.rank));
      open != by_tail_.end() && open->second == &front) {
    by_tail_.erase(open);
  }
  fill(front, request);
  shown_.pop_front();
  return true;
}

void KvEventsReader::add_notes(std::vector<std::string>& notes) const {
  if (requests_ == 0) return;
  const auto count = [](std::uint64_t number) { return std::to_string(number); };
  notes.push_back("trace: " + count(requests_) +
                  " requests are inferred from stores of KV blocks: a request that stored no block is not there" +
                  (reports_ > 0 ? ", unless the server reported its reuse (" + count(reports_) + " reports)" : "") +
                  ", arrivals are the times of the first stores, and tokens behind the last full block of " +
                  count(block_) + " are taken to be half a block; a request log is exact");
  if (without_answer_ > 0) {
    notes.push_back("trace: " + count(without_answer_) + " answers filled no block, and are taken to have " +
                    count(std::max<Tokens>(1, block_ / 2)) + " tokens");
  }
  if (late_ > 0) {
    notes.push_back("trace: " + count(late_) + " blocks came more than " + count(kMostToChunk / kNsPerSecond) +
                    " s after the block before them: they count as answers, and may be further requests");
  }
  if (below_unknown_ > 0) {
    notes.push_back("trace: " + count(below_unknown_) +
                    " requests continue a prefix that was stored before the recording began: their prompts are longer "
                    "than the workload says");
  }
  if (missing_ > 0) notes.push_back("trace: " + count(missing_) + " messages are missing in the recording");
  if (restarts_ > 0) notes.push_back("trace: the server was restarted " + count(restarts_) + " times");
  if (other_media_ > 0) notes.push_back("trace: " + count(other_media_) + " events are of other media than the GPU");
  if (lora_ > 0) notes.push_back("trace: " + count(lora_) + " requests are of LoRA adapters, each a tenant of its own");
}

}  // namespace

int matches_kv_events(const FirstLine& line) {
  return line.has("type") && (line.has("endpoint") || line.has("block_hashes")) ? 6 : 0;
}

std::unique_ptr<FormatReader> make_kv_events_reader(TraceLines& lines, const TraceOptions& options) {
  return std::make_unique<KvEventsReader>(lines, options);
}

}  // namespace kvtwin
