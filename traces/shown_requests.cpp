#include "traces/shown_requests.hpp"

#include <algorithm>
#include <utility>

#include "traces/fields.hpp"
#include "traces/format.hpp"
#include "traces/random.hpp"

namespace kvtwin {
namespace {

constexpr TimeNs kMostToChunk = 2 * kNsPerSecond;    // from a part of a prompt to the next one
constexpr TimeNs kMostPerToken = kNsPerSecond / 10;  // of an answer
constexpr TimeNs kMostOfAnswer = 4;                  // to the next one, in intervals between the last two

}  // namespace

std::size_t ShownRequests::TailHash::operator()(const Tail& tail) const { return mix64(tail.block + mix64(tail.rank)); }

// Returns whether the event counts. Of a server with several groups, those with windows hold a part of each prompt
// only.
bool ShownRequests::of_group(const BlockEvent& event) {
  if (!event.is_of_device()) {
    ++other_media_;
    return false;
  }
  if (!event.group) return true;
  const bool full = event.group_kind == "full_attention" || event.group_kind == "mla_attention";
  if (!group_ || (full && !group_is_full_ && requests_ == 0)) {
    group_ = event.group;
    group_is_full_ = full;
    block_ = 0;
    known_.clear();
    shown_.clear();
    by_tail_.clear();
    open_ = 0;
    reports_ = below_unknown_ = late_ = lora_ = largest_ = stored_ = 0;
  }
  return event.group == group_;
}

std::optional<ShownRequests::Fault> ShownRequests::take(const BlockEvent& event) {
  using enum BlockEvent::Kind;
  if (event.kind == cleared || event.kind == restart) forget_engine();
  if (event.kind != stored && event.kind != removed) return {};
  if (event.rank > BlockEventLines::kMaxRank) {
    return Fault{"rank", "is above " + std::to_string(BlockEventLines::kMaxRank)};
  }
  now_ = std::max(now_, event.time);
  if (!of_group(event)) return {};
  if (event.kind == removed) {
    take_removed(event);
    return {};
  }
  if (event.block_tokens == 0) return Fault{"block_size", "is 0; a block has at least 1 token"};
  if (block_ == 0) block_ = event.block_tokens;
  if (event.block_tokens != block_) {
    return Fault{"block_size", "is " + std::to_string(event.block_tokens) + ", and was " + std::to_string(block_) +
                                   " before; a group of layers has one block size"};
  }
  if (!event.blocks.empty()) take_stored(event);
  return {};
}

void ShownRequests::forget_engine() {
  for (const auto& shown : shown_) shown->ended = true;
  by_tail_.clear();
  known_.clear();
}

void ShownRequests::take_removed(const BlockEvent& event) {
  for (const std::uint64_t id : event.blocks) {
    const std::uint32_t block = known_.find(id);
    if (block == KnownBlocks::kNone) continue;
    if (const auto open = by_tail_.find({id, event.rank}); open != by_tail_.end()) {
      open->second->ended = true;
      by_tail_.erase(open);
    }
    known_.clear_rank(block, event.rank);
  }
}

// Adds the blocks of the event to the known ones.
void ShownRequests::keep(const BlockEvent& event) {
  std::uint32_t block = event.parent ? known_.find(*event.parent) : KnownBlocks::kNone;
  for (const std::uint64_t id : event.blocks) {
    block = known_.find_or_add(id, block);
    known_.set_rank(block, event.rank);
  }
}

void ShownRequests::remember(const TraceRequest& request) {
  if (known_.size() + request.blocks.size() > limits_.known_blocks) forget_all();
  std::uint32_t block = KnownBlocks::kNone;
  for (const std::uint64_t id : request.blocks) {
    if (id >= kPrivateBlocks) {
      next_private_ = std::max(next_private_, id + 1);
      return;
    }
    block = known_.find_or_add(id, block);
  }
}

bool ShownRequests::goes_on(const Shown& shown, const BlockEvent& event) const {
  if (event.session && string_id(*event.session) != shown.request.session) return false;
  const TimeNs gap = now_ - shown.last;
  if (shown.answer.empty() && gap <= kMostToChunk) return true;
  return event.blocks.size() == 1 && gap <= most_to_next(shown);
}

// From the last store of a request to the next block of its answer.
TimeNs ShownRequests::most_to_next(const Shown& shown) const {
  const TimeNs first = static_cast<TimeNs>(block_) * kMostPerToken;
  return std::max(kMostToChunk, shown.interval == 0 ? first : kMostOfAnswer * shown.interval);
}

ShownRequests::Shown& ShownRequests::begin(const BlockEvent& event) {
  shown_.push_back(std::make_unique<Shown>());
  Shown& shown = *shown_.back();
  shown.request.arrival = now_;
  if (!event.parent) return shown;
  std::uint32_t block = known_.find(*event.parent);
  if (block == KnownBlocks::kNone) {
    ++below_unknown_;
    shown.prompt.push_back(*event.parent);
  }
  for (; block != KnownBlocks::kNone; block = known_.above(block)) shown.prompt.push_back(known_.id(block));
  std::ranges::reverse(shown.prompt);
  open_ += shown.prompt.size();
  return shown;
}

void ShownRequests::append(std::vector<std::uint64_t>& list, const BlockEvent& event) {
  list.insert(list.end(), event.blocks.begin(), event.blocks.end());
  open_ += event.blocks.size();
}

void ShownRequests::take_stored(const BlockEvent& event) {
  const auto is_here = [&](std::uint64_t id) {
    const std::uint32_t block = known_.find(id);
    return block != KnownBlocks::kNone && known_.has(block, event.rank);
  };
  const bool is_report = !event.parent && std::ranges::all_of(event.blocks, is_here);
  if (is_report) {
    ++reports_;
  } else {
    stored_ += event.blocks.size();
  }
  if (known_.size() + event.blocks.size() > limits_.known_blocks) forget_all();
  const auto open = event.parent ? by_tail_.find({*event.parent, event.rank}) : by_tail_.end();
  Shown* shown = open == by_tail_.end() ? nullptr : open->second;
  if (shown != nullptr) {
    by_tail_.erase(open);
    if (!goes_on(*shown, event)) {
      shown->ended = true;
      shown = nullptr;
    }
  }
  if (shown == nullptr) {
    shown = &begin(event);
    if (event.session) shown->request.session = string_id(*event.session);
    if (event.lora) {
      shown->request.tenant = string_id(*event.lora);
      ++lora_;
    }
    append(shown->prompt, event);
  } else if (shown->answer.empty() &&
             (event.blocks.size() > 1 || (largest_ > 2 && shown->last_blocks + 1 >= largest_))) {
    append(shown->prompt, event);
  } else {
    if (now_ - shown->last > kMostToChunk) ++late_;
    if (!shown->answer.empty()) shown->interval = now_ - shown->last;
    append(shown->answer, event);
  }
  if (!is_report) largest_ = std::max(largest_, event.blocks.size());
  keep(event);
  shown->last_blocks = is_report ? 0 : event.blocks.size();
  shown->last = now_;
  shown->tail = {event.blocks.back(), event.rank};
  by_tail_[shown->tail] = shown;
}

void ShownRequests::forget_all() {
  forget_engine();
  ++forgotten_;
}

void ShownRequests::fill(Shown& shown, TraceRequest& request) {
  request = std::move(shown.request);
  open_ -= shown.prompt.size() + shown.answer.size();
  const Tokens rest = block_ / 2;
  request.input = shown.prompt.size() * block_ + rest;
  request.blocks = std::move(shown.prompt);
  if (rest > 0) request.blocks.push_back(next_private_++);
  request.output = std::max<Tokens>(1, shown.answer.empty() ? rest : shown.answer.size() * block_);
  if (shown.answer.empty()) ++without_answer_;
  request.answer_blocks = std::move(shown.answer);
  ++requests_;
}

bool ShownRequests::has_next(TimeNs now) const {
  if (shown_.empty()) return false;
  const Shown& front = *shown_.front();
  const TimeNs known = std::max(now_, now - kMostLate);
  return front.ended || known - front.last > most_to_next(front) || shown_.size() > kSortWindowRequests ||
         open_ > limits_.open_blocks;
}

bool ShownRequests::next(TraceRequest& request) {
  request.clear();
  if (shown_.empty()) return false;
  Shown& front = *shown_.front();
  if (const auto open = by_tail_.find(front.tail); open != by_tail_.end() && open->second == &front) {
    by_tail_.erase(open);
  }
  fill(front, request);
  shown_.pop_front();
  return true;
}

void ShownRequests::add_notes(std::vector<std::string>& notes) const {
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
  if (other_media_ > 0) notes.push_back("trace: " + count(other_media_) + " events are of other media than the GPU");
  if (lora_ > 0) notes.push_back("trace: " + count(lora_) + " requests are of LoRA adapters, each a tenant of its own");
}

}  // namespace kvtwin
