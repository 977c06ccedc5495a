// Of the pages of one request that are handed over: where pages are missing. A write that fails leaves a gap from its
// first page on. Later writes fail too, until one begins at that page or before, so that it writes the missing pages
// again: the receiver must not take pages behind a gap for a prefix.
#pragma once

#include <cstdint>

#include "policy/base/types.hpp"

namespace kvtwin {

class HandOverGap {
 public:
  // Returns whether pages before `first` are missing: a write that begins there fails.
  bool is_before(Pages first) const { return first > from_; }
  // `write`: number of the write, in the order of submission. No effect on a gap before the write.
  void failed(Pages first, std::uint64_t write) {
    if (is_before(first)) return;
    from_ = first;
    failed_ = write;
  }
  // Closes the gap of an earlier write. Requires: is_before() was false for this write.
  void written(std::uint64_t write) {
    if (write > failed_) from_ = kNowhere;
  }
  bool is_open() const { return from_ != kNowhere; }

 private:
  static constexpr Pages kNowhere = ~Pages{0};
  Pages from_ = kNowhere;
  std::uint64_t failed_ = 0;  // the write that left the gap
};

}  // namespace kvtwin
