// Greedy dual size frequency (Cherkasova, 1998): H = L + f * cost / size, L the H of what was evicted last. Pages have
// one size; a page costs what computing its first token does, 1 + depth / setup.doubling_tokens. f outlives an
// eviction, for 4 times as many pages as the tier holds. On the tree: the deeper page costs more, so a parent's H may
// be below its child's. It then goes right after the child, all others' being no smaller: just as if it had the
// child's.
#include "policy/eviction/ghosts.hpp"
#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

class Gdsf final : public LeafOrder {
 public:
  explicit Gdsf(const EvictionSetup& setup)
      : counts_(4 * setup.capacity, setup), page_tokens_(setup.page_tokens), doubling_(setup.doubling_tokens) {}

  void visit(const Visit& visit) override { further_ = visit.further; }
  void entered(const PolicyNode& node) override { node.marks = {age_, counts_.recall(node.keys) + 1}; }
  void touched(const PolicyNode& node) override { node.marks = {age_, node.marks.second + (further_ ? 0 : 1)}; }
  void evicted(const PolicyNode& node, Pages pages) override {
    age_ = std::max(age_, worth(node));
    counts_.put_tail(node.keys, pages, node.marks.second);
  }
  Pages shared_history_prefix(std::span<const PageKey> keys) const override {
    return counts_.shared_history_prefix(keys);
  }

 private:
  // Marks: L when it was touched last, f. The rest is of the node's last page: the one that would go.
  std::uint64_t worth(const PolicyNode& node) const {
    return node.marks.first + node.marks.second * (doubling_ + last_page_depth(node.facts, page_tokens_));
  }
  LeafRank rank(const PolicyNode& node) const override {
    return {worth(node), node.facts.last_access, node.facts.inserted};
  }

  Ghosts counts_;
  Tokens page_tokens_, doubling_;
  std::uint64_t age_ = 0;  // in 1/doubling of what the first token costs
  bool further_ = false;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_gdsf(const EvictionSetup& setup) { return std::make_unique<Gdsf>(setup); }

}  // namespace kvtwin
