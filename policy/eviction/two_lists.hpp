// Two lists of a tier's pages, each with its leaves on offer in eviction order.
//
// The length of a list counts all its pages, evictable or not. Pages may also leave the tier without an eviction: they
// move up, or the copy is dropped. Policies receive no call then, so the sum of the lengths would grow beyond the tier.
// In that case, the excess is subtracted from the longer list.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {

class TwoLists {
 public:
  explicit TwoLists(Pages capacity) : capacity_(capacity) {}

  void enter(unsigned list, Pages pages) {
    pages_[list] += pages;
    const Pages sum = pages_[0] + pages_[1];
    if (sum > capacity_) leave(pages_[0] > pages_[1] ? 0 : 1, sum - capacity_);
  }
  void leave(unsigned list, Pages pages) { pages_[list] -= std::min(pages_[list], pages); }
  void move(unsigned from, unsigned to, Pages pages) {
    const Pages moved = std::min(pages_[from], pages);
    pages_[from] -= moved;
    pages_[to] += moved;
  }
  Pages pages(unsigned list) const { return pages_[list]; }

  void offer(NodeId node, unsigned list, const LeafRank& rank) { leaves_.set(node, list, rank); }
  void withdraw(NodeId node) { leaves_.remove(node); }
  // Returns the first leaf of the list, or of the other list if this one has no leaf.
  NodeId first(unsigned list) const {
    const NodeId wanted = leaves_.smallest(list);
    return wanted == NodeId::none ? leaves_.smallest(1 - list) : wanted;
  }
  std::size_t offered() const { return leaves_.size(); }
  bool is_offered(NodeId node) const { return leaves_.contains(node); }

 private:
  Pages capacity_;
  std::array<Pages, 2> pages_{};
  LeafLists leaves_{2};
};

}  // namespace kvtwin
