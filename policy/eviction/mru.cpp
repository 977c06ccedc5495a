#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

// What was touched last goes first; of one request's leaves the one that came last.
LeafRank mru_rank(const NodeFacts& facts) { return {~facts.last_access, ~facts.inserted, 0}; }

}  // namespace

std::unique_ptr<EvictionPolicy> make_mru(const EvictionSetup&) { return std::make_unique<RankedPolicy<mru_rank>>(); }

}  // namespace kvtwin
