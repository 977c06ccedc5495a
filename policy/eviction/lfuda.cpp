// LFU with dynamic ageing (Arlitt et al., 2000): H = L + f. f counts touches. L is the H of the page that was evicted
// last, so pages that were popular long ago are evicted in the end. f is remembered after an eviction, for 4 times as
// many pages as the tier holds.
//
// On the tree: L may have risen since a parent was touched, so a node that enters below the parent may have the larger
// H. The parent stays as long as its child, and is evicted right after the child, because no H is below L.
#include "policy/eviction/ghosts.hpp"
#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

class Lfuda final : public LeafOrder {
 public:
  explicit Lfuda(const EvictionSetup& setup) : counts_(4 * setup.capacity, setup) {}

  void visit(const Visit& visit) override { further_ = visit.further; }
  void entered(const PolicyNode& node) override { use(node.marks, counts_.recall(node.keys) + 1); }
  void touched(const PolicyNode& node) override { use(node.marks, node.marks.second + (further_ ? 0 : 1)); }
  void evicted(const PolicyNode& node, Pages pages) override {
    age_ = std::max(age_, node.marks.first);
    counts_.remember_tail(node.keys, pages, node.marks.second);
  }
  Pages shared_history_prefix(std::span<const PageKey> keys) const override {
    return counts_.shared_history_prefix(keys);
  }

 private:
  LeafRank rank(const PolicyNode& node) const override {
    return {node.marks.first, node.facts.last_access, node.facts.inserted};
  }
  void use(PolicyMarks& marks, std::uint64_t count) const { marks = {age_ + count, count}; }

  Ghosts counts_;
  std::uint64_t age_ = 0;
  bool further_ = false;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_lfuda(const EvictionSetup& setup) { return std::make_unique<Lfuda>(setup); }

}  // namespace kvtwin
