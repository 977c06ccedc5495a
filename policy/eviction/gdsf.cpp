// Greedy dual size frequency (Cherkasova, 1998): H = L + f * cost / size. L is the H of the page that was evicted last.
// All pages have one size. A page costs as much as its first token: 1 + depth / setup.doubling_tokens. The use count f
// is remembered after an eviction, for 4 times as many pages as the tier holds.
//
// On the tree: a deeper page costs more, so a parent's H may be below its child's. The parent is then evicted right
// after the child, because all other H are at least as large: the same as if the parent had the child's H.
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
    counts_.remember_tail(node.keys, pages, node.marks.second);
  }
  Pages shared_history_prefix(std::span<const PageKey> keys) const override {
    return counts_.shared_history_prefix(keys);
  }

 private:
  // Marks: L at the last touch; f. The other facts are those of the node's last page, which is the page to evict.
  std::uint64_t worth(const PolicyNode& node) const {
    return node.marks.first + node.marks.second * (doubling_ + last_page_depth(node.facts, page_tokens_));
  }
  LeafRank rank(const PolicyNode& node) const override {
    return {worth(node), node.facts.last_access, node.facts.inserted};
  }

  Ghosts counts_;
  Tokens page_tokens_, doubling_;
  std::uint64_t age_ = 0;  // L, in 1/doubling_ of the first token's cost
  bool further_ = false;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_gdsf(const EvictionSetup& setup) { return std::make_unique<Gdsf>(setup); }

}  // namespace kvtwin
