// RAGCache's prefix-aware GDSF (Jin et al., 2024): priority = clock + frequency * average cost. The clock is the
// priority of the page that was evicted last. The average is over the requests that had to compute the page. A
// request's cost is T(cached, uncached) / uncached = 1 + (first + last computed token) / 2 / setup.doubling_tokens per
// token. Frequency and cost are remembered after an eviction, for 4 times as many pages as the tier holds.
//
// On the tree: the computed part of a request is all that enters by one visit. (RAGCache has documents instead; a chunk
// of a prefill counts as one visit.) Pages that one request computed have one cost. So a parent's priority is below its
// child's only if other requests computed the parent for less. The parent is then evicted right after the child.
#include "policy/eviction/ghosts.hpp"
#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

// Packed into one number: times used and times computed (both stop at kMaxCount), average cost of a token in 1/1024.
struct History {
  std::uint64_t uses = 0, computed = 0, cost = 0;

  static History unpack(std::uint64_t packed) { return {packed >> 48, packed >> 32 & 0xFFFF, packed & 0xFFFF'FFFF}; }
  std::uint64_t pack() const { return uses << 48 | computed << 32 | cost; }
};

class Pgdsf final : public LeafOrder {
 public:
  explicit Pgdsf(const EvictionSetup& setup)
      : known_(4 * setup.capacity, setup), page_tokens_(setup.page_tokens), doubling_(setup.doubling_tokens) {}

  void visit(const Visit& visit) override {
    further_ = visit.further;
    path_ = visit.keys.size();
    cost_ = 0;
  }
  void entered(const PolicyNode& node) override {
    if (cost_ == 0)
      cost_ = cost_from(node.facts.depth_pages - std::min<Pages>(node.facts.depth_pages, node.facts.pages));
    History history = History::unpack(known_.recall(node.keys));
    use(history);
    const std::uint64_t sum = history.cost * history.computed + cost_;
    if (history.computed < kMaxCount) ++history.computed;
    history.cost = std::min<std::uint64_t>(sum / history.computed, 0xFFFF'FFFF);
    node.marks = {clock_, history.pack()};
  }
  void touched(const PolicyNode& node) override {
    History history = History::unpack(node.marks.second);
    if (!further_) use(history);
    node.marks = {clock_, history.pack()};
  }
  void evicted(const PolicyNode& node, Pages pages) override {
    clock_ = std::max(clock_, priority(node));
    known_.remember_tail(node.keys, pages, node.marks.second);
  }
  Pages shared_history_prefix(std::span<const PageKey> keys) const override {
    return known_.shared_history_prefix(keys);
  }

 private:
  static constexpr std::uint64_t kMaxCount = 0xFFFF;

  static void use(History& history) {
    if (history.uses < kMaxCount) ++history.uses;
  }
  // Returns the average cost of a token, in 1/1024, if all pages from `first` to the path's end are computed.
  std::uint64_t cost_from(Pages first) const {
    return 1024 + 1024 * (first + std::max(first + 1, path_)) * page_tokens_ / (2 * doubling_);
  }
  std::uint64_t priority(const PolicyNode& node) const {
    const History history = History::unpack(node.marks.second);
    return node.marks.first + history.uses * history.cost;
  }
  LeafRank rank(const PolicyNode& node) const override {
    return {priority(node), node.facts.last_access, node.facts.inserted};
  }

  Ghosts known_;
  Tokens page_tokens_, doubling_;
  std::uint64_t clock_ = 0;
  Pages path_ = 0;
  std::uint64_t cost_ = 0;  // cost of a token that the visit computes; 0 = not known yet
  bool further_ = false;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_pgdsf(const EvictionSetup& setup) { return std::make_unique<Pgdsf>(setup); }

}  // namespace kvtwin
