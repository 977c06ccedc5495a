// Tests storage tiers, one completion at a time: writes, and prefetches in each of their states. Pages have four
// tokens.
#include <gtest/gtest.h>

#include "stored_rig.hpp"

namespace kvtwin {
namespace {

TEST(Storage, what_has_arrived_on_the_host_is_written_on_once) {
  EngineRig rig(stored_config(16, 32));
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.complete_stored(kLookUp, 0);
  rig.complete_pass();
  ASSERT_TRUE(rig.world.stored.empty()) << "not before the copy on the host is acknowledged";
  rig.complete_transfer();
  ASSERT_EQ(rig.world.stored.size(), 1U);
  EXPECT_EQ(rig.world.stored[0].work.verb, kSet);
  EXPECT_EQ(rig.world.stored[0].pages.size(), 4U);
  expect_rest(rig);
  EXPECT_EQ(rig.events.page_count(EventKind::store_done), 4U);
  rig.arrive(1, chain(1, 4), 17, 1);
  expect_rest(rig);
  EXPECT_EQ(rig.events.page_count(EventKind::store_done), 4U) << "what L3 has is not written again";
}

TEST(Prefetch, brings_a_hit_to_the_host_and_is_counted_as_the_tiers) {
  EngineRig rig(stored_config(16, 32));
  put(rig, chain(1, 4));
  rig.arrive(0, chain(1, 4), 17, 1);
  EXPECT_TRUE(rig.world.passes.empty()) << "wait_complete waits for the look-up";
  rig.complete_stored();
  ASSERT_EQ(rig.world.stored.size(), 1U);
  EXPECT_EQ(rig.world.stored[0].work.verb, kGet);
  EXPECT_TRUE(rig.world.passes.empty()) << "and for the pages";
  rig.world.time = 500;
  rig.complete_stored();
  ASSERT_EQ(rig.world.passes.size(), 1U);
  EXPECT_EQ(rig.world.passes[0].shape.prefill_tokens, 1U);
  EXPECT_EQ(rig.world.passes[0].gates.size(), 1U) << "they are loaded back from the host";
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit[Tier::disk], 16U);
  EXPECT_EQ(last(rig).hit[Tier::host], 0U);
  EXPECT_EQ(last(rig).miss, 1U);
  EXPECT_EQ(last(rig).prefetch_wait_ns, 500);
  EXPECT_EQ(rig.events.page_count(EventKind::prefetch_used), 4U);
}

TEST(Prefetch, below_the_threshold_is_declined_or_revoked) {
  EngineConfig config = stored_config(16, 32);
  config.prefetch_min_tokens = 3 * kPage;
  EngineRig rig(config);
  put(rig, chain(1, 2));
  rig.arrive(0, chain(1, 2), 9, 1);  // needs two pages
  EXPECT_EQ(rig.events.count(EventKind::prefetch_declined), 1U);
  rig.drain();
  put(rig, chain(2, 2));
  rig.arrive(1, chain(2, 5), 21, 1);  // needs five pages; two are stored
  rig.complete_stored(kLookUp, 2);
  EXPECT_EQ(rig.events.count(EventKind::prefetch_revoked), 1U);
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit[Tier::disk], 0U);
}

TEST(Prefetch, asks_the_next_tier_for_what_the_first_lacks) {
  EngineConfig config = stored_config(16, 32);
  config.storage.push_back({Tier::remote, 1000, false});
  EngineRig rig(config);
  const auto keys = chain(1, 6);
  put(rig, {keys.begin(), keys.begin() + 2});
  put(rig, keys, Tier::remote);
  rig.arrive(0, keys, 25, 1);
  rig.complete_stored();
  ASSERT_EQ(rig.world.stored.size(), 1U);
  EXPECT_EQ(rig.world.stored[0].work.tier, Tier::remote);
  EXPECT_EQ(rig.world.stored[0].pages.size(), 4U);
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit[Tier::disk], 8U);
  EXPECT_EQ(last(rig).hit[Tier::remote], 16U);
  const auto& disk = rig.stores[static_cast<std::size_t>(Tier::disk)];
  EXPECT_EQ(disk.size(), 6U) << "what came from afar is kept near";
}

// Removes what the disk is asked to remove, and stores what it is asked to store.
void let_the_disk_write(EngineRig& rig) {
  for (const StorageVerb verb : {kRemove, kSet}) {
    while (std::ranges::any_of(rig.world.stored,
                               [&](const auto& o) { return o.work.verb == verb && o.work.tier == Tier::disk; })) {
      const ManualWorld::Stored operation = oldest(rig, verb);
      for (const StoragePage& page : operation.pages) {
        if (verb == kRemove) store_of(rig).erase(page.key);
        if (verb == kSet) store_of(rig).insert(page.key);
      }
      rig.complete_stored(verb, EngineRig::kAll);
    }
  }
}

