#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

// The node that was touched last is evicted first; among the leaves of one request, the page that entered last.
LeafRank mru_rank(const NodeFacts& facts) { return {~facts.last_access, ~facts.inserted, 0}; }

}  // namespace

std::unique_ptr<EvictionPolicy> make_mru(const EvictionSetup&) { return std::make_unique<RankedPolicy<mru_rank>>(); }

}  // namespace kvtwin
