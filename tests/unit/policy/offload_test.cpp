// vLLM's offloading: the cases that the recorded calls (tests/golden/offload) reach rarely.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "policy/offload/store_pressure.hpp"
#include "policy/offload/tiered_chunks.hpp"

namespace kvtwin {
namespace {

constexpr Bytes kMib = 1 << 20;
constexpr TimeNs kMs = 1'000'000;

Chunk chunk(std::uint64_t number, Tokens end = 16, std::uint32_t group = 0) {
  Chunk made;
  made.key.key.words[0] = number;
  made.key.group = group;
  made.end = end;
  return made;
}

// ---- back-pressure

StorePressureConfig quick(PressureAction action) {
  StorePressureConfig config;
  config.action = action;
  config.warm_up_copies = 1;
  config.newest_ppm = 500'000;
  return config;
}

// A tier whose average is 100 ms per MiB, ten times `high`, at time 0.
StorePressure slow(const StorePressureConfig& config) {
  StorePressure pressure(config);
  pressure.copied(100 * kMs, kMib, 0);
  pressure.copied(100 * kMs, kMib, 0);
  return pressure;
}

TEST(StorePressure, LeavesOutEveryCopyUntilTheAverageHasFallenBelowLow) {
  StorePressure pressure = slow(quick(PressureAction::drop));
  EXPECT_FALSE(pressure.admits(0));
  EXPECT_FALSE(pressure.admits(11 * kNsPerSecond));  // 2.2 ms after 5.5 half-lives
  EXPECT_TRUE(pressure.admits(12 * kNsPerSecond));   // 1.6 ms
}

TEST(StorePressure, TheFirstCopiesCountOnceTheyAreComplete) {
  StorePressureConfig config = quick(PressureAction::drop);
  config.warm_up_copies = 3;
  StorePressure pressure(config);
  for (int i = 0; i < 3; ++i) pressure.copied(100 * kMs, kMib, 0);
  EXPECT_TRUE(pressure.admits(0));
  pressure.copied(100 * kMs, kMib, 0);
  EXPECT_FALSE(pressure.admits(0));
}

TEST(StorePressure, TheAverageFallsBeforeACopyCounts) {
  StorePressure pressure = slow(quick(PressureAction::drop));
  pressure.copied(6 * kMs, kMib, 12 * kNsPerSecond);  // of 1.6 ms: the pressure has ended, and 3.8 ms begin none
  EXPECT_FALSE(pressure.is_under_pressure(12 * kNsPerSecond));
}

TEST(StorePressure, AfterPressureEverySecondCopyIsLeftOutForASecond) {
  StorePressure pressure = slow(quick(PressureAction::drop));
  const TimeNs end = 12 * kNsPerSecond;
  EXPECT_TRUE(pressure.admits(end));
  EXPECT_FALSE(pressure.admits(end));
  EXPECT_TRUE(pressure.admits(end));
  EXPECT_FALSE(pressure.admits(end + kNsPerSecond - 1));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(pressure.admits(end + kNsPerSecond));
}

TEST(StorePressure, ThrottlingLeavesOutAShareThatGrowsWithTheAverage) {
  const auto left_out = [](TimeNs per_mib) {
    StorePressure pressure(quick(PressureAction::throttle));
    for (int i = 0; i < 2; ++i) pressure.copied(per_mib, kMib, 0);
    int count = 0;
    for (int i = 0; i < 100; ++i) count += pressure.admits(0) ? 0 : 1;
    return count;
  };
  EXPECT_EQ(left_out(10 * kMs), 0);
  EXPECT_EQ(left_out(15 * kMs), 25);
  EXPECT_EQ(left_out(25 * kMs), 75);
  EXPECT_EQ(left_out(30 * kMs), 100);
}

TEST(StorePressure, FastCopiesInARowEndTheCooldown) {
  StorePressure pressure = slow(quick(PressureAction::drop));
  const TimeNs end = 12 * kNsPerSecond;
  for (int i = 0; i < 10; ++i) pressure.copied(0, kMib, end);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(pressure.admits(end));
}

TEST(StorePressure, ThreeFailuresInARowArePressureAndACopyBetweenThemIsNot) {
  StorePressure pressure(quick(PressureAction::throttle));
  for (int i = 0; i < 2; ++i) pressure.failed(0);
  pressure.copied(kMs, kMib, 0);
  for (int i = 0; i < 2; ++i) pressure.failed(0);
  EXPECT_TRUE(pressure.admits(0));
  pressure.failed(0);
  EXPECT_FALSE(pressure.admits(0));
}

// ---- further tiers

struct Tiers {
  explicit Tiers(std::uint32_t chunks) {
    TieredChunksConfig config;
    config.host.chunks = chunks;
    config.tiers.resize(1);
    config.chunk_bytes = kMib;
    tiers.emplace(config);
    for (RequestId request = 0; request < 4; ++request) tiers->begin(request);
  }
  // The tier answers what this step has asked for.
  void end_step(bool found = true) {
    for (const TieredChunks::LookUps& look_ups : tiers->end_step()) {
      std::vector<TierLookUps::Answer> answers;
      for (const TierLookUps::Asked& asked : look_ups.asked) answers.push_back({asked, found});
      tiers->answer(look_ups.tier, answers);
    }
  }
  TieredChunks* operator->() { return &*tiers; }
  std::optional<TieredChunks> tiers;
};

TEST(TieredChunks, AChunkOfAFurtherTierIsReadIntoASlotThatItsLookUpTakes) {
  Tiers tiers(2);
  EXPECT_EQ(tiers->look_up(chunk(1), 0), Found::retry);
  EXPECT_EQ(tiers->look_up(chunk(2, 32), 0), Found::retry);
  tiers.end_step();
  EXPECT_EQ(tiers->look_up(chunk(1), 0), Found::pending);
  EXPECT_EQ(tiers->look_up(chunk(2, 32), 0), Found::pending);
  EXPECT_EQ(tiers->host().free_slots(), 0U);
  EXPECT_TRUE(tiers->take_jobs().empty());
  tiers.end_step();
  const auto jobs = tiers->take_jobs();
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_EQ(jobs[0].chunks.size(), 2U);
  tiers->complete(jobs[0].number, 2);
  EXPECT_EQ(tiers->look_up(chunk(1), 0), Found::hit);
  EXPECT_EQ(tiers->source_of(chunk(1).key, 0), 0U);
}

TEST(TieredChunks, WithoutASlotAChunkOfAFurtherTierIsAMiss) {
  Tiers tiers(1);
  ASSERT_TRUE(tiers->prepare_store(std::vector{chunk(9)}, 1));  // incomplete: it stays
  EXPECT_EQ(tiers->look_up(chunk(1), 0), Found::retry);
  tiers.end_step();
  EXPECT_EQ(tiers->look_up(chunk(1), 0), Found::miss);
}

TEST(TieredChunks, AReadThatFailsIsAMissForItsRequestAndThoseThatAskedToo) {
  Tiers tiers(2);
  for (const RequestId request : {0U, 1U}) EXPECT_EQ(tiers->look_up(chunk(1), request), Found::retry);
  tiers.end_step();
  EXPECT_EQ(tiers->look_up(chunk(1), 0), Found::pending);
  tiers.end_step();
  tiers->complete(tiers->take_jobs().at(0).number, 0);
  for (const RequestId request : {0U, 1U}) EXPECT_EQ(tiers->look_up(chunk(1), request), Found::miss);
  EXPECT_EQ(tiers->look_up(chunk(1), 2), Found::miss);
  for (const RequestId request : {0U, 1U, 2U}) tiers->finish(request);
  EXPECT_EQ(tiers->look_up(chunk(1), 3), Found::retry);  // nobody remembers it
}

TEST(TieredChunks, AStoreStartsACopyToTheTierAlsoAfterItsRequest) {
  Tiers tiers(1);
  const std::vector<Chunk> chunks = {chunk(1)};
  ASSERT_TRUE(tiers->prepare_store(chunks, 0));
  tiers->finish(0);
  tiers->complete_store(chunks, 0, true);
  const auto jobs = tiers->take_jobs();
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_FALSE(jobs[0].to_host);
  EXPECT_FALSE(tiers->prepare_store(std::vector{chunk(2)}, 1)) << "the copy reads the only slot";
  tiers->complete(jobs[0].number, 1);
  EXPECT_TRUE(tiers->prepare_store(std::vector{chunk(2)}, 1));
}

// ---- the host tier

TEST(HostChunks, ALaterPositionGoesFirstWhileItsRequestRuns) {
  HostChunksConfig config;
  config.chunks = 3;
  HostChunks host(config);
  const std::vector<Chunk> path = {chunk(1, 16), chunk(2, 32), chunk(3, 48)};
  ASSERT_TRUE(host.prepare_store(path, 0));
  host.complete_store(path, true);
  EXPECT_EQ(host.prepare_store(std::vector{chunk(4)}, 1)->evicted, std::vector{chunk(3).key});
}

TEST(HostChunks, WhatIsOfferedIsNotEvictedForTheRestOfTheOffer) {
  HostChunksConfig config;
  config.chunks = 2;
  HostChunks host(config);
  const std::vector<Chunk> path = {chunk(1, 16), chunk(2, 32)};
  ASSERT_TRUE(host.prepare_store(path, 0));
  host.complete_store(path, true);
  EXPECT_FALSE(host.prepare_store(std::vector{chunk(1, 16), chunk(2, 32), chunk(3, 48)}, 0));
  EXPECT_EQ(host.look_up(chunk(2).key), Found::hit);
}

// ---- ARC

// 11 / 10, ten times, is 10.999999999999998 in vLLM, and its aim is cut to 10.
TEST(ArcChunkOrder, AnAimThatMissesAWholeNumberByRoundingIsCutAsInVllm) {
  const auto order = make_chunk_order(ChunkEviction::arc, 100);
  const auto store = [&](std::uint64_t first, std::uint64_t last) {
    std::vector<Chunk> chunks;
    for (std::uint64_t number = first; number <= last; ++number) chunks.push_back(chunk(number));
    for (const Chunk& stored : chunks) order->enter(stored, 1);
    for (const Chunk& stored : chunks) order->allow(stored.key);
    return chunks;
  };
  const std::vector<Chunk> once = store(1, 10), often = store(11, 21);
  order->touch(often);
  ASSERT_EQ(order->evict(21, {}).value().size(), 21u);
  order->miss(once);
  store(31, 40);
  order->touch(store(41, 41));
  EXPECT_EQ(order->evict(1, {}).value().front(), chunk(31).key);
}

}  // namespace
}  // namespace kvtwin
