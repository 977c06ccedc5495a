// Upper bound of the prefill cost that a cache can save, if deep blocks cost more than shallow ones. No time passes.
//
// A hit block has been present since its last use. So each hit is an interval between two uses, and at most `capacity`
// intervals overlap at any point. This is a flow of `capacity` units through time. Each interval is an arc that earns
// the cost of its block. The flow of highest earnings bounds every cache with one tier, with or without bypass.
//
// All blocks of a run (Reuse, sim/bounds/opt.hpp) have the same interval, and a run is hit from its shallow end on. The
// arcs of a run therefore earn the concave hull of the costs of the run's first blocks: no flow can give a smaller
// bound. The bound is not always reachable: a run also needs the blocks above on the path, and the flow does not know
// whether those blocks stayed. The saved cost of `plan_hits` is a lower bound of the optimum.
//
// Units: integers only. Steps of a hull are rounded up to whole units per block.
// Cost: LEMON's network simplex grows faster than linearly with the number of requests. Deterministic.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "policy/base/types.hpp"
#include "sim/bounds/opt.hpp"

namespace kvtwin {

// Returns the cost of the first `blocks` blocks of a turn, in any unit.
// Requires: 0 for 0 blocks; not falling in `blocks`; the sum over all turns is below 2^62 (KV_CHECK).
using PrefixCost = std::function<std::uint64_t(std::size_t turn, std::uint32_t blocks)>;

struct CostBound {
  std::uint64_t saved = 0;          // upper bound of the saved cost
  std::vector<std::uint32_t> kept;  // by turn: the blocks that the bound counts; not always a prefix
  // By turn: the hits of a cache with bypass that keeps only the counted blocks; a prefix.
  std::vector<std::uint32_t> plan_hits;
};

CostBound opt_cost(const Future& future, Pages capacity, const PrefixCost& cost);

}  // namespace kvtwin
