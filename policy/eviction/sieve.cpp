// SIEVE (Zhang et al., 2024): pages in order of insertion, a bit each that says whether it was used, and a hand that
// goes from old to new and round again: a used page loses its bit, the first unused one is evicted. On the tree: the
// hand passes over leaves only, each at its last page's place, and goes up a path: what lay above an evicted page comes
// under the hand next, though its place is an earlier one; then the hand goes on from where it was. Otherwise a used
// page would never lose its bit as long as there is any new leaf ahead, and a path would go a page a round.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

class Sieve final : public EvictionPolicy, public LearnsFromVisits {
 public:
  explicit Sieve(const EvictionSetup&) {}

  void visit(const Visit& visit) override { further_ = visit.further; }
  void entered(const PolicyNode& node) override { use(node.id, false); }
  void touched(const PolicyNode& node) override {
    if (!further_) use(node.id, true);
  }
  void split(const PolicyNode& upper, const PolicyNode& lower) override { use(upper.id, is_used(lower.id)); }
  void evicted(const PolicyNode& node, Pages pages) override {
    if (!leaves_.contains(node.id)) return;  // withdrawn since it was chosen: the hand has gone on
    above_ = Above::after_it_left;
    gone_ = node.id;
    depth_above_ = node.facts.depth_pages - pages;
  }

  void offer(const PolicyNode& node) override {
    const std::uint64_t place = node.facts.inserted;
    if (is_next(node)) under_hand_ = node.id;
    const bool under_hand = node.id == under_hand_;
    leaves_.set(node.id, under_hand || place >= hand_ ? ahead_ : 1 - ahead_, {under_hand ? 0U : 1U, place});
  }
  void withdraw(NodeId node) override {
    if (above_ != Above::after_it_left) above_ = Above::stays;
    if (above_ == Above::after_it_left && node == gone_) above_ = Above::next;
    if (node == under_hand_) under_hand_ = NodeId::none;
    // Who is to leave may be withdrawn before it does; what enters then comes behind the hand, which goes round.
    if (node == chosen_ && leaves_.size(ahead_) == 1 && leaves_.list_of(node) == ahead_) go_round();
    if (node == chosen_) chosen_ = NodeId::none;
    leaves_.remove(node);
  }
  NodeId victim() override {
    above_ = Above::stays;
    if (leaves_.size() == 0) return NodeId::none;
    for (;;) {
      if (leaves_.size(ahead_) == 0) go_round();
      const NodeId node = leaves_.smallest(ahead_);
      const std::uint64_t place = leaves_.smallest_rank(ahead_).second;
      if (node != under_hand_) hand_ = place;
      if (!is_used(node)) return chosen_ = node;
      use(node, false);
      under_hand_ = NodeId::none;
      leaves_.set(node, 1 - ahead_, {1, place});
    }
  }
  std::size_t offered() const override { return leaves_.size(); }
  bool is_offered(NodeId node) const override { return leaves_.contains(node); }

 private:
  // What the hand is to do about what lies above what was evicted.
  enum class Above : std::uint8_t { stays, after_it_left, next };

  // When a part of a leaf has left, the rest is told next: under its name, or, having been split off, as one that lies
  // above. When all has left, what lies above is: offered, or withdrawn if it isn't a leaf that may go; the root isn't.
  bool is_next(const PolicyNode& node) {
    if (above_ == Above::stays) return false;
    const bool at_the_depth = depth_above_ > 0 && node.facts.depth_pages == depth_above_;  // 0: it isn't known
    if (above_ == Above::after_it_left && (node.id != gone_ || !at_the_depth)) return false;
    above_ = Above::stays;
    return at_the_depth;
  }

  bool is_used(NodeId node) const {
    const auto index = static_cast<std::size_t>(node);
    return index < used_.size() && used_[index];
  }
  void use(NodeId node, bool used) {
    const auto index = static_cast<std::size_t>(node);
    if (index >= used_.size()) used_.resize(index + 1);
    used_[index] = used;
  }
  void go_round() {
    ahead_ = 1 - ahead_;
    hand_ = 0;
  }

  std::vector<bool> used_;  // by NodeId
  // Ahead of the hand and behind it, by place: the insertion number of the last page. What comes under the hand next is
  // before all others.
  LeafLists leaves_{2};
  std::size_t ahead_ = 0;
  std::uint64_t hand_ = 0;  // places ahead are no smaller, but for the one under the hand
  NodeId under_hand_ = NodeId::none;
  NodeId chosen_ = NodeId::none, gone_ = NodeId::none;
  Pages depth_above_ = 0;
  Above above_ = Above::stays;
  bool further_ = false;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_sieve(const EvictionSetup& setup) { return std::make_unique<Sieve>(setup); }

}  // namespace kvtwin
