// Lanes' figures over time, made of the stays that a world tells. A bounded number of windows: they start one
// second wide; when the run outgrows kMaxWindows of them, neighbours are merged and the width doubles.
// Amortised O(1) a stay.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "policy/types.hpp"
#include "policy/world.hpp"

namespace kvtwin {

// One lane's figures; windows for utilisation over time.
struct LaneUse {
  std::string name;  // "gpu0.h2d", ... , "compute"
  Bytes bytes = 0;
  std::uint64_t transfers = 0;
  TimeNs busy_ns = 0;
  TimeNs window_ns = kNsPerSecond;  // width of each window; doubles so that there are never more than 4096
  std::vector<TimeNs> window_busy_ns;
  std::vector<Bytes> window_bytes;
};

class LaneMeter {
 public:
  static constexpr std::size_t kMaxWindows = 4096;

  // The lane was taken during [from, to).
  void add_busy(TimeNs from, TimeNs to);
  // `bytes` moved evenly during [from, to).
  void add_bytes(TimeNs from, TimeNs to, Bytes bytes);
  void count_transfer() { ++use_.transfers; }

  // With idle windows up to `end`.
  LaneUse use(std::string name, TimeNs end = 0) const;

 private:
  void reach(TimeNs time);

  LaneUse use_;
};

// Of all lanes of an engine whose ranks move alike.
class LaneMeters final : public LaneObserver {
 public:
  explicit LaneMeters(std::uint32_t ranks) : ranks_(ranks) {}
  void on_lane(const LaneSpan& span) override;
  // Both directions of each rank, then compute; the windows of each cover [0, end).
  std::vector<LaneUse> uses(TimeNs end) const;

 private:
  std::uint32_t ranks_;
  std::array<LaneMeter, kLanes> meters_;
};

}  // namespace kvtwin
