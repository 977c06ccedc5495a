// The guard of tide: decides, visit by visit, whether leaves are evicted in LRU's order or in tide's own order.
// docs/internals/tide.md explains the rule.
//
//   LRU's order  --the loss is paid off, and more than 1/kMinGainDivisor is to be won----------->  own order
//   own order    --loss over LRU > kMaxLossVisits times the usual difference of a visit--------->  LRU's order
//   own order    --all remembered pages would save at most 1/kMinGainDivisor more than LRU------>  LRU's order
//
// The loss of the own order is owed. A share of 1/kRepayDivisor of what LRU misses of all remembered pages pays it off.
#pragma once

#include <algorithm>
#include <cstdint>

#include "policy/base/wide.hpp"

namespace kvtwin {

class TideDuel {
 public:
  static constexpr std::int64_t kMemoryVisits = 8192;  // visits; the sums fade with this memory

  // The prefill cost that a visit saves, in units of a first token's cost: with LRU, with a tier of all remembered
  // pages, and with the order at work.
  struct Saved {
    std::int64_t lru = 0, known = 0, own = 0;
  };

  bool as_lru() const { return as_lru_; }

  // Counts a visit. Returns true if the order changes from now on. The own order is only taken if `own_order_allowed`.
  bool judge(const Saved& saved, bool own_order_allowed) {
    ++judged_;
    const std::int64_t won = saved.own - saved.lru;
    lru_saved_ += saved.lru - lru_saved_ / kMemoryVisits;
    known_saved_ += saved.known - known_saved_ / kMemoryVisits;
    const bool little_to_win = known_saved_ < lru_saved_ + lru_saved_ / kMinGainDivisor;
    if (as_lru_) {  // after a switch, the tier still lacks pages that LRU would have kept, so `won` counts here too
      owed_ -= kRepayDivisor * Wide{won} + (saved.known - saved.lru);
      return !little_to_win && judged_ >= kMinVisitsInLruOrder && owed_ <= 0 && own_order_allowed && take_order(false);
    }
    const bool ahead = won_ > 0 && won_ * won_ * differing_ > kMaxCreditVisits * kMaxCreditVisits * kVisit * squares_;
    won_ += (ahead ? std::min<std::int64_t>(0, won) : won) - won_ / kMemoryVisits;
    squares_ += Wide{won} * won - squares_ / kMemoryVisits;
    differing_ += (won != 0 ? kVisit : 0) - differing_ / kMemoryVisits;
    const bool loses = won_ < 0 && won_ * won_ * differing_ > kMaxLossVisits * kMaxLossVisits * kVisit * squares_;
    return (loses || little_to_win) && take_order(true);
  }

 private:
  // Visits for which LRU's order is kept at least; loss that ends the own order, in visits' usual difference; earlier
  // gains that may be lost again, in the same unit.
  static constexpr std::int64_t kMinVisitsInLruOrder = 64, kMaxLossVisits = 3, kMaxCreditVisits = 32;
  // A loss is paid off by 1/kRepayDivisor of what LRU misses. If all remembered pages would save only 1/kMinGainDivisor
  // more than LRU, there is more to lose than to win.
  static constexpr std::int64_t kRepayDivisor = 128, kMinGainDivisor = 64;
  static constexpr std::int64_t kVisit = 256;

  bool take_order(bool as_lru) {
    as_lru_ = as_lru;
    owed_ = kRepayDivisor * std::max<Wide>(0, -won_);
    won_ = squares_ = differing_ = 0;
    judged_ = 0;
    return true;
  }

  std::int64_t lru_saved_ = 0, known_saved_ = 0;  // sums over the remembered visits
  // Own order minus LRU: the cost won; the sum of squares of each visit's gain; the number of visits with a gain or
  // loss, in 1/kVisit.
  Wide won_ = 0, squares_ = 0, differing_ = 0;
  Wide owed_ = 0;            // in 1/kRepayDivisor of a cost unit
  std::int64_t judged_ = 0;  // visits in the current order
  bool as_lru_ = true;
};

}  // namespace kvtwin
