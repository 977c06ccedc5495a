// A device with pools of windows and of states beside the pages of full attention: passes read, copy and write them,
// and a wrong byte of each kind is found.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/impl/real_rig.hpp"

namespace kvtwin::test {
namespace {

using Flip = DeviceConfig::Flip;

HostDeviceConfig hybrid_device(Flip windows = Flip::none, Flip states = Flip::none) {
  HostDeviceConfig device = small_device();
  HostDeviceConfig pool = device;
  pool.kind = KvKind::windows;
  pool.pool = 1;
  pool.shape = {1, 2, 2, 4, 4};
  pool.flip = windows;
  device.beside.push_back(pool);
  pool.kind = KvKind::states;
  pool.pool = 2;
  pool.shape = {3, 2, 1, 40, 1};
  pool.flip = states;
  device.beside.push_back(pool);
  return device;
}

SequencePart window(Pages first, std::vector<SlotId> slots) {
  SequencePart part;
  part.first = first;
  part.slots = std::move(slots);
  return part;
}

SequencePart state(SlotId from, SlotId running, std::vector<SequencePart::Point> points = {}) {
  SequencePart part;
  part.from = from;
  part.running = running;
  part.points = std::move(points);
  return part;
}

// One request computes two pages; another continues behind them, from the cached state, and decodes.
const Verification& share_a_prefix(RealRig& rig) {
  const std::vector<PageKey> keys = some_keys(4);
  rig.then([&rig, keys] {
    rig.parts = {{window(0, {3, 4}), state(kNoSlot, 2, {{4, 9}})}};
    rig.compute({keys[0], keys[1]}, {0, 1});
  });
  rig.then([&rig, keys] {
    rig.parts = {{window(1, {4, 6}), state(2, 5)}};
    rig.prefill({{{0, 1, 7}, {keys[0], keys[1], keys[2]}, 8, 2}});
  });
  rig.then([&rig, keys] {
    rig.parts = {{window(1, {4, 6, 8}), state(5, 5)}};
    rig.decode({{{0, 1, 7, 8}, {keys[0], keys[1], keys[2], keys[3]}, 10, 4}});
  });
  rig.then([&rig, keys] {
    rig.parts = {{window(0, {3, 11}), state(9, 10)}};  // continues from the state on the way
    rig.prefill({{{0, 12}, {keys[0], keys[2]}, 4, 1}});
  });
  return rig.run();
}

TEST(HybridDevice, WindowsAndStatesAreReadCopiedAndWritten) {
  RealRig rig(hybrid_device());
  const Verification& seen = share_a_prefix(rig);
  EXPECT_EQ(seen.wrong_reads, 0U);
  EXPECT_EQ(seen.states_copied, 2U);
  EXPECT_EQ(seen.states.read, 1U + 4U + 1U);
  EXPECT_EQ(seen.states.bytes_read, 6U * 3 * 2 * 40);
  EXPECT_EQ(seen.states.bytes_checked, seen.states.bytes_read);
  EXPECT_EQ(seen.states.audited, 4U);
  EXPECT_EQ(seen.windows.read, 1U + (2U + 2U + 2U + 3U) + 1U) << "a page of the context counts in each step";
  EXPECT_EQ(seen.windows.bytes_checked, seen.windows.bytes_read);
}

TEST(HybridDevice, AWrongByteOfEachKindIsFound) {
  for (const bool windows : {true, false}) {
    RealRig rig(windows ? hybrid_device(Flip::device) : hybrid_device(Flip::none, Flip::device));
    const Verification& seen = share_a_prefix(rig);
    EXPECT_TRUE(seen.flipped);
    ASSERT_FALSE(seen.wrong.empty());
    EXPECT_EQ(seen.wrong.front().found.find(windows ? "KV of a sliding window, " : "a state, "), 0U)
        << seen.wrong.front().found;
  }
}

}  // namespace
}  // namespace kvtwin::test
