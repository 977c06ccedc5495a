#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

// Leaves that one request touched carry one stamp; then the page that came first goes first.
LeafRank lru_rank(const NodeFacts& facts) { return {facts.last_access, facts.inserted, 0}; }

}  // namespace

std::unique_ptr<EvictionPolicy> make_lru(const EvictionSetup&) { return std::make_unique<RankedPolicy<lru_rank>>(); }

}  // namespace kvtwin