// A disk with room for four pages, and a remote store. The disk has the first half of a prompt, the remote store has
// all of it. Request 0, whose pages go to the disk too, has been computed.
EngineConfig small_disk() {
  EngineConfig config = stored_config(32, 64);
  config.storage[0].pages = 4;
  config.storage.push_back({Tier::remote, 1000, false});
  return config;
}

TEST(Prefetch, what_one_tier_has_stays_until_the_other_tiers_have_answered) {
  EngineRig rig(small_disk());
  put(rig, chain(1, 4));
  put(rig, chain(1, 8), Tier::remote);
  rig.arrive(0, chain(9, 4), 17, 1);
  rig.complete_stored(kLookUp, 0);
  rig.complete_stored(kLookUp, 0);
  rig.arrive(1, chain(1, 8), 33, 1);
  rig.complete_pass();
  rig.complete_stored(kLookUp, 4);
  rig.complete_transfer();
  let_the_disk_write(rig);
  EXPECT_EQ(rig.events.evicted_pages(Tier::disk, Reason::lost), 0U);
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit[Tier::disk], 16U);
  EXPECT_EQ(last(rig).hit[Tier::remote], 16U);
}

TEST(Prefetch, pages_that_are_being_removed_are_asked_of_the_next_tier) {
  EngineRig rig(small_disk());
  put(rig, chain(1, 4));
  rig.arrive(2, chain(1, 4), 17, 1);  // the engine learns what the disk has
  rig.complete_stored();
  rig.hint(HintKind::abort, 2);
  while (in_flight(rig, kGet) > 0) rig.complete_stored(kGet, 0);
  put(rig, chain(1, 8), Tier::remote);
  rig.arrive(3, chain(9, 4), 17, 1);
  rig.complete_stored(kLookUp, 0);
  rig.complete_stored(kLookUp, 0);
  rig.arrive(4, chain(1, 8), 33, 1);
  rig.complete_pass();
  rig.complete_transfer();
  ASSERT_EQ(in_flight(rig, kRemove), 1U);
  rig.complete_stored(kLookUp, 4);  // an answer from before the remove
  let_the_disk_write(rig);
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit[Tier::disk], 0U);
  EXPECT_EQ(last(rig).hit[Tier::remote], 32U);
}

TEST(Prefetch, a_page_missing_in_a_later_batch_commits_those_before_it) {
  EngineConfig config = stored_config(24, 96);
  config.storage_batch_pages = 4;
  EngineRig rig(config);
  rig.arrive(0, chain(1, 12), 49, 1);
  rig.complete_stored(kLookUp, 12);
  ASSERT_EQ(rig.world.stored.size(), 3U);
  rig.complete_stored(kGet, 4);
  rig.complete_stored(kGet, 1);
  EXPECT_EQ(rig.world.cancelled.size(), 1U) << "the third batch is of no use now";
  rig.complete_stored(kGet, 0);
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit[Tier::disk], 20U);
  EXPECT_EQ(last(rig).miss, 29U);
}

TEST(Prefetch, best_effort_never_delays_an_admission) {
  EngineRig rig(stored_config(16, 32, "best_effort"));
  put(rig, chain(1, 4));
  rig.arrive(0, chain(1, 4), 17, 1);
  ASSERT_EQ(rig.world.passes.size(), 1U);
  EXPECT_EQ(rig.world.passes[0].shape.prefill_tokens, 17U);
  expect_rest(rig);
  EXPECT_EQ(last(rig).prefetch_wait_ns, 0);
}

TEST(Prefetch, timeout_is_hicaches_formula) {
  EngineConfig config = stored_config(2000, 2000, "timeout");
  EngineRig rig(config);
  put(rig, chain(1, 512));
  rig.arrive(0, chain(1, 512), 2049, 1);
  const TimeNs limit = kNsPerSecond + 2 * kNsPerSecond / 4;
  ASSERT_EQ(rig.world.timers.size(), 1U);
  EXPECT_EQ(rig.world.timers[0].second, limit + 1) << "0.25 s more for each 1,024 tokens asked for";
  rig.complete_stored();
  EXPECT_EQ(rig.world.timers.back().second, limit + 1) << "the answer of the look-up changes nothing";
  rig.complete_stored(kGet, 128);
  rig.fire(limit);
  EXPECT_TRUE(rig.world.passes.empty());
  rig.fire(limit + 1);
  ASSERT_EQ(rig.world.passes.size(), 1U);
  EXPECT_EQ(rig.world.passes[0].shape.prefill_tokens, 64U);
  EXPECT_EQ(rig.events.count(EventKind::prefetch_stopped), 1U);
  EXPECT_EQ(rig.world.cancelled.size(), 3U) << "the batches in flight";
  while (!rig.world.stored.empty()) rig.complete_stored(kGet, 0);
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit[Tier::disk], 512U);
  EXPECT_EQ(last(rig).recomputed_after_stop, 1536U);
  EXPECT_EQ(last(rig).prefetch_wait_ns, limit + 1);
}

