// The leaves on offer, in numbered lists, each ordered by rank; and base classes of policies that are such an order.
//
// A list has these parts:
//
//   runs     up to kMaxRuns sorted queues. Ranks mostly grow from one offer to the next, as access stamps do, at least
//            within each of a few classes. Such a leaf joins the end of a run in O(1). A leaf that was withdrawn
//            while a request held it returns to its old position, if its rank is the same.
//   front    one more sorted queue; and
//   heap     a binary heap: together the smallest of the other leaves, at most some thousand
//   blocks   the rest of the other leaves (leaf_blocks.hpp)
//
// If heap and front are empty, the block with the smallest leaves is sorted and becomes the front. If the heap is full,
// the smaller part of heap and front becomes the front, and the rest becomes blocks.
// Cost: a leaf's entry in places_ is a cache miss; its position in a run or a block is written without being read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <span>
#include <vector>

#include "policy/eviction.hpp"
#include "policy/eviction/leaf_blocks.hpp"
#include "policy/eviction/leaf_rank.hpp"
#include "policy/eviction/line.hpp"

namespace kvtwin {

class LeafLists {
 public:
  static constexpr std::uint8_t kMaxRuns = 8;

  // Requires: at most 256 lists, of 1 to kMaxRuns runs each.
  explicit LeafLists(std::size_t lists, std::size_t runs_each = kMaxRuns) : lists_(lists) {
    for (List& list : lists_) list.runs.resize(kFront + 1 + runs_each);
  }

  // Adds empty lists until there are `lists` ones. Requires: at most 256.
  void grow(std::size_t lists) {
    const std::size_t runs = lists_.front().runs.size();
    while (lists_.size() < lists) lists_.emplace_back().runs.resize(runs);
  }
  std::size_t lists() const { return lists_.size(); }

  // Puts the node into the list. Removes the node from any other list.
  void set(NodeId node, std::size_t list, const LeafRank& rank) {
    const auto index = static_cast<std::size_t>(node);
    if (index >= places_.size()) places_.resize(index + 1);
    if (update_in_place(places_[index], list, rank)) return;
    remove(node);
    ++size_;
    ++lists_[list].size;
    Place& place = places_[index];
    if (!return_to_gap(node, place, list, rank)) join(node, place, list, rank);
  }

  void remove(NodeId node) {
    if (!contains(node)) return;
    Place& place = places_[static_cast<std::size_t>(node)];
    List& list = lists_[place.list];
    --size_;
    --list.size;
    const std::uint8_t before = place.run;
    place.run = static_cast<std::uint8_t>(before + kWithdrawn);
    if (before == kHeap) return leave_heap(list, place.at, node);
    if (before == kBlocks) return list.blocks.remove(place.at, place.rank, placing(kBlocks));
    remove_from_run(list, before, place.at);
    if (before == kFront) fill_front(list);
  }

  NodeId smallest(std::size_t list) const {
    const List& of = lists_[list];
    NodeId node = of.heap.empty() ? NodeId::none : of.heap.front().node;
    const LeafRank* least = of.heap.empty() ? nullptr : &of.heap.front().rank;
    for (const Run& run : of.used()) {
      if (run.line.size() == 0) continue;
      const NodeId front = run.line.at(run.line.front()).node;
      const LeafRank& rank = rank_of(front);
      if (least != nullptr && *least < rank) continue;
      least = &rank;
      node = front;
    }
    return node;
  }
  const LeafRank& smallest_rank(std::size_t list) const {
    return rank_of(smallest(list));
  }  // requires a list that is not empty
  const LeafRank& rank_of(NodeId node) const {
    return places_[static_cast<std::size_t>(node)].rank;
  }                                                     // requires a node in a list
  std::size_t nodes() const { return places_.size(); }  // all nodes that were ever in a list have smaller numbers
  // Calls of(node) for each leaf of the list, in no particular order.
  template <typename Of>
  void each(std::size_t list, Of of) const {
    for (const Run& run : lists_[list].used()) {
      for (std::uint32_t i = run.line.front(); run.line.in_range(i); ++i) {
        if (!run.line.at(i).is_gap()) of(run.line.at(i).node);
      }
    }
    for (const RankedLeaf& leaf : lists_[list].heap) of(leaf.node);
    lists_[list].blocks.each(of);
  }
  std::size_t size(std::size_t list) const { return lists_[list].size; }
  std::size_t size() const { return size_; }
  std::optional<std::size_t> list_of(NodeId node) const {
    return contains(node) ? std::optional<std::size_t>(places_[static_cast<std::size_t>(node)].list) : std::nullopt;
  }
  bool contains(NodeId node) const {
    const auto index = static_cast<std::size_t>(node);
    return index < places_.size() && places_[index].run < kWithdrawn;
  }

