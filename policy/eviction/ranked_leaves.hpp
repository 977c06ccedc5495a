// Policies whose victim is the smallest of a rank over a leaf's facts: an indexed binary heap, O(log n) to
// offer and withdraw, O(1) to ask for the victim. A rank must be total over leaves (facts.inserted is never
// shared by two), so that the victim depends on neither node numbers nor the order of the offers.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "policy/check.hpp"
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

class RankedLeaves {
 public:
  void set(NodeId node, const LeafRank& rank) {
    const auto index = static_cast<std::size_t>(node);
    if (index >= positions_.size()) positions_.resize(index + 1, kAbsent);
    std::uint32_t at = positions_[index];
    if (at == kAbsent) {
      at = static_cast<std::uint32_t>(heap_.size());
      heap_.push_back({rank, node});
    } else {
      heap_[at].rank = rank;
    }
    if (!sift_up(at)) sift_down(at);
  }

  void remove(NodeId node) {
    if (!contains(node)) return;
    const std::uint32_t at = positions_[static_cast<std::size_t>(node)];
    positions_[static_cast<std::size_t>(node)] = kAbsent;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (last.node == node) return;
    place(at, last);
    if (!sift_up(at)) sift_down(at);
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

  // Both carry the entry along and write it once, at its final place. True if it moved.
  bool sift_up(std::uint32_t at) {
    const Entry entry = heap_[at];
    const std::uint32_t start = at;
    while (at > 0) {
      const std::uint32_t parent = (at - 1) / 2;
      if (!(entry.rank < heap_[parent].rank)) break;
      place(at, heap_[parent]);
      at = parent;
    }
    place(at, entry);
    return at != start;
  }

  void sift_down(std::uint32_t at) {
    const Entry entry = heap_[at];
    const auto size = static_cast<std::uint32_t>(heap_.size());
    for (;;) {
      std::uint32_t child = 2 * at + 1;
      if (child >= size) break;
      if (child + 1 < size && heap_[child + 1].rank < heap_[child].rank) ++child;
      if (!(heap_[child].rank < entry.rank)) break;
      place(at, heap_[child]);
      at = child;
    }
    place(at, entry);
  }

  std::vector<Entry> heap_;
  std::vector<std::uint32_t> positions_;  // by NodeId
};

// The same for ranks that rest on what the policy keeps with its nodes.
class LeafOrder : public EvictionPolicy {
 public:
  void offer(const PolicyNode& node) final { leaves_.set(node.id, rank(node)); }
  void withdraw(NodeId node) final { leaves_.remove(node); }
  NodeId victim() final { return leaves_.smallest(); }
  std::size_t offered() const final { return leaves_.size(); }
  bool is_offered(NodeId node) const final { return leaves_.contains(node); }

 private:
  virtual LeafRank rank(const PolicyNode& node) const = 0;

  RankedLeaves leaves_;
};

template <LeafRank (*rank)(const NodeFacts&)>
class RankedPolicy final : public EvictionPolicy {
 public:
  void offer(const PolicyNode& node) override { leaves_.set(node.id, rank(node.facts)); }
  void withdraw(NodeId node) override { leaves_.remove(node); }
  NodeId victim() override { return leaves_.smallest(); }
  std::size_t offered() const override { return leaves_.size(); }
  bool is_offered(NodeId node) const override { return leaves_.contains(node); }

 private:
  RankedLeaves leaves_;
};

}  // namespace kvtwin
