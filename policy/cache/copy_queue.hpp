// Copies that wait, in order of insertion: one a node. Cost: O(1) per call.
#pragma once

#include <iterator>
#include <list>
#include <unordered_map>

#include "policy/eviction.hpp"

namespace kvtwin {

class CopyQueue {
 public:
  struct Copy {
    NodeId node = NodeId::none;
    Pages pages = 0;
  };

  bool empty() const { return order_.empty(); }
  bool has(NodeId node) const { return places_.contains(node); }
  // Requires: not empty.
  Copy pop_front() {
    const Copy copy = order_.front();
    places_.erase(copy.node);
    order_.pop_front();
    return copy;
  }
  const Copy& front() const { return order_.front(); }
  // An earlier copy of the node, which had the same id, no longer waits.
  void push_back(Copy copy) {
    erase(copy.node);
    order_.push_back(copy);
    places_[copy.node] = std::prev(order_.end());
  }
  // Returns the pages of the copy; 0 if none waited.
  Pages erase(NodeId node) {
    const auto at = places_.find(node);
    if (at == places_.end()) return 0;
    const Pages pages = at->second->pages;
    order_.erase(at->second);
    places_.erase(at);
    return pages;
  }
  // `heir` takes the place of `node`, for `less` pages less, unless it has one of its own. No effect if `node` has
  // none.
  void pass_on(NodeId node, NodeId heir, Pages less) {
    const auto at = places_.find(node);
    if (at == places_.end()) return;
    if (has(heir)) {
      erase(node);
      return;
    }
    const auto place = at->second;
    *place = {heir, place->pages - less};
    places_.erase(at);
    places_[heir] = place;
  }

 private:
  std::list<Copy> order_;
  std::unordered_map<NodeId, std::list<Copy>::iterator> places_;
};

}  // namespace kvtwin
