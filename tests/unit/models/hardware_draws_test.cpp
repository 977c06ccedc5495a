// Random machines within the uncertainty of a machine's numbers: they stay in the intervals, a draw moves all machines
// in the same way, and no other number changes.
#include "models/hardware_draws.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace kvtwin {
namespace {

// Returns a preset in which the bandwidth of the link has an interval.
HardwareSpec machine() {
  HardwareSpec hardware = hardware_preset("h100-sxm");
  const auto link = std::ranges::find(hardware.numbers, "host_to_device", &HardwareNumber::key);
  const double value = std::stod(link->value);
  link->low = 0.5 * value;
  link->high = 1.25 * value;
  return hardware;
}

TEST(HardwareDraws, OnlyWhatHasAnIntervalMoves) {
  const HardwareSpec base = machine();
  const std::vector<UncertainNumber> numbers = uncertain_numbers(base, 0);
  ASSERT_EQ(numbers.size(), 1U);
  EXPECT_EQ(numbers[0].key, "host_to_device");
  EXPECT_DOUBLE_EQ(numbers[0].low, 0.5 * base.host_to_device);
  EXPECT_DOUBLE_EQ(numbers[0].high, 1.25 * base.host_to_device);
  HardwareSpec drawn = base;
  move_to_draw(drawn, 3, 0);
  EXPECT_NE(drawn.host_to_device, base.host_to_device);
  for (const HardwareField& field : hardware_fields()) {
    if (field.key == "host_to_device") continue;
    EXPECT_EQ(drawn.*field.member, base.*field.member) << field.key;
  }
  EXPECT_TRUE(uncertain_numbers(hardware_preset("h100-sxm"), 0).empty());
}

TEST(HardwareDraws, ASpreadIsForRatesTimesAndSharesWithoutOne) {
  const HardwareSpec base = machine();
  std::vector<std::string> keys;
  for (const UncertainNumber& number : uncertain_numbers(base, 0.2)) {
    keys.push_back(number.key);
    if (number.key == "host_to_device") continue;
    EXPECT_DOUBLE_EQ(number.low, number.value / 1.2) << number.key;
    EXPECT_GT(number.high, number.value) << number.key;
  }
  for (const char* exact : {"memory_bytes", "drive_count", "kernel_blocks", "staging_bytes"}) {
    EXPECT_EQ(std::ranges::count(keys, exact), 0) << exact;
  }
  for (const char* moves : {"memory_bandwidth", "gemm_fraction", "pass_overhead", "drive_read_iops"}) {
    EXPECT_EQ(std::ranges::count(keys, moves), 1) << moves;
  }
}

// Half of the draws are above the value, 95 % are in the interval, and none is negative or above the largest value that
// is allowed.
TEST(HardwareDraws, KeepTheirIntervals) {
  const HardwareSpec base = machine();
  int above = 0, outside = 0;
  constexpr int kDraws = 20'000;
  for (int draw = 1; draw <= kDraws; ++draw) {
    HardwareSpec drawn = base;
    move_to_draw(drawn, static_cast<std::uint64_t>(draw), 3);
    above += drawn.host_to_device > base.host_to_device ? 1 : 0;
    outside +=
        drawn.host_to_device < 0.5 * base.host_to_device || drawn.host_to_device > 1.25 * base.host_to_device ? 1 : 0;
    for (const HardwareField& field : hardware_fields()) {
      ASSERT_LE(drawn.*field.member, field.most) << field.key;
      ASSERT_GE(drawn.*field.member, 0) << field.key;
    }
  }
  EXPECT_NEAR(above, kDraws / 2, 300);
  EXPECT_NEAR(outside, kDraws / 20, 150);
}

// How a number moves depends only on its name and on the draw.
TEST(HardwareDraws, MoveAllMachinesAlike) {
  HardwareSpec a = hardware_preset("h100-sxm"), b = hardware_preset("gb200");
  const double before_a = a.peer_bandwidth, before_b = b.peer_bandwidth;
  move_to_draw(a, 17, 0.1);
  move_to_draw(b, 17, 0.1);
  EXPECT_NEAR(a.peer_bandwidth / before_a, b.peer_bandwidth / before_b, 1e-12);
  HardwareSpec again = hardware_preset("h100-sxm");
  move_to_draw(again, 17, 0.1);
  EXPECT_EQ(again.peer_bandwidth, a.peer_bandwidth);
  move_to_draw(again, 18, 0.1);
  EXPECT_NE(again.peer_bandwidth, a.peer_bandwidth);
}

TEST(HardwareDraws, OneNumberGoesToAnEnd) {
  HardwareSpec hardware = machine();
  const double before = hardware.host_to_device;
  EXPECT_FALSE(move_to_end(hardware, "memory_bandwidth", true, 0)) << "it has no interval";
  EXPECT_FALSE(move_to_end(hardware, "nonsense", true, 0.5));
  EXPECT_TRUE(move_to_end(hardware, "host_to_device", false, 0));
  EXPECT_DOUBLE_EQ(hardware.host_to_device, 0.5 * before);
}

}  // namespace
}  // namespace kvtwin
