// Hits by size of the pools that do not need the whole prefix: groups of layers with a sliding window or a state, by
// the events of an engine that names the group of each block (vLLM).
//
// A prompt's prefix is usable to a pool if the pool has the blocks of the window before its end (a state: the block at
// its end). A pool of C blocks holds the C blocks that were used last: a request uses the blocks of the window at the
// end of its longest usable prefix, and those behind that the engine stores in this pool, as its events say. What a
// request uses is that of a pool without limit, so that one order serves all sizes, as in stack_distances.hpp; a small
// pool really uses blocks nearer to the start of the prompt.
// The other pools count as complete: a pool's hits are an upper bound of the engine's.
//
// Memory: at most kMaxPools pools of kBytesPerBlock times max_blocks each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "lab/watch/block_counts.hpp"
#include "lab/watch/stack_distances.hpp"
#include "policy/base/types.hpp"
#include "traces/block_events.hpp"

namespace kvtwin {

class PoolCurves {
 public:
  static constexpr std::size_t kMaxPools = 8;  // further ones have no curve
  static constexpr std::size_t kBytesPerBlock = StackDistances::kBytesPerBlock + 32 + 8;

  // `max_blocks`: tracked of each pool, at least 1.
  explicit PoolCurves(std::size_t max_blocks) : max_blocks_(max_blocks) {}

  // Learns the pools and which blocks they store.
  void take(const BlockEvent& event);
  // A prompt: the names of its blocks as events have them, without a partial last one.
  void serve(std::span<const std::uint64_t> blocks, Tokens block_tokens);

  struct Size {
    std::uint64_t blocks = 0;
    double hits = 0;        // share of the prompts' whole blocks whose prefix the pool can use
    bool is_least = false;  // the hits may be more: the size is above the tracked blocks
  };
  struct Curve {
    std::uint64_t group = 0;
    std::string kind;   // as the engine writes it
    Tokens window = 0;  // tokens; 0: a state
    std::vector<Size> sizes;
  };
  // `present_of(group)`: blocks that the pool has; sizes are a quarter to eight times as many.
  template <typename PresentOf>
  std::vector<Curve> curves(const PresentOf& present_of) const {
    std::vector<Curve> all;
    for (const Pool& pool : pools_) all.push_back(curve_of(pool, present_of(pool.group)));
    return all;
  }
  std::size_t memory_bytes() const;

 private:
  struct Pool {
    Pool(std::uint64_t of_group, std::size_t blocks) : group(of_group), stack(blocks) {}

    std::uint64_t group;
    std::string kind;
    Tokens window = 0, block_tokens = 0;
    BlockSet stored;  // by the engine, of late
    StackDistances stack;
    std::vector<std::uint64_t> gained;  // blocks, in those of requests, that hit from this size on
    std::uint64_t lookup_blocks = 0;
  };
  static bool has_curve(const BlockEvent& event);
  void serve(Pool& pool, std::span<const std::uint64_t> blocks, Tokens block_tokens);
  Curve curve_of(const Pool& pool, std::uint64_t present) const;

  const std::size_t max_blocks_;
  std::deque<Pool> pools_;  // in the order of their first events
  // Members to reuse the memory.
  std::vector<std::uint64_t> distances_, keys_, used_;
};

}  // namespace kvtwin
