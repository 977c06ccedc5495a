// LRU-2 (O'Neil et al., 1993): evicts the page whose last but one use is the longest ago. Pages used once come before
// all others; among equals as lru. A use is a request: further visits of one request are correlated and do not count.
// The last use is remembered after an eviction, for 4 times as many pages as the tier holds.
//
// On the tree: an access uses all pages above too, so a parent's last but one use is never older than its child's.
#include "policy/eviction/ghosts.hpp"
#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

class Lruk final : public LeafOrder {
 public:
  explicit Lruk(const EvictionSetup& setup) : uses_(4 * setup.capacity, setup) {}

  void visit(const Visit& visit) override { further_ = visit.further; }
  void entered(const PolicyNode& node) override {
    node.marks.second = uses_.recall(node.keys);
    node.marks.first = node.facts.last_access;
  }
  void touched(const PolicyNode& node) override {
    if (further_) return;
    node.marks = {node.facts.last_access, node.marks.first};
  }
  void evicted(const PolicyNode& node, Pages pages) override {
    uses_.remember_tail(node.keys, pages, node.marks.first);
  }
  Pages shared_history_prefix(std::span<const PageKey> keys) const override {
    return uses_.shared_history_prefix(keys);
  }

 private:
  // Marks: the last use; the use before (0 = none).
  LeafRank rank(const PolicyNode& node) const override {
    return {node.marks.second, node.facts.last_access, node.facts.inserted};
  }

  Ghosts uses_;
  bool further_ = false;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_lruk(const EvictionSetup& setup) { return std::make_unique<Lruk>(setup); }

}  // namespace kvtwin
