// Prefixes that many requests begin with, and that LRU has lost in between: which are worth pinning.
//
// A prefix is named by its first block. Bounded by space saving: A. Metwally and others, "Efficient computation of
// frequent and top-k elements in data streams", 2005.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace kvtwin {

struct WatchedPrefix {
  std::uint64_t key = 0;  // of the first block
  std::uint64_t requests = 0, blocks = 0, lost_blocks = 0;
};

class PrefixTable {
 public:
  static constexpr std::size_t kMaxPrefixes = 256, kShownPrefixes = 5;
  static constexpr std::uint64_t kMinRequests = 3;

  // Takes the blocks of a request with their stack distances (stack_distances.hpp). `size`: of the present cache; 0:
  // not known.
  void take(std::span<const std::uint64_t> keys, std::span<const std::uint64_t> distances, std::uint64_t size);
  // Those with the most lost blocks.
  std::vector<WatchedPrefix> worst() const;

 private:
  struct Counted {
    WatchedPrefix prefix;
    std::uint64_t error = 0;  // of its requests, that the prefix which it replaced had
  };
  std::map<std::uint64_t, Counted> all_;
};

}  // namespace kvtwin
