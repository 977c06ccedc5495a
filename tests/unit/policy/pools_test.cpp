// What an insert may take of a request of a hybrid model. The rules of match, lease and eviction are compared with
// SGLang's own (tests/golden/policy/hybrid_test.cpp).
#include <gtest/gtest.h>

#include "manual_world.hpp"
#include "policy/cache.hpp"
#include "tests/policy_test_support.hpp"

namespace kvtwin {
namespace {

struct Rig {
  explicit Rig(Tokens page, const std::string& points) {
    config.shape = {1, 1, 1, 16, static_cast<std::uint32_t>(page)};
    config.device_pages = 1000;
    config.evict_unit = EvictUnit::node;
    config.state_points = points;
    config.pools.push_back({Closure::point, 0, 8, 0, config.shape});
    cache.emplace(config, world, storage.emplace(config, world, sink), sink);
    EXPECT_TRUE(cache->enter_pools({}, cache->match({}), 1, pools));
    cache->take_states(pools, cache->tree().root());
  }

  EngineConfig config;
  ManualWorld world;
  DecisionLog decisions;
  EventSink sink{world, decisions, nullptr};
  std::optional<Storage> storage;
  std::optional<Cache> cache;
  RequestPools pools;
};

// The state of 64 tokens, left in the answer, is none of the prompt's 40.
TEST(Pools, AnAnswerThatIsNotCachedLeavesNoStateOfItself) {
  Rig rig(16, "extra_buffer(chunk=64, interval=64)");
  rig.cache->track_decode(rig.pools, {}, 40, 30, 0);
  EXPECT_EQ(rig.pools.tracked, 64U);
  EXPECT_EQ(rig.cache->insertable(rig.pools, {}, 70, 40, 0, true), 0U);
  EXPECT_EQ(rig.cache->insertable(rig.pools, {}, 70, 70, 5, true), 0U) << "the index has 80 tokens";
}

TEST(Pools, TheStateBeforeTheLastOneMayBeTheLongestCachedOne) {
  Rig rig(16, "extra_buffer(chunk=64, interval=64)");
  rig.cache->track_decode(rig.pools, {}, 40, 90, 0);
  const SlotId earlier = rig.pools.parts[0].slots[2 - rig.pools.last];  // slots: the running state, then two
  EXPECT_EQ(rig.cache->insertable(rig.pools, {}, 130, 100, 0, true), 64U);
  EXPECT_EQ(rig.pools.given, earlier);
}

TEST(Pools, WithoutBuffersTheStateIsThatOfTheWholeSequence) {
  Rig rig(1, "no_buffer");
  EXPECT_EQ(rig.cache->insertable(rig.pools, {}, 70, 40, 0, true), 0U);
  EXPECT_EQ(rig.cache->insertable(rig.pools, {}, 70, 70, 0, true), 70U);
}

// A pass that begins inside a page cannot leave a state: no node ends there.
TEST(Pools, AStateIsAtTheEndOfAPage) {
  Rig rig(16, "extra_buffer(chunk=64, interval=64)");
  rig.cache->track_prefill(rig.pools, 24, 200);
  EXPECT_EQ(rig.pools.tracked, 0U);
  EXPECT_EQ(rig.cache->cut_chunk(rig.pools, 24, 100, 500), 88U) << "up to token 112";
  EXPECT_EQ(rig.cache->cut_chunk(rig.pools, 24, 5, 500), 5U);
  rig.cache->track_prefill(rig.pools, 112, 200);
  EXPECT_EQ(rig.pools.tracked, 176U);
}

// The KV of 160 tokens is cached without a state: the next prompt leaves one where it parts, and goes on in another
// pass.
TEST(Pools, PassesEndWhereTheStatePointsSay) {
  Rig rig(16, "overlap(states=2, apart=64, chunk=64)");
  const std::vector<PageKey> keys = test::chain({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  std::vector<SlotId> slots;
  ASSERT_TRUE(rig.cache->allocate(keys.size(), slots));
  static_cast<void>(rig.cache->insert(keys, slots, 0, false, {}, 0, nullptr, &rig.pools));
  RequestPools next;
  ASSERT_TRUE(rig.cache->enter_pools(keys, rig.cache->match(keys), 400, next));
  EXPECT_EQ(next.branch, 128U);
  EXPECT_EQ(next.pass_ends, std::vector<Tokens>{128});
  EXPECT_EQ(rig.cache->cut_chunk(next, 0, 400, 400), 128U);
  rig.cache->track_prefill(next, 0, 128);
  EXPECT_EQ(next.tracked, 128U);
  EXPECT_EQ(rig.cache->cut_chunk(next, 128, 272, 400), 272U);
  rig.cache->leave_pools(next);
}

// A request that continues from a state on L1 copies it first. One whose state is loaded gets it straight from L2.
TEST(Pools, AMatchedStateIsCopiedBeforeTheFirstPass) {
  EngineConfig config = small_config(64, 0);
  config.evict_unit = EvictUnit::node;
  config.max_running = 2;
  config.chunk_tokens = 16;
  config.state_points = "extra_buffer(chunk=4, interval=16)";
  config.pools.push_back({Closure::point, 0, 12, 0, config.shape});
  EngineRig rig(config);
  const std::vector<PageKey> keys = document({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  rig.arrive(0, keys, 33, 1);
  ASSERT_EQ(rig.world.passes.size(), 1U);
  EXPECT_EQ(rig.world.passes[0].shape.copied_states, 0U);
  rig.drain();
  rig.arrive(1, keys, 49, 1);
  ASSERT_EQ(rig.world.passes.size(), 1U);
  EXPECT_EQ(rig.world.passes[0].shape.prefill_tokens, 16U) << "behind a prefix";
  EXPECT_EQ(rig.world.passes[0].shape.copied_states, 1U);
  rig.complete_pass();
  EXPECT_EQ(rig.world.passes.at(0).shape.copied_states, 0U) << "once";
  rig.drain();
}

// Write-back with windows of a page.
EngineConfig written_back(Pages device, Pages host) {
  EngineConfig config = small_config(device, host);
  config.write_policy = "write_back";
  config.evict_unit = EvictUnit::node;
  config.window_release_tokens = 1;
  config.pools.push_back({Closure::tail, 4, 12, host, config.shape});
  return config;
}

TEST(Pools, APassWaitsForTheCopiesOfWhatItsStepHasEvicted) {
  EngineRig rig(written_back(6, 16));
  rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
  rig.drain();
  EXPECT_EQ(rig.events.count(EventKind::backup_queued), 0U);
  rig.arrive(1, document({11, 12, 13, 14}), 17, 1);
  ASSERT_EQ(rig.world.transfers.size(), 1U);
  EXPECT_EQ(rig.world.transfers[0].lane, Lane::d2h);
  EXPECT_EQ(rig.world.transfers[0].pages.size(), 4U);
  EXPECT_EQ(rig.events.evicted_pages(Tier::device, Reason::demoted), 4U);
  EXPECT_TRUE(rig.world.passes.empty());
  rig.complete_transfer(Status::failed);
  EXPECT_TRUE(rig.world.passes.empty());
  ASSERT_EQ(rig.world.transfers.size(), 1U) << "nothing else has read the copy, and nothing has written the source";
  rig.arrive(2, document({1, 2, 3, 4, 5}), 21, 1);
  EXPECT_TRUE(rig.world.passes.empty());
  rig.complete_transfer();
  EXPECT_EQ(rig.world.passes.size(), 1U);
  rig.drain();
  EXPECT_EQ(rig.events.records.at(2).hit[Tier::host], 16U);
  EXPECT_EQ(rig.events.count(EventKind::backup_dropped), 0U);
  EXPECT_TRUE(rig.engine.idle());
}

TEST(Pools, ACopyIsNotMadeIfL2GivesItsSlotsBackInTheSameStep) {
  EngineRig rig(written_back(10, 4));
  rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
  rig.drain();
  rig.arrive(1, document({11, 12, 13, 14}), 17, 1);
  rig.drain();
  rig.arrive(2, document({21, 22, 23, 24, 25, 26, 27, 28}), 33, 1);  // evicts both
  ASSERT_EQ(rig.world.transfers.size(), 1U);
  ASSERT_EQ(rig.world.transfers[0].pages.size(), 4U) << "L2 holds one of them";
  const std::vector<PageKey> kept = document({11, 12, 13, 14});
  for (const PageMove& move : rig.world.transfers[0].pages) {
    EXPECT_NE(std::ranges::find(kept, move.key), kept.end());
  }
  rig.drain();
  EXPECT_TRUE(rig.engine.idle());
}

}  // namespace
}  // namespace kvtwin
