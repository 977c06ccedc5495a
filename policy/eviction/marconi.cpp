// Marconi's utility (Pan et al., 2024): recency + alpha * saved FLOPs per byte. The page with the least utility is
// evicted. The unit of both terms is one request. Recency is the stamp of the last request that used the page. A page
// at depth d saves 1 + d / setup.doubling_tokens times as much per byte as the first page. It counts as more recent by
// d / setup.doubling_tokens times the mean age of evicted pages. So alpha is fixed; the paper tunes alpha by replaying
// a window.
//
// On the tree: a deeper page saves more, so a parent's utility is below its child's if one request used both. The
// parent is then evicted right after the child, because all other utilities are at least as large.
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
  // Marks: 1,024 times the mean age at the last use. The other facts are those of the node's last page, which is the
  // page to evict.
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
  std::uint64_t now_ = 0;  // stamp of the last request
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_marconi(const EvictionSetup& setup) { return std::make_unique<Marconi>(setup); }

}  // namespace kvtwin
