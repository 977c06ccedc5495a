// Base of policies that learn after which time pages are used again. For each page of the tier, and for 4 times as many
// evicted pages, this class remembers the time of the last visit, and whether a later turn made that visit (turns.hpp).
#pragma once

#include <algorithm>
#include <cstdint>

#include "policy/eviction.hpp"
#include "policy/eviction/ghosts.hpp"
#include "policy/eviction/turns.hpp"

namespace kvtwin {

class TimedVisits : public EvictionPolicy, public LearnsFromVisits {
 public:
  void visit(const Visit& visit) final {
    further_ = visit.further;
    now_ = std::max(now_, static_cast<std::uint64_t>(visit.time));
    turns_.visit(visit, gone_);
    if (!further_) on_first_visit();
  }
  void entered(const PolicyNode& node) final {
    gone_.recall_each(node.keys, [this](auto, std::uint64_t last) { on_reuse({last}, 1, false); });
    mark(node);
  }
  void touched(const PolicyNode& node) final {
    if (further_) return;
    turns_.touched(node.facts);
    on_reuse(last_visit(node), node.keys.size(), true);
    mark(node);
  }
  void evicted(const PolicyNode& node, Pages pages) final {
    on_eviction(last_visit(node), pages);
    gone_.remember_tail(node.keys, pages, node.marks.first);
  }

 protected:
  explicit TimedVisits(const EvictionSetup& setup) : gone_(4 * setup.capacity, setup) {}

  struct LastVisit {
    std::uint64_t packed = 0;  // twice the time, plus 1 for a later turn
    std::uint64_t time() const { return packed / 2; }
    std::size_t category() const { return packed % 2; }  // 1: a later turn
  };
  static LastVisit last_visit(const PolicyNode& node) { return {node.marks.first}; }
  std::uint64_t now() const { return now_; }

  // A request makes its first visit.
  virtual void on_first_visit() {}
  // Pages are used again. `hit`: they were in the tier, not evicted.
  virtual void on_reuse(LastVisit last, Pages pages, bool hit) = 0;
  // The node has just been visited. node.marks.second belongs to the derived policy.
  virtual void on_visit(const PolicyNode& node) = 0;
  virtual void on_eviction(LastVisit last, Pages pages) { static_cast<void>(last), static_cast<void>(pages); }

 private:
  void mark(const PolicyNode& node) {
    node.marks.first = 2 * now_ + (turns_.later() ? 1 : 0);
    on_visit(node);
  }

  Ghosts gone_;
  Turns turns_;
  std::uint64_t now_ = 0;
  bool further_ = false;
};

}  // namespace kvtwin
