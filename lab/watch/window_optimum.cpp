#include "lab/watch/window_optimum.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvtwin {

bool WindowOptimum::add(std::span<const PageKey> keys) {
  if (window_blocks_ == 0 || keys.empty()) return false;
  log_.add(keys);
  looked_up_ += keys.size();
  return looked_up_ >= window_blocks_;
}

void WindowOptimum::close(std::span<const std::uint64_t> sizes) {
  if (looked_up_ == 0) return;
  const Future future(std::exchange(log_, RequestLog()));
  const std::uint64_t lookups = std::exchange(looked_up_, 0);
  ++windows_;
  const auto sum = [](const std::vector<std::uint32_t>& hits) {
    return std::accumulate(hits.begin(), hits.end(), std::uint64_t{0});
  };
  for (const std::uint64_t size : sizes) {
    auto at = std::ranges::find(sums_, size, &Hits::size);
    if (at == sums_.end()) at = sums_.insert(sums_.end(), Hits{size, 0, 0, 0});
    at->lookups += lookups;
    at->best += sum(opt_hits(future, size));
    at->lru += sum(lru_hits(future, size));
  }
}

}  // namespace kvtwin