 private:
  static constexpr std::uint8_t kFront = 0, kHeap = kMaxRuns + 1, kBlocks = kHeap + 1, kWithdrawn = 16;
  static constexpr std::size_t kMaxLeavesInHeap = LeafBlocks::kPlacesPerBlock;
  static constexpr std::uint16_t kMaxNumbering = 0xffff;
  struct Entry {
    NodeId node = NodeId::none;
    bool is_gap() const { return node == NodeId::none; }
  };
  struct Run {
    Line<Entry> line;
    LeafRank last;                // rank of the leaf that joined last, even if that leaf has left
    std::uint16_t numbering = 0;  // how often the line has been closed up; stops at kMaxNumbering
  };
  struct List {
    std::vector<Run> runs;       // the run number kFront is the front
    std::uint8_t runs_used = 1;  // all later runs are empty
    std::pmr::vector<RankedLeaf> heap;
    LeafBlocks blocks;  // all larger than the leaves of front and heap, of which one has leaves if the blocks have
    std::size_t size = 0;

    std::span<const Run> used() const { return std::span(runs).first(runs_used); }
  };
  struct Place {
    LeafRank rank;
    std::uint32_t at = 0;         // position in the run, the heap or the blocks
    std::uint16_t numbering = 0;  // the run's numbering when `at` was valid last
    std::uint8_t list = 0;
    std::uint8_t run = kHeap + kWithdrawn;  // plus kWithdrawn while the leaf is not on offer
  };

  // Changes the leaf's rank without moving the leaf, if the order allows it. In a run, only the rank of the front may
  // fall; it does when the leaf's tail is evicted. Returns false otherwise.
  bool update_in_place(Place& place, std::size_t list, const LeafRank& rank) {
    if (place.run >= kWithdrawn || place.list != list) return false;
    if (rank == place.rank) return true;
    if (place.run >= kHeap) return false;
    if (place.at != lists_[list].runs[place.run].line.front() || place.rank < rank) return false;
    place.rank = rank;
    return true;
  }

  // Puts a withdrawn leaf back into the gap that it left, if rank and gap are unchanged: all ranks before the gap are
  // still smaller, all ranks behind the gap larger. Returns false otherwise.
  bool return_to_gap(NodeId node, Place& place, std::size_t list, const LeafRank& rank) {
    const auto before = static_cast<std::uint8_t>(place.run - kWithdrawn);
    if (before >= kHeap || place.list != list || rank != place.rank) return false;
    Run& run = lists_[list].runs[before];
    if (place.numbering != run.numbering || run.numbering == kMaxNumbering) return false;
    if (!run.line.put_back(place.at, {node})) return false;
    place.run = before;
    return true;
  }

  void join(NodeId node, Place& place, std::size_t list, const LeafRank& rank) {
    List& to = lists_[list];
    place.rank = rank;
    place.list = static_cast<std::uint8_t>(list);
    if (const std::uint8_t run = run_for(to, rank); run != kHeap) return push(to, run, {rank, node});
    if (to.blocks.covers(rank)) return to.blocks.add({rank, node}, placing(kBlocks));
    join_heap(to, {rank, node});
  }

