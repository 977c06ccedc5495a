// The mean of the last samples: of one to two windows of `window` samples. Sums are exact integers, and a whole window
// is forgotten at once. So if all samples are given in another unit, the mean changes by the unit only.
#pragma once

#include <cstdint>

#include "policy/base/types.hpp"
#include "policy/base/wide.hpp"

namespace kvtwin {

class WindowedMean {
 public:
  explicit WindowedMean(std::uint64_t window) : window_(window) {}

  // Adds `count` samples of one value.
  void add(std::uint64_t value, std::uint64_t count) {
    now_.sum += UnsignedWide{value} * count;
    now_.count += count;
    if (now_.count < window_) return;
    before_ = now_;
    now_ = {};
  }
  UnsignedWide sum() const { return now_.sum + before_.sum; }
  std::uint64_t count() const { return now_.count + before_.count; }

 private:
  struct Part {
    UnsignedWide sum = 0;
    std::uint64_t count = 0;
  };
  std::uint64_t window_;
  Part now_, before_;
};

}  // namespace kvtwin
