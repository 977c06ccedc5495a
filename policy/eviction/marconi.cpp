// Marconi's utility (Pan et al., 2024): recency + alpha * FLOPs saved for a byte; the least goes. Both are counted in
// requests: recency is the last request that used the page, and a page at depth d, whose bytes save 1 + d /
// setup.doubling_tokens times what the first page's do, counts as d / setup.doubling_tokens of the mean age of what is
// evicted more recent. So alpha is fixed; the paper tunes it by replaying a window.
// On the tree: the deeper page saves more, so a parent's utility is below its child's if one request used both; it then
// goes right after the child, all others' being no smaller.
#include "policy/eviction/means.hpp"
#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

class Marconi final : public LeafOrder {
 public:
  explicit Marconi(const EvictionSetup& setup)
      : page_tokens_(setup.page_tokens),
        doubling_(setup.doubling_tokens),
        life_(std::max<Pages>(1024, setup.capacity)) {}

  void entered(const PolicyNode& node) override { use(node); }
  void touched(const PolicyNode& node) override { use(node); }
  void evicted(const PolicyNode& node, Pages pages) override {
    life_.add(now_ - std::min(now_, node.facts.last_access), pages);
  }

 private:
  // Marks: 1024 times the mean age when it was used last. The rest is of the node's last page: the one that would go.
  void use(const PolicyNode& node) {
    now_ = std::max(now_, node.facts.last_access);
    node.marks.first = life_.count() == 0 ? 0 : static_cast<std::uint64_t>(life_.sum() * 1024 / life_.count());
  }
  LeafRank rank(const PolicyNode& node) const override {
    const Tokens depth = last_page_depth(node.facts, page_tokens_);
    return {1024 * node.facts.last_access + node.marks.first * depth / doubling_, node.facts.inserted, 0};
  }

  const Tokens page_tokens_, doubling_;
  WindowedMean life_;
  std::uint64_t now_ = 0;  // the last request's stamp
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_marconi(const EvictionSetup& setup) { return std::make_unique<Marconi>(setup); }

}  // namespace kvtwin
