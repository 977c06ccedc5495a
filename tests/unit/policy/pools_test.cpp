// What an insert may take of a request of a hybrid model. The rules of match, lease and eviction are compared with
// SGLang's own (tests/golden/policy/hybrid_test.cpp).
#include <gtest/gtest.h>

#include "manual_world.hpp"
#include "policy/cache.hpp"

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

}  // namespace
}  // namespace kvtwin
