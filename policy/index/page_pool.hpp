// The slots of one tier: which are free, and an allocator. The allocator prefers contiguous runs, because a run is one
// DMA descriptor. Ownership: no memory. Cost: allocate and release O(runs touched * log(free runs)).
#pragma once

#include <cstdint>
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

  bool in_use(SlotId slot) const { return used_[slot]; }

  // Free runs are disjoint, maximal, agree with the bitmap and sum to available().
  void check_invariants() const;

 private:
  using FreeRuns = std::set<std::pair<SlotId, SlotId>>;  // (pages, first)

  // `reuse`: a spare node of the set, or an empty handle.
  void add_free(SlotId first, SlotId pages, FreeRuns::node_type&& reuse);
  void take_from_run(FreeRuns::iterator run, SlotId pages, std::vector<SlotId>& slots);

  Pages capacity_;
  Pages available_;
  std::vector<bool> used_;
  std::vector<SlotId> tags_;  // at the first and the last slot of a free run: its length in pages; elsewhere any value
  FreeRuns free_;
};

}  // namespace kvtwin
