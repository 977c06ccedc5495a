// The guard of tide: decides visit by visit whether leaves are evicted in LRU's order or in tide's own order.
//
//   LRU's order  --what was lost before is paid off, and there is more to win than kLittle-->  own order
//   own order    --LRU has saved more, by as much as the two differ by in kLoss visits----->  LRU's order
//   own order    --LRU saves nearly all that is remembered (kLittle)----------------------->  LRU's order
//
// What was lost in the own order is owed. A 1/kPays share of what LRU misses of all that is remembered pays it off.
#pragma once

#include <algorithm>
#include <cstdint>

#include "policy/base/wide.hpp"

namespace kvtwin {

class TideDuel {
 public:
  static constexpr std::int64_t kMemory = 8192;  // visits that are remembered

  // Prefill cost of a visit that each would have saved, in tokens: LRU, a tier that holds all that is remembered, and
  // the order at work.
  struct Saved {
    std::int64_t lru = 0, known = 0, own = 0;
  };

  bool as_lru() const { return as_lru_; }

  // Counts a visit. Returns true if the other order is taken from now on; the own order is only taken if `may_lead`.
  bool judge(const Saved& saved, bool may_lead) {
    ++judged_;
    const std::int64_t won = saved.own - saved.lru;
    lru_saved_ += saved.lru - lru_saved_ / kMemory;
    known_saved_ += saved.known - known_saved_ / kMemory;
    const bool little = known_saved_ < lru_saved_ + lru_saved_ / kLittle;
    if (as_lru_) {  // the tier doesn't at once hold what LRU would have kept
      owed_ -= kPays * Wide{won} + (saved.known - saved.lru);
      return !little && judged_ >= kLeast && owed_ <= 0 && may_lead && take_order(false);
    }
    const bool ahead = won_ > 0 && won_ * won_ * differing_ > kCredit * kCredit * kOne * squares_;
    won_ += (ahead ? std::min<std::int64_t>(0, won) : won) - won_ / kMemory;
    squares_ += Wide{won} * won - squares_ / kMemory;
    differing_ += (won != 0 ? kOne : 0) - differing_ / kMemory;
    const bool loses = won_ < 0 && won_ * won_ * differing_ > kLoss * kLoss * kOne * squares_;
    return (loses || little) && take_order(true);
  }

 private:
  // Visits: how long LRU's order is kept at least, how many of those in which the two differ may be lost, and how many
  // that were won before may be lost again.
  static constexpr std::int64_t kLeast = 64, kLoss = 3, kCredit = 32;
  // The share of what LRU misses that pays off what is owed; and where all that is remembered would save but such a
  // share more than LRU does, there is more to lose than to win.
  static constexpr std::int64_t kPays = 128, kLittle = 64;
  static constexpr std::int64_t kOne = 256;

  bool take_order(bool as_lru) {
    as_lru_ = as_lru;
    owed_ = kPays * std::max<Wide>(0, -won_);
    won_ = squares_ = differing_ = 0;
    judged_ = 0;
    return true;
  }

  std::int64_t lru_saved_ = 0, known_saved_ = 0;  // by the last visits
  // Over LRU, in the own order: what was won; the squares of what each visit won; how many won or lost, in 1/kOne.
  Wide won_ = 0, squares_ = 0, differing_ = 0;
  Wide owed_ = 0;            // in 1/kPays
  std::int64_t judged_ = 0;  // visits, in this order
  bool as_lru_ = true;
};

}  // namespace kvtwin
