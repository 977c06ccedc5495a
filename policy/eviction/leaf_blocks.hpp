// Leaves whose ranks come in no order and that are not evicted soon. The leaves are in blocks: each block has smaller
// ranks than the block before it, and is not sorted inside.
//
// Cost: adding a leaf is a search among the blocks and one write, removing a leaf is one write. A heap of millions of
// leaves would cost a cache miss per level for both. A full block is closed up or split. A block with few leaves joins
// its neighbour. So at least an eighth of the places are in use, usually two thirds. A place has 32 bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "policy/base/check.hpp"
#include "policy/eviction/leaf_rank.hpp"

namespace kvtwin {

class LeafBlocks {
 public:
  static constexpr std::uint32_t kPlacesPerBlock = 4096;

  // Returns whether a leaf of this rank belongs here, because smaller leaves may be here.
  bool covers(const LeafRank& rank) const { return !order_.empty() && !(rank < order_.back().least); }

  // Requires covers(leaf.rank). Here and below, placed(node, at) gets the new place of each leaf that has moved.
  template <typename Placed>
  void add(const RankedLeaf& leaf, Placed placed) {
    std::size_t i = index_of(leaf.rank);
    if (blocks_[order_[i].block].used == kPlacesPerBlock) {
      make_room(i, placed);
      i = index_of(leaf.rank);
    }
    append(order_[i].block, leaf, placed);
  }
  // Adds leaves that are smaller than all leaves here. Requires: 1 to kPlacesPerBlock leaves.
  template <typename Placed>
  void add_smallest(std::span<const RankedLeaf> leaves, Placed placed) {
    KV_CHECK(!leaves.empty() && leaves.size() <= kPlacesPerBlock, "what is added fits into a block");
    const auto least = std::ranges::min_element(leaves, {}, &RankedLeaf::rank);
    order_.push_back({least->rank, new_block()});
    fill(order_.back().block, leaves, placed);
  }
  // Removes the leaf of this rank, which is at the place `at`.
  template <typename Placed>
  void remove(std::uint32_t at, const LeafRank& rank, Placed placed) {
    places_[at] = {};
    Block& block = blocks_[at / kPlacesPerBlock];
    --block.leaves;
    if (block.leaves % (kPlacesPerBlock / 16) != 0 || block.leaves > kPlacesPerBlock / 4) return;
    std::size_t i = index_of(rank);
    while (order_[i].block != at / kPlacesPerBlock) ++i;  // leaves of one rank may lie in several blocks
    join_neighbour(i, placed);
  }
  // Removes the block with the smallest leaves. Requires: not empty. Returns the leaves in order; borrowed until the
  // next change.
  std::span<const RankedLeaf> take_smallest() {
    scratch_.clear();
    gather(order_.back().block);
    drop(order_.size() - 1);
    std::ranges::sort(scratch_, {}, &RankedLeaf::rank);
    return scratch_;
  }

  template <typename Of>
  void each(Of of) const {
    for (const Bound& bound : order_) {
      const std::size_t first = std::size_t{bound.block} * kPlacesPerBlock;
      for (std::size_t at = first; at < first + blocks_[bound.block].used; ++at) {
        if (places_[at].node != NodeId::none) of(places_[at].node);
      }
    }
  }
  bool empty() const { return order_.empty(); }
  std::size_t blocks() const { return order_.size(); }

 private:
  static constexpr std::size_t kMaxBlocks = (std::size_t{1} << 32) / kPlacesPerBlock;
  struct Block {
    std::uint32_t used = 0, leaves = 0;  // used: places from the first one on, gaps included; leaves: without the gaps
  };
  struct Bound {
    LeafRank least;  // no leaf of the block is smaller
    std::uint32_t block = 0;
  };

