// Tests the bytes on a device: transfers move the correct bytes, passes check them, and errors are found and named.
#include <gtest/gtest.h>

#include <cctype>

#include "kernels/page_pattern.hpp"
#include "real_rig.hpp"

namespace kvtwin::test {
namespace {

struct Case {
  Layout layout;
  IoBackend io;
  std::uint32_t page_tokens;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const Layout layout : kLayouts) {
    for (const IoBackend io : {IoBackend::kernel, IoBackend::direct, IoBackend::automatic}) {  // automatic is staged
      for (const std::uint32_t page_tokens : {1u, 16u, 64u}) list.push_back({layout, io, page_tokens});
    }
  }
  return list;
}

HostDeviceConfig device_of(const Case& c) {
  HostDeviceConfig config = small_device(40, 40);
  config.shape.page_tokens = c.page_tokens;
  config.host_layout = c.layout;
  return config;
}

std::string text_of(const Case& c) {
  return "layout " + std::to_string(static_cast<int>(c.layout)) + ", io " + std::to_string(static_cast<int>(c.io)) +
         ", pages of " + std::to_string(c.page_tokens);
}

TEST(Device, CarriesPagesToTheHostAndBack) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(text_of(c));
    const std::vector<PageKey> keys = some_keys(9), others = some_keys(9, 1);
    const std::vector<SlotId> first{3, 4, 5, 6, 11, 10, 9, 0, 1};        // on the device, then overwritten
    const std::vector<SlotId> host{20, 21, 22, 7, 6, 5, 30, 0, 39};      // on the host
    const std::vector<SlotId> second{12, 13, 14, 39, 38, 30, 31, 4, 2};  // on the device, after the load
    RealRig rig(device_of(c));
    rig.io = c.io;
    rig.then([&] { rig.compute(keys, first); });
    rig.then([&] { rig.back_up(keys, first, host); });
    rig.then([&] { rig.compute(others, first); });
    rig.then([&] { rig.read(others, first, 20); });
    rig.then([&] { rig.read(keys, second, 20, {rig.load(keys, host, second)}); });
    const Verification& seen = rig.run();
    EXPECT_EQ(seen.wrong_reads, 0U) << (seen.wrong.empty() ? "" : seen.wrong.front().found);
    EXPECT_EQ(seen.pages_read, 18U);
    EXPECT_EQ(seen.bytes_read, 18 * device_of(c).shape.page_bytes());
    // 9 + 9 on the device, minus slot 4 and the token or page of the scratch page; and 9 on the host.
    EXPECT_GE(seen.pages_audited, 26U);
  }
}

// The policy never does this. But the device does not overwrite a slot that a pass may still need.
TEST(Device, TransfersWaitForPassesThatUseTheirSlots) {
  for (int round = 0; round < 20; ++round) {
    RealRig rig(small_device(64, 64));
    const std::vector<PageKey> keys = some_keys(20), others = some_keys(20, 1);
    rig.then([&] { rig.compute(keys, slots(0, 20)); });
    rig.then([&] {
      rig.compute(others, slots(30, 20));
      rig.back_up(others, slots(30, 20), slots(10, 20));  // reads the slots that the pass writes
    });
    rig.then([&] {
      rig.read(keys, slots(0, 20), 60);
      rig.load(others, slots(10, 20), slots(0, 20));  // writes the slots that the pass reads
    });
    rig.then([&] { rig.read(others, slots(0, 20), 60); });
    EXPECT_EQ(rig.run().wrong_reads, 0U);
  }
}

