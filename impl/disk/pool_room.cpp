#include "impl/disk/pool_room.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/base/wide.hpp"

namespace kvtwin {
namespace {

// Room moves in this part of the capacity at least, so that a small put does not cost a reclaim each time.
constexpr Bytes kMoveParts = 32;

Pages objects_of(Bytes bytes, Bytes size) { return (bytes + size - 1) / size; }

}  // namespace

PoolRoom::PoolRoom(Bytes capacity, std::vector<Bytes> object_bytes)
    : capacity_(capacity), sizes_(std::move(object_bytes)), parts_(sizes_.size(), 0), put_(sizes_.size(), 0) {
  KV_CHECK(std::ranges::all_of(sizes_, [&](Bytes size) { return size > 0 && size <= capacity; }),
           "the capacity has room for an object of each pool");
}

Bytes PoolRoom::free() const {
  Bytes used = 0;
  for (std::size_t pool = 0; pool < parts_.size(); ++pool) used += bytes(pool);
  return used < capacity_ ? capacity_ - used : 0;
}

Bytes PoolRoom::share(std::size_t pool) const {
  const Bytes all = std::accumulate(put_.begin(), put_.end(), Bytes{0});
  return all == 0 ? 0 : static_cast<Bytes>(UnsignedWide{capacity_} * put_[pool] / all);
}

// What was put before the last half of the capacity counts half.
void PoolRoom::count_put(std::size_t pool, Bytes bytes) {
  put_[pool] += bytes;
  if (std::accumulate(put_.begin(), put_.end(), Bytes{0}) < capacity_) return;
  for (Bytes& put : put_) put /= 2;
}

void PoolRoom::make_room(std::size_t pool, Pages objects, std::span<const Pages> used) {
  const Bytes size = sizes_[pool];
  count_put(pool, objects * size);
  for (std::size_t at = 0; at < parts_.size(); ++at) {  // room that is not used is free
    if (at != pool) parts_[at] = std::min(parts_[at], used[at]);
  }
  const Pages wanted = std::min(used[pool] + objects, capacity_ / size);
  if (wanted <= parts_[pool]) return;
  Bytes needed = (wanted - parts_[pool]) * size;
  while (free() < needed) {
    // Among the others, and this pool itself, which then evicts its own objects.
    const auto beyond = [&](std::size_t at) {
      const Bytes has = bytes(at), its = share(at);
      return has > its ? has - its : 0;
    };
    std::size_t from = pool;
    for (std::size_t at = 0; at < parts_.size(); ++at) {
      if (parts_[at] > 0 && beyond(at) > beyond(from)) from = at;
    }
    if (from == pool && parts_[pool] > 0) break;
    if (from == pool) {  // the pool has nothing: the largest pool makes room for one object
      needed = std::min(needed, size);
      if (free() >= needed) break;
      for (std::size_t at = 0; at < parts_.size(); ++at) {
        if (bytes(at) > bytes(from)) from = at;
      }
    }
    const Bytes least = std::max(needed - free(), capacity_ / kMoveParts);
    const Bytes most = std::max(beyond(from), sizes_[from]);
    parts_[from] -= std::min(parts_[from], objects_of(std::min(least, most), sizes_[from]));
  }
  parts_[pool] = std::min(wanted, parts_[pool] + free() / size);
}

void PoolRoom::adopt(std::span<const Pages> used) {
  std::ranges::copy(used, parts_.begin());
  for (;;) {
    Bytes all = 0;
    std::size_t largest = 0;
    for (std::size_t at = 0; at < parts_.size(); ++at) {
      all += bytes(at);
      if (bytes(at) > bytes(largest)) largest = at;
    }
    if (all <= capacity_) return;
    // Down to the second largest, or by what is too much.
    Bytes second = 0;
    for (std::size_t at = 0; at < parts_.size(); ++at) {
      if (at != largest) second = std::max(second, bytes(at));
    }
    const Bytes step = std::max(bytes(largest) - second, capacity_ / kMoveParts);
    parts_[largest] -= std::min(parts_[largest], objects_of(std::min(all - capacity_, step), sizes_[largest]));
  }
}

void PoolRoom::limit_to(std::span<const Pages> used) {
  Bytes all = 0;
  for (std::size_t at = 0; at < used.size(); ++at) all += used[at] * sizes_[at];
  // An object of each pool always fits, by this count; else no pool could be put to.
  capacity_ = std::min(capacity_, std::max(all, *std::ranges::max_element(sizes_)));
  adopt(used);
}

}  // namespace kvtwin
