#include "lab/watch/block_counts.hpp"

#include <algorithm>

#include "policy/base/mix.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kFirstLines = 16;
constexpr std::size_t kMaxName = 40;  // of a medium or a kind

}  // namespace

std::uint32_t BlockSet::Place::spread() const { return static_cast<std::uint32_t>(mixed_bits(number) >> 32); }

BlockSet::BlockSet() { clear(); }

void BlockSet::clear() {
  table_.rebuild(kFirstLines, [](const Place&) { return false; });
  size_ = 0;
}

bool BlockSet::insert(std::uint64_t number) {
  const Place place{number == 0 ? 1 : number};
  const auto find = [&] {
    return table_.find(place.spread(), [&](const Place& at) { return at.number == place.number; });
  };
  std::size_t at = find();
  if (!table_.at(at).is_empty()) return false;
  if (2 * ++size_ > table_.places()) {
    table_.rebuild(2 * table_.lines(), [](const Place&) { return true; });
    at = find();
  }
  table_.at(at) = place;
  return true;
}

bool BlockSet::erase(std::uint64_t number) {
  const Place place{number == 0 ? 1 : number};
  const std::size_t at = table_.find(place.spread(), [&](const Place& one) { return one.number == place.number; });
  if (table_.at(at).is_empty()) return false;
  table_.erase(at);
  --size_;
  return true;
}

bool BlockSet::has(std::uint64_t number) const {
  const Place place{number == 0 ? 1 : number};
  return !table_.at(table_.find(place.spread(), [&](const Place& at) { return at.number == place.number; })).is_empty();
}

BlockCounts::Held& BlockCounts::pool_of(const BlockEvent& event) {
  const std::uint64_t group = event.group.value_or(0);
  const std::string_view medium = event.medium.empty() ? "GPU" : event.medium.substr(0, kMaxName);
  for (Held& held : pools_) {
    if (held.pool.group == group && held.pool.medium == medium) return held;
  }
  if (pools_.size() == kMaxPools) return pools_.back();
  Held held;
  held.pool.medium = medium;
  held.pool.group = group;
  held.pool.is_device = event.is_of_device();
  pools_.push_back(std::move(held));
  return pools_.back();
}

void BlockCounts::take(const BlockEvent& event) {
  using enum BlockEvent::Kind;
  if (event.kind == cleared || event.kind == restart) {
    for (Held& held : pools_) {
      held.blocks.clear();
      held.pool.held = 0;
    }
    remembered_ = 0;
  }
  if (event.kind != stored && event.kind != removed) return;
  Held& held = pool_of(event);
  Pool& pool = held.pool;
  if (!event.group_kind.empty() && pool.kind.empty()) pool.kind = event.group_kind.substr(0, kMaxName);
  for (const std::uint64_t block : event.blocks) {
    // Ranks hold blocks of their own.
    const std::uint64_t number = mixed_bits(block + event.rank);
    if (event.kind == stored) {
      ++pool.stored;
      const bool has_room = remembered_ < max_blocks_;
      if (has_room && !held.blocks.insert(number)) continue;
      remembered_ += has_room ? 1 : 0;
      pool.peak = std::max(pool.peak, ++pool.held);
    } else {
      ++pool.removed;
      if (held.blocks.erase(number)) {
        --remembered_;
      } else if (pool.held == held.blocks.size()) {
        continue;  // stored before the first event
      }
      if (10 * pool.held >= 9 * pool.peak) pool.is_full = true;
      --pool.held;
    }
  }
}

std::vector<BlockCounts::Pool> BlockCounts::pools() const {
  std::vector<Pool> all;
  for (const Held& held : pools_) all.push_back(held.pool);
  std::ranges::stable_sort(all, [](const Pool& a, const Pool& b) { return a.is_device && !b.is_device; });
  return all;
}

std::uint64_t BlockCounts::device_peak() const {
  std::uint64_t peak = 0;
  for (const Held& held : pools_) peak = std::max(peak, held.pool.is_device ? held.pool.peak : 0);
  return peak;
}

std::uint64_t BlockCounts::full_device() const {
  std::uint64_t full = 0;
  for (const Held& held : pools_) {
    if (held.pool.is_device && held.pool.is_full) full = std::max(full, held.pool.peak);
  }
  return full;
}

std::size_t BlockCounts::memory_bytes() const {
  std::size_t bytes = 0;
  for (const Held& held : pools_) bytes += held.blocks.memory_bytes();
  return bytes;
}

}  // namespace kvtwin
