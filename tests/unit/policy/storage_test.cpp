// Writes to the storage tiers, and what they hold, one completion at a time. Pages have four tokens.
#include <gtest/gtest.h>

#include "stored_rig.hpp"

namespace kvtwin {
namespace {

TEST(Storage, more_than_its_share_being_written_is_dropped) {
  EngineConfig config = stored_config(32, 16);
  config.storage_write_share = 512;  // 8 pages
  EngineRig rig(config);
  for (RequestId r = 0; r < 3; ++r) {
    rig.arrive(r, chain(r, 4), 17, 1);
    rig.complete_stored(kLookUp, 0);
    rig.complete_pass();
    rig.complete_transfer();
  }
  EXPECT_EQ(rig.events.page_count(EventKind::store_queued), 8U);
  EXPECT_EQ(rig.events.page_count(EventKind::store_dropped), 4U);
  rig.complete_stored(kSet, EngineRig::kAll);
  rig.arrive(3, chain(3, 4), 17, 1);
  rig.complete_stored(kLookUp, 0);
  rig.complete_pass();
  rig.complete_transfer();
  EXPECT_EQ(rig.events.page_count(EventKind::store_queued), 12U) << "there is room again";
  expect_rest(rig);
}

TEST(Storage, an_owned_tier_removes_a_page_that_a_get_finds_missing) {
  for (const bool owned : {true, false}) {
    EngineConfig config = stored_config(16, 32);
    config.storage[0].owned = owned;
    EngineRig rig(config);
    rig.arrive(0, chain(1, 4), 17, 1);
    rig.complete_stored(kLookUp, 4);
    rig.complete_stored(kGet, 2);
    ASSERT_EQ(in_flight(rig, kRemove), owned ? 1U : 0U);
    if (owned) {
      ASSERT_EQ(oldest(rig, kRemove).pages.size(), 1U);
      EXPECT_EQ(oldest(rig, kRemove).pages[0].key, chain(1, 4)[2]);
    }
    expect_rest(rig);
    EXPECT_EQ(last(rig).hit_disk, 8U);
    EXPECT_TRUE(store_of(rig).contains(chain(1, 4)[2])) << "what was missing is written again";
    EXPECT_EQ(rig.events.page_count(EventKind::store_done), 1U) << "and nothing else: that is believed to be there";
  }
}

TEST(Storage, a_look_up_corrects_what_was_believed) {
  EngineConfig config = stored_config(4, 4);
  config.storage[0].owned = false;
  config.storage_write_share = 1024;
  EngineRig rig(config);
  rig.arrive(0, chain(1, 3), 13, 1);
  rig.drain();
  rig.arrive(1, chain(2, 3), 13, 1);
  rig.drain();
  rig.arrive(2, chain(3, 3), 13, 1);  // by now neither L1 nor L2 has the first
  rig.drain();
  store_of(rig).erase(chain(1, 3)[1]);
  rig.arrive(3, chain(1, 3), 13, 1);
  expect_rest(rig);
  EXPECT_TRUE(store_of(rig).contains(chain(1, 3)[1])) << "it was written again";
}

// What it learns from visits it can't learn of storage, where pages come and go before and after them.
TEST(Storage, goes_by_lru_where_tide_is_asked_for) {
  std::set<PageKey> stored[2];
  for (const bool tide : {false, true}) {
    EngineConfig config = stored_config(4'000, 4'000);
    config.eviction = tide ? "tide" : "lru";
    config.cost_doubling_tokens = kPage;  // so that depth matters to it
    config.storage[0].pages = 60;
    config.storage_write_share = 1024;
    EngineRig rig(config);
    for (RequestId r = 0; r < 300; ++r) {
      const std::size_t pages = 2 + r * r % 11;
      rig.arrive(r, chain(r, pages), pages * kPage + 1, 1);
      rig.drain();
    }
    stored[tide] = store_of(rig);
  }
  EXPECT_GT(stored[0].size(), 50U);
  EXPECT_EQ(stored[0], stored[1]);
}

TEST(Storage, completions_that_come_twice_change_nothing) {
  EngineConfig config = stored_config(16, 32);
  config.storage_retries = 1;
  EngineRig rig(config);
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.complete_stored(kLookUp, 0);
  rig.complete_pass();
  rig.complete_transfer();
  const OperationId set = oldest(rig, kSet).id;
  rig.complete_stored(kSet, 4);
  rig.complete_answer(set, 0, Status::failed);
  EXPECT_TRUE(rig.world.stored.empty());
  EXPECT_EQ(rig.events.page_count(EventKind::store_done), 4U);
  EXPECT_EQ(rig.events.count(EventKind::store_retried), 0U);
  expect_rest(rig);
}

EngineConfig write_back_config(Pages device, Pages host) {
  EngineConfig config = stored_config(device, host);
  config.write_policy = WritePolicy::write_back;
  config.clean_reserve = 0;
  return config;
}

TEST(Storage, what_write_back_sends_to_the_host_goes_on_to_storage) {
  EngineRig rig(write_back_config(6, 16));
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.drain();
  EXPECT_TRUE(store_of(rig).empty());
  rig.arrive(1, chain(2, 4), 17, 1);
  expect_rest(rig);
  EXPECT_EQ(rig.events.page_count(EventKind::store_done), 3U);
  EXPECT_FALSE(store_of(rig).contains(chain(1, 1)[0])) << "it is still on L1, and nowhere else";
  for (std::size_t i = 1; i < 4; ++i) EXPECT_TRUE(store_of(rig).contains(chain(1, 4)[i]));
}

TEST(Storage, a_page_that_only_the_device_has_stays_while_those_below_it_are_being_written) {
  EngineConfig config = write_back_config(6, 3);
  config.storage_write_share = 1024;
  EngineRig rig(config);
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.drain();
  rig.arrive(1, chain(2, 4), 17, 1);  // three of those leave, and fill L2
  rig.complete_stored(kLookUp, 0);
  rig.complete_transfer();
  ASSERT_EQ(in_flight(rig, kSet), 1U);
  rig.complete_pass();
  rig.arrive(2, chain(3, 5), 21, 1);  // needs the whole of L1 but for one page
  rig.complete_stored(kLookUp, 0);
  EXPECT_EQ(rig.events.evicted_pages(Tier::host, Reason::host_pressure), 0U) << "they are being read";
  rig.arrive(3, chain(4, 6), 25, 1);
  expect_rest(rig);
  EXPECT_EQ(rig.events.records.size(), 4U);
}

}  // namespace
}  // namespace kvtwin