// Chunks and bursts that begin and end at any token of a page, with several sequences in one pass.
TEST(Device, WritesPagesInParts) {
  for (const std::uint32_t page_tokens : {1u, 3u, 16u}) {
    HostDeviceConfig config = small_device(64, 0);
    config.shape.page_tokens = page_tokens;
    config.hidden = 8;
    config.width = 24;
    config.pair_work = 3;
    RealRig rig(config);
    Sequence a{slots(0, 24), some_keys(24), 0, 0}, b{slots(30, 24), some_keys(24, 1), 0, 0};
    std::swap(a.slots[1], a.slots[7]);
    for (const Tokens fresh : {1U, 2U, 5U, 3U}) {
      rig.then([&, fresh] {
        a.fresh = fresh;
        b.fresh = fresh + 1;
        rig.prefill({a, b});
        a.context += a.fresh;
        b.context += b.fresh;
      });
      rig.then([&] {
        a.fresh = b.fresh = 2;
        rig.decode({a, b});
        a.context += 2;
        b.context += 2;
      });
    }
    const Verification& seen = rig.run();
    EXPECT_EQ(seen.wrong_reads, 0U) << "pages of " << page_tokens;
    EXPECT_GT(seen.pages_read, 0U);
  }
}

TEST(Device, FindsAPageThatWasNeverWritten) {
  RealRig rig(small_device());
  const std::vector<PageKey> keys = some_keys(2);
  rig.then([&] { rig.compute({keys[0]}, {3}); });
  rig.then([&] { rig.read(keys, {3, 7}, 9); });
  const Verification& seen = rig.run();
  EXPECT_EQ(seen.wrong_reads, 4U);  // one per layer and plane
  ASSERT_EQ(seen.wrong.size(), 4U);
  for (std::uint32_t i = 0; i < 4; ++i) {
    const WrongPage& wrong = seen.wrong[i];
    EXPECT_EQ(wrong.tier, Tier::device);
    EXPECT_EQ(wrong.slot, 7U);
    EXPECT_EQ(wrong.key, keys[1]);
    EXPECT_EQ(wrong.layer, i / 2);
    EXPECT_EQ(wrong.plane, i % 2);
    EXPECT_EQ(wrong.token, 0U);
    EXPECT_EQ(wrong.got, 0xDB);
    const std::uint64_t seed = pattern_seed(keys[1].words.data(), wrong.layer, wrong.plane);
    EXPECT_EQ(wrong.expected, pattern_byte(seed, wrong.byte));
    EXPECT_NE(wrong.found.find("read by a pass of request 0"), std::string::npos) << wrong.found;
  }
}

TEST(Device, FindsAPageThatHoldsAnotherKeysBytes) {
  RealRig rig(small_device());
  const std::vector<PageKey> keys = some_keys(2), others = some_keys(2, 1);
  rig.then([&] { rig.compute(keys, {3, 4}); });
  rig.then([&] { rig.read({keys[0], others[1]}, {3, 4}, 9); });
  const Verification& seen = rig.run();
  EXPECT_EQ(seen.wrong_reads, 4U);
  ASSERT_FALSE(seen.wrong.empty());
  EXPECT_EQ(seen.wrong.front().slot, 4U);
  EXPECT_EQ(seen.wrong.front().key, others[1]);
}

// Two pages are exchanged: each slot has the correct bytes of the other page.
TEST(Device, FindsLoadsThatPutPagesInEachOthersPlaces) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(text_of(c));
    RealRig rig(device_of(c));
    rig.io = c.io;
    const std::vector<PageKey> keys = some_keys(2);
    rig.then([&] { rig.compute(keys, {0, 1}); });
    rig.then([&] { rig.back_up(keys, {0, 1}, {5, 6}); });
    rig.then([&] { rig.read(keys, {8, 9}, 10, {rig.load(keys, {6, 5}, {8, 9})}); });
    const Verification& seen = rig.run();
    EXPECT_GE(seen.wrong_reads, 8U);
    ASSERT_FALSE(seen.wrong.empty());
    EXPECT_EQ(seen.wrong.front().tier, Tier::device);
    EXPECT_EQ(seen.wrong.front().slot, 8U);
    EXPECT_NE(seen.wrong.front().found.find("loaded from host slot 6"), std::string::npos) << seen.wrong.front().found;
  }
}

