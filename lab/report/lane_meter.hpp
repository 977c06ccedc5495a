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

// Values, for example of transfers that are done, counted in buckets up to and including each bound. The last bucket is
// above all bounds.
struct Histogram {
  std::vector<std::uint64_t> counts;  // empty = no value
  double sum = 0;
  void add(std::span<const double> bounds, double value);
};
// Bounds of the buckets. SGLang's histograms use the same values, or some of them.
inline constexpr std::array kSecondsBounds{0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008,
                                           0.009, 0.01,  0.02,  0.03,  0.04,  0.05,  0.1,   0.2,
                                           0.5,   1.0,   2.0,   5.0,   10.0,  30.0,  60.0};
inline constexpr std::array kGigabytesPerSecondBounds{0.1, 0.5, 1.0, 5.0, 10.0, 50.0, 100.0};
inline constexpr std::array kPagesBounds{1.0, 5.0, 10.0, 50.0, 100.0};

// The use of one lane, in total and per window.
struct LaneUse {
  std::string name;  // "gpu0.h2d", ... , "compute", "disk_read", ... , "dram"
  Bytes bytes = 0;
  std::uint64_t transfers = 0;
  TimeNs busy_ns = 0;
  TimeNs window_ns = kNsPerSecond;  // width of a window; doubles when there would be more than kMaxWindows
  std::vector<TimeNs> window_busy_ns;
  std::vector<Bytes> window_bytes;
  // Of each transfer that is done and has moved bytes: its time on the lane, its rate, and its pages (storage lanes).
  Histogram seconds, gigabytes_per_second, pages;
};

class LaneMeter {
 public:
  static constexpr std::size_t kMaxWindows = 4096;

  // The lane was busy during [from, to).
  // Time that several intervals share counts once. Requires for that: intervals come in the order of their ends.
  void add_busy(TimeNs from, TimeNs to);
  // `bytes` moved at a constant rate during [from, to).
  void add_bytes(TimeNs from, TimeNs to, Bytes bytes);
  void count_transfer() { ++use_.transfers; }
  // Adds a transfer to the histograms. `page_bytes`: 0 = its pages are not counted.
  void add_to_histograms(TimeNs time, Bytes bytes, Bytes page_bytes);
  // Replaces the busy time: the time of the bytes at this rate, window by window.
  void busy_by_rate(std::uint64_t bytes_per_second);

  // Returns the use, with idle windows up to `end`.
  LaneUse use(std::string name, TimeNs end = 0) const;

 private:
  void reach(TimeNs time);

  LaneUse use_;
  TimeNs busy_until_ = 0;
};

// Meters of all lanes of an engine. All ranks move the same bytes at the same time.
class LaneMeters final : public LaneObserver {
 public:
  // `storage`: the storage tiers of the engine. `dram_bytes_per_second`: 0 = no lane for host memory. `page_bytes`: of
  // a page in a storage tier. `hands_over`: a prefill engine.
  explicit LaneMeters(std::uint32_t ranks, std::span<const Tier> storage = {}, std::uint64_t dram_bytes_per_second = 0,
                      Bytes page_bytes = 0, bool hands_over = false)
      : ranks_(ranks),
        storage_(storage.begin(), storage.end()),
        dram_rate_(dram_bytes_per_second),
        page_bytes_(page_bytes),
        hands_over_(hands_over) {}
  void on_lane(const LaneSpan& span) override;
  // Returns h2d and d2h of each rank, compute, the lanes of the storage tiers, and host memory. The windows of each
  // lane cover [0, end).
  std::vector<LaneUse> uses(TimeNs end) const;

 private:
  std::uint32_t ranks_;
  std::vector<Tier> storage_;
  std::uint64_t dram_rate_;
  Bytes page_bytes_;
  bool hands_over_;  // has the lane of hand-overs
  PerLane<LaneMeter> meters_;
  LaneMeter dram_;
};

}  // namespace kvtwin
