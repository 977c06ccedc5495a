// Tests the life of requests and pages in the engine, one completion at a time. Pages have four tokens.
#include "policy/engine.hpp"

#include <gtest/gtest.h>

#include "manual_world.hpp"

namespace kvtwin {
namespace {

TEST(Engine, one_request_is_prefilled_decoded_and_finished) {
  EngineRig rig(small_config(16, 0));
  rig.arrive(0, document({1, 2, 3}), 13, 3);
  ASSERT_EQ(rig.world.passes.size(), 1U);
  EXPECT_EQ(rig.world.passes[0].shape.prefill_tokens, 13U);
  EXPECT_EQ(rig.world.passes[0].shape.prefill_pairs, 13U * 14 / 2);
  rig.complete_pass();
  ASSERT_EQ(rig.world.passes.size(), 1U);
  EXPECT_EQ(rig.world.passes[0].shape.decode_sequences, 1U);
  EXPECT_EQ(rig.world.passes[0].steps, 2U) << "the first token comes from prefill";
  rig.complete_pass();
  EXPECT_TRUE(rig.engine.idle());
  ASSERT_EQ(rig.events.records.size(), 1U);
  const RequestRecord& record = rig.events.records[0];
  EXPECT_EQ(record.first_token, 1000);
  EXPECT_EQ(record.finished, 2000);
  EXPECT_EQ(record.miss, 13U);
  EXPECT_EQ(record.compute_ns, 1000);
  EXPECT_EQ(record.queue_ns, 0);
}

TEST(Engine, a_second_request_hits_the_device_but_computes_a_token) {
  EngineRig rig(small_config(16, 0));
  rig.arrive(0, document({1, 2, 3}), 12, 1);
  rig.drain();
  rig.arrive(1, document({1, 2, 3}), 12, 1);
  EXPECT_EQ(rig.world.passes.at(0).shape.prefill_tokens, 4U) << "the last page again, for its first token";
  rig.drain();
  EXPECT_EQ(rig.events.records.at(1).hit[Tier::device], 8U);
  EXPECT_EQ(rig.events.records.at(1).miss, 4U);
}

TEST(Engine, write_through_keeps_an_evicted_prefix_on_the_host_and_loads_it_back) {
  EngineRig rig(small_config(6, 16));
  rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
  rig.complete_pass();
  ASSERT_EQ(rig.world.transfers.size(), 1U);
  EXPECT_EQ(rig.world.transfers[0].lane, Lane::d2h);
  EXPECT_EQ(rig.world.transfers[0].pages.size(), 4U);
  rig.drain();
  rig.arrive(1, document({11, 12, 13, 14}), 17, 1);  // needs 5 of 6 pages, so the engine evicts
  rig.drain();
  EXPECT_GT(rig.events.page_count(EventKind::evicted), 0U);
  rig.arrive(2, document({1, 2, 3, 4}), 17, 1);
  ASSERT_EQ(rig.world.transfers.size(), 1U);
  EXPECT_EQ(rig.world.transfers[0].lane, Lane::h2d);
  ASSERT_EQ(rig.world.passes.size(), 1U);
  EXPECT_EQ(rig.world.passes[0].gates.size(), 1U);
  EXPECT_EQ(rig.world.passes[0].shape.prefill_tokens, 1U);
  rig.drain();
  const RequestRecord& record = rig.events.records.at(2);
  EXPECT_EQ(record.hit[Tier::device] + record.hit[Tier::host], 16U);
  EXPECT_GT(record.hit[Tier::host], 0U);
  EXPECT_TRUE(rig.engine.idle());
}

TEST(Engine, write_through_selective_backs_up_what_a_second_request_inserts) {
  EngineConfig config = small_config(16, 16);
  config.write_policy = "write_through_selective";
  EngineRig rig(config);
  rig.arrive(0, document({1, 2, 3, 4}), 17,
             1);  // one output token: the request ends with the prefill, and inserts once
  rig.drain();
  EXPECT_EQ(rig.events.count(EventKind::backup_queued), 0U);
  rig.arrive(1, document({1, 2, 3, 4}), 17, 1);
  rig.complete_pass();
  ASSERT_EQ(rig.world.transfers.size(), 1U);
  EXPECT_EQ(rig.world.transfers[0].lane, Lane::d2h);
  EXPECT_EQ(rig.world.transfers[0].pages.size(), 4U);
  rig.drain();
}

// A request inserts at the end of each prefill chunk and at its end. All these inserts count once.
TEST(Engine, write_through_selective_counts_a_node_once_a_request) {
  for (const Pages host : {16U, 0U}) {
    for (const Tokens chunk : {64U, 8U}) {
      SCOPED_TRACE(std::to_string(host) + " host pages, chunks of " + std::to_string(chunk));
      EngineConfig config = small_config(16, host);
      config.write_policy = "write_through_selective";
      config.chunk_tokens = chunk;
      if (host == 0) config.storage = {{Tier::disk, 1000, true}};
      if (host == 0) config.path = CachePath::direct;
      EngineRig rig(config);
      const EventKind written = host == 0 ? EventKind::store_done : EventKind::backup_done;
      rig.arrive(0, document({1, 2, 3, 4}), 17, 9);  // the output adds a page
      rig.drain();
      EXPECT_EQ(rig.events.page_count(written), 0U);
      rig.arrive(1, document({1, 2, 3, 4}), 17, 9);  // inserts the prompt's pages a second time; its output page is new
      rig.drain();
      EXPECT_EQ(rig.events.page_count(written), 4U);
      rig.arrive(2, document({1, 2, 3, 4}), 17, 1);
      rig.drain();
      EXPECT_EQ(rig.events.page_count(written), 4U);
    }
  }
}

// The prefix [1,2] is used with priority 0 and later with priority 9, so it stays. The pages with priority 5 are
// evicted.
TEST(Engine, priority_rises_to_that_of_each_request_that_inserts) {
  EngineConfig config = small_config(5, 0);  // four pages for prompts, and one page for the computed token
  config.eviction = "priority";
  EngineRig rig(config);
  const std::vector<PageKey> a = document({1, 2}), b = document({3, 4}), c = document({5, 6});
  RequestId request = 0;
  for (const auto& [keys, priority] : {std::pair{a, 0}, {a, 9}, {b, 5}, {c, 5}, {a, 0}}) {
    rig.arrive(request++, keys, 9, 1, priority);
    rig.drain();
  }
  Tokens hits = 0;
  for (const RequestRecord& record : rig.events.records) hits += record.hit[Tier::device];
  EXPECT_EQ(hits, 4U * 4);
}

// The prompt and the answer of request 0 have four pages each. With SGLang's rule, the answer is evicted before the
// pages of other requests of the same priority, but the prompt is not.
TEST(Engine, a_prompt_has_a_higher_priority_than_its_answer_as_in_sglang) {
  for (const bool raise : {false, true}) {
    EngineConfig config = small_config(13, 0);
    config.eviction = "priority";
    config.evict_unit = EvictUnit::node;
    config.raise_prompt_priority = raise;
    EngineRig rig(config);
    rig.arrive(0, document({1, 2, 3, 4}), 16, 17);
    rig.drain();
    rig.arrive(1, document({11, 12, 13, 14}), 16, 1);
    rig.drain();
    rig.arrive(2, document({21, 22, 23, 24}), 16, 1);  // evicts the answer of 0
    rig.drain();
    rig.arrive(3, document({31, 32, 33, 34}), 16, 1);  // the prompt of 0 is older than 1
    rig.drain();
    rig.arrive(4, document({1, 2, 3, 4}), 17, 1);
    rig.drain();
    EXPECT_EQ(rig.events.records.at(4).hit[Tier::device], raise ? 16U : 0U);
  }
}

// The host and the disk use the same priority. Both have room for two of three documents. The priority of `a` rises
// when `a` is requested again, so `a` stays.
TEST(Engine, priority_rises_on_further_tiers_too) {
  for (const bool disk : {false, true}) {
    SCOPED_TRACE(disk ? "disk" : "host");
    EngineConfig config = small_config(3, disk ? 0 : 4);
    config.eviction = "priority";
    if (disk) config.storage = {{Tier::disk, 4, true}};
    if (disk) config.path = CachePath::direct;
    config.prefetch_min_tokens = 1;
    config.prefetch_policy = "wait_complete";
    config.prefetch_host_share = 1024;
    config.storage_write_share = 8192;
    EngineRig rig(config);
    const std::vector<PageKey> a = document({1, 2}), b = document({3, 4}), c = document({5, 6});
    RequestId request = 0;
    for (const auto& [keys, priority] : {std::pair{a, 0}, {b, 0}, {a, 9}, {c, 5}, {b, 5}, {a, 0}}) {
      rig.arrive(request++, keys, 9, 1, priority);
      rig.drain();
    }
    const RequestRecord& last = rig.events.records.back();
    EXPECT_EQ(last.hit[Tier::device] + last.hit[Tier::host] + last.hit[Tier::disk], 8U);
  }
}

TEST(Engine, a_write_threshold_wins_over_the_policys_own) {
  EngineConfig config = small_config(16, 16);
  config.write_policy = "write_through_selective";
  config.write_threshold = 1;
  EngineRig rig(config);
  rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
  rig.complete_pass();
  EXPECT_EQ(rig.world.transfers.size(), 1U);
  rig.drain();
}

TEST(Engine, a_host_hit_below_the_threshold_is_computed_again) {
  EngineConfig config = small_config(6, 16);
  config.load_back_min_tokens = 100;
  EngineRig rig(config);
  rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
  rig.drain();
  rig.arrive(1, document({11, 12, 13, 14}), 17, 1);
  rig.drain();
  rig.arrive(2, document({1, 2, 3, 4}), 17, 1);
  EXPECT_TRUE(rig.world.transfers.empty());
  rig.drain();
  EXPECT_EQ(rig.events.records.at(2).hit[Tier::host], 0U);
  EXPECT_EQ(rig.events.page_count(EventKind::load_declined), 3U);
  EXPECT_TRUE(rig.engine.idle()) << "un-evict: the computed pages became the device copies";
}

TEST(Engine, a_failed_load_is_computed_instead) {
  EngineRig rig(small_config(6, 16));
  rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
  rig.drain();
  rig.arrive(1, document({11, 12, 13, 14}), 17, 1);
  rig.drain();
  rig.arrive(2, document({1, 2, 3, 4}), 17, 1);
  rig.complete_transfer(Status::failed);
  rig.complete_pass(Status::gate_failed);
  EXPECT_TRUE(rig.world.transfers.empty()) << "no second try of the load";
  ASSERT_EQ(rig.world.passes.size(), 1U);
  EXPECT_TRUE(rig.world.passes[0].gates.empty());
  rig.drain();
  EXPECT_EQ(rig.events.records.size(), 3U);
  EXPECT_EQ(rig.events.count(EventKind::load_failed), 1U);
  EXPECT_TRUE(rig.engine.idle());
}

TEST(Engine, a_failed_load_is_used_by_nobody_until_it_is_acknowledged) {
  EngineRig rig(small_config(6, 16));
  rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
  rig.drain();
  rig.arrive(1, document({11, 12, 13, 14}), 17, 1);
  rig.drain();
  rig.arrive(2, document({1, 2, 3, 4}), 17, 1);
  rig.complete_pass(Status::gate_failed);  // before the completion of the failed load
  EXPECT_TRUE(rig.world.passes.empty()) << "what the load left on the device is garbage, and still in the index";
  rig.complete_transfer(Status::failed);
  ASSERT_EQ(rig.world.passes.size(), 1U);
  EXPECT_TRUE(rig.world.passes[0].gates.empty());
  rig.drain();
  EXPECT_TRUE(rig.engine.idle());
}

TEST(Engine, nobody_decodes_onto_what_a_failed_load_left) {
  EngineConfig config = small_config(8, 16);
  config.burst_steps = 1;
  EngineRig rig(config);
  const auto pages = document({1, 2, 3});
  rig.arrive(0, pages, 13, 1);
  rig.drain();
  rig.arrive(1, document({11, 12, 13, 14, 15, 16, 17}), 29, 1);
  rig.drain();
  rig.arrive_knowing_output(2, pages, 3, 12);  // computes the same pages that are on the host
  for (int i = 0; i < 9; ++i) rig.complete_pass();
  rig.arrive_knowing_output(3, pages, 9, 1);
  rig.complete_pass();
  if (!rig.world.passes.empty()) rig.complete_pass(Status::gate_failed);
  while (!rig.world.passes.empty()) rig.complete_pass();
  while (!rig.world.transfers.empty()) {
    rig.complete_transfer(rig.world.transfers.front().lane == Lane::h2d ? Status::failed : Status::done);
  }
  rig.drain();
  EXPECT_EQ(rig.events.records.size(), 4U);
  EXPECT_TRUE(rig.engine.idle());
}

TEST(Engine, a_backup_below_one_that_failed_is_dropped_though_its_parent_is_on_its_way_again) {
  EngineConfig config = small_config(6, 16);
  config.cache_output = false;
  EngineRig rig(config);
  rig.arrive(0, document({1}), 5, 1);
  rig.complete_pass();
  rig.arrive(1, document({1, 2}), 9, 1);
  rig.complete_pass();
  rig.complete_transfer(Status::failed);
  rig.arrive(2, document({1, 3}), 9, 1);  // queues page 1 again
  rig.complete_pass();
  rig.complete_transfer();  // the backup of page 2 succeeds, without its parent on the host
  rig.arrive(3, {}, 3, 12);
  while (!rig.world.passes.empty()) rig.complete_pass();
  rig.arrive(4, document({1, 2}), 9, 1);
  while (!rig.world.passes.empty()) rig.complete_pass();
  while (!rig.world.transfers.empty()) rig.complete_transfer(Status::failed);
  rig.drain();
  EXPECT_EQ(rig.events.records.size(), 5U);
  EXPECT_TRUE(rig.engine.idle());
}

TEST(Engine, output_pages_that_the_index_lends_stay_shared_though_output_is_not_cached) {
  EngineConfig config = small_config(12, 0);
  config.cache_output = false;
  config.burst_steps = 4;
  config.reserve_initial = config.reserve_min = 0;
  EngineRig rig(config);
  const auto pages = document({1, 2, 3, 4, 5, 6, 7, 8});
  rig.arrive_knowing_output(0, pages, 13, 30);
  rig.complete_pass();
  rig.arrive_knowing_output(1, pages, 5, 20);
  rig.drain();
  EXPECT_GT(rig.events.count(EventKind::retracted), 0U);
  EXPECT_EQ(rig.events.records.size(), 2U);
}

TEST(Engine, an_arrival_while_the_ranks_agree_ends_the_burst_that_follows) {
  EngineRig rig(small_config(64, 0));
  rig.arrive(0, document({1, 2}), 8, 200);
  rig.complete_pass();
  const auto burst = rig.world.passes.front();
  rig.world.passes.pop_front();
  Completion completion;
  completion.id = burst.id;
  completion.steps = burst.steps;
  rig.engine.handle({rig.world.time, completion});
  ASSERT_EQ(rig.world.reductions.size(), 1U);
  Arrival arrival;
  arrival.request = 1;
  arrival.prompt_tokens = 4;
  arrival.output_tokens = 1;
  rig.engine.handle({rig.world.time, arrival});
  rig.engine.handle({rig.world.time, rig.world.reductions.front()});
  rig.world.reductions.pop_front();
  ASSERT_EQ(rig.world.passes.size(), 1U);
  EXPECT_EQ(rig.world.cancelled, std::vector<OperationId>{rig.world.passes[0].id});
}

// A real device may not have begun the burst when the cancel comes.
TEST(Engine, an_arrival_is_taken_by_the_step_after_a_burst_that_was_cancelled_before_its_first_step) {
  EngineRig rig(small_config(64, 0));
  rig.arrive(0, document({1, 2}), 8, 40);
  rig.complete_pass();
  rig.arrive(1, document({11, 12}), 8, 4);
  const OperationId burst = rig.world.passes.front().id;
  ASSERT_EQ(rig.world.cancelled, std::vector<OperationId>{burst});
  rig.world.passes.pop_front();
  rig.complete(burst, Status::cancelled, 0);
  EXPECT_EQ(rig.events.count(EventKind::admitted), 2U);
  EXPECT_EQ(rig.world.cancelled.size(), 1U) << "the next pass was cancelled too";
  rig.drain();
  EXPECT_EQ(rig.events.records.size(), 2U);
}

TEST(Engine, a_failed_backup_leaves_no_host_copy) {
  EngineRig rig(small_config(6, 16));
  rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
  rig.complete_pass();
  rig.complete_transfer(Status::failed);
  rig.drain();
  EXPECT_EQ(rig.events.page_count(EventKind::backup_dropped), 4U);
  rig.arrive(1, document({11, 12, 13, 14}), 17, 1);
  rig.drain();
  rig.arrive(2, document({1, 2, 3, 4}), 17, 1);
  rig.drain();
  EXPECT_EQ(rig.events.records.at(2).hit[Tier::host], 0U);
}

TEST(Engine, a_node_splits_under_its_backup) {
  EngineRig rig(small_config(16, 16));
  rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
  rig.complete_pass();
  ASSERT_EQ(rig.world.transfers.size(), 1U);
  rig.arrive(1, document({1, 2, 13, 14}), 17, 1);  // branches off after two pages, while all four are in a transfer
  EXPECT_EQ(rig.world.passes.at(0).shape.prefill_tokens, 9U);
  rig.complete_pass();
  rig.complete_transfer();
  rig.drain();
  EXPECT_EQ(rig.events.page_count(EventKind::backup_done), 6U);
  EXPECT_TRUE(rig.engine.idle());
}

TEST(Engine, two_requests_of_one_batch_share_a_prefix_that_is_being_loaded) {
  EngineRig rig(small_config(10, 16));
  rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
  rig.drain();
  rig.arrive(1, document({11, 12, 13, 14, 15, 16, 17, 18, 19}), 36, 1);
  rig.arrive(2, document({1, 2, 3, 4}), 17, 1);
  rig.arrive(3, document({1, 2, 3, 4, 5}), 21, 1);
  rig.complete_pass();
  while (rig.world.passes.empty()) rig.complete_transfer();  // the backup makes room
  ASSERT_EQ(rig.world.passes.size(), 1U);
  EXPECT_EQ(rig.world.passes[0].sequences, 2U);
  rig.drain();
  EXPECT_EQ(rig.events.records.size(), 4U);
  EXPECT_TRUE(rig.engine.idle());
}

TEST(Engine, a_long_prompt_is_prefilled_in_chunks_and_backed_up_once) {
  EngineConfig config = small_config(64, 64);
  config.chunk_tokens = 8;
  EngineRig rig(config);
  rig.arrive(0, document({1, 2, 3, 4, 5}), 21, 1);
  EXPECT_EQ(rig.world.passes.at(0).shape.prefill_tokens, 8U);
  rig.complete_pass();
  EXPECT_TRUE(rig.world.transfers.empty());
  EXPECT_EQ(rig.world.passes.at(0).shape.prefill_pairs, 8U * 8 + 8 * 9 / 2);
  rig.complete_pass();
  rig.complete_pass();
  ASSERT_EQ(rig.world.transfers.size(), 1U);
  EXPECT_EQ(rig.world.transfers[0].pages.size(), 5U);
  rig.drain();
  EXPECT_EQ(rig.events.records.at(0).prefill_passes, 3U);
}

TEST(Engine, what_can_never_fit_is_rejected) {
  EngineRig rig(small_config(4, 0));
  rig.arrive(0, document({1, 2, 3, 4}), 16, 2);
  rig.arrive(1, document({1, 2, 3, 4}), 16, 1);
  rig.drain();
  ASSERT_EQ(rig.events.records.size(), 2U);
  EXPECT_EQ(rig.events.count(EventKind::rejected), 1U);
  EXPECT_EQ(rig.events.records[0].rejected, Reason::too_long);
}

TEST(Engine, a_full_device_retracts_the_youngest_and_finishes_all) {
  EngineConfig config = small_config(8, 0);
  config.reserve_initial = config.reserve_min = 0;  // admits too many requests, to cause retractions
  config.burst_steps = 1;
  EngineRig rig(config);
  rig.arrive(0, document({1, 2}), 8, 12);
  rig.arrive(1, document({11, 12}), 8, 12);
  rig.arrive(2, document({21, 22}), 8, 12);
  rig.drain();
  EXPECT_GT(rig.events.count(EventKind::retracted), 0U);
  ASSERT_EQ(rig.events.records.size(), 3U);
  EXPECT_EQ(rig.events.records[0].request, 0U) << "the oldest is never retracted";
  EXPECT_TRUE(rig.engine.idle());
}

TEST(Engine, an_arrival_ends_a_decode_burst_only_if_it_may_be_admitted) {
  EngineConfig config = small_config(64, 0);
  config.max_running = 2;
  EngineRig rig(config);
  rig.arrive(0, document({1, 2}), 8, 40);
  rig.complete_pass();
  EXPECT_EQ(rig.world.passes.at(0).steps, 39U);
  rig.arrive(1, document({11, 12}), 8, 40);
  EXPECT_EQ(rig.world.cancelled.size(), 1U);
  const auto burst = rig.world.passes.front();
  rig.world.passes.pop_front();
  rig.complete(burst.id, Status::cancelled, 5);
  rig.complete_pass();  // the prefill of request 1
  EXPECT_EQ(rig.world.passes.at(0).steps, 34U);
  rig.arrive(2, document({21, 22}), 8, 4);  // the queue is empty, so the engine tries this request; it does not fit
  EXPECT_EQ(rig.world.cancelled.size(), 2U);
  const OperationId second = rig.world.passes.front().id;
  rig.world.passes.pop_front();
  rig.complete(second, Status::cancelled, 3);
  rig.arrive(3, document({31, 32}), 8, 4);  // request 2 waits for room, so this arrival changes nothing
  EXPECT_EQ(rig.world.cancelled.size(), 2U);
  rig.drain();
  EXPECT_EQ(rig.events.records.size(), 4U);
}

TEST(Engine, longest_prefix_goes_first_but_nobody_waits_for_ever) {
  EngineConfig config = small_config(64, 0);
  config.order = "longest_prefix";
  config.max_running = 1;
  config.overtake_limit = 2;
  EngineRig rig(config);
  rig.arrive(0, document({1, 2, 3}), 12, 2);
  rig.arrive(1, document({71, 72}), 8, 2);
  for (RequestId id = 2; id < 7; ++id) rig.arrive(id, document({1, 2, 3, 100 + id}), 16, 2);
  rig.drain();
  ASSERT_EQ(rig.events.records.size(), 7U);
  EXPECT_EQ(rig.events.records[0].request, 0U);
  EXPECT_EQ(rig.events.records[1].request, 2U);
  EXPECT_EQ(rig.events.records[2].request, 3U);
  EXPECT_EQ(rig.events.records[3].request, 1U) << "passed over twice, then first";
}

std::vector<RequestId> order_of_finish(const EngineRig& rig) {
  std::vector<RequestId> order;
  for (const RequestRecord& record : rig.events.records) order.push_back(record.request);
  return order;
}

TEST(Engine, the_shortest_prefill_goes_first_and_cached_tokens_do_not_count) {
  EngineConfig config = small_config(64, 0);
  config.order = "shortest_prefill_first";
  config.max_running = 1;
  EngineRig rig(config);
  rig.arrive(0, document({1, 2, 3}), 12, 2);
  rig.arrive(1, document({71, 72, 73}), 12, 2);
  rig.arrive(2, document({81, 82}), 8, 2);
  rig.arrive(3, document({1, 2, 3, 4}), 16, 2);  // 12 of its tokens are cached by then
  rig.arrive(4, document({91, 92}), 8, 2);
  rig.drain();
  EXPECT_EQ(order_of_finish(rig), (std::vector<RequestId>{0, 3, 2, 4, 1})) << "of equals, the one that arrived first";
}

TEST(Engine, hrrn_weighs_the_wait_against_the_prefill) {
  EngineConfig config = small_config(64, 0);
  config.order = "hrrn";
  config.max_running = 1;
  EngineRig rig(config);
  rig.arrive(0, document({1, 2, 3}), 12, 2);
  rig.arrive(1, document({11, 12, 13, 14, 15, 16, 17, 18, 19, 20}), 40, 2);
  rig.arrive(2, document({21, 22, 23, 24}), 16, 2);
  rig.arrive(3, document({31, 32}), 8, 2);
  rig.complete_pass();
  rig.complete_pass();
  ASSERT_EQ(rig.events.records.size(), 1U);
  ASSERT_EQ(rig.world.passes.at(0).shape.prefill_tokens, 40U) << "none had waited, so the one that arrived first";
  rig.arrive(4, document({41}), 4, 2);
  rig.drain();
  // Requests 2 and 3 waited for 40 tokens: 40/16 < 40/8. Then 2 and 4 waited for 8 tokens more: 48/16 > 8/4.
  EXPECT_EQ(order_of_finish(rig), (std::vector<RequestId>{0, 1, 3, 2, 4}));
}

// ---- write-back --------------------------------------------------------------------------------------------

EngineConfig write_back_config(Pages device, Pages host) {
  EngineConfig config = small_config(device, host);
  config.write_policy = "write_back";
  config.clean_reserve = 0;
  return config;
}

TEST(Engine, write_back_writes_nothing_until_pages_must_leave) {
  EngineRig rig(write_back_config(6, 16));
  rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
  rig.drain();
  EXPECT_EQ(rig.events.count(EventKind::backup_queued), 0U);
  rig.arrive(1, document({11, 12, 13, 14}), 17, 1);  // five pages; two are free
  EXPECT_TRUE(rig.world.passes.empty()) << "it waits for the copy";
  EXPECT_EQ(rig.events.count(EventKind::backup_awaited), 1U);
  ASSERT_EQ(rig.world.transfers.size(), 1U);
  EXPECT_EQ(rig.world.transfers[0].lane, Lane::d2h);
  EXPECT_EQ(rig.world.transfers[0].pages.size(), 3U) << "just enough, from the leaf's tail";
  EXPECT_EQ(rig.world.transfers[0].pages[0].key, document({1, 2})[1]);
  rig.complete_transfer();
  EXPECT_EQ(rig.world.passes.size(), 1U);
  rig.drain();
  rig.arrive(2, document({1, 2, 3, 4}), 17, 1);
  rig.drain();
  EXPECT_EQ(rig.events.records.at(2).hit[Tier::device], 4U);
  EXPECT_EQ(rig.events.records.at(2).hit[Tier::host], 12U);
  EXPECT_EQ(rig.events.count(EventKind::backup_dropped), 0U);
  EXPECT_TRUE(rig.engine.idle());
}

TEST(Engine, write_back_keeps_a_reserve_so_that_nobody_waits) {
  EngineConfig config = write_back_config(10, 16);
  config.clean_reserve = 512;
  EngineRig rig(config);
  rig.arrive(0, document({1, 2, 3, 4, 5, 6, 7}), 29, 1);
  rig.complete_pass();
  ASSERT_EQ(rig.world.transfers.size(), 1U);
  EXPECT_EQ(rig.world.transfers[0].pages.size(), 2U) << "three of the five are free";
  rig.complete_transfer();
  rig.arrive(1, document({11, 12, 13, 14}), 17, 1);
  EXPECT_EQ(rig.world.passes.size(), 1U);
  EXPECT_EQ(rig.events.count(EventKind::backup_awaited), 0U);
  rig.drain();
  EXPECT_EQ(rig.events.page_count(EventKind::backup_done), rig.events.page_count(EventKind::backup_queued));
}

TEST(Engine, write_back_to_a_full_host_drops_the_sub_tree_and_counts_it) {
  EngineConfig config = write_back_config(8, 3);
  config.evict_unit = EvictUnit::node;
  EngineRig rig(config);
  rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
  rig.drain();
  rig.arrive(1, document({1, 2, 3, 4, 5, 6}), 25, 1);
  rig.drain();
  rig.arrive(2, document({11, 12, 13}), 13, 1);
  rig.drain();
  EXPECT_EQ(rig.events.evicted_pages(Tier::device, Reason::demoted), 2U) << "pages 5 and 6, a node";
  rig.arrive(3, document({21, 22, 23, 24}), 17, 1);  // pages 1 to 4 do not fit on the host
  EXPECT_EQ(rig.events.evicted_pages(Tier::device, Reason::host_pressure), 4U);
  EXPECT_EQ(rig.events.evicted_pages(Tier::host, Reason::host_pressure), 2U) << "nothing could reach them any more";
  rig.drain();
  EXPECT_EQ(rig.events.records.size(), 4U);
  EXPECT_TRUE(rig.engine.idle());
}

TEST(Engine, write_back_makes_progress_when_all_is_dirty_and_the_host_can_take_nothing) {
  EngineConfig config = write_back_config(6, 3);
  config.evict_unit = EvictUnit::node;  // a node of four pages never fits into three
  EngineRig rig(config);
  rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
  rig.drain();
  rig.arrive(1, document({11, 12, 13, 14}), 17, 1);
  EXPECT_TRUE(rig.world.transfers.empty());
  ASSERT_EQ(rig.world.passes.size(), 1U) << "nothing to wait for";
  EXPECT_EQ(rig.events.evicted_pages(Tier::device, Reason::host_pressure), 4U);
  rig.drain();
  EXPECT_TRUE(rig.engine.idle());
}

TEST(Engine, a_failed_write_back_loses_the_pages_only_when_their_room_is_needed) {
  EngineRig rig(write_back_config(6, 16));
  rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
  rig.drain();
  rig.arrive(1, document({11, 12, 13, 14}), 17, 1);
  rig.complete_transfer(Status::failed);
  EXPECT_EQ(rig.events.page_count(EventKind::backup_dropped), 3U);
  ASSERT_EQ(rig.world.passes.size(), 1U) << "no copy to wait for any more";
  EXPECT_EQ(rig.events.evicted_pages(Tier::device, Reason::transfer_failed), 3U);
  rig.drain();
  EXPECT_TRUE(rig.engine.idle());
}

TEST(Engine, a_node_splits_under_its_write_back) {
  EngineRig rig(write_back_config(8, 16));
  rig.arrive(0, document({1, 2, 3, 4, 5}), 21, 1);
  rig.drain();
  rig.arrive(1, document({11, 12, 13, 14, 15, 16}), 25, 1);  // starts the backup of pages 2 to 5
  ASSERT_EQ(rig.world.transfers.size(), 1U);
  rig.arrive(2, document({1, 2, 3, 33}), 17, 1);  // branches off among these pages, and waits
  rig.complete_transfer();
  rig.drain();
  EXPECT_EQ(rig.events.records.size(), 3U);
  EXPECT_EQ(rig.events.records.at(2).hit[Tier::device] + rig.events.records.at(2).hit[Tier::host], 12U);
  EXPECT_EQ(rig.events.page_count(EventKind::evicted), rig.events.evicted_pages(Tier::device, Reason::demoted));
  EXPECT_TRUE(rig.engine.idle());
}

TEST(Engine, write_back_waits_for_leases_not_for_copies_when_all_is_leased) {
  EngineRig rig(write_back_config(8, 16));
  rig.arrive(0, document({1, 2, 3, 4}), 17, 12);
  rig.complete_pass();
  rig.arrive(1, document({11, 12, 13, 14}), 17, 1);
  EXPECT_TRUE(rig.world.transfers.empty());
  EXPECT_EQ(rig.events.count(EventKind::backup_awaited), 0U);
  rig.drain();
  EXPECT_EQ(rig.events.records.size(), 2U);
  EXPECT_TRUE(rig.engine.idle());
}

TEST(Engine, write_back_without_a_host_drops) {
  EngineRig rig(write_back_config(6, 0));
  rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
  rig.drain();
  rig.arrive(1, document({11, 12, 13, 14}), 17, 1);
  EXPECT_EQ(rig.world.passes.size(), 1U);
  EXPECT_EQ(rig.events.evicted_pages(Tier::device, Reason::lost), 3U);
  rig.drain();
}

// ---- exclusive tiers, reclaim, retries ----------------------------------------------------------------------

TEST(Engine, exclusive_tiers_drop_the_host_copy_once_its_load_back_is_acknowledged) {
  EngineConfig config = write_back_config(6, 16);
  config.tiering = Tiering::exclusive;
  EngineRig rig(config);
  rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
  rig.drain();
  rig.arrive(1, document({11, 12, 13, 14}), 17, 1);
  rig.drain();
  EXPECT_EQ(rig.events.evicted_pages(Tier::device, Reason::demoted), 3U);
  rig.arrive(2, document({1, 2, 3, 4}), 17, 1);
  while (rig.world.transfers.at(0).lane == Lane::d2h) rig.complete_transfer();
  EXPECT_EQ(rig.events.evicted_pages(Tier::host, Reason::shadowed), 0U);
  ASSERT_EQ(rig.world.transfers.at(0).lane, Lane::h2d);
  rig.drain();
  EXPECT_EQ(rig.events.records.at(2).hit[Tier::host], 12U);
  EXPECT_EQ(rig.events.evicted_pages(Tier::host, Reason::shadowed), 3U);
  EXPECT_TRUE(rig.engine.idle());
}

TEST(Engine, a_reclaimed_host_copy_makes_room_and_is_backed_up_again_at_the_next_insert) {
  EngineConfig config = small_config(16, 3);
  config.reclaim_shadowed = true;
  EngineRig rig(config);
  rig.arrive(0, document({1, 2}), 9, 1);
  rig.drain();
  rig.arrive(1, document({11, 12}), 9, 1);  // one page is free on the host
  rig.complete_pass();
  ASSERT_EQ(rig.world.transfers.size(), 1U);
  EXPECT_EQ(rig.world.transfers[0].pages.size(), 2U);
  EXPECT_EQ(rig.events.evicted_pages(Tier::host, Reason::shadowed), 1U);
  rig.drain();
  rig.arrive(2, document({1, 2}), 9, 1);
  rig.complete_pass();
  ASSERT_EQ(rig.world.transfers.size(), 1U);
  EXPECT_EQ(rig.world.transfers[0].pages.size(), 1U);
  EXPECT_EQ(rig.world.transfers[0].pages[0].key, document({1, 2})[1]) << "the tail had gone";
  EXPECT_EQ(rig.events.evicted_pages(Tier::host, Reason::shadowed), 2U);
  rig.drain();
  EXPECT_TRUE(rig.engine.idle());
}

// Request 4 evicts two nodes. The first fills the host. For the second, mru evicts the most recent page of the host.
TEST(Engine, a_full_host_may_evict_pages_that_are_about_to_leave_the_device) {
  for (const bool may : {false, true}) {
    EngineConfig config = write_back_config(7, 4);
    config.eviction = "mru";
    config.evict_unit = EvictUnit::node;
    config.host_evicts_leaving = may;
    EngineRig rig(config);
    RequestId request = 0;
    for (const std::uint64_t first : {1U, 3U, 5U, 7U}) {
      rig.arrive(request++, document({first, first + 1}), 9, 1);
      rig.drain();
    }
    rig.arrive(request++, document({11, 12, 13, 14}), 17, 1);
    rig.drain();
    EXPECT_EQ(rig.events.evicted_pages(Tier::host, Reason::lost), 2U);
    rig.arrive(request, document({5, 6}), 9, 1);
    rig.drain();
    EXPECT_EQ(rig.events.records.back().hit[Tier::host], may ? 8U : 0U);
    EXPECT_TRUE(rig.engine.idle());
  }
}

TEST(Engine, without_reclaim_a_host_full_of_shadowed_copies_takes_nothing) {
  EngineRig rig(small_config(16, 3));
  rig.arrive(0, document({1, 2}), 9, 1);
  rig.drain();
  rig.arrive(1, document({11, 12}), 9, 1);
  rig.drain();
  EXPECT_EQ(rig.events.page_count(EventKind::backup_dropped), 2U);
}

TEST(Engine, a_backup_never_reclaims_the_copy_that_it_builds_on) {
  EngineConfig config = small_config(16, 3);
  config.reclaim_shadowed = true;
  EngineRig rig(config);
  rig.arrive(0, document({1, 2}), 9, 1);
  rig.drain();
  rig.arrive(1, document({1, 2, 3, 4}), 17, 1);
  rig.drain();
  EXPECT_EQ(rig.events.evicted_pages(Tier::host, Reason::shadowed), 0U);
  EXPECT_EQ(rig.events.page_count(EventKind::backup_dropped), 2U);
}

TEST(Engine, a_failed_backup_is_tried_again_so_often_and_then_dropped) {
  EngineConfig config = small_config(6, 16);
  config.backup_retries = 2;
  EngineRig rig(config);
  rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
  rig.complete_pass();
  for (int i = 0; i < 2; ++i) {
    rig.complete_transfer(Status::failed);
    ASSERT_EQ(rig.world.transfers.size(), 1U);
    EXPECT_EQ(rig.world.transfers[0].pages.size(), 4U);
  }
  EXPECT_EQ(rig.events.page_count(EventKind::backup_retried), 8U);
  rig.complete_transfer(Status::failed);
  EXPECT_TRUE(rig.world.transfers.empty());
  EXPECT_EQ(rig.events.page_count(EventKind::backup_dropped), 4U);
  EXPECT_EQ(rig.events.page_count(EventKind::backup_done), 0U);
  EXPECT_TRUE(rig.engine.idle());
}

TEST(Engine, a_retried_backup_brings_those_below_it_along) {
  EngineConfig config = small_config(12, 16);
  config.backup_retries = 1;
  config.cache_output = false;
  EngineRig rig(config);
  rig.arrive(0, document({1, 2}), 9, 1);
  rig.complete_pass();
  rig.arrive(1, document({1, 2, 3}), 13, 1);
  rig.complete_pass();
  ASSERT_EQ(rig.world.transfers.size(), 2U);
  rig.complete_transfer(Status::failed);
  rig.complete_transfer();  // the backup of page 3 succeeds; the backup of its parent is in flight again
  EXPECT_EQ(rig.events.page_count(EventKind::backup_retried), 3U);
  rig.drain();
  EXPECT_EQ(rig.events.page_count(EventKind::backup_done), 3U);
  EXPECT_EQ(rig.events.page_count(EventKind::backup_dropped), 0U);
  EXPECT_TRUE(rig.engine.idle());
}

TEST(Engine, a_write_back_that_fails_is_tried_again_while_its_request_waits) {
  EngineConfig config = write_back_config(6, 16);
  config.backup_retries = 1;
  EngineRig rig(config);
  rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
  rig.drain();
  rig.arrive(1, document({11, 12, 13, 14}), 17, 1);
  rig.complete_transfer(Status::failed);
  EXPECT_TRUE(rig.world.passes.empty());
  rig.complete_transfer();
  EXPECT_EQ(rig.world.passes.size(), 1U);
  EXPECT_EQ(rig.events.evicted_pages(Tier::device, Reason::demoted), 3U);
  rig.drain();
  EXPECT_TRUE(rig.engine.idle());
}

}  // namespace
}  // namespace kvtwin
