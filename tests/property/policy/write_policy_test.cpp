// What all write policies have in common, with random traffic that is served one request at a time.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/policy_test_support.hpp"
#include "tests/splitmix.hpp"
#include "tests/unit/policy/manual_world.hpp"

namespace kvtwin {
namespace {

std::vector<std::vector<PageKey>> random_documents(std::uint64_t seed) {
  test::Splitmix random(seed);
  std::vector<std::vector<PageKey>> documents;
  for (int i = 0; i < 60; ++i) {
    std::vector<PageKey> keys;
    if (!documents.empty() && random.chance(70)) {
      keys = documents[random.below(documents.size())];
      keys.resize(random.below(keys.size() + 1));
    }
    const std::size_t pages = std::min<std::size_t>(14, keys.size() + random.between(1, 6));
    while (keys.size() < pages) {
      keys.push_back(test::chain_key(keys.empty() ? PageKey{} : keys.back(), random.below(3)));
    }
    documents.push_back(keys);
  }
  return documents;
}

std::vector<Tokens> hits(EngineConfig config, const std::vector<std::vector<PageKey>>& documents) {
  EngineRig rig(config);
  std::vector<Tokens> result;
  for (RequestId id = 0; id < documents.size(); ++id) {
    rig.arrive(id, documents[id], documents[id].size() * 4 + 1, 1);
    rig.drain();
    const RequestRecord& record = rig.events.records.at(id);
    result.push_back(record.hit[Tier::device] + record.hit[Tier::host]);
  }
  EXPECT_EQ(rig.events.evicted_pages(Tier::device, Reason::lost), 0U);
  EXPECT_EQ(rig.events.evicted_pages(Tier::device, Reason::host_pressure), 0U);
  EXPECT_TRUE(rig.engine.idle());
  return result;
}

// As long as no page is dropped, every computed page is on some tier, so a request hits the longest prefix that it
// shares with any earlier request. The tier of a hit may differ between policies.
TEST(WritePolicies, hit_the_same_tokens_when_nothing_is_dropped) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    const auto documents = random_documents(seed);
    EngineConfig config = small_config(20, 1000);
    config.evict_unit = seed % 2 == 0 ? EvictUnit::page : EvictUnit::node;
    config.eviction = seed % 3 == 0 ? "fifo" : "lru";
    const std::vector<Tokens> through = hits(config, documents);
    config.write_policy = "write_back";
    for (const std::uint32_t reserve : {0U, 102U, 1024U}) {
      config.clean_reserve = reserve;
      for (const Tiering tiering : {Tiering::inclusive, Tiering::exclusive}) {
        config.tiering = tiering;
        EXPECT_EQ(hits(config, documents), through) << reserve;
      }
    }
  }
}

}  // namespace
}  // namespace kvtwin
