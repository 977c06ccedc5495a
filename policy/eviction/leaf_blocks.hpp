// Leaves by rank, for ranks that come in no order, as far as they aren't among the next to go: in blocks, each of which
// has smaller ranks than the one before it, in no order themselves. Joining is a search among the blocks and a write,
// leaving a write: in a heap of millions both are a cache miss a level. A block that is full is closed up or halved,
// one that empties joins its neighbour: of its places, of 32 bytes, at least an eighth are in use, two thirds mostly.
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
  static constexpr std::uint32_t kPlaces = 4096;  // of a block

  // May it hold leaves that are smaller than that rank? Then a leaf of that rank belongs here.
  bool reaches_below(const LeafRank& rank) const { return !order_.empty() && !(rank < order_.back().least); }

  // A leaf that it reaches below. placed(node, at) is told where leaves have got to, here and in what follows.
  template <typename Placed>
  void add(const RankedLeaf& leaf, Placed placed) {
    std::size_t i = index_of(leaf.rank);
    if (blocks_[order_[i].block].used == kPlaces) {
      make_room(i, placed);
      i = index_of(leaf.rank);
    }
    append(order_[i].block, leaf, placed);
  }
  // Those, kPlaces at most, are smaller than all that are there.
  template <typename Placed>
  void add_first(std::span<const RankedLeaf> leaves, Placed placed) {
    KV_CHECK(!leaves.empty() && leaves.size() <= kPlaces, "what is added fits into a block");
    const auto least = std::ranges::min_element(leaves, {}, &RankedLeaf::rank);
    order_.push_back({least->rank, new_block()});
    fill(order_.back().block, leaves, placed);
  }
  // The leaf of that rank, which is at that place.
  template <typename Placed>
  void remove(std::uint32_t at, const LeafRank& rank, Placed placed) {
    places_[at] = {};
    Block& block = blocks_[at / kPlaces];
    --block.leaves;
    if (block.leaves % (kPlaces / 16) != 0 || block.leaves > kPlaces / 4) return;
    std::size_t i = index_of(rank);
    while (order_[i].block != at / kPlaces) ++i;  // those of one rank may lie in more than one block
    join_neighbour(i, placed);
  }
  // The smallest ones leave, a block of them, of which there is one. In order, and borrowed until the next change.
  std::span<const RankedLeaf> take_first() {
    spare_.clear();
    gather(order_.back().block);
    drop(order_.size() - 1);
    std::ranges::sort(spare_, {}, &RankedLeaf::rank);
    return spare_;
  }

  template <typename Of>
  void each(Of of) const {
    for (const Bound& bound : order_) {
      const std::size_t first = std::size_t{bound.block} * kPlaces;
      for (std::size_t at = first; at < first + blocks_[bound.block].used; ++at) {
        if (places_[at].node != NodeId::none) of(places_[at].node);
      }
    }
  }
  bool empty() const { return order_.empty(); }
  std::size_t blocks() const { return order_.size(); }

 private:
  static constexpr std::size_t kMostBlocks = (std::size_t{1} << 32) / kPlaces;
  struct Block {
    std::uint32_t used = 0, leaves = 0;  // places, from the first one on; those of them that aren't gaps
  };
  struct Bound {
    LeafRank least;  // none of the block's is smaller
    std::uint32_t block = 0;
  };

  std::span<RankedLeaf> places_of(std::uint32_t block) {
    return std::span(places_).subspan(std::size_t{block} * kPlaces, blocks_[block].used);
  }
  // Which block a leaf of that rank is in, or belongs in.
  std::size_t index_of(const LeafRank& rank) const {
    // Which half can't be foreseen, so it isn't branched on.
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
      KV_CHECK(blocks_.size() < kMostBlocks, "leaves have numbers of 32 bits");
      places_.resize(places_.size() + kPlaces);
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
    const std::uint32_t at = block * kPlaces + to.used++;
    places_[at] = leaf;
    ++to.leaves;
    placed(leaf.node, at);
  }

  // Empties the block into spare_.
  void gather(std::uint32_t block) {
    for (const RankedLeaf& leaf : places_of(block)) {
      if (leaf.node != NodeId::none) spare_.push_back(leaf);
    }
    blocks_[block] = {};
  }
  template <typename Placed>
  void fill(std::uint32_t block, std::span<const RankedLeaf> leaves, Placed placed) {
    for (const RankedLeaf& leaf : leaves) append(block, leaf, placed);
  }

  // Of a full block: closes its gaps if they are many, else halves it.
  template <typename Placed>
  void make_room(std::size_t i, Placed placed) {
    const std::uint32_t block = order_[i].block;
    spare_.clear();
    gather(block);
    std::span<RankedLeaf> smaller = spare_;
    if (spare_.size() > kPlaces * 3 / 4) {
      smaller = smaller.first(spare_.size() / 2);
      std::ranges::nth_element(spare_, spare_.begin() + static_cast<std::ptrdiff_t>(smaller.size()), {},
                               &RankedLeaf::rank);
      const std::span<const RankedLeaf> larger = std::span(spare_).subspan(smaller.size());
      order_.insert(order_.begin() + static_cast<std::ptrdiff_t>(i), {larger.front().rank, new_block()});
      fill(order_[i].block, larger, placed);
    }
    fill(block, smaller, placed);
  }

  // Of a block with few: they go to the next smaller block, or the next larger one's come here, if that leaves room.
  template <typename Placed>
  void join_neighbour(std::size_t i, Placed placed) {
    for (const std::size_t larger : {i, i - 1}) {
      const std::size_t smaller = larger + 1;
      if (larger >= order_.size() || smaller >= order_.size()) continue;
      const std::uint32_t from = order_[larger].block, to = order_[smaller].block;
      if (blocks_[from].leaves + blocks_[to].leaves > kPlaces / 2) continue;
      spare_.clear();
      gather(from);
      gather(to);
      fill(to, spare_, placed);
      return drop(larger);
    }
    if (blocks_[order_[i].block].leaves == 0) drop(i);
  }
  void drop(std::size_t i) {
    free_block(order_[i].block);
    order_.erase(order_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  std::vector<Bound> order_;  // the largest first
  std::vector<Block> blocks_;
  std::pmr::vector<RankedLeaf> places_;  // kPlaces a block
  std::vector<std::uint32_t> free_;
  std::vector<RankedLeaf> spare_;
};

}  // namespace kvtwin
