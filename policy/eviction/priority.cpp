#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

// Returns an unsigned number with the same order.
std::uint64_t sortable(std::int32_t number) { return static_cast<std::uint32_t>(number) ^ 0x8000'0000U; }

// Lowest priority first; among equals as lru.
LeafRank priority_rank(const NodeFacts& facts) { return {sortable(facts.priority), facts.last_access, facts.inserted}; }

}  // namespace

std::unique_ptr<EvictionPolicy> make_priority(const EvictionSetup&) {
  return std::make_unique<RankedPolicy<priority_rank>>();
}

}  // namespace kvtwin
