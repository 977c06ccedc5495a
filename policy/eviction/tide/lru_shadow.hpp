// What an LRU of the same size would hold, at O(1) a node touched: how many pages each visit was the last to use, and
// the visit from which on they fill the tier. To within the path on which that one falls.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

#include "policy/types.hpp"

namespace kvtwin {

class LruShadow {
 public:
  explicit LruShadow(Pages capacity) : capacity_(capacity) {}

  // Visits are numbered from 1, without a gap.
  void begin_visit() {
    used_.push_back(0);
    for (; used_.size() > 1 && used_.front() == 0; ++gone_) used_.pop_front();  // nothing hangs on it any more
  }
  // Would pages that were last used by that visit still be there?
  bool holds(std::uint64_t visit) const { return visit > gone_; }
  // Pages that visit `from` was the last to use (0: nobody yet) are used by visit `to`, which has begun.
  void move(Pages pages, std::uint64_t from, std::uint64_t to) {
    if (holds(from)) {
      Pages& left = used_[static_cast<std::size_t>(from - gone_) - 1];
      const Pages taken = std::min(left, pages);  // fewer, where two pages were taken for each other
      left -= taken;
      sum_ -= taken;
    }
    if (!holds(to)) return;
    used_[static_cast<std::size_t>(to - gone_) - 1] += pages;
    sum_ += pages;
    while (sum_ - used_.front() / 2 > capacity_ && used_.size() > 1) {  // a half-gone one counts as there
      sum_ -= used_.front();
      used_.pop_front();
      ++gone_;
    }
  }

 private:
  Pages capacity_, sum_ = 0;
  std::uint64_t gone_ = 0;  // visits before used_
  std::deque<Pages> used_;
};

}  // namespace kvtwin
