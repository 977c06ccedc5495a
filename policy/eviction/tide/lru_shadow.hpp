// Computes which pages an LRU tier of the same size would hold, at O(1) per touched node. Stores, per visit, how many
// pages that visit was the last to use. The oldest visit whose pages still fit into the tier is the boundary. Exact
// except on the path of the boundary visit.
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

  // Takes effect with the next move().
  void resize(Pages capacity) { capacity_ = capacity; }
  // Visits have the numbers 1, 2, 3 ...
  void begin_visit() {
    if (last_ - gone_ == used_.size()) grow();
    used_of(++last_) = 0;
    while (gone_ + 1 < last_ && used_of(gone_ + 1) == 0) ++gone_;  // no page counts for this visit any more
  }
  // Returns whether LRU would still hold pages whose last use was this visit. False for a visit that only another tier
  // has begun.
  bool holds(std::uint64_t visit) const { return gone_ < visit && visit <= last_; }
  // Visit `to` uses pages whose last use was visit `from`; 0 = no visit yet.
  void move(Pages pages, std::uint64_t from, std::uint64_t to) {
    if (holds(from)) {
      std::uint32_t& left = used_of(from);
      // fewer if two pages were confused (ghosts.hpp)
      const auto taken = static_cast<std::uint32_t>(std::min<Pages>(left, pages));
      left -= taken;
      sum_ -= taken;
    }
    if (!holds(to)) return;
    used_of(to) += static_cast<std::uint32_t>(pages);
    sum_ += pages;
    // the boundary visit counts as held if at least half of its pages fit
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
  std::uint64_t gone_ = 0, last_ = 0;     // the last visit that is not held; the visit that began last
  std::pmr::vector<std::uint32_t> used_;  // ring of 2^k: pages that each visit was the last to use
};

}  // namespace kvtwin
