#include "sim/lane_meter.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace kvtwin {
namespace {

TEST(LaneMeter, CutsIntervalsAtWindows) {
  LaneMeter meter;
  meter.add_busy(kNsPerSecond / 2, 3 * kNsPerSecond);
  meter.add_bytes(kNsPerSecond / 2, 5 * kNsPerSecond / 2, 1000);
  meter.add_bytes(kNsPerSecond, kNsPerSecond, 7);  // an instant
  const LaneUse use = meter.use("lane");
  EXPECT_EQ(use.name, "lane");
  EXPECT_EQ(use.window_busy_ns, (std::vector<TimeNs>{kNsPerSecond / 2, kNsPerSecond, kNsPerSecond}));
  EXPECT_EQ(use.window_bytes, (std::vector<Bytes>{250, 507, 250}));
  EXPECT_EQ(use.busy_ns, 5 * kNsPerSecond / 2);
  EXPECT_EQ(use.bytes, 1007u);
}

TEST(LaneMeter, StaysBoundedAndLosesNothing) {
  LaneMeter meter;
  for (TimeNs second = 0; second < 100'000; second += 3) {
    meter.add_busy(second * kNsPerSecond, (second + 2) * kNsPerSecond);
    meter.add_bytes(second * kNsPerSecond, (second + 2) * kNsPerSecond, 10);
  }
  const LaneUse use = meter.use("lane");
  EXPECT_EQ(use.window_ns, 32 * kNsPerSecond);
  EXPECT_LE(use.window_busy_ns.size(), LaneMeter::kMaxWindows);
  EXPECT_EQ(std::accumulate(use.window_busy_ns.begin(), use.window_busy_ns.end(), TimeNs{0}), use.busy_ns);
  EXPECT_EQ(std::accumulate(use.window_bytes.begin(), use.window_bytes.end(), Bytes{0}), use.bytes);
  for (const TimeNs busy : use.window_busy_ns) EXPECT_LE(busy, use.window_ns);
}

}  // namespace
}  // namespace kvtwin