TEST(Device, FindsAHostPageThatWasNeverWritten) {
  RealRig rig(small_device());
  const std::vector<PageKey> keys = some_keys(1);
  rig.then([&] { rig.read(keys, {3}, 9, {rig.load(keys, {11}, {3})}); });
  const Verification& seen = rig.run();
  EXPECT_GE(seen.wrong_reads, 4U);
  ASSERT_FALSE(seen.wrong.empty());
  EXPECT_NE(seen.wrong.front().found.find("loaded from host slot 11"), std::string::npos) << seen.wrong.front().found;
}

// Reads tokens that no burst and no pass has written.
TEST(Device, FindsTokensBehindTheOnesThatWereWritten) {
  RealRig rig(small_device());
  const std::vector<PageKey> keys = some_keys(2);
  rig.then([&] { rig.prefill({{{3, 4}, keys, 0, 6}}); });
  rig.then([&] { rig.prefill({{{3, 4}, keys, 7, 1}}); });
  const Verification& seen = rig.run();
  ASSERT_EQ(seen.wrong.size(), 4U);
  EXPECT_EQ(seen.wrong.front().slot, 4U);
  EXPECT_EQ(seen.wrong.front().token, 2U);
}

TEST(Device, FindsABitThatFlippedOnTheDevice) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    HostDeviceConfig config = small_device();
    config.flip = HostDeviceConfig::Flip::device;
    config.seed = seed;
    RealRig rig(config);
    const std::vector<PageKey> keys = some_keys(3);
    rig.then([&] { rig.compute(keys, {4, 2, 6}); });
    rig.then([&] { rig.read(keys, {4, 2, 6}, 9); });
    const Verification& seen = rig.run();
    EXPECT_EQ(seen.wrong_reads, 2U) << "by the pass and at the end";
    ASSERT_EQ(seen.wrong.size(), 1U);
    const WrongPage& wrong = seen.wrong.front();
    EXPECT_EQ(wrong.tier, Tier::device);
    EXPECT_EQ(wrong.slot, 4U);
    EXPECT_EQ(wrong.key, keys[0]);
    EXPECT_EQ(wrong.got ^ wrong.expected, 1);
  }
}

// No pass reads the wrong page.
TEST(Device, FindsAtTheEndWhatNobodyRead) {
  HostDeviceConfig config = small_device();
  config.flip = HostDeviceConfig::Flip::device;
  RealRig rig(config);
  rig.then([&] { rig.compute(some_keys(3), {4, 2, 6}); });
  const Verification& seen = rig.run();
  EXPECT_EQ(seen.pages_audited, 3U);
  EXPECT_EQ(seen.wrong_reads, 1U);
  ASSERT_EQ(seen.wrong.size(), 1U);
  EXPECT_EQ(seen.wrong.front().tier, Tier::device);
  EXPECT_NE(seen.wrong.front().found.find("when the run was over"), std::string::npos);
}

TEST(Device, FindsABitThatFlippedOnTheHost) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(text_of(c));
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      HostDeviceConfig config = device_of(c);
      config.flip = HostDeviceConfig::Flip::host;
      config.seed = seed;
      RealRig rig(config);
      rig.io = c.io;
      const std::vector<PageKey> keys = some_keys(3);
      rig.then([&] { rig.compute(keys, slots(0, 3)); });
      rig.then([&] { rig.back_up(keys, slots(0, 3), {9, 8, 7}); });
      rig.then([&] { rig.read(keys, {14, 12, 13}, 20, {rig.load(keys, {9, 8, 7}, {14, 12, 13})}); });
      const Verification& seen = rig.run();
      ASSERT_FALSE(seen.wrong.empty());
      EXPECT_EQ(seen.wrong_reads, 3U) << "by the pass and, in both tiers, at the end";
      const WrongPage& wrong = seen.wrong.front();
      EXPECT_EQ(wrong.tier, Tier::host) << wrong.found;
      EXPECT_EQ(wrong.slot, 9U);
      EXPECT_EQ(wrong.key, keys[0]);
      EXPECT_EQ(wrong.got ^ wrong.expected, 1);
      EXPECT_NE(wrong.found.find("in device slot 14"), std::string::npos) << wrong.found;
    }
  }
}

