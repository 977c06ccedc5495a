// The flow of highest earnings through time: which intervals between turns to keep, if at most `capacity` overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvtwin {

// Up to `width` equal intervals from one turn to a later one. Each that is kept earns `each`.
struct FlowArc {
  std::uint32_t from = 0, to = 0;
  std::uint32_t width = 1;
  std::uint64_t each = 0;
};

// Returns how many intervals of each arc the flow of highest earnings keeps. Requires: `turns` > 0; all earnings
// together are below 2^62. Cost: LEMON's network simplex grows faster than linearly with the turns. Deterministic.
std::vector<std::uint32_t> dearest_flow(std::size_t turns, std::span<const FlowArc> arcs, std::int64_t capacity);

}  // namespace kvtwin
