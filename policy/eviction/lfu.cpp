#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

// Fewest touches since the insertion first; among equals as lru.
LeafRank lfu_rank(const NodeFacts& facts) { return {facts.hits, facts.last_access, facts.inserted}; }

}  // namespace

std::unique_ptr<EvictionPolicy> make_lfu(const EvictionSetup&) { return std::make_unique<RankedPolicy<lfu_rank>>(); }

}  // namespace kvtwin
