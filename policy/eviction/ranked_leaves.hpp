// Policies whose victim is the smallest of a rank over a leaf's facts. A rank must be total over leaves (facts.inserted
// is never shared by two), so that the victim depends on neither node numbers nor the order of the offers.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "policy/check.hpp"
#include "policy/eviction.hpp"
#include "policy/eviction/line.hpp"
#include "policy/large_pages.hpp"

namespace kvtwin {

struct LeafRank {  // smallest goes first
  std::uint64_t first = 0, second = 0, third = 0;
  friend auto operator<=>(const LeafRank&, const LeafRank&) = default;
};

// How deep a node's last page lies, the one that would go: the tokens before it. 0 where depths aren't known, in tiers
// of storage.
inline Tokens last_page_depth(const NodeFacts& facts, Tokens page_tokens) {
  return facts.depth_pages == 0 ? 0 : (facts.depth_pages - 1) * page_tokens;
}

// An indexed binary heap: O(log n) to set and remove, O(1) to ask for the smallest.
class RankedLeaves {
 public:
  void set(NodeId node, const LeafRank& rank) {
    const auto index = static_cast<std::size_t>(node);
    if (index >= positions_.size()) positions_.resize(index + 1, kAbsent);
    if (positions_[index] == kAbsent) {
      positions_[index] = static_cast<std::uint32_t>(heap_.size());
      heap_.push_back({rank, node});
    }
    set_at(positions_[index], rank);
  }
  // The leaf at that place of the heap's order: reads no more than its neighbours there.
  void set_at(std::size_t at, const LeafRank& rank) { settle(static_cast<std::uint32_t>(at), {rank, heap_[at].node}); }

  void remove(NodeId node) {
    if (!contains(node)) return;
    const std::uint32_t at = positions_[static_cast<std::size_t>(node)];
    positions_[static_cast<std::size_t>(node)] = kAbsent;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (last.node == node) return;
    place(at, last);
    settle(at, last);
  }

  NodeId smallest() const { return heap_.empty() ? NodeId::none : heap_.front().node; }
  const LeafRank& smallest_rank() const { return heap_.front().rank; }  // not of an empty heap
  std::size_t size() const { return heap_.size(); }
  // In the heap's order, 0 the smallest.
  NodeId node_at(std::size_t place) const { return heap_[place].node; }
  const LeafRank& rank_at(std::size_t place) const { return heap_[place].rank; }
  const LeafRank& rank_of(NodeId node) const {
    return heap_[positions_[static_cast<std::size_t>(node)]].rank;
  }  // there
  bool contains(NodeId node) const {
    const auto index = static_cast<std::size_t>(node);
    return index < positions_.size() && positions_[index] != kAbsent;
  }

 private:
  struct Entry {
    LeafRank rank;
    NodeId node;
  };
  static constexpr std::uint32_t kAbsent = ~std::uint32_t{0};

  void place(std::uint32_t at, const Entry& entry) {
    heap_[at] = entry;
    positions_[static_cast<std::size_t>(entry.node)] = at;
  }

  // The entry, of the leaf at that place, goes up or down until it is in order, and is written once.
  void settle(std::uint32_t start, const Entry& entry) {
    std::uint32_t at = start;
    for (; at > 0 && entry.rank < heap_[(at - 1) / 2].rank; at = (at - 1) / 2) place(at, heap_[(at - 1) / 2]);
    const bool rose = at != start;
    const auto size = static_cast<std::uint32_t>(heap_.size());
    while (!rose) {
      std::uint32_t child = 2 * at + 1;
      if (child >= size) break;
      if (child + 1 < size && heap_[child + 1].rank < heap_[child].rank) ++child;
      if (!(heap_[child].rank < entry.rank)) break;
      place(at, heap_[child]);
      at = child;
    }
    if (at != start) return place(at, entry);
    heap_[at].rank = entry.rank;
  }

  LargeVector<Entry> heap_;
  LargeVector<std::uint32_t> positions_;  // by NodeId
};

// The same for ranks that mostly grow from one offer to the next, as stamps do, be it within each of a few classes: a
// leaf joins the end of one of some sorted runs where that is possible, in O(1), or comes back to where it was, as one
// does that was withdrawn while a request held it. Only the others make up a heap. (In a heap of millions each level is
// a cache miss. So is what is kept of a leaf; its place in a run is written unread.)
class LeafRuns {
 public:
  void set(NodeId node, const LeafRank& rank) {
    const auto index = static_cast<std::size_t>(node);
    if (index >= places_.size()) places_.resize(index + 1);
    if (stays(places_[index], rank)) return;
    remove(node);
    ++size_;
    Place& place = places_[index];
    if (comes_back(node, place, rank)) return;
    place.there = true;
    place.rank = rank;
    place.run = run_for(rank);
    if (place.run == kHeap) return heap_.set(node, rank);
    Run& run = runs_[place.run];
    run.last = rank;
    const std::uint16_t renumbered = after(run.numbering);
    place.at = run.line.push({node}, [&](const Entry& entry, auto, auto now) {
      Place& moved = places_[static_cast<std::size_t>(entry.node)];
      moved.at = now;
      moved.numbering = run.numbering = renumbered;
    });
    place.numbering = run.numbering;
  }

  void remove(NodeId node) {
    if (!contains(node)) return;
    Place& place = places_[static_cast<std::size_t>(node)];
    --size_;
    place.there = false;
    if (place.run == kHeap) return heap_.remove(node);
    Run& run = runs_[place.run];
    run.line.take(place.at);
    if (run.line.size() > 0) return;
    run.line = {};
    run.numbering = after(run.numbering);
  }

