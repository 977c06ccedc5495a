// The bound of what a hierarchy of tiers can save, where a block saves the less the farther away the tier is that it is
// hit on. Time-free.
//
// What a block saves from its tier is summed up over this tier and all farther ones: each adds what the block saves
// from there beyond what it would from the next. A block moves nearer for the request that uses it only, so one that is
// hit on the first k tiers has been on one of them ever since its last use, as in a single cache of their size: level k
// is bounded by opt_cost for that cache. Where a block takes longer to load than to compute, it saves nothing.
//
// The levels are bounded each by itself, though what a nearer one keeps the farther ones keep as well. That loses
// little: were all blocks worth the same, caches of growing size that hit most would keep each other's blocks anyway.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "policy/base/types.hpp"
#include "sim/bounds/cost.hpp"
#include "sim/bounds/opt.hpp"

namespace kvtwin {

// All tiers up to one.
struct TierLevel {
  const Future* future = nullptr;  // borrowed; all levels' are of one log
  Pages room = 0;                  // of these tiers together
  std::uint64_t load_milli = 0;    // loading a token from the farthest of them, in 1/1000 of a unit
};

// Of a request's first blocks: 0 for none, rising.
using OfPrefix = std::function<std::uint64_t(std::uint32_t request, std::uint32_t blocks)>;

struct TierBound {
  std::uint64_t saved = 0;          // nothing saves more
  std::vector<std::uint32_t> kept;  // by turn of the farthest level: blocks that it counts, not always a prefix
};

// `levels`: nearest first, room and load rising (KV_CHECK). `computing`: what it saves not to compute the first blocks,
// in any unit, all requests' together below 2^62 (KV_CHECK). `tokens`: in them.
TierBound opt_tiers(std::span<const TierLevel> levels, const OfPrefix& computing, const OfPrefix& tokens);

}  // namespace kvtwin
