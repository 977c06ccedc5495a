#include "lab/watch/stack_distances.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/base/mix.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kFirstSlots = 4096;
constexpr std::size_t kAhead = 8;  // keys whose places are prefetched

std::uint32_t hash_of(std::uint64_t key) { return static_cast<std::uint32_t>(mixed_bits(key) >> 32); }

}  // namespace

StackDistances::StackDistances(std::size_t max_blocks, std::uint64_t one_in)
    : max_blocks_(max_blocks), one_in_(one_in) {
  KV_CHECK(max_blocks >= 1 && max_blocks <= (std::size_t{1} << 30) && one_in >= 1, "a size that 32 bits can number");
  table_.rebuild(kFirstSlots / FlatTable<Place>::kLine, [](const Place&) { return true; });
}

std::uint64_t StackDistances::sample_of(std::uint64_t key) { return mixed_bits(key + kGoldenRatio64) >> 8; }

std::size_t StackDistances::memory_bytes() const {
  const auto bytes = [](const auto& list) { return list.capacity() * sizeof list[0]; };
  return bytes(keys_) + bytes(slots_) + bytes(free_) + bytes(block_in_) + bytes(taken_) + bytes(group_sum_) +
         bytes(path_) + table_.places() * sizeof(Place);
}

std::size_t StackDistances::table_place(std::uint64_t key) const {
  const std::uint32_t hash = hash_of(key);
  return table_.find(hash,
                     [&](const Place& place) { return place.hash == hash && keys_[place.block_plus_one - 1] == key; });
}

std::uint32_t StackDistances::find(std::uint64_t key) const {
  const Place& place = table_.at(table_place(key));
  return place.is_empty() ? kNone : place.block_plus_one - 1;
}

std::uint32_t StackDistances::add(std::uint64_t key) {
  std::uint32_t block = 0;
  if (free_.empty()) {
    block = static_cast<std::uint32_t>(keys_.size());
    if (keys_.size() == keys_.capacity()) {
      const std::size_t more = std::min(max_blocks_, std::max(kFirstSlots, 2 * keys_.size()));
      keys_.reserve(more);
      slots_.reserve(more);
    }
    keys_.push_back(key);
    slots_.push_back(kNone);
    if (2 * keys_.size() > table_.places()) {
      constexpr std::size_t kLine = FlatTable<Place>::kLine;
      const std::size_t lines = std::min(2 * table_.lines(), (2 * max_blocks_ + kLine - 1) / kLine + 1);
      table_.rebuild(lines, [](const Place&) { return true; });
    }
  } else {
    block = free_.back();
    free_.pop_back();
    keys_[block] = key;
    slots_[block] = kNone;
  }
  table_.at(table_place(key)) = {hash_of(key), block + 1};
  return block;
}

void StackDistances::add_to_group(std::size_t group, std::uint32_t value) {
  for (std::size_t i = group + 1; i <= group_sum_.size(); i += i & (~i + 1)) group_sum_[i - 1] += value;
}

// Changes of one group's sum, which are added when another group comes.
class StackDistances::GroupSum {
 public:
  GroupSum(StackDistances& distances, std::uint32_t change) : distances_(distances), change_(change) {}

  void add(std::size_t group) {
    if (group != group_) flush();
    group_ = group;
    sum_ += change_;
  }
  void flush() {
    if (sum_ != 0) distances_.add_to_group(group_, std::exchange(sum_, 0));
  }

 private:
  StackDistances& distances_;
  const std::uint32_t change_;
  std::size_t group_ = 0;
  std::uint32_t sum_ = 0;
};

void StackDistances::mark_taken(std::uint32_t slot) {
  taken_[slot / kWordBits] |= std::uint64_t{1} << slot % kWordBits;
}

void StackDistances::mark_free(std::uint32_t slot) {
  taken_[slot / kWordBits] &= ~(std::uint64_t{1} << slot % kWordBits);
}

std::uint64_t StackDistances::rank(std::uint32_t slot) const {
  std::uint64_t below = 0;
  for (std::size_t i = slot / kGroupBits; i > 0; i -= i & (~i + 1)) below += group_sum_[i - 1];
  const std::size_t word = slot / kWordBits;
  for (std::size_t i = word - word % kGroupWords; i < word; ++i) {
    below += static_cast<std::uint64_t>(std::popcount(taken_[i]));
  }
  below += static_cast<std::uint64_t>(std::popcount(taken_[word] & ((std::uint64_t{1} << slot % kWordBits) - 1)));
  return blocks() - below;
}

