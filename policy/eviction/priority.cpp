#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

// In the same order as the number itself.
std::uint64_t sortable(std::int32_t number) { return static_cast<std::uint32_t>(number) ^ 0x8000'0000U; }

// Least priority first; then as lru.
LeafRank priority_rank(const NodeFacts& facts) { return {sortable(facts.priority), facts.last_access, facts.inserted}; }

}  // namespace

std::unique_ptr<EvictionPolicy> make_priority(const EvictionSetup&) {
  return std::make_unique<RankedPolicy<priority_rank>>();
}

}  // namespace kvtwin
