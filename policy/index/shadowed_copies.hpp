// The copies on L2 of nodes that L1 has too, in the order in which SGLang drops them when L2 is full (SGLang 0.5.23,
// _reclaim_full_host_duplicates). The node that got its place first goes first. Nodes that L1 may evict next go last,
// because their eviction frees L1 without a copy.
//
// A node gets a place when it is on both tiers and no copy of it is in flight, or when L1 gives it up after a write.
// The node keeps the place when it leaves L1, until next() passes the place. So a node that comes back to L1 before
// that has its old place.
//
//   first, last   may be dropped, in this order
//   held          has a place, may not be dropped
//   in_transfer   as held, but does not get a place
//   left          not on L1, or about to leave L1: keeps a place that it has, until next() passes it
//   absent        no copy on L2: loses its place
//
// Cost: O(log n) per call; next() also pays for each place that it takes away.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {

class ShadowedCopies {
 public:
  enum class State : std::uint8_t { first, last, held, in_transfer, left, absent };

  void set(NodeId node, State state) {
    if (state == State::absent) {
      if (place_of(node) != 0) places_[static_cast<std::size_t>(node)] = 0;
      return nodes_.remove(node);
    }
    if (state == State::first || state == State::last || state == State::held) give_place(node);
    const std::uint64_t place = place_of(node);
    if (state == State::held || state == State::in_transfer || place == 0) return nodes_.remove(node);
    nodes_.set(node, state == State::first ? kFirst : state == State::last ? kLast : kLeft, {place, 0, 0});
  }
  // The node gets the last place, if it has none.
  void give_place(NodeId node) {
    const auto index = static_cast<std::size_t>(node);
    if (index >= places_.size()) places_.resize(index + 1);
    if (places_[index] == 0) places_[index] = ++last_place_;
  }

  // Returns the node whose copy is dropped next; none if there is none. Takes away the places of the nodes that have
  // left L1 and were passed on the way.
  NodeId next() {
    if (nodes_.size(kFirst) == 0) {
      while (nodes_.size(kLeft) > 0) forget(nodes_.smallest(kLeft));
      return nodes_.size(kLast) == 0 ? NodeId::none : nodes_.smallest(kLast);
    }
    const std::uint64_t place = nodes_.smallest_rank(kFirst).first;
    while (nodes_.size(kLeft) > 0 && nodes_.smallest_rank(kLeft).first < place) forget(nodes_.smallest(kLeft));
    return nodes_.smallest(kFirst);
  }

  // For invariant checks: the state that set() was last called with, as far as it is kept.
  bool agrees(NodeId node, State state) const {
    const auto list = nodes_.list_of(node);
    switch (state) {
      case State::first: return list == kFirst;
      case State::last: return list == kLast;
      case State::held: return !list && place_of(node) != 0;
      case State::in_transfer: return !list;
      case State::left: return place_of(node) == 0 ? !list : list == kLeft;
      case State::absent: return !list && place_of(node) == 0;
    }
    return false;
  }
  std::size_t listed() const { return nodes_.size(); }
  bool is_listed(NodeId node) const { return nodes_.contains(node); }

 private:
  static constexpr std::size_t kFirst = 0, kLast = 1, kLeft = 2, kLists = 3;

  std::uint64_t place_of(NodeId node) const {
    const auto index = static_cast<std::size_t>(node);
    return index < places_.size() ? places_[index] : 0;
  }
  void forget(NodeId node) {
    places_[static_cast<std::size_t>(node)] = 0;
    nodes_.remove(node);
  }

  LeafLists nodes_{kLists};
  std::pmr::vector<std::uint64_t> places_;  // by NodeId; 0 = no place
  std::uint64_t last_place_ = 0;
};

}  // namespace kvtwin
