// SIEVE (Zhang et al., 2024). Pages are in order of insertion, with one used bit each. A hand moves from old to new and
// starts again. A used page loses its bit; the first unused page is evicted.
//
// On the tree: the hand passes over leaves only, each at the place of its last page. After an eviction the hand goes up
// the path: the page above the evicted one comes under the hand next, though its place is earlier. Then the hand
// continues from its old place. Without this rule, a used page would not lose its bit while new leaves keep coming
// ahead of the hand, and a path would lose one page per round.
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
  void entered(const PolicyNode& node) override { set_used(node.id, false); }
  void touched(const PolicyNode& node) override {
    if (!further_) set_used(node.id, true);
  }
  void split(const PolicyNode& upper, const PolicyNode& lower) override { set_used(upper.id, is_used(lower.id)); }
  void evicted(const PolicyNode& node, Pages pages) override {
    if (!leaves_.contains(node.id)) return;  // withdrawn after it was chosen: the hand has moved on
    above_ = Above::after_it_left;
    gone_ = node.id;
    depth_above_ = node.facts.depth_pages - pages;
  }

  void offer(const PolicyNode& node) override {
    const std::uint64_t place = node.facts.inserted;
    if (is_above_evicted(node)) under_hand_ = node.id;
    const bool under_hand = node.id == under_hand_;
    leaves_.set(node.id, under_hand || place >= hand_ ? ahead_ : 1 - ahead_, {under_hand ? 0U : 1U, place});
  }
  void withdraw(NodeId node) override {
    if (above_ != Above::after_it_left) above_ = Above::stays;
    if (above_ == Above::after_it_left && node == gone_) above_ = Above::next;
    if (node == under_hand_) under_hand_ = NodeId::none;
    // The victim may be withdrawn before it is evicted. The hand then starts its next round, and nodes that enter
    // afterwards are behind the hand.
    if (node == chosen_ && leaves_.size(ahead_) == 1 && leaves_.list_of(node) == ahead_) start_next_round();
    if (node == chosen_) chosen_ = NodeId::none;
    leaves_.remove(node);
  }
  NodeId victim() override {
    above_ = Above::stays;
    if (leaves_.size() == 0) return NodeId::none;
    for (;;) {
      if (leaves_.size(ahead_) == 0) start_next_round();
      const NodeId node = leaves_.smallest(ahead_);
      const std::uint64_t place = leaves_.smallest_rank(ahead_).second;
      if (node != under_hand_) hand_ = place;
      if (!is_used(node)) return chosen_ = node;
      set_used(node, false);
      under_hand_ = NodeId::none;
      leaves_.set(node, 1 - ahead_, {1, place});
    }
  }
  std::size_t offered() const override { return leaves_.size(); }
  bool is_offered(NodeId node) const override { return leaves_.contains(node); }

 private:
  // What the hand does with the node above an evicted page.
  enum class Above : std::uint8_t { stays, after_it_left, next };

  // Returns whether the node is the one above the evicted pages. If a part of a leaf was evicted, the index offers the
  // rest next: with the leaf's id, or as a node above if the rest was split off. If the whole leaf was evicted, the
  // next call is for its parent: offer(), or withdraw() if the parent may not be evicted. There is no call for the
  // root.
  bool is_above_evicted(const PolicyNode& node) {
    if (above_ == Above::stays) return false;
    const bool at_the_depth = depth_above_ > 0 && node.facts.depth_pages == depth_above_;  // 0: not known
    if (above_ == Above::after_it_left && (node.id != gone_ || !at_the_depth)) return false;
    above_ = Above::stays;
    return at_the_depth;
  }

  bool is_used(NodeId node) const {
    const auto index = static_cast<std::size_t>(node);
    return index < used_.size() && used_[index];
  }
  void set_used(NodeId node, bool used) {
    const auto index = static_cast<std::size_t>(node);
    if (index >= used_.size()) used_.resize(index + 1);
    used_[index] = used;
  }
  void start_next_round() {
    ahead_ = 1 - ahead_;
    hand_ = 0;
  }

  std::vector<bool> used_;  // by NodeId
  // Ahead of the hand and behind it, by place: the insertion number of the last page. The node that comes under the
  // hand next is before all others.
  LeafLists leaves_{2};
  std::size_t ahead_ = 0;
  std::uint64_t hand_ = 0;  // places ahead are not smaller, except the node under the hand
  NodeId under_hand_ = NodeId::none;
  NodeId chosen_ = NodeId::none, gone_ = NodeId::none;
  Pages depth_above_ = 0;
  Above above_ = Above::stays;
  bool further_ = false;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_sieve(const EvictionSetup& setup) { return std::make_unique<Sieve>(setup); }

}  // namespace kvtwin
