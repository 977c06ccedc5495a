// ARC (Megiddo and Modha, 2003). Pages used once are in T1, other pages in T2. B1 and B2 remember the pages evicted
// from each. A page that returns from B1 was evicted too early, so the aim p of T1 grows. A return from B2 lowers p. If
// T1 is longer than p, the victim is in T1, else in T2. |T1| + |B1| <= c and |T1| + |T2| + |B1| + |B2| <= 2c.
//
// On the tree: lists count the pages of all nodes, but only leaves are ordered. If the chosen list has no leaf, the
// other list gives the victim. The room for a request is made before its pages enter. So p moves after the eviction
// that a returning page causes, not before. (The paper's rule for |T1| = p has no meaning then.)
#include "policy/eviction/ghosts.hpp"
#include "policy/eviction/two_lists.hpp"

namespace kvtwin {
namespace {

class Arc final : public EvictionPolicy, public LearnsFromVisits {
 public:
  explicit Arc(const EvictionSetup& setup)
      : capacity_(setup.capacity),
        lists_(setup.capacity),
        once_(setup.capacity, setup),
        often_(2 * setup.capacity, setup) {}

  void visit(const Visit& visit) override { further_ = visit.further; }
  void entered(const PolicyNode& node) override {
    Walks walks;
    bool known = false;
    for (const PageKey& key : node.keys) known = recall_ghost(key, walks);  // the node's last page decides
    once_.end_walk(walks.once);
    often_.end_walk(walks.often);
    node.marks.first = known ? kOften : kOnce;
    lists_.enter(known ? kOften : kOnce, node.keys.size());
    trim();
  }
  void touched(const PolicyNode& node) override {
    if (further_ || node.marks.first == kOften) return;
    node.marks.first = kOften;
    lists_.move(kOnce, kOften, node.keys.size());
    trim();
  }
  void evicted(const PolicyNode& node, Pages pages) override {
    lists_.leave(list_of(node), pages);
    (list_of(node) == kOnce ? once_ : often_).remember_tail(node.keys, pages, 0);
    trim();
  }
  Pages shared_history_prefix(std::span<const PageKey> keys) const override {
    Walks walks;
    const bool first = is_known(keys.front(), walks);
    Pages pages = 1;
    while (pages < keys.size() && is_known(keys[pages], walks) == first) ++pages;
    return pages;
  }

  void offer(const PolicyNode& node) override {
    lists_.offer(node.id, list_of(node), {node.facts.last_access, node.facts.inserted, 0});
  }
  void withdraw(NodeId node) override { lists_.withdraw(node); }
  NodeId victim() override { return lists_.first(list_to_evict_from()); }
  std::size_t offered() const override { return lists_.offered(); }
  bool is_offered(NodeId node) const override { return lists_.is_offered(node); }

 private:
  static constexpr unsigned kOnce = 0, kOften = 1;

  unsigned list_to_evict_from() const { return lists_.pages(kOnce) > aim_ ? kOnce : kOften; }
  static unsigned list_of(const PolicyNode& node) { return node.marks.first == kOften ? kOften : kOnce; }
  struct Walks {
    Ghosts::Walk once, often;
  };
  bool is_known(const PageKey& key, Walks& walks) const {
    const bool once = once_.find(key, walks.once) != nullptr, often = often_.find(key, walks.often) != nullptr;
    return once || often;
  }

  bool recall_ghost(const PageKey& key, Walks& walks) {
    const Pages once = once_.size(), often = often_.size();
    if (once_.take(key, walks.once)) {
      aim_ = std::min(capacity_, aim_ + std::max<Pages>(1, often / once));
      return true;
    }
    if (!often_.take(key, walks.often)) return false;
    aim_ -= std::min(aim_, std::max<Pages>(1, once / often));
    return true;
  }
  void trim() {
    while (once_.size() > 0 && lists_.pages(kOnce) + once_.size() > capacity_) once_.forget_oldest();
    const Pages rest = lists_.pages(kOnce) + lists_.pages(kOften) + once_.size();
    while (often_.size() > 0 && rest + often_.size() > 2 * capacity_) often_.forget_oldest();
  }

  const Pages capacity_;
  TwoLists lists_;
  Ghosts once_, often_;  // B1, B2
  Pages aim_ = 0;        // p
  bool further_ = false;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_arc(const EvictionSetup& setup) { return std::make_unique<Arc>(setup); }

}  // namespace kvtwin
