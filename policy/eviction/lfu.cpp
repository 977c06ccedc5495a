#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

// Fewest touches since it was inserted; then as lru.
LeafRank lfu_rank(const NodeFacts& facts) { return {facts.hits, facts.last_access, facts.inserted}; }

}  // namespace

std::unique_ptr<EvictionPolicy> make_lfu(const EvictionSetup&) { return std::make_unique<RankedPolicy<lfu_rank>>(); }

}  // namespace kvtwin
