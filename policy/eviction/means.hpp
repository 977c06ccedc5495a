// Means over the last some thousand samples that change by nothing but the unit when all samples do: sums are exact,
// and whole windows are forgotten, not parts.
#pragma once

#include <cstdint>

#include "policy/base/types.hpp"
#include "policy/base/wide.hpp"

namespace kvtwin {

class WindowedMean {
 public:
  explicit WindowedMean(std::uint64_t window) : window_(window) {}

  // `count` samples of one value.
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
