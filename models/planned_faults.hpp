// Failures that an experiment plans (faults.*), for simulated worlds and for back ends alike: the same script fails the
// same pages in `simulate` and in `run`. Times count from the start of the run.
#pragma once

#include <cstdint>

#include "policy/base/mix.hpp"
#include "policy/base/types.hpp"
#include "policy/index/page_key.hpp"

namespace kvtwin {

struct FaultSpan {
  TimeNs begin = 0, end = 0;
  constexpr bool has(TimeNs time) const { return begin <= time && time < end; }
  friend bool operator==(const FaultSpan&, const FaultSpan&) = default;
};

// A node of the remote pool does not answer, and has lost its pages when it comes back.
struct NodeDown {
  std::uint32_t node = 0;
  FaultSpan span;
  friend bool operator==(const NodeDown&, const NodeDown&) = default;
};

// Everything takes `factor` times as long.
struct SlowSpan {
  double factor = 1;
  FaultSpan span;
  constexpr double at(TimeNs time) const { return span.has(time) ? factor : 1; }
  friend bool operator==(const SlowSpan&, const SlowSpan&) = default;
};

// Returns the node of the pool that has a page, by the first two words of its name in the store
// (storage_page_key). Spreads pages evenly. Requires: `nodes` is not 0.
constexpr std::uint32_t pool_node_of(std::uint64_t a, std::uint64_t b, std::uint32_t nodes) {
  return static_cast<std::uint32_t>(mixed_bits(a ^ (b * kGoldenRatio64)) % nodes);
}
inline std::uint32_t pool_node_of(const PageKey& space, const PageKey& page, std::uint32_t nodes) {
  const PageKey key = storage_page_key(space, page);
  return pool_node_of(key.words[0], key.words[1], nodes);
}

}  // namespace kvtwin
