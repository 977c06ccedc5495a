// Upper bound of the cost that several tiers can save, if a block on a farther tier saves less. No time passes.
//
// The saved cost of a hit is a sum over the block's tier and all farther tiers. Each tier adds the saved cost of this
// tier minus the saved cost of the next one. A block moves to a nearer tier only for a request that uses the block. So
// a block that is hit on the first k tiers has been on one of them since its last use, as in one cache of their total
// size. Level k is bounded by opt_cost for that cache. A block whose load takes longer than its computation saves
// nothing.
//
// Each level is bounded alone, although the farther levels also keep the blocks of the nearer ones. The loss is small:
// if all blocks had the same worth, the best caches of growing sizes would contain each other anyway.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "policy/base/types.hpp"
#include "sim/bounds/cost.hpp"
#include "sim/bounds/opt.hpp"

namespace kvtwin {

// The tiers from the nearest one up to and including one tier.
struct TierLevel {
  const Future* future = nullptr;  // borrowed; the futures of all levels come from one log
  Pages room = 0;                  // capacity of these tiers together
  std::uint64_t load_milli = 0;    // cost to load a token from the farthest of these tiers, in 1/1000 of a unit
};

// A sum over the first `blocks` blocks of a request: 0 for 0 blocks, rising with `blocks`.
using OfPrefix = std::function<std::uint64_t(std::uint32_t request, std::uint32_t blocks)>;

struct TierBound {
  std::uint64_t saved = 0;  // upper bound of the saved cost
  // By turn of the farthest level: the blocks that the bound counts; not always a prefix.
  std::vector<std::uint32_t> kept;
};

// Returns the bound for `levels`.
// Requires: nearest level first; capacity and load cost do not fall (KV_CHECK). `computing`: the cost to compute the
// first blocks, in any unit, below 2^62 for all requests together (KV_CHECK). `tokens`: the tokens in the first blocks.
TierBound opt_tiers(std::span<const TierLevel> levels, const OfPrefix& computing, const OfPrefix& tokens);

}  // namespace kvtwin
