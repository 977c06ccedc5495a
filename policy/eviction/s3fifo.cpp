// S3-FIFO (Yang et al., 2023): new pages pass through a small queue, a tenth of the tier; those used at least twice
// there move to the main one, the rest is evicted and remembered, as many as the main queue holds. What returns enters
// the main queue, which goes round: a page in use (a count up to 3) goes to its end again, for one use less. The small
// queue gives while it is at its share, else the main one. On the tree: queues are counted in pages over all nodes,
// their order is kept over leaves only, and a leaf moves as a whole; where the queue that should give has no leaf the
// other one does. Parents move on their own turn: they are in use at least as much as their children.
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
    if (list == kSmall) out_.put_tail(node.keys, pages, 1);
  }
  Pages shared_history_prefix(std::span<const PageKey> keys) const override { return out_.shared_history_prefix(keys); }

  void offer(const PolicyNode& node) override {
    State& known = state(node.id);
    known.inserted = node.facts.inserted;
    known.pages = node.facts.pages;
    line_up(node.id, known);
  }
  void withdraw(NodeId node) override { lists_.withdraw(node); }
  NodeId victim() override {
    for (;;) {
      const NodeId next = lists_.first(gives());
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
      line_up(next, known);
    }
  }
  std::size_t offered() const override { return lists_.offered(); }
  bool is_offered(NodeId node) const override { return lists_.is_offered(node); }

 private:
  static constexpr std::uint8_t kSmall = 0, kMain = 1;
  // By node, not with it: it changes while a victim is looked for.
  struct State {
    std::uint64_t turn = 0;      // when it came to the main queue's end
    std::uint64_t inserted = 0;  // as it was last offered
    std::uint32_t pages = 0;
    std::uint8_t list = kSmall;
    std::uint8_t uses = 0;
  };

  unsigned gives() const { return lists_.pages(kSmall) >= share_ ? kSmall : kMain; }
  State& state(NodeId node) {
    const auto index = static_cast<std::size_t>(node);
    if (index >= states_.size()) states_.resize(index + 1);
    return states_[index];
  }
  void line_up(NodeId node, const State& known) { lists_.offer(node, known.list, {known.turn, known.inserted, 0}); }

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
