// SIEVE (Zhang et al., 2024): pages in order of insertion, a bit each that says whether it was used, and a hand that
// goes from old to new and round again: a used page loses its bit, the first unused one is evicted. On the tree: the
// hand passes over leaves only, each at its last page's place, and goes up a path: what lay above an evicted page comes
// under the hand next, though its place is an earlier one. Otherwise a used page would never lose its bit as long as
// there is any new leaf ahead, and a path would go a page a round.
#include <set>
#include <utility>
#include <vector>

#include "policy/eviction.hpp"

namespace kvtwin {
namespace {

class Sieve final : public EvictionPolicy {
 public:
  explicit Sieve(const EvictionSetup&) {}

  void visit(const Visit& visit) override {
    further_ = visit.further;
    leaving_ = 0;
  }
  void entered(const PolicyNode& node) override { state(node.id).used = false; }
  void touched(const PolicyNode& node) override {
    if (!further_) state(node.id).used = true;
  }
  void split(const PolicyNode& upper, const PolicyNode& lower) override {
    const bool used = state(lower.id).used;
    state(upper.id).used = used;
    // What was just evicted is cut off before it leaves: the rest has a new name.
    if (lower.id == under_hand_ && lower.facts.pages == leaving_) under_hand_ = upper.id;
    leaving_ = 0;
  }
  void evicted(const PolicyNode& node, Pages pages) override {
    if (!is_offered(node.id)) return;
    hand_ = line_.rbegin()->first == node.facts.inserted ? 0 : node.facts.inserted;
    under_hand_ = pages < node.facts.pages ? node.id : NodeId::none;
    leaving_ = pages;
    parent_ = pages < node.facts.pages ? Parent::stays : Parent::after_it_left;
    gone_ = node.id;
    above_ = node.facts.depth_pages - pages;
  }

  void offer(const PolicyNode& node) override {
    State& known = state(node.id);
    const Parent parent = std::exchange(parent_, Parent::stays);
    if (known.place == node.facts.inserted) return;
    if (known.place != 0) {
      line_.erase({known.place, node.id});
    } else if (parent == Parent::next && node.facts.depth_pages == above_) {
      under_hand_ = node.id;
    }
    known.place = node.facts.inserted;
    line_.emplace_hint(line_.end(), known.place, node.id);
  }
  // When a node has left its parent is told next: offered, or withdrawn if it isn't a leaf that may go. The root isn't.
  void withdraw(NodeId node) override {
    parent_ = parent_ == Parent::after_it_left && node == gone_ ? Parent::next : Parent::stays;
    if (!is_offered(node)) return;
    State& known = state(node);
    line_.erase({known.place, node});
    known.place = 0;
  }
  NodeId victim() override {
    if (line_.empty()) return NodeId::none;
    parent_ = Parent::stays;
    if (is_offered(under_hand_) && !std::exchange(state(under_hand_).used, false)) return under_hand_;
    under_hand_ = NodeId::none;
    for (auto at = line_.lower_bound({hand_, NodeId{0}});; ++at) {
      if (at == line_.end()) at = line_.begin();
      hand_ = at->first;
      if (!std::exchange(state(at->second).used, false)) return at->second;
    }
  }
  std::size_t offered() const override { return line_.size(); }
  bool is_offered(NodeId node) const override {
    const auto index = static_cast<std::size_t>(node);
    return index < states_.size() && states_[index].place != 0;
  }

 private:
  struct State {
    std::uint64_t place = 0;  // in the line: its last page's insertion number; 0 = not offered
    bool used = false;
  };

  State& state(NodeId node) {
    const auto index = static_cast<std::size_t>(node);
    if (index >= states_.size()) states_.resize(index + 1);
    return states_[index];
  }

  // What the hand is to do about the parent of what was evicted.
  enum class Parent : std::uint8_t { stays, after_it_left, next };

  std::vector<State> states_;
  std::set<std::pair<std::uint64_t, NodeId>> line_;
  std::uint64_t hand_ = 0;
  NodeId under_hand_ = NodeId::none;
  Pages leaving_ = 0;  // of the node under the hand, evicted just now
  NodeId gone_ = NodeId::none;
  Pages above_ = 0;  // its parent's depth
  Parent parent_ = Parent::stays;
  bool further_ = false;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_sieve(const EvictionSetup& setup) { return std::make_unique<Sieve>(setup); }

}  // namespace kvtwin
