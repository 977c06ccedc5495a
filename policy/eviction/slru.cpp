#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

// A node touched since the insertion is protected. The protected part has no size limit. Within each part as lru.
LeafRank slru_rank(const NodeFacts& facts) { return {facts.hits >= 2 ? 1U : 0U, facts.last_access, facts.inserted}; }

}  // namespace

std::unique_ptr<EvictionPolicy> make_slru(const EvictionSetup&) { return std::make_unique<RankedPolicy<slru_rank>>(); }

}  // namespace kvtwin