// The copy on the device is still present and correct; only the copy on the host is wrong.
TEST(Device, FindsAtTheEndWhatIsWrongOnTheHostOnly) {
  HostDeviceConfig config = small_device();
  config.flip = HostDeviceConfig::Flip::host;
  RealRig rig(config);
  const std::vector<PageKey> keys = some_keys(1);
  rig.then([&] { rig.compute(keys, {0}); });
  rig.then([&] { rig.back_up(keys, {0}, {9}); });
  rig.then([&] { rig.load(keys, {9}, {1}); });
  rig.then([&] { rig.compute(some_keys(1, 1), {1}); });  // overwrites the loaded page
  const Verification& seen = rig.run();
  EXPECT_EQ(seen.wrong_reads, 1U);
  ASSERT_EQ(seen.wrong.size(), 1U);
  EXPECT_EQ(seen.wrong.front().tier, Tier::host);
  EXPECT_EQ(seen.wrong.front().slot, 9U);
}

TEST(Device, KeepsTheFirstWrongPagesAndCountsAll) {
  RealRig rig(small_device(40, 0));
  rig.then([&] { rig.read(some_keys(30), slots(0, 30), 35); });
  const Verification& seen = rig.run();
  EXPECT_EQ(seen.wrong_reads, 30U * 4);
  EXPECT_EQ(seen.wrong.size(), 16U);
}

// Two layers, 100 multiply-adds per token for products, and 10 per pair of tokens for attention.
TEST(Device, ComputesWhatAPassIsSaidToCost) {
  HostDeviceConfig config = small_device(10, 0);
  config.shape.layers = 2;
  config.hidden = 10;
  config.width = 10;
  config.pair_work = 10;
  config.decode_work = 30;
  config.context_work = 200;
  config.head_work = 500;
  ForwardShape prefill;
  prefill.prefill_tokens = 7;
  prefill.prefill_context_tokens = 4;
  prefill.prefill_pairs = 56;
  prefill.prefill_sequences = 2;
  EXPECT_EQ(layer_work(config, prefill, 0, 0).rows, 7U + 4 * 2);
  EXPECT_EQ(layer_work(config, prefill, 0, 0).pairs, 56U);
  EXPECT_EQ(layer_work(config, prefill, 0, 1).rows, 7U + 4 * 2 + 2 * 5) << "the last layer does the head's";
  ForwardShape decode;
  decode.decode_sequences = 3;
  decode.decode_context_tokens = 60;
  EXPECT_EQ(layer_work(config, decode, 0, 0).rows, 3U);
  EXPECT_EQ(layer_work(config, decode, 0, 0).pairs, 3U * 63);
  EXPECT_EQ(layer_work(config, decode, 4, 0).pairs, 3U * 75) << "contexts have grown";
  EXPECT_EQ(layer_work(config, decode, 4, 1).rows, 3U + 3 * 5);
  config.pair_work = 0;
  EXPECT_EQ(layer_work(config, decode, 0, 0).pairs, 0U);
}

TEST(Device, SaysWhatItTakes) {
  HostDeviceConfig config = small_device(100, 50);
  const Bytes page = config.shape.page_bytes();
  EXPECT_GE(host_device_bytes(config), 150 * page);
  const Bytes without = host_device_bytes(config);
  config.hidden = 1000;
  config.width = 500;
  EXPECT_GE(host_device_bytes(config), without + 4 * 1000 * 500);
}

}  // namespace
}  // namespace kvtwin::test
