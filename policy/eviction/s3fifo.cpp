// S3-FIFO (Yang et al., 2023). New pages enter a small queue, a tenth of the tier. At its end, pages with at least two
// uses move to the main queue. The others are evicted and remembered, as many as the main queue holds. A remembered
// page that returns enters the main queue. At the end of the main queue, a page with uses (a count up to 3) goes round
// again with one use less. If the small queue has reached its share, it gives the victim, else the main queue does.
//
// On the tree: queues count the pages of all nodes, but only leaves are ordered, and a leaf moves as a whole. If the
// chosen queue has no leaf, the other queue gives the victim. A parent moves when its turn comes: it has at least as
// many uses as its children.
#include <memory_resource>
#include <vector>

#include "policy/eviction/ghosts.hpp"
#include "policy/eviction/two_lists.hpp"

namespace kvtwin {
namespace {

class S3Fifo final : public EvictionPolicy, public LearnsFromVisits {
 public:
  explicit S3Fifo(const EvictionSetup& setup)
      : share_(std::max<Pages>(1, setup.capacity / 10)),
        lists_(setup.capacity),
        out_(std::max<Pages>(1, setup.capacity - share_), setup) {}

  void visit(const Visit& visit) override { further_ = visit.further; }
  void entered(const PolicyNode& node) override {
    const bool returned = out_.recall(node.keys) != 0;
    state(node.id) = {returned ? ++turns_ : 0, 0, 0, returned ? kMain : kSmall, 0};
    lists_.enter(returned ? kMain : kSmall, node.keys.size());
  }
  void touched(const PolicyNode& node) override {
    State& known = state(node.id);
    if (!further_ && known.uses < 3) ++known.uses;
  }
  void split(const PolicyNode& upper, const PolicyNode& lower) override {
    const State both = state(lower.id);
    state(upper.id) = both;
  }
  void evicted(const PolicyNode& node, Pages pages) override {
    const unsigned list = state(node.id).list;
    lists_.leave(list, pages);
    if (list == kSmall) out_.remember_tail(node.keys, pages, 1);
  }
  Pages shared_history_prefix(std::span<const PageKey> keys) const override { return out_.shared_history_prefix(keys); }

  void offer(const PolicyNode& node) override {
    State& known = state(node.id);
    known.inserted = node.facts.inserted;
    known.pages = node.facts.pages;
    enqueue(node.id, known);
  }
  void withdraw(NodeId node) override { lists_.withdraw(node); }
  NodeId victim() override {
    for (;;) {
      const NodeId next = lists_.first(list_to_evict_from());
      if (next == NodeId::none) return next;
      State& known = state(next);
      if (known.uses <= (known.list == kSmall ? 1 : 0)) return next;
      if (known.list == kSmall) {
        lists_.move(kSmall, kMain, known.pages);
        known.list = kMain;
        known.uses = 0;
      } else {
        --known.uses;
      }
      known.turn = ++turns_;
      enqueue(next, known);
    }
  }
  std::size_t offered() const override { return lists_.offered(); }
  bool is_offered(NodeId node) const override { return lists_.is_offered(node); }

 private:
  static constexpr std::uint8_t kSmall = 0, kMain = 1;
  // Kept here and not in the node's marks, because a search for a victim changes it.
  struct State {
    std::uint64_t turn = 0;      // when the node came to the main queue's end
    std::uint64_t inserted = 0;  // at the last offer
    std::uint32_t pages = 0;
    std::uint8_t list = kSmall;
    std::uint8_t uses = 0;
  };

  unsigned list_to_evict_from() const { return lists_.pages(kSmall) >= share_ ? kSmall : kMain; }
  State& state(NodeId node) {
    const auto index = static_cast<std::size_t>(node);
    if (index >= states_.size()) states_.resize(index + 1);
    return states_[index];
  }
  void enqueue(NodeId node, const State& known) { lists_.offer(node, known.list, {known.turn, known.inserted, 0}); }

  const Pages share_;
  TwoLists lists_;
  Ghosts out_;
  std::pmr::vector<State> states_;
  std::uint64_t turns_ = 0;
  bool further_ = false;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_s3fifo(const EvictionSetup& setup) { return std::make_unique<S3Fifo>(setup); }

}  // namespace kvtwin
