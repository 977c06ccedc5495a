// The slots of one tier: which are free, and an allocator that prefers contiguous runs, because a run is one
// DMA descriptor. Owns no memory. allocate and release cost O(runs touched * log(free runs)).
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

  // Appends `pages` slots to `slots`, or nothing and returns false when fewer are free. Best fit: the
  // shortest free run that holds them all (lowest address first), else the longest run (likewise) and then the
  // same for the rest; ascending within each.
  bool allocate(Pages pages, std::vector<SlotId>& slots);

  // Gives slots back, in any order. A slot that isn't in use is a broken promise (KV_CHECK).
  void release(std::span<const SlotId> slots);

  bool in_use(SlotId slot) const { return used_[slot]; }

  // Free runs are disjoint, maximal, agree with the bitmap and sum to available().
  void check_invariants() const;

 private:
  using FreeRuns = std::set<std::pair<SlotId, SlotId>>;  // (pages, first)

  // `reuse`: a set node that has become free, or an empty handle.
  void add_free(SlotId first, SlotId pages, FreeRuns::node_type&& reuse);
  void take(FreeRuns::iterator run, SlotId pages, std::vector<SlotId>& slots);

  Pages capacity_;
  Pages available_;
  std::vector<bool> used_;
  std::vector<SlotId> tags_;  // at the first and the last slot of a free run: its pages; elsewhere anything
  FreeRuns free_;
};

}  // namespace kvtwin
