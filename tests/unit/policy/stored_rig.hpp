// Helpers of the tests of storage tiers: a small engine with a disk, documents of any length, the content of a store.
#pragma once

#include "manual_world.hpp"
#include "policy/engine.hpp"

namespace kvtwin {

constexpr Tokens kPage = 4;
constexpr auto kLookUp = StorageVerb::look_up;
constexpr auto kGet = StorageVerb::get;
constexpr auto kSet = StorageVerb::set;
constexpr auto kRemove = StorageVerb::remove;

inline EngineConfig stored_config(Pages device, Pages host, std::string_view policy = "wait_complete") {
  EngineConfig config = small_config(device, host);
  config.storage = {{Tier::disk, 1000, true}};
  config.prefetch_policy = policy;
  config.prefetch_min_tokens = 2 * kPage;
  config.prefetch_host_share = 1024;
  config.path = host == 0 ? CachePath::direct : CachePath::via_host;
  return config;
}

// Returns the first `pages` pages of document `seed`.
inline std::vector<PageKey> chain(std::uint64_t seed, std::size_t pages) {
  std::vector<PageKey> keys;
  for (std::size_t i = 0; i < pages; ++i) {
    const BlockSegment segment{seed * 1000 + i, 0, kPage};
    keys.push_back(block_page_key(keys.empty() ? nullptr : &keys.back(), std::span(&segment, 1)));
  }
  return keys;
}

// Returns `pages` pages: the first `shared` pages of document `seed`, then pages of document `other`.
inline std::vector<PageKey> branch(std::uint64_t seed, std::size_t shared, std::uint64_t other, std::size_t pages) {
  std::vector<PageKey> keys = chain(seed, shared);
  while (keys.size() < pages) {
    const BlockSegment segment{other * 1000 + keys.size(), 0, kPage};
    keys.push_back(block_page_key(keys.empty() ? nullptr : &keys.back(), std::span(&segment, 1)));
  }
  return keys;
}

inline std::set<PageKey>& store_of(EngineRig& rig, Tier tier = Tier::disk) {
  return rig.stores[static_cast<std::size_t>(tier)];
}

inline void put(EngineRig& rig, const std::vector<PageKey>& keys, Tier tier = Tier::disk) {
  store_of(rig, tier).insert(keys.begin(), keys.end());
}

inline void expect_stored(EngineRig& rig, const std::vector<PageKey>& keys, Tier tier = Tier::disk) {
  for (std::size_t i = 0; i < keys.size(); ++i) EXPECT_TRUE(store_of(rig, tier).contains(keys[i])) << "page " << i;
}

inline const RequestRecord& last(const EngineRig& rig) { return rig.events.records.back(); }
inline const RequestRecord& record_of(const EngineRig& rig, RequestId request) {
  return *std::ranges::find(rig.events.records, request, &RequestRecord::request);
}

// Expects that every prompt token has exactly one origin, and that the parts of the TTFT sum up to the TTFT.
inline void expect_ledgers(const EngineRig& rig) {
  for (const RequestRecord& r : rig.events.records) {
    if (r.rejected != Reason::none) continue;
    EXPECT_EQ(r.prompt_tokens, r.hit.sum() + r.recomputed_after_stop + r.miss) << "request " << r.request;
    EXPECT_LE(r.hit[Tier::host], r.prompt_tokens) << "request " << r.request;
    EXPECT_EQ(r.first_token - r.arrival, r.queue_ns + r.prefetch_wait_ns + r.load_wait_ns + r.compute_ns)
        << "request " << r.request;
  }
}

inline void expect_rest(EngineRig& rig) {
  rig.drain();
  EXPECT_TRUE(rig.engine.idle()) << rig.engine.state_summary();
  EXPECT_TRUE(rig.world.stored.empty());
  expect_ledgers(rig);
}

// Returns the oldest operation with this verb; fails the test if there is none.
inline ManualWorld::Stored oldest(const EngineRig& rig, StorageVerb verb) {
  const auto at = std::ranges::find(rig.world.stored, verb, [](const auto& o) { return o.work.verb; });
  EXPECT_NE(at, rig.world.stored.end());
  return at == rig.world.stored.end() ? ManualWorld::Stored{} : *at;
}

inline std::size_t in_flight(const EngineRig& rig, StorageVerb verb) {
  return static_cast<std::size_t>(
      std::ranges::count(rig.world.stored, verb, [](const auto& o) { return o.work.verb; }));
}

}  // namespace kvtwin
