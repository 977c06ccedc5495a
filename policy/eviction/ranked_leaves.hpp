// Leaves on offer, each in one of some numbered lists, by rank; and the policies that are such an order.
//
// Ranks mostly grow from one offer to the next, as stamps do, be it within each of a few classes: a leaf joins the end
// of one of its list's sorted runs where that is possible, in O(1), or comes back to where it was, as one does that was
// withdrawn while a request held it. Of the others the smallest, two thousand at most, are in a heap and in one more
// sorted run, the front; the rest lie in blocks (leaf_blocks.hpp). When both are empty, the block of the smallest is
// sorted and becomes the front; when the heap is full, the smaller part of both becomes the front, and the rest blocks.
// (What is kept of a leaf is a cache miss; its place in a run or block is written unread.)
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
  static constexpr std::uint8_t kMostRuns = 8;

  // At most 256 lists, of 1 to kMostRuns runs each.
  explicit LeafLists(std::size_t lists, std::size_t runs_each = kMostRuns) : lists_(lists) {
    for (List& list : lists_) list.runs.resize(kFront + 1 + runs_each);
  }

  // Into that list, out of any other.
  void set(NodeId node, std::size_t list, const LeafRank& rank) {
    const auto index = static_cast<std::size_t>(node);
    if (index >= places_.size()) places_.resize(index + 1);
    if (stays(places_[index], list, rank)) return;
    remove(node);
    ++size_;
    ++lists_[list].size;
    Place& place = places_[index];
    if (!comes_back(node, place, list, rank)) join(node, place, list, rank);
  }

  void remove(NodeId node) {
    if (!contains(node)) return;
    Place& place = places_[static_cast<std::size_t>(node)];
    List& list = lists_[place.list];
    --size_;
    --list.size;
    const std::uint8_t before = place.run;
    place.run = static_cast<std::uint8_t>(before + kGone);
    if (before == kHeap) return leave_heap(list, place.at, node);
    if (before == kBlocks) return list.blocks.remove(place.at, place.rank, placing(kBlocks));
    take(list, before, place.at);
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
  const LeafRank& smallest_rank(std::size_t list) const { return rank_of(smallest(list)); }  // not of none
  const LeafRank& rank_of(NodeId node) const {
    return places_[static_cast<std::size_t>(node)].rank;
  }                                                     // of one in a list
  std::size_t nodes() const { return places_.size(); }  // whose numbers are smaller: all that are there, and others
  // Of the leaves in a list, in no order of use.
  template <typename Of>
  void each(std::size_t list, Of of) const {
    for (const Run& run : lists_[list].used()) {
      for (std::uint32_t i = run.line.front(); run.line.reaches(i); ++i) {
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
    return index < places_.size() && places_[index].run < kGone;
  }

 private:
  static constexpr std::uint8_t kFront = 0, kHeap = kMostRuns + 1, kBlocks = kHeap + 1, kGone = 16;
  static constexpr std::size_t kMostInHeap = LeafBlocks::kPlaces;
  static constexpr std::uint16_t kAnyNumbering = 0xffff;
  struct Entry {
    NodeId node = NodeId::none;
    bool is_gap() const { return node == NodeId::none; }
  };
  struct Run {
    Line<Entry> line;
    LeafRank last;                // that joined, here still or not
    std::uint16_t numbering = 0;  // how often the line has been closed up; at most kAnyNumbering
  };
  struct List {
    std::vector<Run> runs;       // kFront is the first one
    std::uint8_t runs_used = 1;  // the others are empty
    std::pmr::vector<RankedLeaf> heap;
    LeafBlocks blocks;  // all larger than those in the front and the heap, which aren't both empty unless these are
    std::size_t size = 0;

    std::span<const Run> used() const { return std::span(runs).first(runs_used); }
  };
  struct Place {
    LeafRank rank;
    std::uint32_t at = 0;         // in its run, heap or blocks
    std::uint16_t numbering = 0;  // its run's, as long as it is there
    std::uint8_t list = 0;
    std::uint8_t run = kHeap + kGone;  // kGone more if it is on offer no longer
  };

  // Takes the new rank where it is? In a run only its front may fall, as it does when a tail is evicted.
  bool stays(Place& place, std::size_t list, const LeafRank& rank) {
    if (place.run >= kGone || place.list != list) return false;
    if (rank == place.rank) return true;
    if (place.run >= kHeap) return false;
    if (place.at != lists_[list].runs[place.run].line.front() || place.rank < rank) return false;
    place.rank = rank;
    return true;
  }

  // With the rank that it had, to the gap that it left? All before that are smaller, all behind it larger, as they
  // were.
  bool comes_back(NodeId node, Place& place, std::size_t list, const LeafRank& rank) {
    const auto before = static_cast<std::uint8_t>(place.run - kGone);
    if (before >= kHeap || place.list != list || rank != place.rank) return false;
    Run& run = lists_[list].runs[before];
    if (place.numbering != run.numbering || run.numbering == kAnyNumbering) return false;
    if (!run.line.put_back(place.at, {node})) return false;
    place.run = before;
    return true;
  }

  void join(NodeId node, Place& place, std::size_t list, const LeafRank& rank) {
    List& to = lists_[list];
    place.rank = rank;
    place.list = static_cast<std::uint8_t>(list);
    if (const std::uint8_t run = run_for(to, rank); run != kHeap) return push(to, run, {rank, node});
    if (to.blocks.reaches_below(rank)) return to.blocks.add({rank, node}, placing(kBlocks));
    join_heap(to, {rank, node});
  }

  // The run whose last is nearest below, else an empty one.
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

  // To the end of a run.
  void push(List& list, std::uint8_t to, const RankedLeaf& leaf) {
    Run& run = list.runs[to];
    list.runs_used = std::max<std::uint8_t>(list.runs_used, static_cast<std::uint8_t>(to + 1));
    run.last = leaf.rank;
    const auto renumbered = static_cast<std::uint16_t>(std::min<unsigned>(run.numbering + 1U, kAnyNumbering));
    Place& place = place_of(leaf.node);
    place.run = to;
    place.at = run.line.push({leaf.node}, [&](const Entry& entry, auto, auto now) {
      Place& moved = place_of(entry.node);
      moved.at = now;
      moved.numbering = run.numbering = renumbered;
    });
    place.numbering = run.numbering;
  }
  static void take(List& list, std::uint8_t from, std::uint32_t at) {
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
    settle(list, at, leaf);
    if (list.heap.size() == kMostInHeap) empty_heap(list);
  }
  void leave_heap(List& list, std::uint32_t at, NodeId node) {
    const RankedLeaf last = list.heap.back();
    list.heap.pop_back();
    if (last.node != node) {
      list.heap[at] = last;
      place_of(last.node).at = at;
      settle(list, at, last);
    }
    fill_front(list);
  }
  // A new front is made of the smallest of it and of the old one, blocks of the rest.
  void empty_heap(List& list) {
    std::vector<RankedLeaf> leaves(list.heap.begin(), list.heap.end());
    list.heap.clear();
    for (const Line<Entry>& line = list.runs[kFront].line; line.size() > 0;) {
      const NodeId node = line.at(line.front()).node;
      leaves.push_back({rank_of(node), node});
      take(list, kFront, line.front());
    }
    std::ranges::sort(leaves, {}, &RankedLeaf::rank);
    constexpr std::size_t kSome = LeafBlocks::kPlaces / 2;
    while (leaves.size() > kSome) {
      const std::size_t some = std::min(kSome, leaves.size() - kSome);
      list.blocks.add_first(std::span(leaves).last(some), placing(kBlocks));
      leaves.resize(leaves.size() - some);
    }
    for (const RankedLeaf& leaf : leaves) push(list, kFront, leaf);
  }
  void fill_front(List& list) {
    if (list.blocks.empty() || !list.heap.empty() || list.runs[kFront].line.size() > 0) return;
    for (const RankedLeaf& leaf : list.blocks.take_first()) push(list, kFront, leaf);
  }
  // In the heap, a binary one, puts the leaf of place `start` where its rank belongs; it is written once.
  void settle(List& list, std::uint32_t start, const RankedLeaf& leaf) {
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
  // Told of where leaves have got to: in the heap, or in the blocks.
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

// Base of policies that are an order of leaves by a rank, where the rank also depends on what the policy learned.
class LeafOrder : public EvictionPolicy, public LearnsFromVisits {
 public:
  void offer(const PolicyNode& node) final { leaves_.set(node.id, 0, rank(node)); }
  void withdraw(NodeId node) final { leaves_.remove(node); }
  NodeId victim() final { return leaves_.smallest(0); }
  std::size_t offered() const final { return leaves_.size(); }
  bool is_offered(NodeId node) const final { return leaves_.contains(node); }

 private:
  virtual LeafRank rank(const PolicyNode& node) const = 0;

  LeafLists leaves_{1};
};

template <LeafRank (*rank)(const NodeFacts&)>
class RankedPolicy final : public EvictionPolicy {
 public:
  void offer(const PolicyNode& node) override { leaves_.set(node.id, 0, rank(node.facts)); }
  void withdraw(NodeId node) override { leaves_.remove(node); }
  NodeId victim() override { return leaves_.smallest(0); }
  std::size_t offered() const override { return leaves_.size(); }
  bool is_offered(NodeId node) const override { return leaves_.contains(node); }

 private:
  LeafLists leaves_{1};
};

}  // namespace kvtwin
