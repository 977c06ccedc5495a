// The blocks that an engine has, and the blocks above them: a forest in flat memory, found by the engine's hash.
// Internal to traces/.
//
// A block is kept while a rank has it, or a kept block follows it. Blocks that are added together lie together, so a
// walk from a block to the first block of its prompt is a walk through memory, without further look-ups.
// Memory: 24 bytes per block, 4 for its place among the free ones, and a table that is a quarter to half full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "policy/base/flat_table.hpp"

namespace kvtwin {

class KnownBlocks {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  KnownBlocks() { clear(); }

  // Returns the block's number; kNone: it is not known.
  std::uint32_t find(std::uint64_t id) const;
  // Returns the block's number. A new block lies below `above`, if that is a block (and no loop).
  std::uint32_t find_or_add(std::uint64_t id, std::uint32_t above);

  std::uint64_t id(std::uint32_t block) const { return blocks_[block].id; }
  std::uint32_t above(std::uint32_t block) const { return blocks_[block].above; }
  bool has(std::uint32_t block, std::uint64_t rank) const { return (blocks_[block].ranks >> rank & 1) != 0; }
  void set_rank(std::uint32_t block, std::uint64_t rank) { blocks_[block].ranks |= std::uint64_t{1} << rank; }
  // The rank has the block no longer. Forgets the block if nothing keeps it, and then so those above it.
  void clear_rank(std::uint32_t block, std::uint64_t rank);

  std::size_t size() const { return blocks_.size() - free_.size(); }
  void clear();
  std::size_t memory_bytes() const;

 private:
  struct Block {
    std::uint64_t id = 0, ranks = 0;         // ranks: a bit for each that has it
    std::uint32_t above = kNone, below = 0;  // below: number of blocks
  };
  struct Place {
    std::uint32_t hash = 0, block_plus_one = 0;
    bool is_empty() const { return block_plus_one == 0; }
    std::uint32_t spread() const { return hash; }
  };

  std::size_t place_of(std::uint64_t id, std::uint32_t hash) const;

  std::vector<Block> blocks_;
  std::vector<std::uint32_t> free_;
  FlatTable<Place> table_;
};

}  // namespace kvtwin
