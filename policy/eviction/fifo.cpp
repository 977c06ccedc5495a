#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

// By the leaf's last page, which is the page to evict.
LeafRank fifo_rank(const NodeFacts& facts) { return {facts.inserted, 0, 0}; }

}  // namespace

std::unique_ptr<EvictionPolicy> make_fifo(const EvictionSetup&) { return std::make_unique<RankedPolicy<fifo_rank>>(); }

}  // namespace kvtwin
