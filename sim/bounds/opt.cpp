#include "sim/bounds/opt.hpp"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "policy/base/check.hpp"

namespace kvtwin {

namespace {

std::uint32_t hash_of(const PageKey& key) {  // a key is already uniform
  return static_cast<std::uint32_t>(key.words[0] >> 32);
}

}  // namespace

std::size_t RequestLog::place_of(const PageKey& key) const {
  const std::uint32_t hash = hash_of(key);
  return places_.find(hash, [&](const Place& place) { return place.hash == hash && keys_[place.node] == key; });
}

void RequestLog::append(const PageKey& key, std::uint32_t parent) {
  const auto node = static_cast<std::uint32_t>(parent_.size());
  parent_.push_back(parent);
  keys_.push_back(key);
  if (2 * keys_.size() > places_.places()) {
    places_.rebuild(std::max<std::size_t>(64, 2 * places_.lines()), [](const Place&) { return true; });
  }
  places_.at(place_of(key)) = {hash_of(key), node};
}

std::uint64_t RequestLog::add(std::span<const PageKey> keys) {
  constexpr std::size_t kMaxRequestsOrBlocks = std::numeric_limits<std::uint32_t>::max() - 1;
  KV_CHECK(requests() < kMaxRequestsOrBlocks && parent_.size() + keys.size() < kMaxRequestsOrBlocks,
           "requests and blocks have 32-bit numbers");
  std::size_t known = 0, unknown = keys.size();  // known blocks are a prefix: binary search for the end of the prefix
  while (known < unknown) {
    const std::size_t middle = known + (unknown - known) / 2;
    if (places_.lines() > 0 && !places_.at(place_of(keys[middle])).is_empty()) {
      known = middle + 1;
    } else {
      unknown = middle;
    }
  }
  std::uint32_t node = known == 0 ? kRoot : places_.at(place_of(keys[known - 1])).node;
  for (const PageKey& key : keys.subspan(known)) {
    append(key, node);
    node = static_cast<std::uint32_t>(parent_.size() - 1);
  }
  last_node_.push_back(node);
  blocks_.push_back(static_cast<std::uint32_t>(keys.size()));
  return known;
}

// A parent has a lower number than its children.
std::uint32_t RequestLog::shared(std::uint32_t request, std::uint32_t other) const {
  std::uint32_t blocks = blocks_[request], node = last_node_[request], second = last_node_[other];
  while (node != second) {
    if (node > second) {
      node = parent_[node];
      --blocks;
    } else {
      second = parent_[second];
    }
  }
  return blocks;
}

namespace {

constexpr std::uint32_t kNoTurn = ~std::uint32_t{0};

std::vector<Turn> one_turn_per_request(std::span<const std::uint32_t> blocks) {
  std::vector<Turn> turns(blocks.size());
  for (std::uint32_t i = 0; i < turns.size(); ++i) turns[i] = {i, blocks[i]};
  return turns;
}

// Counts the present blocks by the turn that uses them next.
class NextUses {
 public:
  explicit NextUses(std::size_t turns) : present_(turns, 0) {}

  std::uint32_t take(std::size_t turn) { return std::exchange(present_[turn], 0); }
  void add(std::uint32_t turn, std::uint32_t blocks) {
    if (blocks == 0) return;
    if (present_[turn] == 0) farthest_.push(turn);
    present_[turn] += blocks;
  }
  // Returns the last turn that uses a present block, or kNoTurn.
  std::uint32_t farthest() {
    while (!farthest_.empty() && present_[farthest_.top()] == 0) farthest_.pop();
    return farthest_.empty() ? kNoTurn : farthest_.top();
  }
  std::uint32_t drop(std::uint32_t turn, Pages most) {
    const auto dropped = static_cast<std::uint32_t>(std::min<Pages>(present_[turn], most));
    present_[turn] -= dropped;
    return dropped;
  }

