// The bound of what caching can save where blocks differ in cost: deep ones save more than shallow ones. Time-free.
//
// A block that is hit was present from its last use on, so hits are intervals between uses, of which `capacity` at most
// lie over any point in time: a flow of `capacity` units through time, in which an interval is an arc that earns its
// block's cost. The dearest flow bounds what any one-tier cache, with bypass or without, can save. A run of blocks with
// one interval (Reuse, sim/bounds/opt.hpp) is hit from its shallow end on: its arcs earn what the concave hull of its
// first blocks' costs does, which is the least bound that a flow can give for it. It is not the optimum itself: that a
// run needs what lies above it on the path is lost where that has been away in between. plan_hits says how far off the
// bound can be at most.
//
// Integers throughout; a hull's steps are rounded up to whole units a block. Solved by LEMON's network simplex, whose
// work grows faster than the number of requests. Deterministic.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "policy/base/types.hpp"
#include "sim/bounds/opt.hpp"

namespace kvtwin {

// The cost of a turn's first `blocks` blocks, in any unit: from 0 for 0, never falling. All turns' together stay below
// 2^62 (KV_CHECK).
using PrefixCost = std::function<std::uint64_t(std::size_t turn, std::uint32_t blocks)>;

struct CostBound {
  std::uint64_t saved = 0;               // nothing saves more
  std::vector<std::uint32_t> kept;       // by turn: blocks that the bound counts, not always a prefix
  std::vector<std::uint32_t> plan_hits;  // by turn: the hits if a cache with bypass keeps just these; a prefix
};

CostBound opt_cost(const Future& future, Pages capacity, const PrefixCost& cost);

}  // namespace kvtwin
