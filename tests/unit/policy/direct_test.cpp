// Loads from a storage tier directly to L1, alone and together with pages that L1 and L2 hold. A page has four tokens.
#include <gtest/gtest.h>

#include <map>

#include "stored_rig.hpp"

namespace kvtwin {
namespace {

EngineConfig automatic_config(Pages device, Pages host) {
  EngineConfig config = stored_config(device, host);
  config.path = CachePath::automatic;
  return config;
}

TEST(Automatic, the_head_of_the_queue_is_loaded_straight_and_one_behind_it_by_the_host) {
  EngineConfig config = automatic_config(32, 32);
  config.max_running = 1;
  EngineRig rig(config);
  put(rig, chain(1, 4));
  put(rig, chain(2, 4));
  put(rig, chain(3, 4));
  rig.arrive(0, chain(1, 4), 17, 1);  // the head of the queue
  rig.arrive(1, chain(2, 4), 17, 1);
  rig.arrive(2, chain(3, 4), 17, 1);
  rig.complete_stored();
  ASSERT_EQ(in_flight(rig, kGet), 1U);
  EXPECT_EQ(oldest(rig, kGet).work.memory, Tier::device);
  ASSERT_EQ(rig.world.passes.size(), 1U);
  while (in_flight(rig, kLookUp) > 0) rig.complete_stored(kLookUp, 4);
  rig.complete_stored(kGet, 4);
  rig.complete_pass();
  std::map<PageKey, Tier> to;
  for (const auto& operation : rig.world.stored) {
    if (operation.work.verb == kGet) to[operation.pages[0].key] = operation.work.memory;
  }
  EXPECT_EQ(to.at(chain(2, 1)[0]), Tier::device) << "it had become the head by then";
  EXPECT_EQ(to.at(chain(3, 1)[0]), Tier::host);
  expect_rest(rig);
  for (const RequestRecord& record : rig.events.records) EXPECT_EQ(record.hit[Tier::disk], 16U) << record.request;
}

// A prompt of nine pages: the first three are only on L2, the next three on disk, the last three on the remote tier.
struct ThreeTiers {
  explicit ThreeTiers(bool disk_owned = true) : rig(config(disk_owned)) {
    rig.arrive(0, chain(1, 3), 13, 1);
    rig.drain();
    rig.arrive(1, chain(2, 15), 61, 1);
    rig.drain();
    store_of(rig).clear();
    put(rig, {keys.begin() + 3, keys.begin() + 6});
    put(rig, {keys.begin() + 6, keys.end()}, Tier::remote);
    rig.arrive(2, keys, 37, 1);
    rig.complete_stored();
    rig.complete_stored();
  }
  static EngineConfig config(bool disk_owned) {
    EngineConfig config = automatic_config(16, 32);
    config.storage = {{Tier::disk, 1000, disk_owned}, {Tier::remote, 1000, false}};
    return config;
  }
  OperationId get_from(Tier tier) {
    const auto at = std::ranges::find(rig.world.stored, tier, [](const auto& o) { return o.work.tier; });
    EXPECT_EQ(at->work.verb, kGet);
    return at->id;
  }
  // Completes the three loads (true: it succeeds) and then the pass that waits for them.
  void end(bool host, bool disk, bool remote) {
    ASSERT_EQ(rig.world.passes.size(), 1U);
    ASSERT_EQ(rig.world.passes[0].gates.size(), 3U);
    EXPECT_EQ(rig.world.passes[0].shape.prefill_tokens, 1U);
    rig.complete_stored(kGet, disk ? 3 : 1);
    rig.complete_stored(kGet, remote ? 3 : 0);
    rig.complete_transfer(host ? Status::done : Status::failed);
    rig.complete_pass(host && disk && remote ? Status::done : Status::gate_failed);
  }
  const std::vector<PageKey> keys = chain(1, 9);
  EngineRig rig;
};

TEST(Automatic, one_prompt_is_loaded_from_host_disk_and_remote_at_once) {
  ThreeTiers tiers;
  tiers.end(true, true, true);
  expect_rest(tiers.rig);
  EXPECT_EQ(last(tiers.rig).hit[Tier::host], 12U);
  EXPECT_EQ(last(tiers.rig).hit[Tier::disk], 12U);
  EXPECT_EQ(last(tiers.rig).hit[Tier::remote], 12U);
  EXPECT_EQ(last(tiers.rig).miss, 1U);
}

TEST(Automatic, whichever_part_fails_is_computed_and_nothing_is_left_of_it) {
  for (int failing = 1; failing < 8; ++failing) {
    SCOPED_TRACE(failing);
    const bool host = (failing & 1) == 0, disk = (failing & 2) == 0, remote = (failing & 4) == 0;
    ThreeTiers tiers;
    tiers.end(host, disk, remote);
    ASSERT_EQ(tiers.rig.world.passes.size(), 1U);
    const Pages good = !host ? 0 : !disk ? 3 : !remote ? 6 : 9;
    EXPECT_EQ(tiers.rig.world.passes[0].shape.prefill_tokens, 37 - good * kPage) << "what is above the failure stays";
    EXPECT_TRUE(tiers.rig.world.passes[0].gates.empty());
    expect_rest(tiers.rig);
    EXPECT_EQ(last(tiers.rig).retractions, 1U);
    tiers.rig.arrive(3, tiers.keys, 37, 1);
    expect_rest(tiers.rig);
    EXPECT_EQ(last(tiers.rig).hit[Tier::device], 36U);
  }
}

TEST(Direct, two_requests_that_share_a_load_which_fails_both_compute) {
  EngineRig rig(stored_config(32, 0));
  put(rig, chain(1, 6));
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.arrive(1, chain(1, 6), 25, 1);
  rig.complete_stored();
  if (in_flight(rig, kLookUp) > 0) rig.complete_stored(kLookUp, 6);
  while (in_flight(rig, kGet) > 0) rig.complete_stored(kGet, 1);
  while (!rig.world.passes.empty() && !rig.world.passes[0].gates.empty()) rig.complete_pass(Status::gate_failed);
  expect_rest(rig);
  EXPECT_EQ(rig.events.records.size(), 2U);
}

// Two requests are admitted into one pass, and the second request loads the pages after those that the first one loads.
TEST(Direct, a_load_below_one_that_fails_goes_with_it) {
  EngineConfig config = stored_config(40, 0);
  config.burst_steps = 1;
  EngineRig rig(config);
  put(rig, chain(1, 8));
  rig.arrive(0, chain(5, 1), 5, 40);
  rig.complete_pass();
  rig.arrive(1, chain(1, 4), 17, 1);
  rig.arrive(2, chain(1, 8), 33, 1);
  rig.complete_pass();  // request 0 continues to generate tokens during both lookups
  ASSERT_EQ(in_flight(rig, kLookUp), 2U);
  while (in_flight(rig, kLookUp) > 0) rig.complete_stored(kLookUp, EngineRig::kAll);
  rig.complete_pass();
  ASSERT_EQ(in_flight(rig, kGet), 2U);
  const auto gates = rig.world.passes.at(0).gates;
  ASSERT_EQ(gates.size(), 2U);
  rig.complete_stored(kGet, 0);
  rig.complete_stored(kGet, 4);
  rig.complete_pass(Status::gate_failed);
  expect_rest(rig);
  EXPECT_EQ(rig.events.count(EventKind::load_direct_done), 2U);
  EXPECT_EQ(rig.events.failed_loads, 1U);
  EXPECT_EQ(record_of(rig, 1).retractions, 1U);
  EXPECT_EQ(record_of(rig, 2).retractions, 1U);
}

// Under write-back a prefetch may put pages on L2 whose parent pages are only on L1, but not if these parents are still
// being loaded.
TEST(Automatic, nothing_is_adopted_below_a_load_that_then_fails) {
  EngineConfig config = automatic_config(32, 32);
  config.write_policy = "write_back";
  config.storage.push_back({Tier::remote, 1000, false});
  EngineRig rig(config);
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.arrive(1, chain(1, 8), 33, 1);
  rig.complete_stored(kLookUp, 0);  // request 0 has to ask the next tier
  rig.complete_stored(kLookUp, 8);  // request 1 isn't the head of the queue: it loads through the host
  ASSERT_EQ(oldest(rig, kGet).work.memory, Tier::host);
  rig.complete_stored(kLookUp, 4);
  ASSERT_EQ(in_flight(rig, kGet), 2U);
  ASSERT_EQ(rig.world.passes.size(), 1U);
  rig.complete_stored(kGet, 8);
  rig.complete_stored(kGet, 1);
  rig.complete_pass(Status::gate_failed);
  expect_rest(rig);
  EXPECT_EQ(rig.events.records.size(), 2U);
}

// The prefetch ends one round before the last part of the load is answered.
TEST(Automatic, nothing_is_adopted_below_a_load_in_several_pieces_the_last_of_which_fails) {
  EngineConfig config = automatic_config(40, 40);
  config.write_policy = "write_back";
  config.storage.push_back({Tier::remote, 1000, false});
  config.storage_batch_pages = 2;
  config.burst_steps = 1;
  EngineRig rig(config);
  rig.arrive(0, chain(5, 1), 5, 40);
  rig.complete_pass();
  rig.arrive(1, chain(1, 6), 25, 1);
  rig.arrive(2, chain(1, 8), 33, 1);
  rig.complete_pass();
  rig.complete_stored(kLookUp, 0);
  rig.complete_stored(kLookUp, 4);
  rig.complete_pass();
  rig.complete_stored(kLookUp, 6);
  rig.complete_stored(kLookUp, 4);
  rig.complete_pass();
  ASSERT_EQ(in_flight(rig, kGet), 7U) << "four by the host from two tiers, three straight from one";
  ASSERT_EQ(rig.world.stored.back().work.memory, Tier::device);
  for (int piece = 0; piece < 6; ++piece) rig.complete_stored(kGet, 2);
  rig.complete_stored(kGet, 0);
  rig.complete_pass();
  expect_rest(rig);
  EXPECT_EQ(rig.events.page_count(EventKind::prefetch_wasted), 8U);
  EXPECT_EQ(rig.events.records.size(), 3U);
}

TEST(Direct, what_it_was_to_extend_has_gone_by_the_time_it_is_admitted) {
  EngineConfig config = stored_config(8, 0);
  config.max_running = 1;
  EngineRig rig(config);
  rig.arrive(0, chain(1, 3), 13, 1);
  rig.drain();
  store_of(rig).clear();
  put(rig, {chain(1, 6)[3], chain(1, 6)[4], chain(1, 6)[5]});
  rig.arrive(1, chain(2, 6), 25, 2);
  rig.arrive(2, chain(1, 6), 25, 1);  // asks storage for the pages after the three pages on L1
  while (in_flight(rig, kLookUp) > 0) rig.complete_stored();
  expect_rest(rig);
  EXPECT_EQ(last(rig).request, 2U);
  EXPECT_EQ(last(rig).hit[Tier::disk], 0U);
}

EngineConfig private_config(Pages device) {
  EngineConfig config = stored_config(device, 0);
  config.private_loads = true;
  return config;
}

TEST(PrivateLoads, two_requests_with_one_prefix_each_load_it_and_the_index_gets_one_copy_after_the_pass) {
  EngineConfig config = private_config(40);
  config.burst_steps = 1;
  EngineRig rig(config);
  put(rig, chain(1, 6));
  rig.arrive(0, chain(5, 1), 5, 40);
  rig.complete_pass();
  rig.arrive(1, chain(1, 4), 17, 1);
  rig.arrive(2, chain(1, 6), 25, 1);
  rig.complete_pass();
  while (in_flight(rig, kLookUp) > 0) rig.complete_stored();
  rig.complete_pass();
  ASSERT_EQ(in_flight(rig, kGet), 2U);
  EXPECT_EQ(oldest(rig, kGet).pages.size(), 4U);
  EXPECT_EQ(rig.world.stored.back().pages.size(), 6U) << "the other request's pages are not shared";
  EXPECT_EQ(rig.events.page_count(EventKind::pages_stored), 1U) << "of request 0 alone";
  rig.complete_stored(kGet, EngineRig::kAll);
  rig.complete_stored(kGet, EngineRig::kAll);
  rig.complete_pass();
  EXPECT_EQ(rig.events.page_count(EventKind::pages_stored), 7U) << "the index has one copy";
  expect_rest(rig);
  EXPECT_EQ(record_of(rig, 1).hit[Tier::disk], 16U);
  EXPECT_EQ(record_of(rig, 2).hit[Tier::disk], 24U);
  EXPECT_EQ(record_of(rig, 2).miss, 1U);
}

TEST(PrivateLoads, loaded_and_computed_pages_are_one_node_which_an_eviction_takes_whole) {
  for (const bool is_private : {false, true}) {
    EngineConfig config = private_config(12);
    config.private_loads = is_private;
    config.evict_unit = EvictUnit::node;
    EngineRig rig(config);
    put(rig, chain(1, 4));
    rig.arrive(0, chain(1, 8), 33, 1);
    rig.drain();
    ASSERT_EQ(last(rig).hit[Tier::disk], 16U);
    rig.arrive(1, chain(2, 5), 21, 1);  // needs six pages: one more than there are
    rig.drain();
    store_of(rig).clear();
    rig.arrive(2, chain(1, 8), 33, 1);
    expect_rest(rig);
    EXPECT_EQ(last(rig).hit[Tier::device], is_private ? 0U : 16U);
  }
}

TEST(PrivateLoads, one_that_fails_is_computed_and_its_slots_stay_until_every_load_has_ended) {
  for (const Pages first : {Pages{0}, Pages{2}, Pages{4}}) {
    EngineConfig config = private_config(12);
    config.burst_steps = 1;
    config.storage_batch_pages = 4;
    EngineRig rig(config);
    put(rig, chain(1, 8));
    rig.arrive(0, chain(1, 8), 33, 3);
    rig.complete_stored();
    ASSERT_EQ(in_flight(rig, kGet), 2U);
    ASSERT_EQ(rig.world.passes.size(), 1U);
    EXPECT_EQ(rig.world.passes[0].gates.size(), 2U);
    rig.complete_stored(kGet, first);
    const std::uint64_t before = rig.events.page_count(EventKind::slots_released);
    if (first < 4) rig.complete_pass(Status::gate_failed);
    EXPECT_LE(rig.events.page_count(EventKind::slots_released), before + 1) << "the page that was computed";
    EXPECT_EQ(rig.world.passes.size(), first < 4 ? 0U : 1U) << "the other load may still write";
    rig.complete_stored(kGet, first < 4 ? 4 : 1);
    if (first == 4) rig.complete_pass(Status::gate_failed);
    ASSERT_EQ(rig.world.passes.size(), 1U);
    EXPECT_EQ(rig.world.passes[0].shape.prefill_tokens, 33U) << "nothing of the load is kept";
    EXPECT_TRUE(rig.world.passes[0].gates.empty());
    expect_rest(rig);
    EXPECT_EQ(last(rig).retractions, 1U);
  }
}

TEST(PrivateLoads, a_request_that_is_aborted_gives_its_loaded_pages_back) {
  EngineConfig config = private_config(20);
  config.chunk_tokens = 4;
  EngineRig rig(config);
  put(rig, chain(1, 4));
  rig.arrive(0, chain(1, 8), 33, 3);
  rig.complete_stored();
  ASSERT_EQ(in_flight(rig, kGet), 1U);
  rig.hint(HintKind::abort, 0);
  rig.complete_stored(kGet, EngineRig::kAll);
  rig.complete_pass();
  expect_rest(rig);
  EXPECT_TRUE(rig.events.records.empty());
}

TEST(Direct, answers_that_come_twice_change_nothing) {
  EngineRig rig(stored_config(32, 0));
  put(rig, chain(1, 4));
  rig.arrive(0, chain(1, 4), 17, 1);
  const OperationId look_up = oldest(rig, kLookUp).id;
  rig.complete_stored();
  const OperationId get = oldest(rig, kGet).id;
  rig.complete_answer(look_up, 2);
  rig.complete_stored();
  rig.complete_answer(get, 0, Status::failed);
  rig.complete_pass();
  rig.complete_answer(get, 0, Status::failed);
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit[Tier::disk], 16U);
  EXPECT_EQ(rig.events.failed_loads, 0U);
  EXPECT_EQ(rig.events.count(EventKind::load_direct_done), 1U);
}

}  // namespace
}  // namespace kvtwin
