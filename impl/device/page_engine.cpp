#include "impl/device/page_engine.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace kvtwin {

// Sleeps on purpose: faults = rank(factor=...) stands for a rank with slow copies. There is nothing to wait for,
// because the lost time itself is the effect that the other ranks must see.
void PageEngine::slow_down(double factor, Steady::time_point begin) const {
  if (factor <= 1) return;
  constexpr std::chrono::milliseconds kPiece{10};
  const auto extra = std::chrono::duration<double>(Steady::now() - begin) * (factor - 1);
  const Steady::time_point end = Steady::now() + std::chrono::duration_cast<Steady::duration>(extra);
  for (auto left = end - Steady::now(); left.count() > 0 && !stopping(); left = end - Steady::now()) {
    std::this_thread::sleep_for(std::min<Steady::duration>(left, kPiece));
  }
}

}  // namespace kvtwin
