#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

// Nodes touched since their insertion are protected, without a bound on their number; within each part as lru.
LeafRank slru_rank(const NodeFacts& facts) { return {facts.hits >= 2 ? 1U : 0U, facts.last_access, facts.inserted}; }

}  // namespace

std::unique_ptr<EvictionPolicy> make_slru(const EvictionSetup&) { return std::make_unique<RankedPolicy<slru_rank>>(); }

}  // namespace kvtwin
