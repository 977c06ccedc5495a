// The slots of one tier: which are free, and an allocator that prefers contiguous runs, because a run is one
// DMA descriptor. Owns no memory. allocate and release cost O(runs touched * log(free runs)).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "policy/types.hpp"

namespace kvtwin {

class PagePool {
 public:
  explicit PagePool(Pages capacity);

  Pages capacity() const { return capacity_; }
  Pages available() const { return available_; }
  Pages used() const { return capacity_ - available_; }

  // Appends `pages` slots to `slots`, or nothing and returns false when fewer are free. Best fit: the
  // shortest free run that holds them all (lowest address first), else the longest runs, ascending within each.
  bool allocate(Pages pages, std::vector<SlotId>& slots);

  // Gives slots back, in any order. A slot that isn't in use is a broken promise (KV_CHECK).
  void release(std::span<const SlotId> slots);

  bool in_use(SlotId slot) const { return used_[slot]; }

  // Free runs are disjoint, maximal, agree with the bitmap and sum to available().
  void check_invariants() const;

 private:
  void add_free(SlotId first, Pages pages);
  void take(std::map<SlotId, Pages>::iterator run, Pages pages, std::vector<SlotId>& slots);

  Pages capacity_;
  Pages available_;
  std::vector<bool> used_;
  std::map<SlotId, Pages> free_by_address_;
  std::set<std::pair<Pages, SlotId>> free_by_length_;
};

}  // namespace kvtwin
