// Stack distances of LRU on a prefix tree: one pass over the requests gives the hits of every size of cache.
//
// LRU keeps the blocks in one order: the block of the latest request first, and among blocks of the same request the
// one nearest to the start of the prompt. Its victim, the leaf of the oldest request, is the last block of this order:
// a block's children were never used later than the block, and lie deeper. So a cache of C blocks holds the first C
// blocks of the order, and a look-up of a block hits in each cache that is at least as large as the block's place in
// the order, its stack distance (R. Mattson and others, "Evaluation techniques for storage hierarchies", 1970).
// sim/bounds/hitrate.hpp replays the same rules for one size; the results are equal to the block.
//
// Blocks beyond max_blocks places are forgotten: the distances up to this place stay exact. With one_in = R > 1 only
// the blocks of one in R keys are kept, chosen by a hash of the key, and their distances count R times (SHARDS: C.
// Waldspurger and others, "Efficient MRC construction with SHARDS", FAST 2015).
//
// Cost: a search among max_blocks / 512 sums and 8 words per block of a request.
// Memory: at most kBytesPerBlock times max_blocks, kFixedBytes, and 8 bytes per block of the longest request; allocated
// as it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "policy/base/flat_table.hpp"

namespace kvtwin {

class StackDistances {
 public:
  static constexpr std::uint64_t kNew = 0;  // not seen before, or forgotten
  static constexpr std::uint64_t kNotSampled = ~std::uint64_t{0};
  // Key, slot, free list, two slots per block, a hash table that is half full, a bit per slot and the sums.
  static constexpr std::size_t kBytesPerBlock = 8 + 4 + 4 + 2 * 4 + 16 + 1;
  static constexpr std::size_t kFixedBytes = 128 << 10;

  // Requires: max_blocks is 1 to 2^30, one_in at least 1.
  explicit StackDistances(std::size_t max_blocks, std::uint64_t one_in = 1);

  // Looks up the blocks of a request and then makes them the latest. `keys`: each names the whole prefix up to its
  // block. Fills `distances`: for each block the size of the smallest cache that hits it, in blocks, or a constant
  // above.
  void visit(std::span<const std::uint64_t> keys, std::vector<std::uint64_t>& distances);
  // The distance of a block, which stays where it is.
  std::uint64_t distance(std::uint64_t key) const;

  std::size_t blocks() const { return keys_.size() - free_.size(); }  // kept
  std::size_t max_blocks() const { return max_blocks_; }
  std::uint64_t one_in() const { return one_in_; }
  // The largest distance that is known.
  std::uint64_t largest() const { return max_blocks_ * one_in_; }
  std::uint64_t forgotten() const { return forgotten_; }  // blocks, so far
  std::size_t memory_bytes() const;
  bool is_sampled(std::uint64_t key) const { return one_in_ == 1 || sample_of(key) % one_in_ == 0; }
  // A uniform number of the key, which decides whether it is kept.
  static std::uint64_t sample_of(std::uint64_t key);

 private:
  struct Place {
    std::uint32_t hash = 0, block_plus_one = 0;
    bool is_empty() const { return block_plus_one == 0; }
    std::uint32_t spread() const { return hash; }
  };
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  static constexpr std::size_t kWordBits = 64, kGroupWords = 8, kGroupBits = kWordBits * kGroupWords;

  std::size_t table_place(std::uint64_t key) const;
  std::uint32_t find(std::uint64_t key) const;
  std::uint32_t add(std::uint64_t key);
  void forget_last();
  std::uint64_t rank(std::uint32_t slot) const;  // of a slot that is taken; 1 for the latest
  void mark_taken(std::uint32_t slot);
  void mark_free(std::uint32_t slot);
  class GroupSum;
  void add_to_group(std::size_t group, std::uint32_t value);
  // Moves the slots together, and makes more of them if they are over half full.
  void make_slots();

  const std::size_t max_blocks_;
  const std::uint64_t one_in_;
  // By block. Slots are in the order of use: a larger one is later.
  std::vector<std::uint64_t> keys_;
  std::vector<std::uint32_t> slots_;
  std::vector<std::uint32_t> free_;
  FlatTable<Place> table_;
  // By slot.
  std::vector<std::uint32_t> block_in_;
  std::vector<std::uint64_t> taken_;            // a bit per slot
  std::vector<std::uint32_t> group_sum_;        // Fenwick tree (P. Fenwick, 1994) of the taken slots per group
  std::size_t next_slot_ = 0, first_slot_ = 0;  // no slot below first_slot_ is taken
  std::uint64_t forgotten_ = 0;
  struct OnPath {
    std::uint32_t key = 0, block = 0;  // number in the request; kNone: not there
  };
  std::vector<OnPath> path_;  // a member to reuse the memory
};

}  // namespace kvtwin
