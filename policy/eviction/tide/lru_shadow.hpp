// What an LRU of the same size would hold, at O(1) a node touched: how many pages each visit was the last to use, and
// the visit from which on they fill the tier. To within the path on which that one falls.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <utility>
#include <vector>

#include "policy/base/types.hpp"

namespace kvtwin {

class LruShadow {
 public:
  explicit LruShadow(Pages capacity) : capacity_(capacity) {}

  // From the next move on.
  void resize(Pages capacity) { capacity_ = capacity; }
  // Visits are numbered from 1, without a gap.
  void begin_visit() {
    if (last_ - gone_ == used_.size()) grow();
    used_of(++last_) = 0;
    while (gone_ + 1 < last_ && used_of(gone_ + 1) == 0) ++gone_;  // nothing hangs on it any more
  }
  // Would pages that were last used by that visit still be there?
  // Of a visit that another tier has begun and this one hasn't: no.
  bool holds(std::uint64_t visit) const { return gone_ < visit && visit <= last_; }
  // Pages that visit `from` was the last to use (0: nobody yet) are used by visit `to`.
  void move(Pages pages, std::uint64_t from, std::uint64_t to) {
    if (holds(from)) {
      std::uint32_t& left = used_of(from);
      // Fewer, where two pages were taken for each other.
      const auto taken = static_cast<std::uint32_t>(std::min<Pages>(left, pages));
      left -= taken;
      sum_ -= taken;
    }
    if (!holds(to)) return;
    used_of(to) += static_cast<std::uint32_t>(pages);
    sum_ += pages;
    // A half-gone one counts as there.
    while (sum_ - used_of(gone_ + 1) / 2 > capacity_ && gone_ + 1 < last_) sum_ -= used_of(++gone_);
  }

 private:
  std::uint32_t& used_of(std::uint64_t visit) { return used_[visit & (used_.size() - 1)]; }
  void grow() {
    std::pmr::vector<std::uint32_t> used(std::max<std::size_t>(64, 2 * used_.size()));
    for (std::uint64_t visit = gone_ + 1; visit <= last_; ++visit) used[visit & (used.size() - 1)] = used_of(visit);
    used_ = std::move(used);
  }

  Pages capacity_, sum_ = 0;
  std::uint64_t gone_ = 0, last_ = 0;     // visits: before the oldest that is held; the one that began last
  std::pmr::vector<std::uint32_t> used_;  // a ring of 2^k: pages that a visit was the last to use
};

}  // namespace kvtwin