TEST(Prefetch, what_arrives_after_a_stop_is_kept_for_others) {
  EngineRig rig(stored_config(64, 64, "timeout"));
  put(rig, chain(1, 8));
  rig.arrive(0, chain(1, 8), 33, 1);
  rig.complete_stored();
  rig.fire(2 * kNsPerSecond);
  ASSERT_EQ(rig.world.passes.size(), 1U);
  rig.complete_stored(kGet, 5);  // cancelled, after five pages
  expect_rest(rig);
  EXPECT_EQ(rig.events.page_count(EventKind::prefetch_done), 5U);
  EXPECT_EQ(last(rig).recomputed_after_stop, 32U);
}

TEST(Prefetch, shrinks_to_what_the_host_has_room_for) {
  EngineConfig config = stored_config(64, 6);
  EngineRig rig(config);
  put(rig, chain(1, 8));
  rig.arrive(0, chain(1, 8), 33, 1);
  rig.complete_stored();
  ASSERT_EQ(rig.world.stored.size(), 1U);
  EXPECT_EQ(rig.world.stored[0].pages.size(), 6U);
  EXPECT_EQ(rig.events.page_count(EventKind::prefetch_shortened), 2U);
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit[Tier::disk], 24U);
}

TEST(Prefetch, is_rate_limited_by_what_others_take_of_the_host) {
  EngineConfig config = stored_config(64, 8);
  config.prefetch_host_share = 512;  // half of the host tier: 4 pages
  EngineRig rig(config);
  put(rig, chain(1, 4));
  put(rig, chain(2, 4));
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.arrive(1, chain(2, 4), 17, 1);
  EXPECT_EQ(rig.events.count(EventKind::prefetch_declined), 1U);
  EXPECT_EQ(rig.events.count(EventKind::prefetch_issued), 1U);
  expect_rest(rig);
}

// Computing a token takes a microsecond; reading a token takes `read_ps`.
EngineConfig priced_config(std::uint64_t read_ps) {
  EngineConfig config = stored_config(24, 96);
  config.prefetch_admission = "cost";
  config.cost_token_ps = 1'000'000;
  config.storage.front().read_token_ps = read_ps;
  return config;
}

std::uint64_t refused(const EngineConfig& config) {
  EngineRig rig(config);
  put(rig, chain(1, 4));
  rig.arrive(0, chain(1, 4), 17, 1);
  expect_rest(rig);
  const std::uint64_t declined = rig.events.count(EventKind::prefetch_declined);
  EXPECT_EQ(rig.events.count(EventKind::prefetch_issued), 1 - declined);
  EXPECT_EQ(last(rig).hit[Tier::disk], declined == 0 ? 16U : 0U);
  return declined;
}

