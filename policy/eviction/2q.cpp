// 2Q (Johnson and Shasha, 1994). New pages enter A1in, a first-in-first-out queue of a quarter of the tier. A1out
// remembers the pages that left A1in last, half as many as the tier holds. A page that returns from A1out enters Am, an
// LRU queue. If A1in is longer than its share, the victim is in A1in, else in Am. Hits in A1in change nothing.
//
// On the tree: lists count the pages of all nodes, but only leaves are ordered. If the chosen list has no leaf, the
// other list gives the victim. A parent in A1in stays while it has a child in Am.
#include "policy/eviction/ghosts.hpp"
#include "policy/eviction/two_lists.hpp"

namespace kvtwin {
namespace {

class TwoQueues final : public EvictionPolicy, public LearnsFromVisits {
 public:
  explicit TwoQueues(const EvictionSetup& setup)
      : share_(std::max<Pages>(1, setup.capacity / 4)),
        lists_(setup.capacity),
        out_(std::max<Pages>(1, setup.capacity / 2), setup) {}

  void entered(const PolicyNode& node) override {
    const bool returned = out_.recall(node.keys) != 0;
    node.marks.first = returned ? kMain : kIn;
    lists_.enter(returned ? kMain : kIn, node.keys.size());
  }
  void evicted(const PolicyNode& node, Pages pages) override {
    lists_.leave(list_of(node), pages);
    if (list_of(node) == kIn) out_.remember_tail(node.keys, pages, 1);
  }
  Pages shared_history_prefix(std::span<const PageKey> keys) const override { return out_.shared_history_prefix(keys); }

  void offer(const PolicyNode& node) override {
    const unsigned list = list_of(node);
    lists_.offer(node.id, list, {list == kIn ? 0 : node.facts.last_access, node.facts.inserted, 0});
  }
  void withdraw(NodeId node) override { lists_.withdraw(node); }
  NodeId victim() override { return lists_.first(list_to_evict_from()); }
  std::size_t offered() const override { return lists_.offered(); }
  bool is_offered(NodeId node) const override { return lists_.is_offered(node); }

 private:
  static constexpr unsigned kIn = 0, kMain = 1;

  unsigned list_to_evict_from() const { return lists_.pages(kIn) > share_ ? kIn : kMain; }
  static unsigned list_of(const PolicyNode& node) { return node.marks.first == kMain ? kMain : kIn; }

  const Pages share_;
  TwoLists lists_;
  Ghosts out_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_2q(const EvictionSetup& setup) { return std::make_unique<TwoQueues>(setup); }

}  // namespace kvtwin
