#include "lab/report/lane_meter.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace kvtwin {
namespace {

TEST(LaneMeter, CutsIntervalsAtWindows) {
  LaneMeter meter;
  meter.add_busy(kNsPerSecond / 2, 3 * kNsPerSecond);
  meter.add_bytes(kNsPerSecond / 2, 5 * kNsPerSecond / 2, 1000);
  meter.add_bytes(kNsPerSecond, kNsPerSecond, 7);  // at a single point in time
  const LaneUse use = meter.use("lane");
  EXPECT_EQ(use.name, "lane");
  EXPECT_EQ(use.window_busy_ns, (std::vector<TimeNs>{kNsPerSecond / 2, kNsPerSecond, kNsPerSecond}));
  EXPECT_EQ(use.window_bytes, (std::vector<Bytes>{250, 507, 250}));
  EXPECT_EQ(use.busy_ns, 5 * kNsPerSecond / 2);
  EXPECT_EQ(use.bytes, 1007u);
}

// Of several transfers at the same time, as a real storage tier has them.
TEST(LaneMeter, CountsTimeThatIntervalsShareOnce) {
  LaneMeter meter;
  meter.add_busy(100, 300);
  meter.add_busy(150, 400);
  meter.add_busy(200, 400);
  meter.add_busy(500, 600);
  EXPECT_EQ(meter.use("disk_write").busy_ns, 400);
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

TEST(LaneMeter, IdleTimeStaysBoundedToo) {
  constexpr TimeNs kDays = 1'000'000 * kNsPerSecond;  // 11.6 days
  const LaneMeter unused;
  LaneMeter early;
  early.add_busy(0, kNsPerSecond / 2);
  early.add_bytes(0, kNsPerSecond / 2, 9);
  for (const LaneMeter* meter : {&unused, static_cast<const LaneMeter*>(&early)}) {
    const LaneUse use = meter->use("lane", kDays);
    EXPECT_EQ(use.window_ns, 256 * kNsPerSecond);
    EXPECT_EQ(use.window_busy_ns.size(), 3'907U) << "they cover the whole time";
    EXPECT_EQ(use.window_bytes.size(), 3'907U);
    EXPECT_EQ(use.window_busy_ns[0], use.busy_ns);
    EXPECT_EQ(use.window_bytes[0], use.bytes);
  }
}

TEST(LaneMeters, BookWhatALaneHeld) {
  LaneMeters meters(2);
  meters.on_lane({.lane = Lane::h2d, .begin = 0, .end = kNsPerSecond, .flowing = kNsPerSecond / 2, .bytes = 10});
  meters.on_lane({.lane = Lane::compute, .begin = 0, .end = 2'000'000'000, .stalled_ns = 500'000'000, .steps = 1});
  meters.on_lane({.lane = Lane::compute, .begin = 0, .end = 5, .steps = 0, .status = Status::gate_failed});
  meters.on_lane({.lane = Lane::d2h, .begin = 0, .end = 5, .flowing = 0, .bytes = 3, .status = Status::cancelled});
  const std::vector<LaneUse> uses = meters.uses(3 * kNsPerSecond);
  ASSERT_EQ(uses.size(), 5u);
  EXPECT_EQ(uses[2].name, "gpu1.h2d");
  EXPECT_EQ(uses[2].bytes, 10u);
  EXPECT_EQ(uses[2].transfers, 1u);
  EXPECT_EQ(uses[2].window_busy_ns, (std::vector<TimeNs>{kNsPerSecond, 0, 0}));
  EXPECT_EQ(uses[3].bytes, 3u);
  EXPECT_EQ(uses[3].transfers, 0u);
  EXPECT_EQ(uses[4].name, "compute");
  EXPECT_EQ(uses[4].busy_ns, 1'500'000'000);
  EXPECT_EQ(uses[4].transfers, 1u);
}

TEST(LaneMeters, CountTransfersInHistograms) {
  const std::vector<Tier> tiers = {Tier::disk};
  LaneMeters meters(2, tiers, 0, 100);
  constexpr TimeNs kMs = 1'000'000;
  const auto move = [&](Lane lane, TimeNs time, Bytes bytes, Status status = Status::done) {
    meters.on_lane({.lane = lane, .begin = 7, .end = 7 + time, .flowing = 7, .bytes = bytes, .status = status});
  };
  move(Lane::disk_read, kMs, 100);             // 0.0001 GB/s
  move(Lane::disk_read, 1000 * kMs, 500);      // 5 pages: a bound belongs to the bucket below it
  move(Lane::disk_read, kMs + 1, 10'000'000);  // 100,000 pages, almost 10 GB/s
  move(Lane::disk_read, 61'000 * kMs, 600);    // longer than the last bound
  move(Lane::disk_read, kMs, 0);               // nothing moved
  move(Lane::disk_read, kMs, 100, Status::cancelled);
  move(Lane::h2d, 2 * kMs, 100);
  const std::vector<LaneUse> uses = meters.uses(0);
  const LaneUse &read = uses[5], &load = uses[0];
  ASSERT_EQ(read.name, "disk_read");
  const auto bucket = [](const Histogram& histogram, std::size_t at) { return histogram.counts.at(at); };
  EXPECT_EQ(read.seconds.counts.size(), 24u);
  EXPECT_EQ(bucket(read.seconds, 0), 1u);
  EXPECT_EQ(bucket(read.seconds, 1), 1u);
  EXPECT_EQ(bucket(read.seconds, 17), 1u);
  EXPECT_EQ(bucket(read.seconds, 23), 1u);
  EXPECT_DOUBLE_EQ(read.seconds.sum, 62.002000001);
  EXPECT_EQ(read.gigabytes_per_second.counts, (std::vector<std::uint64_t>{3, 0, 0, 0, 1, 0, 0, 0}));
  EXPECT_EQ(read.pages.counts, (std::vector<std::uint64_t>{1, 1, 1, 0, 0, 1}));
  EXPECT_DOUBLE_EQ(read.pages.sum, 1 + 5 + 100'000 + 6);
  EXPECT_EQ(bucket(load.seconds, 1), 1u);
  EXPECT_TRUE(load.pages.counts.empty());
  EXPECT_TRUE(uses[6].seconds.counts.empty());  // nothing was written
}

TEST(LaneMeters, ListStorageLanesAndHostMemory) {
  const std::vector<Tier> tiers = {Tier::disk, Tier::remote};
  LaneMeters meters(2, tiers, 100);
  constexpr TimeNs kSecond = kNsPerSecond;
  meters.on_lane({.lane = Lane::disk_read, .begin = 0, .end = kSecond, .flowing = 0, .bytes = 40});
  meters.on_lane({.lane = Lane::h2d, .begin = kSecond, .end = 2 * kSecond, .flowing = kSecond, .bytes = 20});
  meters.on_lane({.lane = Lane::direct_read, .begin = 0, .end = 3 * kSecond, .flowing = 0, .bytes = 30});
  std::vector<std::string> names;
  for (const LaneUse& use : meters.uses(3 * kSecond)) names.push_back(use.name);
  EXPECT_EQ(names, (std::vector<std::string>{"gpu0.h2d", "gpu0.d2h", "gpu1.h2d", "gpu1.d2h", "compute", "disk_read",
                                             "disk_write", "remote_read", "remote_write", "direct_read", "direct_write",
                                             "dram"}));
  const LaneUse dram = meters.uses(3 * kSecond).back();
  EXPECT_EQ(dram.bytes, 80u);  // direct transfers don't use the host memory
  EXPECT_EQ(dram.transfers, 2u);
  EXPECT_EQ(dram.window_bytes, (std::vector<Bytes>{40, 40, 0}));
  EXPECT_EQ(dram.busy_ns, 800'000'000);
  const std::vector<Tier> remote = {Tier::remote};
  EXPECT_EQ(LaneMeters(1, remote).uses(0).size(), 7u);
}

}  // namespace
}  // namespace kvtwin
