#include "policy/index/page_pool.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <new>

#include "policy/base/check.hpp"

namespace kvtwin {

PagePool::PagePool(Pages capacity)
    : capacity_(capacity),
      available_(capacity),
      tags_(static_cast<SlotId*>(std::calloc(static_cast<std::size_t>(capacity) + 1, sizeof(SlotId)))) {
  KV_CHECK(capacity < kNoSlot, "a pool has a number for every slot");
  if (tags_ == nullptr) throw std::bad_alloc();
  if (capacity > 0) add_free(0, static_cast<SlotId>(capacity));
}

// Returns whether the slots are one free run, without free slots beside it.
bool PagePool::is_run(SlotId first, SlotId pages) const {
  return tags_[first] == pages && (first == 0 || tags_[first - 1] == kUsed);
}

void PagePool::add_free(SlotId first, SlotId pages) {
  tags_[first] = tags_[first + pages - 1] = pages;
  if (pages >= kFirstLong) {
    if (spare_.empty()) {
      long_.emplace(pages, first);
    } else {
      spare_.value() = {pages, first};
      long_.insert(std::move(spare_));
    }
    return;
  }
  ShortRuns& runs = short_[pages];
  has_short_ |= std::uint64_t{1} << pages;
  if (runs.firsts.size() > 32 + 2 * runs.free) {
    std::erase_if(runs.firsts, [&](SlotId other) { return !is_run(other, pages) || other == first; });
    std::ranges::sort(runs.firsts);  // a heap too; a run that was added twice is kept once
    runs.firsts.erase(std::unique(runs.firsts.begin(), runs.firsts.end()), runs.firsts.end());
  }
  ++runs.free;
  runs.firsts.push_back(first);
  std::ranges::push_heap(runs.firsts, std::greater<>());
}

// Requires: the run is in the index.
void PagePool::drop_free(SlotId first, SlotId pages) {
  if (pages >= kFirstLong) {
    spare_ = long_.extract({pages, first});
    return;
  }
  ShortRuns& runs = short_[pages];
  if (--runs.free > 0) return;
  runs.firsts.clear();
  has_short_ &= ~(std::uint64_t{1} << pages);
}

// Returns the lowest free run of so many pages. Requires: there is one.
SlotId PagePool::lowest(SlotId pages) {
  if (pages >= kFirstLong) return long_.lower_bound({pages, 0})->second;
  std::vector<SlotId>& firsts = short_[pages].firsts;
  while (!is_run(firsts.front(), pages)) {
    std::ranges::pop_heap(firsts, std::greater<>());
    firsts.pop_back();
  }
  return firsts.front();
}

// Returns (pages, first) of the free run to take `pages` pages from, or some of them. Requires: a slot is free.
std::pair<SlotId, SlotId> PagePool::run_for(SlotId pages) {
  const std::uint64_t fitting = pages < kFirstLong ? has_short_ >> pages : 0;
  SlotId length = 0;
  if (fitting != 0) {
    length = pages + static_cast<SlotId>(std::countr_zero(fitting));
  } else if (const auto run = long_.lower_bound({pages, 0}); run != long_.end()) {
    return *run;
  } else if (!long_.empty()) {
    length = long_.rbegin()->first;
  } else {
    length = kFirstLong - 1 - static_cast<SlotId>(std::countl_zero(has_short_));
  }
  return {length, lowest(length)};
}

bool PagePool::allocate(Pages pages, std::vector<SlotId>& slots) {
  if (pages > available_) return false;
  available_ -= pages;
  for (auto rest = static_cast<SlotId>(pages); rest > 0;) {
    const auto [length, first] = run_for(rest);
    const SlotId taken = std::min(rest, length);
    drop_free(first, length);
    for (SlotId slot = first; slot < first + taken; ++slot) {
      tags_[slot] = kUsed;
      slots.push_back(slot);
    }
    if (taken < length) add_free(first + taken, length - taken);
    rest -= taken;
  }
  return true;
}

void PagePool::release(std::span<const SlotId> slots) {
  for (std::size_t i = 0; i < slots.size();) {
    SlotId first = slots[i];
    SlotId pages = 0;
    for (; i < slots.size() && slots[i] == first + pages; ++i, ++pages) {
      KV_CHECK(slots[i] < capacity_ && in_use(slots[i]), "a slot that is released is in use");
      tags_[slots[i]] = 0;
    }
    available_ += pages;
    // Join the run with the free runs beside it, whose tags have the lengths.
    if (first + pages < capacity_ && !in_use(first + pages)) {
      const SlotId after = tags_[first + pages];
      drop_free(first + pages, after);
      pages += after;
    }
    if (first > 0 && !in_use(first - 1)) {
      const SlotId before = tags_[first - 1];
      first -= before;
      drop_free(first, before);
      pages += before;
    }
    add_free(first, pages);
  }
}

void PagePool::check_invariants() const {
  Pages sum = 0;
  std::array<std::size_t, kFirstLong> found{};
  std::size_t found_long = 0;
  for (SlotId first = 0; first < capacity_;) {
    if (in_use(first)) {
      ++first;
      continue;
    }
    SlotId pages = 0;
    while (first + pages < capacity_ && !in_use(first + pages)) ++pages;
    KV_CHECK(tags_[first] == pages && tags_[first + pages - 1] == pages, "a free run is tagged at both ends");
    if (pages < kFirstLong) {
      ++found[pages];
      KV_CHECK(std::ranges::count(short_[pages].firsts, first) > 0, "a free run is in the index");
    } else {
      ++found_long;
      KV_CHECK(long_.contains({pages, first}), "a free run is in the index");
    }
    sum += pages;
    first += pages;
  }
  KV_CHECK(sum == available_, "free runs sum to what is available");
  KV_CHECK(found_long == long_.size(), "no other run is in the index");
  for (SlotId pages = 1; pages < kFirstLong; ++pages) {
    KV_CHECK(short_[pages].free == found[pages], "free runs of a length are counted");
    KV_CHECK((has_short_ >> pages & 1) == (found[pages] > 0 ? 1 : 0), "lengths of free runs are marked");
  }
}

}  // namespace kvtwin
