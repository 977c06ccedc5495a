// The styles of an engine (policy/style/): how a step is composed, rule by rule.
#include "policy/style.hpp"

#include <gtest/gtest.h>

#include "manual_world.hpp"

namespace kvtwin {
namespace {

EngineConfig styled(const char* style, Pages device, Pages host) {
  EngineConfig config = small_config(device, host);
  config.style = style;
  config.burst_steps = 8;
  return config;
}

TEST(Style, names_are_known_and_the_first_one_is_the_default) {
  const EngineConfig config;
  EXPECT_EQ(style_names().front(), config.style);
  for (const std::string_view name : style_names()) EXPECT_NE(make_style(name, config), nullptr) << name;
  EXPECT_EQ(make_style("none", config), nullptr);
}

// ---- polls -------------------------------------------------------------------------------------------

EngineConfig polling(std::uint32_t steps) {
  EngineConfig config = styled("sglang", 64, 0);
  config.burst_steps = 4;
  config.poll_steps = steps;
  return config;
}

TEST(Polls, new_requests_wait_for_the_next_poll) {
  EngineRig rig(polling(6));
  rig.arrive(0, document({1, 2}), 8, 40);
  rig.complete_pass();  // a prefill: the next step polls
  rig.arrive(1, document({11, 12}), 8, 40);
  EXPECT_EQ(rig.world.passes.at(0).steps, 4U) << "an arrival does not end the burst";
  rig.complete_pass();
  EXPECT_EQ(rig.world.passes.at(0).steps, 2U) << "a burst ends at the poll";
  EXPECT_EQ(rig.world.passes.at(0).shape.prefill_tokens, 0U);
  rig.complete_pass();
  EXPECT_EQ(rig.world.passes.at(0).shape.prefill_tokens, 8U);
  rig.drain();
  EXPECT_EQ(rig.events.records.size(), 2U);
}

TEST(Polls, an_abort_waits_too_and_still_ends_its_request) {
  EngineRig rig(polling(100));
  rig.arrive(0, document({1, 2}), 8, 40);
  rig.complete_pass();
  rig.arrive(1, document({11, 12}), 8, 40);
  rig.hint(HintKind::abort, 1);
  rig.drain();
  EXPECT_TRUE(rig.engine.idle());
  EXPECT_EQ(rig.events.count(EventKind::aborted), 1U);
}

// The ranks of a damaged journal have the inputs in different orders.
TEST(Polls, an_abort_that_is_agreed_before_its_request_changes_nothing) {
  EngineRig rig(polling(1));
  rig.arrive(0, document({1, 2}), 8, 4);
  rig.arrive(1, document({11, 12}), 8, 4);
  rig.hint(HintKind::abort, 1);
  rig.other_ranks = [](ReduceVector& values) { values[1] = 1; };  // arrivals
  rig.complete_pass();
  rig.other_ranks = nullptr;
  rig.drain();
  EXPECT_TRUE(rig.engine.idle());
  EXPECT_EQ(rig.events.count(EventKind::aborted), 0U);
  EXPECT_EQ(rig.events.records.size(), 2U);
}

// ---- sglang ------------------------------------------------------------------------------------------

TEST(SglangStyle, prefills_alone_and_decodes_afterwards) {
  EngineRig rig(styled("sglang", 64, 0));
  rig.arrive(0, document({1, 2}), 8, 40);
  rig.complete_pass();
  rig.arrive(1, document({11, 12}), 8, 40);
  rig.complete_pass();  // the burst
  const ForwardShape& shape = rig.world.passes.at(0).shape;
  EXPECT_EQ(shape.prefill_tokens, 8U);
  EXPECT_EQ(shape.decode_sequences, 0U);
}

TEST(SglangStyle, mixed_chunks_decode_in_the_prefill_pass_and_take_their_tokens_from_the_chunk) {
  EngineConfig config = styled("sglang", 64, 0);
  config.mixed_chunks = true;
  config.chunk_tokens = 10;
  EngineRig rig(config);
  rig.arrive(0, document({1, 2}), 8, 40);
  EXPECT_EQ(rig.world.passes.at(0).shape.decode_sequences, 0U) << "nothing runs yet";
  rig.complete_pass();
  rig.arrive(1, document({11, 12, 13, 14}), 16, 40);
  rig.complete_pass();  // the burst
  for (const Tokens tokens : {9U, 7U}) {
    const auto& pass = rig.world.passes.at(0);
    EXPECT_EQ(pass.shape.prefill_tokens, tokens);
    EXPECT_EQ(pass.shape.prefill_sequences, 1U);
    EXPECT_EQ(pass.shape.decode_sequences, 1U);
    EXPECT_EQ(pass.steps, 1U);
    EXPECT_EQ(pass.sequences, 2U);
    rig.complete_pass();
  }
  EXPECT_EQ(rig.world.passes.at(0).shape.decode_sequences, 2U);
  rig.drain();
  ASSERT_EQ(rig.events.records.size(), 2U);
  EXPECT_TRUE(rig.engine.idle());
}

TEST(SglangStyle, as_many_running_requests_as_chunk_tokens_leave_no_prefill) {
  EngineConfig config = styled("sglang", 64, 0);
  config.mixed_chunks = true;
  config.chunk_tokens = 2;
  EngineRig rig(config);
  rig.arrive(0, document({}), 1, 9);
  rig.arrive(1, document({}), 1, 9);
  rig.arrive(2, document({}), 2, 9);
  rig.complete_pass();
  while (rig.events.count(EventKind::finished) == 0) {
    if (rig.events.count(EventKind::first_token) == 2) {
      EXPECT_EQ(rig.world.passes.at(0).shape.prefill_tokens, 0U);
      EXPECT_EQ(rig.world.passes.at(0).shape.decode_sequences, 2U);
    }
    rig.complete_pass();
  }
  rig.drain();
  EXPECT_EQ(rig.events.records.size(), 3U);
}

// ---- vllm --------------------------------------------------------------------------------------------

TEST(VllmStyle, one_budget_pays_decodes_first_and_then_prefill) {
  EngineConfig config = styled("vllm", 64, 0);
  config.chunk_tokens = 10;
  EngineRig rig(config);
  rig.arrive(0, document({1, 2}), 8, 40);
  rig.complete_pass();
  EXPECT_EQ(rig.world.passes.at(0).steps, 8U) << "nothing waits, so the step becomes a burst";
  rig.arrive(1, document({11, 12, 13, 14}), 16, 40);
  rig.complete_pass();
  EXPECT_EQ(rig.world.passes.at(0).shape.decode_sequences, 1U);
  EXPECT_EQ(rig.world.passes.at(0).shape.prefill_tokens, 9U);
  rig.arrive(2, document({21, 22}), 8, 40);
  rig.complete_pass();
  EXPECT_EQ(rig.world.passes.at(0).shape.decode_sequences, 1U);
  EXPECT_EQ(rig.world.passes.at(0).shape.prefill_tokens, 9U) << "7 of the prompt under way, and 2 of the next";
  EXPECT_EQ(rig.world.passes.at(0).shape.prefill_sequences, 2U);
  rig.complete_pass();
  EXPECT_EQ(rig.world.passes.at(0).shape.decode_sequences, 2U);
  EXPECT_EQ(rig.world.passes.at(0).shape.prefill_tokens, 6U);
  rig.drain();
  EXPECT_EQ(rig.events.records.size(), 3U);
}

TEST(VllmStyle, requests_beyond_the_budget_decode_when_others_have_ended) {
  EngineConfig config = styled("vllm", 64, 0);
  config.chunk_tokens = 1;
  EngineRig rig(config);
  rig.arrive(0, document({}), 1, 3);
  rig.arrive(1, document({}), 1, 3);
  rig.complete_pass();
  EXPECT_EQ(rig.world.passes.at(0).shape.decode_sequences, 1U);
  rig.drain();
  ASSERT_EQ(rig.events.records.size(), 2U);
  EXPECT_EQ(rig.events.records[0].request, 0U);
}

// Two requests of 8 prompt tokens fill 4 of 5 pages. Their answers do not fit together.
TEST(VllmStyle, preempts_the_request_that_was_admitted_last_and_keeps_its_pages_cached) {
  EngineConfig config = styled("vllm", 5, 0);
  EngineRig rig(config);
  rig.arrive(0, document({1, 2}), 8, 8);
  rig.arrive(1, document({11, 12}), 8, 4);
  rig.complete_pass();  // the prefill of request 0
  rig.complete_pass();
  ASSERT_EQ(rig.events.count(EventKind::admitted), 2U) << "admission keeps no room for answers";
  while (rig.events.count(EventKind::retracted) == 0) rig.complete_pass();
  rig.drain();
  ASSERT_EQ(rig.events.records.size(), 2U);
  EXPECT_EQ(rig.events.records[0].request, 0U);
  EXPECT_EQ(rig.events.records[0].retractions, 0U);
  EXPECT_GT(rig.events.records[1].retractions, 0U);
  EXPECT_TRUE(rig.engine.idle());
}

TEST(VllmStyle, a_preempted_request_hits_its_own_pages_if_they_are_still_there) {
  EngineConfig config = styled("vllm", 8, 0);
  EngineRig rig(config);
  rig.arrive(0, document({1, 2}), 8, 12);
  rig.arrive(1, document({11, 12}), 8, 12);
  rig.drain();
  ASSERT_EQ(rig.events.records.size(), 2U);
  const RequestRecord& preempted = rig.events.records[1];
  ASSERT_EQ(preempted.retractions, 1U);
  EXPECT_LT(preempted.retracted_recompute, preempted.prompt_tokens) << "not from its first token";
}

TEST(VllmStyle, admits_by_the_whole_prompt_or_by_the_first_chunk) {
  for (const bool whole : {true, false}) {
    EngineConfig config = styled("vllm", 6, 0);
    config.chunk_tokens = 9;
    config.burst_steps = 1;
    config.admit_whole_prompt = whole;
    EngineRig rig(config);
    rig.arrive(0, document({1, 2}), 8, 12);
    rig.complete_pass();
    rig.arrive(1, document({11, 12, 13, 14, 15}), 20, 1);
    rig.complete_pass();
    EXPECT_EQ(rig.events.count(EventKind::admitted), whole ? 1U : 2U) << "8 and 20 tokens fill 7 of 6 pages";
    rig.drain();
    EXPECT_EQ(rig.events.records.size(), 2U);
  }
}

// Documents 1 to 4 are on the host, and 11 to 14 on the device.
struct Loading : testing::Test {
  Loading() : rig(styled("vllm", 10, 32)) {
    rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
    rig.drain();
    rig.arrive(1, document({11, 12, 13, 14, 15, 16, 17, 18, 19}), 37, 1);
    rig.drain();
  }
  EngineRig rig;
};

TEST_F(Loading, a_request_waits_for_its_load_and_others_go_on) {
  rig.arrive(2, document({1, 2, 3, 4}), 17, 4);
  ASSERT_EQ(rig.world.transfers.size(), 1U);
  EXPECT_EQ(rig.world.transfers[0].lane, Lane::h2d);
  EXPECT_TRUE(rig.world.passes.empty()) << "no pass before the load has ended";
  EXPECT_EQ(rig.events.count(EventKind::admitted), 2U);
  rig.arrive(3, document({31}), 5, 2);
  ASSERT_EQ(rig.world.passes.size(), 1U) << "another request does not wait";
  EXPECT_TRUE(rig.world.passes[0].gates.empty());
  rig.world.time += 500;
  rig.complete_transfer();
  rig.complete_pass();
  EXPECT_EQ(rig.events.count(EventKind::admitted), 4U);
  EXPECT_EQ(rig.world.passes.at(0).shape.prefill_tokens, 1U);
  EXPECT_EQ(rig.world.passes.at(0).shape.decode_sequences, 1U);
  rig.drain();
  ASSERT_EQ(rig.events.records.size(), 4U);
  for (const RequestRecord& record : rig.events.records) {
    if (record.request != 2) continue;
    EXPECT_EQ(record.hit[Tier::host], 16U);
    EXPECT_GT(record.load_wait_ns, 0);
    EXPECT_EQ(record.first_token - record.arrival,
              record.queue_ns + record.prefetch_wait_ns + record.load_wait_ns + record.compute_ns);
  }
}

TEST_F(Loading, a_request_that_shares_the_loaded_pages_waits_too) {
  rig.arrive(2, document({1, 2, 3, 4}), 17, 1);
  rig.arrive(3, document({1, 2, 3, 4, 5}), 21, 1);
  EXPECT_TRUE(rig.world.passes.empty());
  rig.complete_transfer();
  ASSERT_EQ(rig.world.passes.size(), 1U);
  EXPECT_EQ(rig.world.passes[0].shape.prefill_tokens, 6U);
  EXPECT_EQ(rig.world.passes[0].shape.prefill_sequences, 2U);
  rig.drain();
  EXPECT_EQ(rig.events.page_count(EventKind::load_done), 4U) << "loaded once";
}

TEST_F(Loading, a_failed_load_is_computed_and_spoils_no_other_request) {
  rig.arrive(2, document({1, 2, 3, 4}), 17, 1);
  rig.arrive(3, document({31}), 5, 3);
  ASSERT_EQ(rig.world.transfers.size(), 1U);
  rig.complete_transfer(Status::failed);
  rig.drain();
  ASSERT_EQ(rig.events.records.size(), 4U);
  EXPECT_EQ(rig.events.count(EventKind::load_failed), 1U);
  EXPECT_EQ(rig.events.count(EventKind::retracted), 0U);
  EXPECT_EQ(rig.events.page_count(EventKind::load_done), 0U) << "computed, not loaded again";
  EXPECT_TRUE(rig.engine.idle());
}

// Request 3 computes pages 1 to 4 itself, because it was admitted before request 2 began to load them.
TEST_F(Loading, a_request_that_computes_the_loaded_pages_keeps_its_own) {
  for (const Status status : {Status::done, Status::failed}) {
    EngineConfig config = styled("vllm", 24, 32);
    config.load_back_min_tokens = 12;
    EngineRig own(config);
    own.arrive(0, document({1, 2, 3, 4}), 17, 1);
    own.drain();
    own.arrive(1, document({11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}), 93, 1);
    own.drain();
    own.arrive(2, document({1, 2}), 9, 30);  // too short to load
    own.arrive(3, document({1, 2, 3, 4}), 17, 1);
    if (!own.world.transfers.empty()) own.complete_transfer(status);
    own.drain();
    EXPECT_EQ(own.events.records.size(), 4U);
    EXPECT_TRUE(own.engine.idle());
  }
}

TEST_F(Loading, an_aborted_request_gives_its_prefix_back_and_the_load_ends) {
  rig.arrive(2, document({1, 2, 3, 4}), 17, 1);
  rig.hint(HintKind::abort, 2);
  EXPECT_EQ(rig.events.count(EventKind::aborted), 1U);
  rig.complete_transfer();
  rig.drain();
  EXPECT_TRUE(rig.engine.idle());
}

// The running request needs a page, and the loaded prefix of a waiting request holds the rest of L1.
TEST(VllmStyle, a_waiting_request_gives_its_loaded_prefix_back_if_the_running_one_has_no_room) {
  EngineConfig config = styled("vllm", 7, 32);
  config.max_running = 1;
  EngineRig rig(config);
  rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
  rig.drain();
  rig.arrive(1, document({11, 12, 13, 14, 15, 16}), 25, 1);
  rig.drain();
  rig.arrive(2, document({1, 2, 3, 4}), 17, 1);  // loads 4 pages
  rig.arrive(3, document({31, 32}), 5, 15);      // 19 tokens need 5 pages
  rig.drain();
  ASSERT_EQ(rig.events.records.size(), 4U);
  EXPECT_TRUE(rig.engine.idle());
}

}  // namespace
}  // namespace kvtwin
