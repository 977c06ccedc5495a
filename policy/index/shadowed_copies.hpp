// The copies on L2 of nodes that L1 has too, in the order in which SGLang drops copies when L2 is full (SGLang 0.5.23,
// _reclaim_full_host_duplicates). The node with the oldest place goes first. Nodes that L1 may evict next go last,
// because their eviction frees L1 without a transfer.
//
// A node gets a place when both tiers have the node and no transfer of the node is in flight, or when L1 gives the node
// up after a write. The node keeps the place when it leaves L1, until next() passes the place. If the node comes back
// to L1 before that, it has its old place.
//
//   first, last   may be dropped, in this order
//   held          has a place, may not be dropped
//   in_transfer   as held, but does not get a place
//   left          not on L1, or about to leave L1: keeps a place, until next() passes the place
//   absent        no copy on L2: loses its place
//
// Cost: O(log n) per call. next() also pays O(log n) for each place that it takes away.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <vector>

#include "policy/eviction.hpp"

namespace kvtwin {

class ShadowedCopies {
 public:
  enum class State : std::uint8_t { first, last, held, in_transfer, left, absent };

  void set(NodeId node, State state) {
    if (state == State::first || state == State::last || state == State::held) give_place(node);
    if (static_cast<std::size_t>(node) >= nodes_.size()) return;  // never had a place
    const List before = nodes_[static_cast<std::size_t>(node)].list;
    const List now = list_for(node, state);
    Entry& entry = nodes_[static_cast<std::size_t>(node)];
    if (now != before) {
      if (before != kNone) lists_[before].erase(entry.place);
      if (now != kNone) lists_[now].emplace(entry.place, node);
      entry.list = now;
    }
    if (state == State::absent) entry.place = 0;
  }
  // The node gets the last place, if it has none.
  void give_place(NodeId node) {
    const auto index = static_cast<std::size_t>(node);
    if (index >= nodes_.size()) nodes_.resize(index + 1);
    if (nodes_[index].place == 0) nodes_[index].place = ++last_place_;
  }

  // Returns the node whose copy is dropped next; none if there is none. Takes away the places of the nodes that have
  // left L1 and were passed on the way.
  NodeId next() {
    const Places& first = lists_[kFirst];
    Places& left = lists_[kLeft];
    while (!left.empty() && (first.empty() || left.begin()->first < first.begin()->first)) {
      nodes_[static_cast<std::size_t>(left.begin()->second)] = {};
      left.erase(left.begin());
    }
    const Places& next = first.empty() ? lists_[kLast] : first;
    return next.empty() ? NodeId::none : next.begin()->second;
  }

  // For invariant checks: whether set() was last called with this state, as far as that can be told.
  bool agrees(NodeId node, State state) const {
    const Entry entry =
        static_cast<std::size_t>(node) < nodes_.size() ? nodes_[static_cast<std::size_t>(node)] : Entry{};
    const bool needs_place = state == State::first || state == State::last || state == State::held;
    if (needs_place && entry.place == 0) return false;
    if (state == State::absent && entry.place != 0) return false;
    return entry.list == list_for(node, state);
  }
  // The nodes that may be dropped or have left.
  std::size_t listed() const { return lists_[kFirst].size() + lists_[kLast].size() + lists_[kLeft].size(); }
  bool is_listed(NodeId node) const {
    return static_cast<std::size_t>(node) < nodes_.size() && nodes_[static_cast<std::size_t>(node)].list != kNone;
  }

 private:
  enum List : std::uint8_t { kFirst, kLast, kLeft, kNone };
  struct Entry {
    std::uint64_t place = 0;  // 0 = none
    List list = kNone;
  };
  using Places = std::pmr::map<std::uint64_t, NodeId>;

  List list_for(NodeId node, State state) const {
    const auto index = static_cast<std::size_t>(node);
    switch (state) {
      case State::first: return kFirst;
      case State::last: return kLast;
      case State::left: return index < nodes_.size() && nodes_[index].place != 0 ? kLeft : kNone;
      case State::held:
      case State::in_transfer:
      case State::absent: return kNone;
    }
    return kNone;
  }

  std::array<Places, kNone> lists_;
  std::pmr::vector<Entry> nodes_;  // by NodeId
  std::uint64_t last_place_ = 0;
};

}  // namespace kvtwin
