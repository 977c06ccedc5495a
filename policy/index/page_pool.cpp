#include "policy/index/page_pool.hpp"

#include <algorithm>

#include "policy/base/check.hpp"

namespace kvtwin {

PagePool::PagePool(Pages capacity)
    : capacity_(capacity), available_(capacity), used_(capacity, false), tags_(capacity, 0) {
  KV_CHECK(capacity < kNoSlot, "a pool has a number for every slot");
  if (capacity > 0) add_free(0, static_cast<SlotId>(capacity), {});
}

void PagePool::add_free(SlotId first, SlotId pages, FreeRuns::node_type&& reuse) {
  tags_[first] = tags_[first + pages - 1] = pages;
  if (reuse.empty()) {
    free_.emplace(pages, first);
  } else {
    reuse.value() = {pages, first};
    free_.insert(std::move(reuse));
  }
}

void PagePool::take_from_run(FreeRuns::iterator run, SlotId pages, std::vector<SlotId>& slots) {
  auto node = free_.extract(run);
  const auto [length, first] = node.value();
  for (SlotId slot = first; slot < first + pages; ++slot) {
    used_[slot] = true;
    slots.push_back(slot);
  }
  if (pages < length) add_free(first + pages, length - pages, std::move(node));
}

bool PagePool::allocate(Pages pages, std::vector<SlotId>& slots) {
  if (pages > available_) return false;
  available_ -= pages;
  for (auto rest = static_cast<SlotId>(pages); rest > 0;) {
    auto run = free_.lower_bound({rest, 0});
    // No run holds the rest: take the longest run, lowest address first.
    if (run == free_.end()) run = free_.lower_bound({free_.rbegin()->first, 0});
    const SlotId taken = std::min(rest, run->first);
    take_from_run(run, taken, slots);
    rest -= taken;
  }
  return true;
}

void PagePool::release(std::span<const SlotId> slots) {
  for (std::size_t i = 0; i < slots.size();) {
    SlotId first = slots[i];
    SlotId pages = 0;
    for (; i < slots.size() && slots[i] == first + pages; ++i, ++pages) {
      KV_CHECK(slots[i] < capacity_ && used_[slots[i]], "a slot that is released is in use");
      used_[slots[i]] = false;
    }
    available_ += pages;
    // Join the run with the free runs beside it, whose tags have the lengths.
    FreeRuns::node_type node;
    if (first + pages < capacity_ && !used_[first + pages]) {
      const SlotId after = tags_[first + pages];
      node = free_.extract({after, first + pages});
      pages += after;
    }
    if (first > 0 && !used_[first - 1]) {
      const SlotId before = tags_[first - 1];
      node = free_.extract({before, first - before});
      first -= before;
      pages += before;
    }
    add_free(first, pages, std::move(node));
  }
}

void PagePool::check_invariants() const {
  std::vector<bool> free(capacity_, false);
  Pages sum = 0;
  for (const auto& [length, first] : free_) {
    KV_CHECK(length > 0 && Pages{first} + length <= capacity_, "a free run lies within the pool");
    KV_CHECK(tags_[first] == length && tags_[first + length - 1] == length, "a free run is tagged at both ends");
    KV_CHECK(first == 0 || used_[first - 1], "a free run is maximal");
    KV_CHECK(first + length == capacity_ || used_[first + length], "a free run is maximal");
    for (SlotId slot = first; slot < first + length; ++slot) {
      KV_CHECK(!used_[slot] && !free[slot], "free runs are disjoint and free");
      free[slot] = true;
    }
    sum += length;
  }
  KV_CHECK(sum == available_, "free runs sum to what is available");
  const auto used = std::count(used_.begin(), used_.end(), true);
  KV_CHECK(static_cast<Pages>(used) + available_ == capacity_, "a slot is in use or free");
}

}  // namespace kvtwin
