// The best possible hits over windows of requests, beside LRU's on the same windows. Each window begins with an empty
// cache, so both figures are comparable with each other, not with the curve.
//
// Memory: about 80 bytes per distinct block of a window, and 200 bytes per request. Cost: at the end of a window, about
// 1 us per request and size, and the time of sim/bounds/opt.hpp.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/base/types.hpp"
#include "sim/bounds/opt.hpp"

namespace kvtwin {

class WindowOptimum {
 public:
  // `blocks`: look-ups of a window; 0: no windows.
  explicit WindowOptimum(std::uint64_t blocks) : window_blocks_(blocks) {}

  struct Hits {
    std::uint64_t size = 0, lookups = 0, best = 0, lru = 0;  // blocks
  };
  // Returns true if the window is complete.
  bool add(std::span<const PageKey> keys);
  // Ends the window, and adds its hits in caches of these sizes to the sums.
  void close(std::span<const std::uint64_t> sizes);

  std::uint64_t windows() const { return windows_; }
  // By size, over all windows.
  const std::vector<Hits>& sums() const { return sums_; }

 private:
  const std::uint64_t window_blocks_;
  RequestLog log_;
  std::uint64_t looked_up_ = 0, windows_ = 0;
  std::vector<Hits> sums_;
};

}  // namespace kvtwin
