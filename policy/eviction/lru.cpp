#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

// All leaves that one request touched have one stamp. Among them, the page that entered first is evicted first.
LeafRank lru_rank(const NodeFacts& facts) { return {facts.last_access, facts.inserted, 0}; }

}  // namespace

std::unique_ptr<EvictionPolicy> make_lru(const EvictionSetup&) { return std::make_unique<RankedPolicy<lru_rank>>(); }

}  // namespace kvtwin
