#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

// The page that entered last is evicted first.
LeafRank filo_rank(const NodeFacts& facts) { return {~facts.inserted, 0, 0}; }

}  // namespace

std::unique_ptr<EvictionPolicy> make_filo(const EvictionSetup&) { return std::make_unique<RankedPolicy<filo_rank>>(); }

}  // namespace kvtwin
