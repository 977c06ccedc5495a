// A policy with two parameters: pages with few touches are evicted first, then the other pages, by age.
#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

class Aged final : public LeafOrder {
 public:
  explicit Aged(const Parameters& parameters)
      : favoured_(parameters.whole(
            "favoured",
            {.fallback = 2, .least = 1, .most = 1'000'000, .help = "touches from which a page is evicted late"})),
        deep_first_(parameters.flag("deep_first", false, "of two such pages, the deeper one is evicted first")) {}

 private:
  LeafRank rank(const PolicyNode& node) const override {
    const NodeFacts& facts = node.facts;
    if (facts.hits < favoured_) return {0, facts.inserted, 0};
    return {1, deep_first_ ? ~std::uint64_t{facts.depth_pages} : facts.inserted, facts.inserted};
  }

  const std::uint64_t favoured_;
  const bool deep_first_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_aged(const EvictionSetup& setup) {
  return std::make_unique<Aged>(setup.parameters);
}

}  // namespace kvtwin