  // Returns the run whose last rank is the largest that is not above `rank`; else an empty run; else kHeap.
  static std::uint8_t run_for(const List& list, const LeafRank& rank) {
    std::uint8_t best = kHeap;
    const std::size_t some = std::min<std::size_t>(list.runs.size(), list.runs_used + 1U);
    for (std::uint8_t i = kFront + 1; i < some; ++i) {
      const Run& run = list.runs[i];
      const bool empty = run.line.size() == 0;
      if (!empty && rank < run.last) continue;
      if (best == kHeap || (!empty && (list.runs[best].line.size() == 0 || list.runs[best].last < run.last))) best = i;
    }
    return best;
  }

  // Appends the leaf to a run.
  void push(List& list, std::uint8_t to, const RankedLeaf& leaf) {
    Run& run = list.runs[to];
    list.runs_used = std::max<std::uint8_t>(list.runs_used, static_cast<std::uint8_t>(to + 1));
    run.last = leaf.rank;
    const auto renumbered = static_cast<std::uint16_t>(std::min<unsigned>(run.numbering + 1U, kMaxNumbering));
    Place& place = place_of(leaf.node);
    place.run = to;
    place.at = run.line.push({leaf.node}, [&](const Entry& entry, auto, auto now) {
      Place& moved = place_of(entry.node);
      moved.at = now;
      moved.numbering = run.numbering = renumbered;
    });
    place.numbering = run.numbering;
  }
  static void remove_from_run(List& list, std::uint8_t from, std::uint32_t at) {
    Run& run = list.runs[from];
    run.line.take(at);
    if (run.line.size() > 0) return;
    run.line.shrink();
    while (list.runs_used > kFront + 1 && list.runs[list.runs_used - 1U].line.size() == 0) --list.runs_used;
  }

  void join_heap(List& list, const RankedLeaf& leaf) {
    const auto at = static_cast<std::uint32_t>(list.heap.size());
    list.heap.push_back(leaf);
    placing(kHeap)(leaf.node, at);
    sift(list, at, leaf);
    if (list.heap.size() == kMaxLeavesInHeap) empty_heap(list);
  }
  void leave_heap(List& list, std::uint32_t at, NodeId node) {
    const RankedLeaf last = list.heap.back();
    list.heap.pop_back();
    if (last.node != node) {
      list.heap[at] = last;
      place_of(last.node).at = at;
      sift(list, at, last);
    }
    fill_front(list);
  }
  // Sorts the leaves of heap and front. The smallest ones become the new front, the others become blocks.
  void empty_heap(List& list) {
    std::vector<RankedLeaf> leaves(list.heap.begin(), list.heap.end());
    list.heap.clear();
    for (const Line<Entry>& line = list.runs[kFront].line; line.size() > 0;) {
      const NodeId node = line.at(line.front()).node;
      leaves.push_back({rank_of(node), node});
      remove_from_run(list, kFront, line.front());
    }
    std::ranges::sort(leaves, {}, &RankedLeaf::rank);
    constexpr std::size_t kHalfBlock = LeafBlocks::kPlacesPerBlock / 2;
    while (leaves.size() > kHalfBlock) {
      const std::size_t some = std::min(kHalfBlock, leaves.size() - kHalfBlock);
      list.blocks.add_smallest(std::span(leaves).last(some), placing(kBlocks));
      leaves.resize(leaves.size() - some);
    }
    for (const RankedLeaf& leaf : leaves) push(list, kFront, leaf);
  }
  void fill_front(List& list) {
    if (list.blocks.empty() || !list.heap.empty() || list.runs[kFront].line.size() > 0) return;
    for (const RankedLeaf& leaf : list.blocks.take_smallest()) push(list, kFront, leaf);
  }
  // Moves the leaf at position `start` of the heap, a binary heap, up or down to where its rank belongs. Each leaf is
  // written once.
  void sift(List& list, std::uint32_t start, const RankedLeaf& leaf) {
    auto& heap = list.heap;
    const auto place = [&](std::uint32_t at, const RankedLeaf& one) {
      heap[at] = one;
      place_of(one.node).at = at;
    };
    std::uint32_t at = start;
    for (; at > 0 && leaf.rank < heap[(at - 1) / 2].rank; at = (at - 1) / 2) place(at, heap[(at - 1) / 2]);
    const bool rose = at != start;
    const auto size = static_cast<std::uint32_t>(heap.size());
    while (!rose) {
      std::uint32_t child = 2 * at + 1;
      if (child >= size) break;
      if (child + 1 < size && heap[child + 1].rank < heap[child].rank) ++child;
      if (!(heap[child].rank < leaf.rank)) break;
      place(at, heap[child]);
      at = child;
    }
    if (at != start) place(at, leaf);
  }
  // Stores the new position of a leaf in the heap or in the blocks.
  struct Placing {
    LeafLists& of;
    std::uint8_t run;
    void operator()(NodeId node, std::uint32_t now) const {
      Place& place = of.place_of(node);
      place.at = now;
      place.run = run;
    }
  };
  Placing placing(std::uint8_t run) { return {*this, run}; }
  Place& place_of(NodeId node) { return places_[static_cast<std::size_t>(node)]; }