  NodeId smallest() const {
    NodeId node = heap_.smallest();
    const LeafRank* least = node == NodeId::none ? nullptr : &heap_.smallest_rank();
    for (const Run& run : runs_) {
      if (run.line.size() == 0) continue;
      const NodeId front = run.line.at(run.line.front()).node;
      const LeafRank& rank = rank_of(front);
      if (least != nullptr && *least < rank) continue;
      least = &rank;
      node = front;
    }
    return node;
  }
  const LeafRank& smallest_rank() const { return rank_of(smallest()); }  // not of none
  std::size_t size() const { return size_; }
  // Of the run whose front goes next, the one that is as many places behind it; none if that is a gap or there is no
  // run. The places of those farther behind are read ahead for their turn.
  NodeId soon(std::uint32_t others) const {
    const Run* next = nullptr;
    const LeafRank* least = nullptr;
    for (const Run& run : runs_) {
      if (run.line.size() <= others) continue;
      const LeafRank& rank = rank_of(run.line.at(run.line.front()).node);
      if (least != nullptr && *least < rank) continue;
      next = &run;
      least = &rank;
    }
    if (next == nullptr) return NodeId::none;
    const NodeId node = next->line.soon(others).node;
    if (node != NodeId::none) expect(node);
    return node;
  }
  // It will be asked for. Inlined whatever it takes: to GCC a function that does nothing else has no effect.
  [[gnu::always_inline]] void expect(NodeId node) const {
    if (static_cast<std::size_t>(node) < places_.size()) __builtin_prefetch(&places_[static_cast<std::size_t>(node)]);
  }
  bool contains(NodeId node) const {
    const auto index = static_cast<std::size_t>(node);
    return index < places_.size() && places_[index].there;
  }

 private:
  static constexpr std::uint8_t kRuns = 8, kHeap = kRuns;
  static constexpr std::uint16_t kAnyNumbering = ~std::uint16_t{0};
  struct Entry {
    NodeId node = NodeId::none;
    bool is_gap() const { return node == NodeId::none; }
  };
  struct Run {
    Line<Entry> line;
    LeafRank last;                // that joined, here still or not
    std::uint16_t numbering = 0;  // how often its entries' numbers have changed, up to kAnyNumbering
  };
  struct Place {  // or the last one, if it isn't there
    LeafRank rank;
    std::uint32_t at = 0;
    std::uint16_t numbering = 0;  // its run's, as long as it is there
    std::uint8_t run = kHeap;
    bool there = false;
  };

  const LeafRank& rank_of(NodeId node) const { return places_[static_cast<std::size_t>(node)].rank; }

  // Takes the new rank where it is? In a run only its front may fall, as it does when a tail is evicted.
  bool stays(Place& place, const LeafRank& rank) {
    if (!place.there || place.run == kHeap) return false;
    if (rank != place.rank && (place.at != runs_[place.run].line.front() || place.rank < rank)) return false;
    place.rank = rank;
    return true;
  }

  // With the rank that it had, to the gap that it left? All before that are smaller, all behind it larger, as they
  // were.
  bool comes_back(NodeId node, Place& place, const LeafRank& rank) {
    if (place.run == kHeap || rank != place.rank) return false;
    Run& run = runs_[place.run];
    if (place.numbering != run.numbering || run.numbering == kAnyNumbering) return false;
    place.there = run.line.put_back(place.at, {node});
    return place.there;
  }
  static std::uint16_t after(std::uint16_t numbering) {
    return numbering == kAnyNumbering ? numbering : static_cast<std::uint16_t>(numbering + 1);
  }

  // The run whose last is nearest below, else an empty one.
  std::uint8_t run_for(const LeafRank& rank) const {
    std::uint8_t best = kHeap;
    for (std::uint8_t i = 0; i < kRuns; ++i) {
      const bool empty = runs_[i].line.size() == 0;
      if (!empty && rank < runs_[i].last) continue;
      if (best == kHeap || (!empty && (runs_[best].line.size() == 0 || runs_[best].last < runs_[i].last))) best = i;
    }
    return best;
  }

  std::array<Run, kRuns> runs_;
  RankedLeaves heap_;
  LargeVector<Place> places_;  // by NodeId
  std::size_t size_ = 0;
};

// Policies that are an order, for ranks that rest on what the policy keeps with its nodes.
class LeafOrder : public EvictionPolicy {
 public:
  void offer(const PolicyNode& node) final { leaves_.set(node.id, rank(node)); }
  void withdraw(NodeId node) final { leaves_.remove(node); }
  NodeId victim() final { return leaves_.smallest(); }
  std::size_t offered() const final { return leaves_.size(); }
  bool is_offered(NodeId node) const final { return leaves_.contains(node); }
  NodeId soon(std::uint32_t others) const final { return leaves_.soon(others); }
  void expect(NodeId node) const final { leaves_.expect(node); }

 private:
  virtual LeafRank rank(const PolicyNode& node) const = 0;

  LeafRuns leaves_;
};

template <LeafRank (*rank)(const NodeFacts&)>
class RankedPolicy final : public EvictionPolicy {
 public:
  void offer(const PolicyNode& node) override { leaves_.set(node.id, rank(node.facts)); }
  void withdraw(NodeId node) override { leaves_.remove(node); }
  NodeId victim() override { return leaves_.smallest(); }
  std::size_t offered() const override { return leaves_.size(); }
  bool is_offered(NodeId node) const override { return leaves_.contains(node); }
  NodeId soon(std::uint32_t others) const override { return leaves_.soon(others); }
  void expect(NodeId node) const override { leaves_.expect(node); }

 private:
  LeafRuns leaves_;
};

}  // namespace kvtwin
