// Tests writes to storage tiers, and the content of the tiers, one completion at a time. Pages have four tokens.
#include <gtest/gtest.h>

#include "policy/storage/storage.hpp"
#include "stored_rig.hpp"
#include "tests/policy_test_support.hpp"

namespace kvtwin {
namespace {

TEST(Storage, more_than_its_share_being_written_is_dropped) {
  EngineConfig config = stored_config(32, 16);
  config.storage_write_share = 512;  // half of the host tier: 8 pages
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

// Serves a prompt of four pages up to its write.
void compute_and_write(EngineRig& rig, RequestId request) {
  rig.arrive(request, chain(request, 4), 17, 1);
  rig.complete_stored(kLookUp, 0);
  rig.complete_pass();
  rig.complete_transfer();
}

TEST(Storage, a_throttle_leaves_out_a_growing_part_of_the_writes) {
  EngineConfig config = stored_config(64, 64);
  config.storage_write_share = 512;  // 32 pages
  config.storage_backlog = StorageBacklog::throttle;
  EngineRig rig(config);
  std::vector<Pages> written;
  for (RequestId r = 0; r < 16; ++r) {
    compute_and_write(rig, r);
    written.push_back(rig.events.page_count(EventKind::store_queued));
  }
  // The parts of a write that are left out: none behind 16 pages, a quarter behind 20, a half behind 24, and so on.
  EXPECT_EQ(written, (std::vector<Pages>{4, 8, 12, 16, 20, 24, 28, 28, 28, 28, 32, 32, 32, 32, 32, 32}));
  EXPECT_EQ(rig.events.page_count(EventKind::store_dropped), 64U - 32U);
  expect_rest(rig);
}

TEST(Storage, pages_wait_for_their_write_without_a_limit) {
  EngineConfig config = stored_config(32, 16);
  config.storage_write_share = 512;
  config.storage_backlog = StorageBacklog::wait;
  EngineRig rig(config);
  for (RequestId r = 0; r < 4; ++r) compute_and_write(rig, r);
  rig.arrive(4, chain(4, 4), 17, 1);
  rig.complete_stored(kLookUp, 0);
  rig.complete_pass();
  EXPECT_EQ(rig.events.page_count(EventKind::store_queued), 16U) << "all that the host has room for";
  EXPECT_EQ(rig.events.page_count(EventKind::store_dropped), 0U);
  EXPECT_EQ(rig.events.page_count(EventKind::backup_dropped), 4U) << "its pages stay until they have been written";
  EXPECT_EQ(rig.events.count(EventKind::store_awaited), 0U);
  expect_rest(rig);
}

TEST(Storage, writes_keep_requests_from_being_admitted) {
  EngineConfig config = stored_config(32, 16);
  config.storage_write_share = 512;  // 8 pages
  config.storage_backlog = StorageBacklog::block;
  EngineRig rig(config);
  for (RequestId r = 0; r < 3; ++r) compute_and_write(rig, r);
  EXPECT_EQ(rig.events.page_count(EventKind::store_queued), 12U) << "the third was admitted at 8 pages";
  rig.arrive(3, chain(3, 4), 17, 1);
  rig.complete_stored(kLookUp, 0);
  EXPECT_EQ(rig.events.count(EventKind::admitted), 3U);
  EXPECT_EQ(rig.events.count(EventKind::store_awaited), 1U);
  rig.complete_stored(kSet, EngineRig::kAll);
  EXPECT_EQ(rig.events.count(EventKind::admitted), 4U) << "8 pages are no more than the share";
  EXPECT_EQ(rig.events.count(EventKind::store_awaited), 2U) << "the end of the wait is told too";
  EXPECT_EQ(rig.events.page_count(EventKind::store_dropped), 0U);
  expect_rest(rig);
}

TEST(Storage, tiers_are_asked_in_order_and_each_hit_is_its_own_tiers) {
  EngineConfig config = stored_config(16, 32);
  config.storage = {{Tier::disk, 1000, true}, {Tier::shared_fs, 1000, false}, {Tier::remote, 1000, false}};
  EngineRig rig(config);
  put(rig, chain(1, 2));
  put(rig, chain(1, 5), Tier::shared_fs);
  put(rig, chain(1, 7), Tier::remote);
  rig.arrive(0, chain(1, 8), 33, 1);
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit[Tier::disk], 2 * kPage);
  EXPECT_EQ(last(rig).hit[Tier::shared_fs], 3 * kPage);
  EXPECT_EQ(last(rig).hit[Tier::remote], 2 * kPage);
  EXPECT_EQ(last(rig).miss, kPage + 1);
  for (const TierSpec& spec : kStorageSpecs) expect_stored(rig, chain(1, 8), spec.tier);
  EXPECT_EQ(rig.events.evicted_pages(Tier::shared_fs, Reason::lost), 0U) << "what is not ours is never removed by us";
}

TEST(Storage, reductions_are_as_wide_as_the_tiers_that_there_are) {
  for (std::size_t tiers = 0; tiers <= kStorageTiers; ++tiers) {
    EngineConfig config = stored_config(16, 32);
    config.storage.clear();
    for (const TierSpec& spec : kStorageSpecs.first(tiers)) config.storage.push_back({spec.tier, 1000, spec.owned});
    ManualWorld world;
    DecisionLog decisions;
    Engine engine(config, world, decisions, nullptr);
    engine.handle({0, Arrival{0, 4, 1, 0, 0, {}}});
    ASSERT_EQ(world.reductions.size(), 1U);
    EXPECT_EQ(world.reductions.front().values.size(), 8 + 4 * tiers);
    // All ranks enter reductions of the same width. So a narrower minimum breaks the contract.
    const test::ThrowingChecks checks;
    EXPECT_THROW(engine.handle({0, Reduction{world.reductions.front().id, {0, 0, 0}}}), test::BrokenPromise);
  }
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
    EXPECT_EQ(last(rig).hit[Tier::disk], 8U);
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
  rig.arrive(2, chain(3, 3), 13, 1);  // evicts the first document from L1 and L2
  rig.drain();
  store_of(rig).erase(chain(1, 3)[1]);
  rig.arrive(3, chain(1, 3), 13, 1);
  expect_rest(rig);
  EXPECT_TRUE(store_of(rig).contains(chain(1, 3)[1])) << "it was written again";
}

// tide cannot learn from visits on storage tiers, because pages enter and leave before and after the visits.
TEST(Storage, goes_by_lru_where_tide_is_asked_for) {
  std::set<PageKey> stored[2];
  for (const bool tide : {false, true}) {
    EngineConfig config = stored_config(4'000, 4'000);
    config.eviction = tide ? "tide" : "lru";
    config.cost_doubling_tokens = kPage;  // so that the depth matters to tide
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
  config.write_policy = "write_back";
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

// After this function, chain 1 is on L2, and a write of its last three pages from L2 to storage is in flight.
void begin_storage_write(EngineRig& rig) {
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.drain();
  rig.arrive(1, chain(2, 4), 17, 1);
  rig.complete_stored(kLookUp, 0);
  rig.complete_transfer();
  rig.complete_pass();
  ASSERT_EQ(in_flight(rig, kSet), 1U);
  ASSERT_EQ(oldest(rig, kSet).pages.size(), 3U);
}

EngineConfig exclusive_config() {
  EngineConfig config = write_back_config(6, 16);
  config.tiering = Tiering::exclusive;
  config.storage_write_share = 1024;
  return config;
}

TEST(Storage, exclusive_tiers_keep_a_loaded_page_on_the_host_while_a_storage_write_reads_it) {
  EngineRig rig(exclusive_config());
  begin_storage_write(rig);
  rig.arrive(2, chain(1, 4), 17, 1);
  while (!rig.world.transfers.empty()) rig.complete_transfer();
  rig.complete_pass();
  ASSERT_EQ(rig.events.page_count(EventKind::load_done), 3U);
  ASSERT_EQ(oldest(rig, kSet).pages[0].key, chain(1, 2)[1]);
  EXPECT_EQ(rig.events.evicted_pages(Tier::host, Reason::shadowed), 0U);
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit[Tier::host], 12U);
}

TEST(Storage, exclusive_tiers_keep_a_recomputed_page_on_the_host_while_a_storage_write_reads_it) {
  EngineConfig config = exclusive_config();
  config.load_back_min_tokens = 1000;  // no load-back: the request computes its pages again
  EngineRig rig(config);
  begin_storage_write(rig);
  rig.arrive(2, chain(1, 4), 17, 1);
  while (!rig.world.transfers.empty()) rig.complete_transfer();
  rig.complete_pass();
  ASSERT_EQ(last(rig).request, 2U);
  EXPECT_EQ(last(rig).hit[Tier::host], 0U);
  EXPECT_EQ(rig.events.evicted_pages(Tier::host, Reason::shadowed), 0U);
  expect_rest(rig);
}

TEST(Storage, a_page_that_only_the_device_has_stays_while_those_below_it_are_being_written) {
  EngineConfig config = write_back_config(6, 3);
  config.storage_write_share = 1024;
  EngineRig rig(config);
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.drain();
  rig.arrive(1, chain(2, 4), 17, 1);  // three pages of chain 1 leave L1 and fill L2
  rig.complete_stored(kLookUp, 0);
  rig.complete_transfer();
  ASSERT_EQ(in_flight(rig, kSet), 1U);
  rig.complete_pass();
  rig.arrive(2, chain(3, 5), 21, 1);  // needs all pages of L1 except one
  rig.complete_stored(kLookUp, 0);
  EXPECT_EQ(rig.events.evicted_pages(Tier::host, Reason::host_pressure), 0U) << "they are being read";
  rig.arrive(3, chain(4, 6), 25, 1);
  expect_rest(rig);
  EXPECT_EQ(rig.events.records.size(), 4U);
}

// ---- the module alone ------------------------------------------------------------------------------------

// A Storage with one tier and one rank, so the answer of the rank is the agreed answer.
class StorageRig {
 public:
  explicit StorageRig(Pages capacity, bool owned = true) : config_(config_of(capacity, owned)) {}

  std::uint32_t write(const std::vector<PageKey>& keys, std::size_t first, std::size_t count) {
    std::vector<SlotId> slots;
    for (std::size_t i = 0; i < count; ++i) slots.push_back(static_cast<SlotId>(i));
    const PageKey* prior = first == 0 ? nullptr : &keys[first - 1];
    return storage.write(1, prior, std::span(keys).subspan(first, count), slots, Tier::host, 1, 0);
  }
  StorageAnswer get(const std::vector<PageKey>& keys) {
    std::vector<SlotId> slots;
    for (std::size_t i = 0; i < keys.size(); ++i) slots.push_back(static_cast<SlotId>(i));
    return storage.get(0, 0, keys, 0, slots, Tier::host);
  }
  // Completes the oldest operation with this verb.
  void answer(StorageVerb verb, Pages pages, Status status = Status::done) {
    const auto at = std::ranges::find(world.stored, verb, [](const auto& o) { return o.work.verb; });
    ASSERT_NE(at, world.stored.end());
    Completion completion;
    completion.id = at->id;
    completion.pages = pages;
    completion.status = status;
    world.stored.erase(at);
    EXPECT_TRUE(storage.complete(completion));
    EXPECT_TRUE(storage.take(storage.heads()));
    storage.check_invariants();
  }
  // Returns the keys of the removes in flight.
  std::vector<PageKey> leaving() const {
    std::vector<PageKey> keys;
    for (const ManualWorld::Stored& operation : world.stored) {
      if (operation.work.verb != kRemove) continue;
      for (const StoragePage& page : operation.pages) keys.push_back(page.key);
    }
    return keys;
  }
  bool knows(const PageKey& key) const { return storage.catalog(0).knows(key); }

 private:
  static EngineConfig config_of(Pages capacity, bool owned) {
    EngineConfig config = stored_config(64, 64);
    config.storage = {{Tier::disk, capacity, owned}};
    config.storage_write_share = 1024;
    config.storage_retries = 0;
    return config;
  }
  EngineConfig config_;
  DecisionLog decisions_;

 public:
  ManualWorld world;
  EventCounter events;
  EventSink sink_{world, decisions_, &events};
  Storage storage{config_, world, sink_};
};

// After a failed set, some of the other pages may be stored. Without the remove, they would use space that no catalog
// counts.
TEST(StorageModule, a_set_that_failed_for_good_removes_the_rest_from_an_owned_tier) {
  for (const bool owned : {true, false}) {
    StorageRig rig(8, owned);
    const std::vector<PageKey> keys = chain(1, 4);
    ASSERT_EQ(rig.write(keys, 0, 4), 1U);
    rig.answer(kSet, 1, Status::failed);
    EXPECT_TRUE(rig.knows(keys[0]));
    for (std::size_t i = 1; i < 4; ++i) EXPECT_FALSE(rig.knows(keys[i])) << i;
    EXPECT_EQ(rig.leaving(), owned ? std::vector<PageKey>(keys.begin() + 1, keys.end()) : std::vector<PageKey>());
    EXPECT_EQ(rig.storage.ended().size(), 1U);
  }
}

// The store may answer a look-up before it executes a remove that was submitted later.
TEST(StorageModule, a_look_up_does_not_find_a_page_that_is_being_removed) {
  StorageRig rig(4);
  const std::vector<PageKey> keys = chain(1, 4);
  rig.write(keys, 0, 4);
  rig.answer(kSet, 4);
  rig.storage.look_up(0, 0, keys, 0);
  rig.get(keys);
  rig.answer(kGet, 3, Status::failed);
  ASSERT_EQ(rig.leaving(), std::vector{keys[3]});
  rig.answer(kLookUp, 4);
  EXPECT_TRUE(rig.knows(keys[2]));
  EXPECT_FALSE(rig.knows(keys[3]));
  EXPECT_EQ(rig.storage.answers().front().pages, 3U);
  rig.answer(kRemove, 1);
  rig.storage.look_up(0, 0, keys, 0);
  rig.answer(kLookUp, 4);
  EXPECT_TRUE(rig.knows(keys[3])) << "the remove is over: another engine has written the pages since";
}

TEST(StorageModule, a_cancelled_get_forgets_no_page_and_one_that_fell_short_does) {
  for (const bool cancelled : {true, false}) {
    StorageRig rig(8);
    const std::vector<PageKey> keys = chain(1, 4);
    rig.write(keys, 0, 4);
    rig.answer(kSet, 4);
    const StorageAnswer get = rig.get(keys);
    if (cancelled) rig.storage.cancel(get);
    rig.answer(kGet, 2, cancelled ? Status::cancelled : Status::failed);
    EXPECT_EQ(rig.knows(keys[2]), cancelled);
    EXPECT_EQ(rig.leaving(), cancelled ? std::vector<PageKey>() : std::vector{keys[2]});
    EXPECT_TRUE(rig.knows(keys[3]));
  }
}

TEST(StorageModule, making_room_does_not_evict_the_parent_of_what_is_about_to_be_written) {
  StorageRig rig(3);
  const std::vector<PageKey> keys = chain(1, 4);
  rig.write(keys, 0, 3);
  rig.answer(kSet, 3);
  EXPECT_EQ(rig.write(keys, 3, 1), 0U) << "all that could go is above it";
  EXPECT_TRUE(rig.leaving().empty());
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(rig.knows(keys[i])) << i;
  EXPECT_EQ(rig.events.page_count(EventKind::store_dropped), 1U);
  rig.storage.check_invariants();
}

// The tier counts written pages and pages found by look-ups, up to its capacity.
TEST(StorageModule, a_tier_takes_its_capacity_and_no_page_more) {
  const std::vector<PageKey> keys = chain(1, 4);
  StorageRig written(3);
  written.write(keys, 0, 4);
  EXPECT_EQ(written.storage.catalog(0).used(), 3U);
  EXPECT_EQ(written.events.page_count(EventKind::store_dropped), 1U);
  StorageRig seen(3);
  seen.storage.look_up(0, 0, keys, 0);
  seen.answer(kLookUp, 4);
  EXPECT_EQ(seen.storage.catalog(0).used(), 3U);
}

}  // namespace
}  // namespace kvtwin