TEST(Prefetch, admitted_by_cost_is_what_is_read_faster_than_computed) {
  EXPECT_EQ(refused(priced_config(900'000)), 0U);
  EXPECT_EQ(refused(priced_config(1'100'000)), 1U);
  EngineConfig config = priced_config(1'100'000);
  config.prefetch_admission = "threshold";
  EXPECT_EQ(refused(config), 0U);
}

TEST(Prefetch, waiting_that_is_to_be_done_anyway_is_free) {
  EngineConfig config = priced_config(1'100'000);
  config.max_running = 1;
  EngineRig rig(config);
  put(rig, chain(3, 4));
  rig.arrive(0, chain(1, 8), 33, 4);  // computes 33 tokens immediately
  rig.arrive(1, chain(2, 8), 33, 4);  // waits, and will compute 33 tokens
  rig.complete_pass();
  const std::uint64_t before = rig.events.count(EventKind::prefetch_issued);
  rig.arrive(2, chain(3, 4), 17, 1);
  rig.complete_pass();
  EXPECT_EQ(rig.events.count(EventKind::prefetch_issued), before + 1) << "17.6 us of reading, 33 of waiting";
  expect_rest(rig);
  EXPECT_EQ(record_of(rig, 2).hit[Tier::disk], 16U);
}

TEST(Prefetch, bytes_in_flight_are_two_seconds_of_reading) {
  EngineConfig config = priced_config(2 * kNsPerSecond * 1000 / 16);  // four pages
  config.cost_token_ps = 1000 * kNsPerSecond;
  EngineRig rig(config);
  for (std::uint64_t document : {1U, 2U}) put(rig, chain(document, 4));
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.arrive(1, chain(2, 4), 17, 1);
  EXPECT_EQ(rig.events.count(EventKind::prefetch_issued), 1U);
  EXPECT_EQ(rig.events.count(EventKind::prefetch_declined), 1U);
  expect_rest(rig);
}

TEST(Prefetch, a_medium_that_was_slow_is_tried_again) {
  EngineRig rig(priced_config(900'000));
  for (RequestId request = 1; request <= 150; ++request) put(rig, chain(request, 4));
  for (RequestId request = 1; request <= 150; ++request) {
    rig.arrive(request, chain(request, 4), 17, 1);
    if (!rig.world.stored.empty()) rig.complete_stored();
    rig.world.time += 1'000'000;  // takes a millisecond instead of 14 us
    rig.drain();
  }
  const std::uint64_t refused = rig.events.count(EventKind::prefetch_declined);
  EXPECT_GT(refused, 100U) << "seen to be slow, it isn't read";
  EXPECT_LT(refused, 150U - 8U) << "but believed again after 64 refusals";
  expect_rest(rig);
}

TEST(LoadBack, by_cost_is_what_is_loaded_faster_than_computed) {
  for (const bool slow : {false, true}) {
    EngineConfig config = small_config(16, 32);
    config.load_back_admission = "cost";
    config.cost_token_ps = 1'000'000;
    config.load_token_ps = slow ? 1'400'000 : 1'200'000;  // half of the computation, 17 us / 2, hides the second layer
    config.cost_doubling_tokens = 1 << 30;                // so 32 tokens take 32 us
    EngineRig rig(config);
    rig.arrive(0, chain(1, 8), 33, 1);
    expect_rest(rig);
    rig.arrive(1, chain(2, 15), 61, 1);  // fills L1
    expect_rest(rig);
    rig.arrive(2, chain(1, 8), 49, 1);  // 32 tokens on the host, 17 to compute
    expect_rest(rig);
    EXPECT_EQ(last(rig).hit[Tier::host] > 0, !slow);
    EXPECT_EQ(rig.events.page_count(EventKind::load_declined), slow ? 8U : 0U);
  }
}

TEST(Prefetch, an_abort_in_any_state_leaves_nothing) {
  for (int state = 0; state < 5; ++state) {
    EngineConfig config = stored_config(24, 96);
    config.storage_batch_pages = 2;
    EngineRig rig(config);
    put(rig, chain(1, 8));
    rig.arrive(0, chain(1, 8), 33, 1);
    if (state >= 1) rig.complete_stored();         // fetching
    if (state >= 2) rig.complete_stored(kGet, 2);  // one batch has completed
    if (state == 3) rig.complete_stored(kGet, 1);  // one batch lacks a page
    if (state == 4) rig.drain();                   // the request has finished
    rig.hint(HintKind::abort, 0);
    expect_rest(rig);
    EXPECT_EQ(rig.events.count(EventKind::aborted), state == 4 ? 0U : 1U) << state;
  }
}

TEST(Prefetch, nothing_is_brought_below_what_the_host_lacks) {
  EngineConfig config = stored_config(64, 2);  // the host is too small for a copy of the first prompt
  EngineRig rig(config);
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.complete_stored(kLookUp, 0);
  rig.drain();
  put(rig, chain(1, 8));
  rig.arrive(1, chain(1, 8), 33, 1);
  EXPECT_EQ(rig.events.count(EventKind::prefetch_declined), 1U);
  expect_rest(rig);
}

TEST(Direct, pages_go_straight_to_the_device_and_gate_the_pass) {
  EngineRig rig(stored_config(32, 0));
  put(rig, chain(1, 4));
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.complete_stored();
  ASSERT_EQ(rig.world.stored.size(), 1U);
  EXPECT_EQ(rig.world.stored[0].work.memory, Tier::device);
  ASSERT_EQ(rig.world.passes.size(), 1U);
  EXPECT_EQ(rig.world.passes[0].gates.size(), 1U);
  EXPECT_EQ(rig.world.passes[0].shape.prefill_tokens, 1U);
  rig.complete_stored();
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit[Tier::disk], 16U);
}

TEST(Direct, a_get_that_falls_short_is_computed_instead) {
  EngineRig rig(stored_config(32, 0));
  put(rig, chain(1, 4));
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.complete_stored();
  rig.complete_stored(kGet, 2);
  rig.complete_pass(Status::gate_failed);
  ASSERT_EQ(rig.world.passes.size(), 1U);
  EXPECT_EQ(rig.world.passes[0].shape.prefill_tokens, 17U);
  expect_rest(rig);
}

TEST(Direct, without_a_host_the_device_is_written_to_storage) {
  EngineRig rig(stored_config(32, 0));
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.complete_stored(kLookUp, 0);
  rig.complete_pass();
  ASSERT_FALSE(rig.world.stored.empty());
  EXPECT_EQ(rig.world.stored[0].work.verb, kSet);
  EXPECT_EQ(rig.world.stored[0].work.memory, Tier::device);
  expect_rest(rig);
  EXPECT_EQ(rig.stores[static_cast<std::size_t>(Tier::disk)].size(), 4U);
}

TEST(Storage, an_owned_tier_removes_what_goes_first) {
  EngineConfig config = stored_config(24, 96);
  config.storage[0].pages = 6;
  EngineRig rig(config);
  for (RequestId r = 0; r < 4; ++r) {
    rig.arrive(r, chain(r + 1, 4), 17, 1);
    rig.drain();
    EXPECT_LE(rig.stores[static_cast<std::size_t>(Tier::disk)].size(), 6U);
  }
  expect_rest(rig);
  EXPECT_GT(rig.events.evicted_pages(Tier::disk, Reason::lost), 0U);
}

TEST(Storage, a_failed_write_is_tried_again_and_then_dropped) {
  EngineConfig config = stored_config(16, 32);
  config.storage_retries = 1;
  EngineRig rig(config);
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.complete_stored(kLookUp, 0);
  rig.complete_pass();
  rig.complete_transfer();
  rig.complete_stored(kSet, 1);
  EXPECT_EQ(rig.events.page_count(EventKind::store_retried), 3U);
  rig.complete_stored(kSet, 0);
  EXPECT_EQ(rig.events.page_count(EventKind::store_dropped), 3U);
  expect_rest(rig);
}

TEST(Prefetch, shrunk_below_the_threshold_is_revoked) {
  EngineConfig config = stored_config(64, 6);
  config.prefetch_min_tokens = 7 * kPage;
  EngineRig rig(config);
  put(rig, chain(1, 8));
  rig.arrive(0, chain(1, 8), 33, 1);
  rig.complete_stored();
  EXPECT_EQ(in_flight(rig, kGet), 0U);
  EXPECT_EQ(rig.events.page_count(EventKind::prefetch_revoked), 8U);
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit[Tier::disk], 0U);
}

// If a prefetch is declined because there is no room, the waiting request is tried again every prefetch_retry_steps
// steps, at most prefetch_attempts times.
TEST(Prefetch, declined_for_lack_of_room_is_tried_again_so_often) {
  for (const std::uint32_t attempts : {1U, 2U, 4U}) {
    EngineConfig config = stored_config(64, 8);
    config.prefetch_host_share = 128;  // one page: one prefetch at a time
    config.prefetch_retry_steps = 2;
    config.prefetch_attempts = attempts;
    config.max_running = 1;
    config.burst_steps = 1;
    EngineRig rig(config);
    rig.arrive(0, chain(9, 1), 5, 40);  // runs during the whole test
    put(rig, chain(1, 4));
    put(rig, chain(2, 4));
    rig.arrive(1, chain(1, 4), 17, 1);
    rig.arrive(2, chain(2, 4), 17, 1);
    for (int step = 0; step < 20; ++step) rig.complete_pass();
    EXPECT_EQ(rig.events.count(EventKind::prefetch_declined), 1U + attempts) << "of the short one, and of the third";
    expect_rest(rig);
  }
}

TEST(Prefetch, tried_again_once_there_is_room_it_is_issued) {
  EngineConfig config = stored_config(24, 96);
  config.prefetch_host_share = 16;
  config.prefetch_retry_steps = 2;
  config.max_running = 1;
  config.burst_steps = 1;
  EngineRig rig(config);
  rig.arrive(0, chain(9, 1), 5, 40);
  put(rig, chain(2, 4));
  rig.arrive(1, chain(1, 4), 17, 1);
  rig.arrive(2, chain(2, 4), 17, 1);
  rig.complete_pass();
  EXPECT_EQ(rig.events.count(EventKind::prefetch_issued), 1U);
  rig.complete_stored(kLookUp, 0);
  for (int step = 0; step < 4; ++step) rig.complete_pass();
  EXPECT_EQ(rig.events.count(EventKind::prefetch_issued), 2U);
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit[Tier::disk], 16U);
}

// Request 1 runs alone. Request 2 waits, with its whole prompt cached; request 3 waits behind it, and its prefetch
// fills the host tier.
void lose_the_prefix_of_a_waiting_request(EngineRig& rig) {
  put(rig, chain(1, 4));
  put(rig, chain(3, 8));
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.drain();
  rig.arrive(1, {}, 3, 41);  // takes most of L1
  rig.arrive(2, chain(1, 4), 17, 1);
  rig.arrive(3, chain(3, 8), 33, 1);
  expect_rest(rig);
}

TEST(Prefetch, what_a_waiting_request_has_lost_is_looked_up_again_at_its_admission) {
  for (const std::string_view policy : {"wait_complete", "timeout", "cost_stop"}) {
    for (const bool recheck : {true, false}) {
      EngineConfig config = stored_config(12, 8, policy);
      config.cost_token_ps = 1'000'000'000;
      config.prefetch_recheck = recheck;
      config.max_running = 1;
      EngineRig rig(config);
      lose_the_prefix_of_a_waiting_request(rig);
      EXPECT_EQ(record_of(rig, 2).hit[Tier::disk], recheck ? 12U : 0U) << policy;
      EXPECT_EQ(record_of(rig, 2).miss, recheck ? 1U : 13U) << policy;
    }
  }
}

TEST(Prefetch, after_the_last_attempt_the_request_is_admitted_with_what_is_left) {
  EngineConfig config = stored_config(12, 8);
  config.prefetch_attempts = 1;
  config.max_running = 1;
  EngineRig rig(config);
  lose_the_prefix_of_a_waiting_request(rig);
  EXPECT_EQ(record_of(rig, 2).miss, 13U);
}

// The store has nothing when the request arrives, and everything later.
TEST(Prefetch, that_found_nothing_is_tried_again_while_its_request_waits_behind_others) {
  for (const bool is_head : {false, true}) {
    EngineConfig config = stored_config(24, 96);
    config.max_running = config.burst_steps = 1;
    EngineRig rig(config);
    rig.arrive(0, {}, 3, 60);
    if (!is_head) rig.arrive(1, {}, 3, 1);
    rig.arrive(2, chain(2, 4), 17, 1);
    rig.complete_pass();
    rig.complete_stored(kLookUp, 0);
    put(rig, chain(2, 4));
    expect_rest(rig);
    EXPECT_EQ(record_of(rig, 2).hit[Tier::disk], is_head ? 0U : 16U);
  }
}

TEST(Prefetch, is_tried_at_most_so_often_in_one_wait) {
  for (const std::uint32_t attempts : {1U, 2U, 9U}) {
    EngineConfig config = stored_config(128, 96);
    config.max_running = 1;
    config.prefetch_attempts = attempts;
    EngineRig rig(config);
    rig.arrive(0, {}, 3, 400);
    rig.arrive(1, {}, 3, 1);
    rig.arrive(2, chain(2, 4), 17, 1);
    expect_rest(rig);
    EXPECT_EQ(rig.events.count(EventKind::prefetch_issued), attempts);
  }
}

TEST(Prefetch, what_another_prefetch_has_brought_meanwhile_is_revoked_as_a_duplicate) {
  EngineConfig config = stored_config(32, 32);
  config.max_running = 1;
  config.burst_steps = 1;
  EngineRig rig(config);
  rig.arrive(0, chain(9, 1), 5, 40);  // runs while the others look up
  put(rig, chain(1, 4));
  rig.arrive(1, chain(1, 4), 17, 1);
  rig.arrive(2, chain(1, 4), 17, 1);
  rig.complete_pass();
  rig.complete_stored(kLookUp, 4);
  rig.complete_pass();
  rig.complete_stored(kGet, 4);
  rig.complete_pass();
  rig.complete_stored(kLookUp, 4);
  rig.complete_pass();
  EXPECT_EQ(rig.events.count(EventKind::prefetch_issued), 2U);
  EXPECT_EQ(rig.events.count(EventKind::prefetch_done, Reason::none), 1U);
  EXPECT_EQ(rig.events.count(EventKind::prefetch_revoked, Reason::duplicate), 1U);
  expect_rest(rig);
  EXPECT_EQ(rig.events.count(EventKind::prefetch_revoked), 1U);
}

// A prefetch ends once, in each state, by success, failure, stop or abort. Later completions are no second end.
TEST(Prefetch, each_one_is_told_to_end_once) {
  for (int way = 0; way < 7; ++way) {
    SCOPED_TRACE(way);
    EngineConfig config = stored_config(64, 64, "timeout");
    if (way == 6) config.host_pages = 0;
    if (way == 6) config.path = CachePath::direct;
    EngineRig rig(config);
    put(rig, chain(1, 8));
    rig.arrive(0, chain(1, 8), 33, 1);
    if (way == 1) rig.complete_stored(kLookUp, 0);
    if (way == 2) rig.fire(2 * kNsPerSecond);
    if (way == 3) rig.hint(HintKind::abort, 0);
    if (way == 4) {
      rig.complete_stored();
      rig.complete_stored(kGet, 3);
    }
    if (way == 5) {
      rig.complete_stored();
      rig.fire(2 * kNsPerSecond);
      rig.hint(HintKind::abort, 0);
    }
    expect_rest(rig);
    EXPECT_EQ(rig.events.count(EventKind::prefetch_issued), 1U);
    const bool stopped = way == 5;
    EXPECT_EQ(rig.events.count(EventKind::prefetch_done, Reason::none), way == 0 || way == 6 ? 1U : 0U);
    EXPECT_EQ(rig.events.count(EventKind::prefetch_done, Reason::transfer_failed), way == 4 ? 1U : 0U);
    EXPECT_EQ(rig.events.count(EventKind::prefetch_done, Reason::stopped), stopped ? 1U : 0U);
    EXPECT_EQ(rig.events.count(EventKind::prefetch_stopped), stopped ? 1U : 0U);
    EXPECT_EQ(rig.events.count(EventKind::prefetch_revoked), 1 <= way && way <= 3 ? 1U : 0U);
  }
}

TEST(Prefetch, what_another_request_computed_meanwhile_is_not_kept_twice) {
  EngineConfig config = stored_config(32, 32);
  config.max_running = 1;
  config.burst_steps = 1;
  EngineRig rig(config);
  rig.arrive(0, chain(9, 1), 5, 10);  // runs while the others look up
  rig.arrive(1, chain(1, 4), 17, 1);
  rig.arrive(2, chain(1, 4), 17, 1);
  rig.complete_pass();
  rig.complete_stored(kLookUp, 0);
  rig.complete_stored(kLookUp, 4);
  rig.complete_pass();
  ASSERT_EQ(in_flight(rig, kGet), 1U) << "for the last";
  while (!rig.world.passes.empty()) rig.complete_pass();
  ASSERT_EQ(last(rig).request, 1U) << "which still waits, while the one before it has computed the same";
  while (!rig.world.transfers.empty()) rig.complete_transfer();
  rig.complete_stored(kGet, 4);
  EXPECT_EQ(rig.events.page_count(EventKind::prefetch_wasted), 4U);
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit[Tier::device], 16U);
  EXPECT_EQ(last(rig).hit[Tier::disk], 0U);
}

TEST(Prefetch, what_it_was_to_extend_has_gone_meanwhile) {
  EngineConfig config = stored_config(8, 8);
  config.write_policy = "write_back";  // otherwise the pages before the prefetch are on L2, with a lease
  config.clean_reserve = 0;
  EngineRig rig(config);
  rig.arrive(0, chain(1, 2), 9, 1);
  rig.drain();
  const std::vector<PageKey> keys = chain(1, 6);
  put(rig, {keys.begin() + 2, keys.end()});
  rig.arrive(1, keys, 25, 1);
  rig.complete_stored(kLookUp, 4);
  ASSERT_EQ(in_flight(rig, kGet), 1U);
  for (RequestId r = 2; r < 4; ++r) {  // fill L1 and L2, in which the prefetch has four pages
    rig.arrive(r, chain(r, 7), 29, 1);
    rig.complete_stored(kLookUp, 0);
    while (!rig.world.passes.empty() || !rig.world.transfers.empty() || in_flight(rig, kSet) > 0) {
      if (!rig.world.transfers.empty()) {
        rig.complete_transfer();
      } else if (in_flight(rig, kSet) > 0) {
        rig.complete_stored(kSet, EngineRig::kAll);
      } else {
        rig.complete_pass();
      }
    }
  }
  rig.complete_stored(kGet, 4);
  EXPECT_EQ(rig.events.page_count(EventKind::prefetch_wasted), 4U);
  expect_rest(rig);
  EXPECT_EQ(record_of(rig, 1).miss, 25U);
}

// The request is stopped, admitted, and retracted because L1 is full, all before the last completion of its prefetch.
TEST(Prefetch, drains_while_its_request_is_retracted_and_admitted_again) {
  for (const bool aborted : {false, true}) {
    EngineConfig config = stored_config(16, 64, "best_effort");
    config.reserve_initial = config.reserve_min = 0;
    EngineRig rig(config);
    put(rig, chain(2, 4));
    rig.arrive(0, chain(1, 4), 17, 24);
    rig.arrive(1, chain(2, 4), 17, 24);
    for (int i = 0; i < 40 && rig.events.count(EventKind::retracted) == 0; ++i) {
      if (!rig.world.transfers.empty()) {
        rig.complete_transfer();
      } else if (!rig.world.passes.empty()) {
        rig.complete_pass();
      }
    }
    ASSERT_GT(rig.events.count(EventKind::retracted), 0U);
    EXPECT_EQ(rig.events.count(EventKind::prefetch_issued), 3U) << "a new wait, a new look-up";
    EXPECT_FALSE(rig.engine.idle());
    if (aborted) rig.hint(HintKind::abort, 1);
    expect_rest(rig);
    EXPECT_EQ(rig.events.records.size(), aborted ? 1U : 2U);
    EXPECT_EQ(record_of(rig, 0).hit[Tier::disk], 0U);
  }
}

// A request that is sent again comes to an engine that still drains the request's first prefetch.
TEST(Prefetch, of_a_request_that_returns_is_issued_beside_the_one_that_drains) {
  EngineConfig config = stored_config(32, 64);
  config.storage_batch_pages = 2;
  EngineRig rig(config);
  put(rig, chain(1, 6));
  rig.arrive(1, chain(1, 6), 25, 1);
  rig.complete_stored();
  rig.world.time = 500;
  rig.complete_stored(kGet, 2);
  rig.hint(HintKind::abort, 1);
  rig.arrive(1, chain(1, 6), 25, 1);
  EXPECT_EQ(rig.events.count(EventKind::prefetch_issued), 2U);
  EXPECT_TRUE(rig.world.passes.empty()) << "it waits for its own prefetch";
  while (in_flight(rig, kGet) > 0) rig.complete_stored(kGet, 0);
  rig.world.time = 700;
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit[Tier::host], 8U) << "the page pair that the first prefetch brought";
  EXPECT_EQ(last(rig).hit[Tier::disk], 16U);
  EXPECT_EQ(last(rig).recomputed_after_stop, 0U);
  EXPECT_EQ(last(rig).prefetch_wait_ns, 200);
}

