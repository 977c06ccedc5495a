// Look-ahead LRU (CachedAttention, 2024; PCR, 2026). First evicts pages that no waiting request wants, least recently
// used first. Then evicts wanted pages, the farthest back in the queue first.
//
// On the tree: a request that wants a page wants all pages before it, so a parent is wanted no later than its child.
#include "policy/eviction/ranked_leaves.hpp"
#include "policy/eviction/wanted.hpp"

namespace kvtwin {
namespace {

class Queue final : public LeafOrder, public LooksAhead {
 public:
  void queued(RequestId request, std::span<const PageKey> keys) override { wanted_.queued(request, keys); }
  void unqueued(RequestId request) override { wanted_.unqueued(request); }
  Pages shared_history_prefix(std::span<const PageKey> keys) const override {
    return wanted_.equally_wanted_prefix(keys);
  }

 private:
  LeafRank rank(const PolicyNode& node) const override {
    const RequestId by = wanted_.first(node.keys.back());
    if (by == kNoRequest) return {0, node.facts.last_access, node.facts.inserted};
    return {1, ~by, node.facts.inserted};
  }

  Wanted wanted_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_queue(const EvictionSetup&) { return std::make_unique<Queue>(); }

}  // namespace kvtwin
