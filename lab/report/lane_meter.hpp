// Lanes' figures over time, made of the stays that a world tells. A bounded number of windows: they start one
// second wide; when the run outgrows kMaxWindows of them, neighbours are merged and the width doubles.
// Amortised O(1) a stay.
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

// Host memory: each transfer's bytes as often as they cross it, and how long it takes them at its rate alone. A
// simulated world's only.
constexpr std::string_view kDramLane = "dram";

// One lane's figures; windows for utilisation over time.
struct LaneUse {
  std::string name;  // "gpu0.h2d", ... , "compute", "disk_read", ... , "dram"
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
  // Busy as long as its bytes take at that rate.
  void busy_by_rate(std::uint64_t bytes_per_second);

  // With idle windows up to `end`, kMaxWindows windows at most.
  LaneUse use(std::string name, TimeNs end = 0) const;

 private:
  void reach(TimeNs time);

  LaneUse use_;
};

// Of all lanes of an engine whose ranks move alike.
class LaneMeters final : public LaneObserver {
 public:
  // `storage`: the tiers whose lanes are listed. `dram_bytes_per_second`: 0 = host memory isn't listed.
  explicit LaneMeters(std::uint32_t ranks, std::span<const Tier> storage = {}, std::uint64_t dram_bytes_per_second = 0)
      : ranks_(ranks), storage_(storage.begin(), storage.end()), dram_rate_(dram_bytes_per_second) {}
  void on_lane(const LaneSpan& span) override;
  // Both directions of each rank, compute, those of the storage tiers there are, host memory; the windows of each cover
  // [0, end).
  std::vector<LaneUse> uses(TimeNs end) const;

 private:
  std::uint32_t ranks_;
  std::vector<Tier> storage_;
  std::uint64_t dram_rate_;
  PerLane<LaneMeter> meters_;
  LaneMeter dram_;
};

}  // namespace kvtwin
