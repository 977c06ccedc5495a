// Use of the lanes over time, from the spans that a world reports. Each lane has at most kMaxWindows windows. A window
// is one second wide at first. When a run needs more windows, neighbours are merged and the width doubles. Cost:
// amortised O(1) per span.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policy/base/types.hpp"
#include "policy/seam/world.hpp"

namespace kvtwin {

// The lane of host memory: the bytes of each transfer, once for each time that they cross host memory, and the time of
// these bytes at the memory's rate. Only in simulated worlds.
constexpr std::string_view kDramLane = "dram";

// The use of one lane, in total and per window.
struct LaneUse {
  std::string name;  // "gpu0.h2d", ... , "compute", "disk_read", ... , "dram"
  Bytes bytes = 0;
  std::uint64_t transfers = 0;
  TimeNs busy_ns = 0;
  TimeNs window_ns = kNsPerSecond;  // width of a window; doubles when there would be more than kMaxWindows
  std::vector<TimeNs> window_busy_ns;
  std::vector<Bytes> window_bytes;
};

class LaneMeter {
 public:
  static constexpr std::size_t kMaxWindows = 4096;

  // The lane was busy during [from, to).
  void add_busy(TimeNs from, TimeNs to);
  // `bytes` moved at a constant rate during [from, to).
  void add_bytes(TimeNs from, TimeNs to, Bytes bytes);
  void count_transfer() { ++use_.transfers; }
  // Replaces the busy time: the time of the bytes at this rate, window by window.
  void busy_by_rate(std::uint64_t bytes_per_second);

  // Returns the use, with idle windows up to `end`.
  LaneUse use(std::string name, TimeNs end = 0) const;

 private:
  void reach(TimeNs time);

  LaneUse use_;
};

// Meters of all lanes of an engine. All ranks move the same bytes at the same time.
class LaneMeters final : public LaneObserver {
 public:
  // `storage`: the storage tiers of the engine. `dram_bytes_per_second`: 0 = no lane for host memory.
  explicit LaneMeters(std::uint32_t ranks, std::span<const Tier> storage = {}, std::uint64_t dram_bytes_per_second = 0)
      : ranks_(ranks), storage_(storage.begin(), storage.end()), dram_rate_(dram_bytes_per_second) {}
  void on_lane(const LaneSpan& span) override;
  // Returns h2d and d2h of each rank, compute, the lanes of the storage tiers, and host memory. The windows of each
  // lane cover [0, end).
  std::vector<LaneUse> uses(TimeNs end) const;

 private:
  std::uint32_t ranks_;
  std::vector<Tier> storage_;
  std::uint64_t dram_rate_;
  PerLane<LaneMeter> meters_;
  LaneMeter dram_;
};

}  // namespace kvtwin