 private:
  std::vector<std::uint32_t> present_;
  std::priority_queue<std::uint32_t> farthest_;  // every turn with present blocks; stale entries too
};

std::uint32_t fitting_blocks(std::uint32_t blocks, Pages capacity) {
  return static_cast<std::uint32_t>(std::min<Pages>(blocks, capacity));
}

// Returns how many of the depths first .. end - 1 are less than `depth`.
std::uint32_t blocks_above(std::uint32_t depth, const Reuse& run) {
  return std::min(run.end, std::max(depth, run.first)) - run.first;
}

}  // namespace

Future::Future(RequestLog&& log) : Future(std::move(log), one_turn_per_request(log.blocks_)) {}

Future::Future(RequestLog&& log, std::span<const Turn> turns)
    : Future((log.places_ = {}, log.keys_ = {}, std::as_const(log)), turns) {}

Future::Future(const RequestLog& log, std::span<const Turn> turns) : turns_(turns.size()) {
  KV_CHECK(turns.size() < kNoTurn, "turns have 32-bit numbers");
  std::vector<std::uint32_t> next(log.parent_.size(), kNoTurn);
  // From the last turn to the first, and from the deepest block to the first.
  for (std::size_t i = turns.size(); i-- > 0;) {
    const auto turn = static_cast<std::uint32_t>(i);
    std::uint32_t depth = turns_[i].blocks = log.blocks_[turns[i].request];
    turns_[i].request = turns[i].request;
    turns_[i].counted = turns[i].counted;
    for (std::uint32_t node = log.last_node_[turns[i].request]; node != RequestLog::kRoot; node = log.parent_[node]) {
      --depth;
      const std::uint32_t to = std::exchange(next[node], turn);
      if (to == kNoTurn) continue;
      if (!reuses_.empty() && reuses_.back().from == turn && reuses_.back().to == to) {
        reuses_.back().first = depth;
      } else {
        reuses_.push_back({turn, to, depth, depth + 1});
      }
    }
    KV_CHECK(depth == 0, "a request's path is as long as its keys");
  }
  std::ranges::reverse(reuses_);
  std::size_t at = 0;
  for (std::size_t i = 0; i < turns_.size(); ++i) {
    while (at < reuses_.size() && reuses_[at].from == i) ++at;
    turns_[i].reuses_end = at;
  }
}

std::span<const Reuse> Future::reuses_of(std::size_t turn) const {
  const std::size_t begin = turn == 0 ? 0 : turns_[turn - 1].reuses_end;
  return reuses().subspan(begin, turns_[turn].reuses_end - begin);
}

std::vector<std::uint32_t> opt_hits(const Future& future, Pages capacity) {
  NextUses present(future.turns());
  std::vector<std::uint32_t> hits(future.turns(), 0);
  Pages used = 0;
  for (std::size_t turn = 0; turn < future.turns(); ++turn) {
    hits[turn] = present.take(turn);
    used -= hits[turn];
    for (const Reuse& run : future.reuses_of(turn)) {
      const std::uint32_t wanted = blocks_above(future.counted(run.to), run);
      while (capacity - used < wanted) {  // blocks that were present are wanted first, and have room
        const std::uint32_t farthest = present.farthest();
        if (farthest == kNoTurn || farthest <= run.to) break;
        used -= present.drop(farthest, wanted - (capacity - used));
      }
      const std::uint32_t kept = fitting_blocks(wanted, capacity - used);
      present.add(run.to, kept);
      used += kept;
    }
  }
  return hits;
}

std::vector<std::uint32_t> opt_no_bypass_hits(const Future& future, Pages capacity) {
  NextUses present(future.turns());
  std::vector<std::uint32_t> hits(future.turns(), 0);
  Pages used = 0, unneeded = 0;  // `unneeded`: used blocks without a next use
  for (std::size_t turn = 0; turn < future.turns(); ++turn) {
    hits[turn] = present.take(turn);
    used -= hits[turn];
    const std::uint32_t own = fitting_blocks(future.blocks(turn), capacity);
    Pages excess = used + own > capacity ? used + own - capacity : 0;
    used += own - excess;
    const Pages idle = std::min(unneeded, excess);
    unneeded -= idle;
    excess -= idle;
    while (excess > 0) excess -= present.drop(present.farthest(), excess);
    unneeded += own;
    for (const Reuse& run : future.reuses_of(turn)) {
      const std::uint32_t kept = blocks_above(std::min(own, future.counted(run.to)), run);
      present.add(run.to, kept);
      unneeded -= kept;
    }
  }
  return hits;
}

namespace {

// The present blocks by the turn that used them last: for each turn, the depths lo .. hi - 1 of its path.
class LastUses {
 public:
  LastUses(const Future& future, Pages capacity, bool knows_reuse)
      : future_(future),
        capacity_(capacity),
        knows_reuse_(knows_reuse),
        spans_(future.turns()),
        back_(future.turns()) {}

  std::vector<std::uint32_t> hits() {
    std::vector<std::uint32_t> hits(future_.turns(), 0);
    for (std::size_t turn = 0; turn < future_.turns(); ++turn) {
      hits[turn] = std::min(take(turn), future_.counted(turn));
      insert(turn);
    }
    return hits;
  }

 private:
  struct Span {
    std::uint32_t lo = 0, hi = 0;
  };

  // Removes the present part of the turn's path from the spans of its last users. Returns the number of removed blocks.
  std::uint32_t take(std::size_t turn) {
    std::uint32_t hit = 0;
    for (std::size_t i = back_[turn].size(); i-- > 0;) {  // runs of the last user are first on the path
      const Reuse& run = back_[turn][i];
      Span& span = spans_[run.from];
      const std::uint32_t present = blocks_above(span.hi, run);
      used_ -= present;
      hit += present;
      span.lo = run.first + present;
      if (span.lo < run.end) break;  // no deeper block is present
    }
    back_[turn] = {};
    return hit;
  }

  void insert(std::size_t turn) {
    const std::uint32_t own = fitting_blocks(future_.blocks(turn), capacity_);
    Pages excess = used_ + own > capacity_ ? used_ + own - capacity_ : 0;
    used_ += own - excess;
    const Pages idle = std::min(unneeded_, excess);
    unneeded_ -= idle;
    excess -= idle;
    while (excess > 0) {
      Span& span = spans_[oldest_];
      const auto dropped = static_cast<std::uint32_t>(std::min<Pages>(excess, span.hi - std::min(span.lo, span.hi)));
      span.hi -= dropped;
      excess -= dropped;
      if (excess > 0) ++oldest_;
    }
    const auto runs = future_.reuses_of(turn);
    for (const Reuse& run : runs) back_[run.to].push_back(run);
    const std::uint32_t again = runs.empty() ? 0 : std::min(own, runs.back().end);
    spans_[turn] = {0, knows_reuse_ ? again : own};
    if (knows_reuse_) unneeded_ += own - again;
  }

  const Future& future_;
  Pages capacity_;
  bool knows_reuse_;
  std::vector<Span> spans_;               // by turn
  std::vector<std::vector<Reuse>> back_;  // by turn: the runs that end in the turn, in order of `from`
  Pages used_ = 0, unneeded_ = 0;
  std::size_t oldest_ = 0;  // no earlier turn has a present block
};

}  // namespace

std::vector<std::uint32_t> opt_bit_hits(const Future& future, Pages capacity) {
  return LastUses(future, capacity, true).hits();
}

std::vector<std::uint32_t> lru_hits(const Future& future, Pages capacity) {
  return LastUses(future, capacity, false).hits();
}

}  // namespace kvtwin
