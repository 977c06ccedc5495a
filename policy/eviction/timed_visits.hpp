// For policies that ask when pages are used again: tells them of each page when it was visited last and whether that
// was by a later turn (turns.hpp), of what has left the tier too, for 4 times as many pages as it holds.
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
    if (!further_) begun();
  }
  void entered(const PolicyNode& node) final {
    gone_.recall_each(node.keys, [this](auto, std::uint64_t last) { returned({last}, 1, false); });
    mark(node);
  }
  void touched(const PolicyNode& node) final {
    if (further_) return;
    turns_.touched(node.facts);
    returned(last_visit(node), node.keys.size(), true);
    mark(node);
  }
  void evicted(const PolicyNode& node, Pages pages) final {
    left(last_visit(node), pages);
    gone_.put_tail(node.keys, pages, node.marks.first);
  }

 protected:
  explicit TimedVisits(const EvictionSetup& setup) : gone_(4 * setup.capacity, setup) {}

  struct Last {
    std::uint64_t packed = 0;  // the time, doubled, plus 1 if it was a later turn
    std::uint64_t time() const { return packed / 2; }
    std::size_t kind() const { return packed % 2; }  // 1: a later turn
  };
  static Last last_visit(const PolicyNode& node) { return {node.marks.first}; }
  std::uint64_t now() const { return now_; }

  // A request makes its first visit.
  virtual void begun() {}
  // Pages are used again, from within the tier or after they had left it.
  virtual void returned(Last last, Pages pages, bool hit) = 0;
  // The node's last visit is this one. Its second mark is the policy's own.
  virtual void visited(const PolicyNode& node) = 0;
  virtual void left(Last last, Pages pages) { static_cast<void>(last), static_cast<void>(pages); }

 private:
  void mark(const PolicyNode& node) {
    node.marks.first = 2 * now_ + (turns_.later() ? 1 : 0);
    visited(node);
  }

  Ghosts gone_;
  Turns turns_;
  std::uint64_t now_ = 0;
  bool further_ = false;
};

}  // namespace kvtwin