  std::span<RankedLeaf> places_of(std::uint32_t block) {
    return std::span(places_).subspan(std::size_t{block} * kPlacesPerBlock, blocks_[block].used);
  }
  // Returns the index in order_ of the block that a leaf of this rank is in, or belongs to.
  std::size_t index_of(const LeafRank& rank) const {
    // Binary search without a branch, because the CPU cannot predict which half is taken.
    std::size_t first = 0;
    for (std::size_t left = order_.size(); left > 0;) {
      const std::size_t half = (left + 1) / 2;
      const LeafRank& least = order_[first + half - 1].least;
      bool smaller = rank.first < least.first;
      if (rank.first == least.first) [[unlikely]]
        smaller = rank < least;
      first += smaller ? half : 0;
      left -= half;
    }
    return first;
  }

  std::uint32_t new_block() {
    if (free_.empty()) {
      KV_CHECK(blocks_.size() < kMaxBlocks, "leaves have numbers of 32 bits");
      places_.resize(places_.size() + kPlacesPerBlock);
      blocks_.emplace_back();
      return static_cast<std::uint32_t>(blocks_.size() - 1);
    }
    const std::uint32_t block = free_.back();
    free_.pop_back();
    return block;
  }
  void free_block(std::uint32_t block) {
    blocks_[block] = {};
    free_.push_back(block);
  }

  template <typename Placed>
  void append(std::uint32_t block, const RankedLeaf& leaf, Placed placed) {
    Block& to = blocks_[block];
    const std::uint32_t at = block * kPlacesPerBlock + to.used++;
    places_[at] = leaf;
    ++to.leaves;
    placed(leaf.node, at);
  }

  // Moves the leaves of the block to scratch_.
  void gather(std::uint32_t block) {
    for (const RankedLeaf& leaf : places_of(block)) {
      if (leaf.node != NodeId::none) scratch_.push_back(leaf);
    }
    blocks_[block] = {};
  }
  template <typename Placed>
  void fill(std::uint32_t block, std::span<const RankedLeaf> leaves, Placed placed) {
    for (const RankedLeaf& leaf : leaves) append(block, leaf, placed);
  }

  // Requires a full block. Closes the block's gaps if they are many, else splits the block in half.
  template <typename Placed>
  void make_room(std::size_t i, Placed placed) {
    const std::uint32_t block = order_[i].block;
    scratch_.clear();
    gather(block);
    std::span<RankedLeaf> smaller = scratch_;
    if (scratch_.size() > kPlacesPerBlock * 3 / 4) {
      smaller = smaller.first(scratch_.size() / 2);
      std::ranges::nth_element(scratch_, scratch_.begin() + static_cast<std::ptrdiff_t>(smaller.size()), {},
                               &RankedLeaf::rank);
      const std::span<const RankedLeaf> larger = std::span(scratch_).subspan(smaller.size());
      order_.insert(order_.begin() + static_cast<std::ptrdiff_t>(i), {larger.front().rank, new_block()});
      fill(order_[i].block, larger, placed);
    }
    fill(block, smaller, placed);
  }

  // Requires a block with few leaves. Joins the block and its next smaller neighbour, or its next larger one, if both
  // together fill at most half a block.
  template <typename Placed>
  void join_neighbour(std::size_t i, Placed placed) {
    for (const std::size_t larger : {i, i - 1}) {
      const std::size_t smaller = larger + 1;
      if (larger >= order_.size() || smaller >= order_.size()) continue;
      const std::uint32_t from = order_[larger].block, to = order_[smaller].block;
      if (blocks_[from].leaves + blocks_[to].leaves > kPlacesPerBlock / 2) continue;
      scratch_.clear();
      gather(from);
      gather(to);
      fill(to, scratch_, placed);
      return drop(larger);
    }
    if (blocks_[order_[i].block].leaves == 0) drop(i);
  }
  void drop(std::size_t i) {
    free_block(order_[i].block);
    order_.erase(order_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  std::vector<Bound> order_;  // the block with the largest leaves first
  std::vector<Block> blocks_;
  std::pmr::vector<RankedLeaf> places_;  // kPlacesPerBlock for each block
  std::vector<std::uint32_t> free_;
  std::vector<RankedLeaf> scratch_;
};

}  // namespace kvtwin