void StackDistances::forget_last() {
  std::size_t word = first_slot_ / kWordBits;
  while (taken_[word] == 0) ++word;
  first_slot_ = word * kWordBits + static_cast<std::size_t>(std::countr_zero(taken_[word]));
  const std::uint32_t block = block_in_[first_slot_];
  mark_free(static_cast<std::uint32_t>(first_slot_));
  add_to_group(first_slot_ / kGroupBits, ~std::uint32_t{0});
  table_.erase(table_place(keys_[block]));
  slots_[block] = kNone;
  free_.push_back(block);
  ++forgotten_;
}

void StackDistances::make_slots() {
  std::size_t live = 0;
  for (std::size_t slot = first_slot_; slot < next_slot_; ++slot) {
    if ((taken_[slot / kWordBits] >> slot % kWordBits & 1) == 0) continue;
    block_in_[live] = block_in_[slot];
    slots_[block_in_[live]] = static_cast<std::uint32_t>(live);
    ++live;
  }
  // The last request of a full table is beyond max_blocks until the oldest blocks are forgotten.
  const std::size_t most = (2 * max_blocks_ + kGroupBits) / kGroupBits * kGroupBits;
  std::size_t slots = block_in_.size();
  if (2 * live >= slots) slots = std::max({std::min(2 * slots, most), kFirstSlots, live + kGroupBits});
  slots = (slots + kGroupBits - 1) / kGroupBits * kGroupBits;
  block_in_.resize(slots);
  block_in_.shrink_to_fit();
  taken_.assign(slots / kWordBits, 0);
  group_sum_.assign(slots / kGroupBits, 0);
  first_slot_ = 0;
  next_slot_ = live;
  GroupSum taken(*this, 1);
  for (std::uint32_t slot = 0; slot < live; ++slot) {
    mark_taken(slot);
    taken.add(slot / kGroupBits);
  }
  taken.flush();
}

std::uint64_t StackDistances::distance(std::uint64_t key) const {
  if (!is_sampled(key)) return kNotSampled;
  const std::uint32_t block = find(key);
  return block == kNone ? kNew : rank(slots_[block]) * one_in_;
}

void StackDistances::visit(std::span<const std::uint64_t> keys, std::vector<std::uint64_t>& distances) {
  distances.assign(keys.size(), kNotSampled);
  path_.clear();
  // A cache of max_blocks holds the first ones of a longer path.
  std::uint32_t slot_before = kNone;
  std::uint64_t rank_before = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i + kAhead < keys.size()) table_.prefetch(hash_of(keys[i + kAhead]));
    if (!is_sampled(keys[i])) continue;
    const std::uint32_t block = find(keys[i]);
    if (path_.size() < max_blocks_) path_.push_back({static_cast<std::uint32_t>(i), block});
    if (block == kNone) {
      distances[i] = kNew;
      continue;
    }
    // An earlier visit left the blocks of a path in slots side by side, in falling order.
    const std::uint32_t slot = slots_[block];
    rank_before = slot + 1 == slot_before ? rank_before + 1 : rank(slot);
    slot_before = slot;
    distances[i] = rank_before * one_in_;
  }
  GroupSum taken(*this, 1), released(*this, ~std::uint32_t{0});
  for (std::size_t i = path_.size(); i-- > 0;) {
    const std::uint64_t key = keys[path_[i].key];
    std::uint32_t block = path_[i].block;
    if (next_slot_ == block_in_.size()) {
      taken.flush();
      released.flush();
      make_slots();
    }
    // The block may have been forgotten for one behind it on the path, or the key be there twice.
    const bool is_here = block != kNone && keys_[block] == key && slots_[block] != kNone;
    if (!is_here) block = find(key);
    if (block == kNone) {
      if (blocks() == max_blocks_) forget_last();
      block = add(key);
    } else {
      mark_free(slots_[block]);
      released.add(slots_[block] / kGroupBits);
    }
    slots_[block] = static_cast<std::uint32_t>(next_slot_);
    block_in_[next_slot_] = block;
    mark_taken(static_cast<std::uint32_t>(next_slot_));
    taken.add(next_slot_++ / kGroupBits);
  }
  taken.flush();
  released.flush();
}

}  // namespace kvtwin
