// The slots of one tier: which are free, and an allocator. The allocator prefers contiguous runs, because a run is one
// DMA descriptor. Ownership: no memory of pages. Cost: allocate and release O(runs touched * log(free runs)); 4 bytes
// of memory for each slot up to the highest one that was ever used.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "policy/base/types.hpp"

namespace kvtwin {

class PagePool {
 public:
  explicit PagePool(Pages capacity);

  Pages capacity() const { return capacity_; }
  Pages available() const { return available_; }
  Pages used() const { return capacity_ - available_; }

  // Appends `pages` slots to `slots`. Returns false, and does nothing, if fewer are free. Best fit: the shortest free
  // run that holds all pages, lowest address first; else the longest run, and then the same for the rest. Slots are
  // ascending within each run.
  bool allocate(Pages pages, std::vector<SlotId>& slots);

  // Gives slots back, in any order. Requires: each slot is in use (KV_CHECK).
  void release(std::span<const SlotId> slots);

  bool in_use(SlotId slot) const { return tags_[slot] == kUsed; }

  // Free runs are disjoint, maximal, in the index and sum to available().
  void check_invariants() const;

 private:
  // Free runs of one short length. A run that is no longer free stays in the heap until it comes to the top, or until
  // most of the heap is such runs: removing a run from the middle would cost a search.
  struct ShortRuns {
    std::vector<SlotId> firsts;  // a heap, the lowest on top
    std::size_t free = 0;        // number of runs in the heap that are free, each counted once
  };
  static constexpr SlotId kUsed = kNoSlot;
  static constexpr SlotId kFirstLong = 64;  // a run of fewer pages is short: one bit of has_short_ for each length
  using LongRuns = std::set<std::pair<SlotId, SlotId>>;  // (pages, first)

  bool is_run(SlotId first, SlotId pages) const;
  void add_free(SlotId first, SlotId pages);
  void drop_free(SlotId first, SlotId pages);
  SlotId lowest(SlotId pages);
  std::pair<SlotId, SlotId> run_for(SlotId pages);

  Pages capacity_;
  Pages available_;
  struct Freed {
    void operator()(SlotId* memory) const { std::free(memory); }
  };

  // By slot: kUsed, or another value. At the first and the last slot of a free run: its length in pages. Zeroed memory
  // of the system, which takes no room until it is written: most slots of a large tier are never used.
  std::unique_ptr<SlotId[], Freed> tags_;
  std::array<ShortRuns, kFirstLong> short_;  // by length
  std::uint64_t has_short_ = 0;              // bit n: there is a free run of n pages
  LongRuns long_;
  LongRuns::node_type spare_;  // of long_: so that a run that only changes its length needs no allocation
};

}  // namespace kvtwin