  std::vector<List> lists_;
  std::pmr::vector<Place> places_;  // by NodeId
  std::size_t size_ = 0;
};

// The leaves on offer in one order: by the references of sessions, then by the policy's rank. One list for each number
// of references; the last list has all leaves with at least kLastList references. Its rank has no room for the third
// part of the policy's rank, which matters only between leaves of one request.
class LeavesByReferences {
 public:
  void set(const PolicyNode& node, LeafRank rank) {
    const std::size_t list = std::min<std::size_t>(node.references, kLastList);
    if (list == kLastList) rank = {node.references, rank.first, rank.second};
    leaves_.grow(list + 1);
    leaves_.set(node.id, list, rank);
  }
  void remove(NodeId node) { leaves_.remove(node); }
  NodeId smallest() const {
    for (std::size_t list = 0; list < leaves_.lists(); ++list) {
      if (leaves_.size(list) > 0) return leaves_.smallest(list);
    }
    return NodeId::none;
  }
  std::size_t size() const { return leaves_.size(); }
  bool contains(NodeId node) const { return leaves_.contains(node); }

 private:
  static constexpr std::size_t kLastList = 255;
  LeafLists leaves_{1};
};

// Base of policies that order leaves by one rank, where the rank depends on what the policy has learned.
class LeafOrder : public EvictionPolicy, public LearnsFromVisits, public OrdersReferences {
 public:
  void offer(const PolicyNode& node) final { leaves_.set(node, rank(node)); }
  void withdraw(NodeId node) final { leaves_.remove(node); }
  NodeId victim() final { return leaves_.smallest(); }
  std::size_t offered() const final { return leaves_.size(); }
  bool is_offered(NodeId node) const final { return leaves_.contains(node); }

 private:
  virtual LeafRank rank(const PolicyNode& node) const = 0;

  LeavesByReferences leaves_;
};

// A policy whose rank is a function of the node's facts.
template <LeafRank (*rank)(const NodeFacts&)>
class RankedPolicy final : public EvictionPolicy, public OrdersReferences {
 public:
  void offer(const PolicyNode& node) override { leaves_.set(node, rank(node.facts)); }
  void withdraw(NodeId node) override { leaves_.remove(node); }
  NodeId victim() override { return leaves_.smallest(); }
  std::size_t offered() const override { return leaves_.size(); }
  bool is_offered(NodeId node) const override { return leaves_.contains(node); }

 private:
  LeavesByReferences leaves_;
};

}  // namespace kvtwin
