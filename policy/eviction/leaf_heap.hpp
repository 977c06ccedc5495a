// Ranks over leaves, and a heap by them. A rank must be total over leaves (facts.inserted is never shared by two), so
// that the victim depends on neither node numbers nor the order of the offers.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include "policy/eviction.hpp"

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

struct RankedLeaf {
  LeafRank rank;
  NodeId node = NodeId::none;
};

// In a binary heap, puts the leaf of place `start` where its rank belongs; it is written once. placed(node, at) is told
// of each leaf that is elsewhere then.
template <typename Placed>
void settle(std::pmr::vector<RankedLeaf>& heap, std::uint32_t start, const RankedLeaf& leaf, Placed placed) {
  const auto place = [&](std::uint32_t at, const RankedLeaf& one) {
    heap[at] = one;
    placed(one.node, at);
  };
  std::uint32_t at = start;
  for (; at > 0 && leaf.rank < heap[(at - 1) / 2].rank; at = (at - 1) / 2) place(at, heap[(at - 1) / 2]);
  const bool rose = at != start;
  const auto size = static_cast<std::uint32_t>(heap.size());
  while (!rose) {
    std::uint32_t child = 2 * at + 1;
    if (child >= size) break;
    // In large heaps each level is a miss: three levels ahead.
    const std::uint64_t below = std::uint64_t{8} * at + 7, end = std::min<std::uint64_t>(below + 8, size);
    for (std::uint64_t one = below; one < end; one += 2) __builtin_prefetch(&heap[one]);
    if (child + 1 < size && heap[child + 1].rank < heap[child].rank) ++child;
    if (!(heap[child].rank < leaf.rank)) break;
    place(at, heap[child]);
    at = child;
  }
  if (at != start) return place(at, leaf);
  heap[at].rank = leaf.rank;
}

// An indexed binary heap: O(log n) to set and remove, O(1) to ask for the smallest.
class LeafHeap {
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
    const RankedLeaf last = heap_.back();
    heap_.pop_back();
    if (last.node == node) return;
    heap_[at] = last;
    positions_[static_cast<std::size_t>(last.node)] = at;
    settle(at, last);
  }

  NodeId smallest() const { return heap_.empty() ? NodeId::none : heap_.front().node; }
  std::size_t size() const { return heap_.size(); }
  // In the heap's order, 0 the smallest.
  NodeId node_at(std::size_t place) const { return heap_[place].node; }
  const LeafRank& rank_at(std::size_t place) const { return heap_[place].rank; }
  const LeafRank& rank_of(NodeId node) const {
    return heap_[positions_[static_cast<std::size_t>(node)]].rank;
  }  // there
  // It will be asked for. Inlined whatever it takes: to GCC a function that does nothing else has no effect.
  [[gnu::always_inline]] void expect(NodeId node) const {
    if (static_cast<std::size_t>(node) < positions_.size()) {
      __builtin_prefetch(&positions_[static_cast<std::size_t>(node)]);
    }
  }
  // And that it leaves or moves: what lies around it. (Of one that is there.)
  [[gnu::always_inline]] void expect_move(NodeId node) const {
    if (!contains(node)) return;
    const std::size_t at = positions_[static_cast<std::size_t>(node)];
    __builtin_prefetch(&heap_[at]);
    __builtin_prefetch(&heap_[at / 2]);
    if (2 * at + 2 < heap_.size()) __builtin_prefetch(&heap_[2 * at + 2]);
  }
  bool contains(NodeId node) const {
    const auto index = static_cast<std::size_t>(node);
    return index < positions_.size() && positions_[index] != kAbsent;
  }

 private:
  static constexpr std::uint32_t kAbsent = ~std::uint32_t{0};

  void settle(std::uint32_t at, const RankedLeaf& leaf) {
    kvtwin::settle(heap_, at, leaf,
                   [this](NodeId node, std::uint32_t now) { positions_[static_cast<std::size_t>(node)] = now; });
  }

  std::pmr::vector<RankedLeaf> heap_;
  std::pmr::vector<std::uint32_t> positions_;  // by NodeId
};

}  // namespace kvtwin