TEST(Prefetch, answers_that_come_twice_change_nothing) {
  EngineConfig config = stored_config(16, 32);
  config.storage_batch_pages = 2;
  EngineRig rig(config);
  put(rig, chain(1, 4));
  rig.arrive(0, chain(1, 4), 17, 1);
  const OperationId look_up = oldest(rig, kLookUp).id;
  rig.complete_stored();
  rig.complete_answer(look_up, 0);
  const OperationId get = oldest(rig, kGet).id;
  rig.complete_stored();
  rig.complete_answer(get, 0, Status::failed);
  EXPECT_TRUE(rig.world.cancelled.empty());
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit[Tier::disk], 16U);
}

// The pages of a direct load are there before those above, which come from L2. If that load fails, they go, so they are
// not being written then.
TEST(Prefetch, what_came_from_storage_is_not_written_before_the_pages_above_are_there) {
  EngineConfig config = stored_config(8, 32);
  config.write_policy = "write_back";
  config.path = CachePath::direct;
  config.clean_reserve = 1024;
  EngineRig rig(config);
  rig.arrive(0, chain(1, 2), 9, 1);
  rig.drain();
  rig.arrive(1, chain(2, 6), 25, 1);  // the first two pages leave L1
  rig.drain();
  put(rig, chain(1, 5));
  rig.arrive(2, chain(1, 5), 21, 8);
  rig.complete_stored();  // the look-up
  ASSERT_EQ(rig.world.transfers.size(), 1U);
  ASSERT_EQ(in_flight(rig, kGet), 1U);
  rig.complete_stored();  // the pages below
  rig.hint(HintKind::abort, 2);
  rig.complete_pass(Status::gate_failed);  // of the load from L2, whose own end comes later
  rig.complete_transfer(Status::failed);
  expect_rest(rig);
}

// In the style of SGLang, a prefetch may begin below a copy that is still being written.
TEST(Prefetch, holds_the_pages_above_also_if_their_copy_fails) {
  EngineConfig config = stored_config(8, 32);
  config.prefetch_style = PrefetchStyle::sglang;
  config.prefetch_min_tokens = 3 * kPage;
  EngineRig rig(config);
  put(rig, chain(1, 5));
  rig.arrive(0, chain(1, 2), 9, 1);
  rig.complete_pass();
  ASSERT_EQ(rig.world.transfers.size(), 1U) << "the copy of the two pages";
  rig.arrive(1, chain(1, 5), 21, 1);
  ASSERT_EQ(in_flight(rig, kLookUp), 1U);
  rig.complete_transfer(Status::failed);
  rig.arrive(2, document({1, 2, 3, 4, 5, 6, 7}), 29, 1);  // L1 has room only if the two pages go
  EXPECT_TRUE(rig.world.passes.empty());
  expect_rest(rig);
}

}  // namespace
}  // namespace kvtwin
