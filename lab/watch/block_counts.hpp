// Which blocks an engine holds on each medium and in each group of layers, by its own events.
//
// Memory: 16 to 32 bytes per block that is held, up to max_blocks in all; beyond them, blocks are counted and not
// remembered, and the counts are too high by those that are stored twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "policy/base/flat_table.hpp"
#include "traces/block_events.hpp"

namespace kvtwin {

// A set of 64-bit numbers.
class BlockSet {
 public:
  BlockSet();
  // Return true if the set has changed.
  bool insert(std::uint64_t number);
  bool erase(std::uint64_t number);
  bool has(std::uint64_t number) const;
  void clear();
  std::size_t size() const { return size_; }
  std::size_t memory_bytes() const { return table_.places() * sizeof(Place); }

 private:
  struct Place {
    std::uint64_t number = 0;  // never 0
    bool is_empty() const { return number == 0; }
    std::uint32_t spread() const;
  };
  FlatTable<Place> table_;
  std::size_t size_ = 0;
};

class BlockCounts {
 public:
  static constexpr std::size_t kMaxPools = 64;  // more are counted together

  explicit BlockCounts(std::size_t max_blocks) : max_blocks_(max_blocks) {}

  struct Pool {
    std::string medium, kind;  // as the engine writes it; kind: of the group of layers
    std::uint64_t group = 0;
    std::uint64_t stored = 0, removed = 0, held = 0, peak = 0;
    bool is_full = false;  // blocks were removed while it held nearly the most that it ever held
    bool is_device = false;
  };

  void take(const BlockEvent& event);
  // The first one is the device's first group, if there is any.
  std::vector<Pool> pools() const;
  // Blocks that the device's pool holds at most, if it has been full.
  std::uint64_t full_device() const;
  std::uint64_t device_peak() const;
  std::size_t memory_bytes() const;

 private:
  struct Held {
    Pool pool;
    BlockSet blocks;
  };
  Held& pool_of(const BlockEvent& event);

  const std::size_t max_blocks_;
  std::size_t remembered_ = 0;
  std::vector<Held> pools_;
};

}  // namespace kvtwin
