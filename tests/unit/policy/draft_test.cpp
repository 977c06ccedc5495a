// The KV of a draft model moves together with the KV of its target model, either packed into the same pages or in a
// pool of its own. A page has four tokens.
#include <gtest/gtest.h>

#include "policy/seam/contract.hpp"
#include "stored_rig.hpp"

namespace kvtwin {
namespace {

enum class Draft : std::uint8_t { none, packed, side_pool };

EngineConfig with_draft(EngineConfig config, Draft draft) {
  if (draft == Draft::packed) ++config.shape.layers;
  if (draft == Draft::side_pool)
    config.beside = {{1, 2, 3, 16, 4}};  // a different number of heads than the target model
  return config;
}

// The result of traffic over all tiers: pages are backed up, evicted, stored, prefetched and loaded back.
struct Outcome {
  std::uint64_t digest = 0, decisions = 0, operations = 0;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome serve(Draft draft, std::string_view policy) {
  EngineConfig config = with_draft(stored_config(10, 14), draft);
  config.write_policy = policy;
  EngineRig rig(config);
  for (RequestId request = 0; request < 24; ++request) {
    rig.arrive(request, branch(1 + request * 7 % 5, 3, 10 + request % 3, 6), 25, 1 + request % 6);
    if (request % 3 != 0) rig.drain();
  }
  rig.drain();
  EXPECT_TRUE(rig.engine.idle());
  EXPECT_GT(rig.events.page_count(EventKind::load_queued), 0U);
  EXPECT_GT(rig.events.page_count(EventKind::store_done), 0U);
  // Operations, timers and reductions share one sequence of ids, so the next id tells how many there were.
  const auto operations = static_cast<std::uint64_t>(rig.world.call_at(rig.world.time));
  return {rig.decisions.digest(), rig.decisions.count(), operations};
}

TEST(Draft, no_decision_operation_or_reduction_more_than_without_one) {
  for (const std::string_view policy : {"write_through", "write_back"}) {
    const Outcome alone = serve(Draft::none, policy);
    EXPECT_GT(alone.decisions, 50U);
    EXPECT_EQ(serve(Draft::packed, policy), alone);
    EXPECT_EQ(serve(Draft::side_pool, policy), alone);
  }
}

// A world that checks each call against the contract of the seam and records what is transferred.
class Carried final : public Substrate {
 public:
  TimeNs now() const override { return 0; }
  OperationId submit(const Operation& operation) override {
    const BrokenTerm broken = contract.judge(operation);
    EXPECT_EQ(broken, nullptr) << broken;
    const OperationId id{++last};
    EXPECT_EQ(contract.submitted(operation, id, 0), nullptr);
    if (const auto* transfer = std::get_if<TransferOperation>(&operation)) {
      ++transfers;
      bytes = transfer->bytes();
      beside_bytes = transfer->beside.empty() ? 0 : transfer->beside.front().bytes;
      pages = transfer->pages.size();
    }
    return id;
  }
  OperationId call_at(TimeNs) override { return OperationId{++last}; }
  OperationId reduce_min(const ReduceVector& values) override {
    reductions.push_back({OperationId{++last}, values});
    EXPECT_EQ(contract.reduction_entered(values, reductions.back().id), nullptr);
    return reductions.back().id;
  }
  void cancel(OperationId) override {}

  SeamContract contract{ContractTerms{4}};
  std::deque<Reduction> reductions;
  std::uint64_t last = 0, transfers = 0;
  Bytes bytes = 0, beside_bytes = 0;
  Pages pages = 0;
};

void expect_bytes(Draft draft, Bytes page_bytes, Bytes side_page_bytes) {
  const EngineConfig config = with_draft(small_config(16, 16), draft);
  Carried world;
  DecisionLog decisions;
  Engine engine(config, world, decisions, nullptr);
  const std::vector<PageKey> keys = chain(1, 3);
  Arrival arrival;
  arrival.request = 0;
  arrival.prompt_tokens = 13;
  arrival.output_tokens = 1;
  arrival.keys = keys;
  engine.handle({0, arrival});
  const auto agree = [&] {
    while (!world.reductions.empty()) {
      const Reduction reduction = world.reductions.front();
      world.reductions.pop_front();
      engine.handle({0, reduction});
    }
  };
  agree();
  Completion pass;
  pass.id = OperationId{world.last};
  pass.steps = 1;
  engine.handle({0, pass});
  agree();
  EXPECT_EQ(world.transfers, 1U);
  EXPECT_EQ(world.pages, 3U);
  EXPECT_EQ(world.bytes, 3 * page_bytes);
  EXPECT_EQ(world.beside_bytes, 3 * side_page_bytes);
}

TEST(Draft, one_transfer_carries_both_parts) {
  expect_bytes(Draft::none, 2 * 2 * 8 * 4, 0);
  expect_bytes(Draft::packed, 3 * 2 * 8 * 4, 0);
  expect_bytes(Draft::side_pool, 2 * 2 * 8 * 4 + 2 * 3 * 16 * 4, 2 * 3 * 16 * 4);
}

TEST(Draft, storage_holds_both_parts_in_one_page) {
  EngineRig rig(with_draft(stored_config(16, 16), Draft::side_pool));
  rig.arrive(0, chain(1, 3), 13, 1);
  rig.complete_stored(kLookUp, 0);
  rig.complete_pass();
  rig.complete_transfer();
  ASSERT_EQ(rig.world.stored.size(), 1U);
  EXPECT_EQ(rig.world.stored[0].work.verb, kSet);
  EXPECT_EQ(rig.world.stored[0].work.page_bytes, 2U * 2 * 8 * 4 + 2 * 3 * 16 * 4);
  rig.drain();
}

TEST(Draft, a_plan_beside_another_of_other_pages_breaks_the_contract) {
  const std::vector<PageRun> runs = {{0, 4, 2}}, others = {{1, 4, 2}};
  const std::vector<PageMove> moves = {{{}, 0, 4}, {{}, 1, 5}};
  const KvShape shape{2, 2, 1, 8, 4};
  TransferOperation transfer;
  transfer.lane = Lane::h2d;
  transfer.pages = moves;
  transfer.plan =
      plan_transfer(runs, Direction::host_to_device, {shape, Layout::page_first}, IoBackend::kernel, PlannerLimits{});
  transfer.beside = {transfer.plan};
  const SeamContract contract{ContractTerms{4}};
  const auto judge = [&](const TransferOperation& judged) { return contract.judge(Operation{judged}); };
  EXPECT_EQ(judge(transfer), nullptr);
  transfer.beside.front().runs = others;
  EXPECT_STREQ(judge(transfer), "a plan beside another has its pages");
  transfer.beside = {transfer.plan};
  ++transfer.beside.front().bytes;
  EXPECT_STREQ(judge(transfer), "a plan beside another counts the bytes of its pages");
  transfer.beside.front().shape.layers = 0;
  EXPECT_STREQ(judge(transfer), "a plan beside another has a shape");
}

TEST(Draft, parts_of_a_transfer_add_up) {
  const TransferCost free{100, 3000, 0}, slow{50, 1000, 10};
  EXPECT_EQ(one_after_another(free, slow, 0).bytes_per_second, 10U);
  const TransferCost both = one_after_another(free, slow, 30);  // 100 s for each part
  EXPECT_EQ(both.latency_ns, 150);
  EXPECT_EQ(both.bytes, 4000U);
  EXPECT_EQ(both.bytes_per_second, 20U);
  EXPECT_EQ(one_after_another(free, {1, 500, 30}, 30).bytes_per_second, 0U);
}

// ---- decoding ------------------------------------------------------------------------------------------

EngineConfig speculating(EngineConfig config) {
  config.draft_tokens = 4;
  config.accept_x1024 = 2560;  // 2.5
  config.accept_without_x1024 = 1024;
  return config;
}

TEST(Draft, a_burst_ends_with_the_first_that_finishes) {
  EngineRig rig(speculating(small_config(32, 0)));
  rig.arrive(0, document({1}), 5, 1 + 11);  // whole tokens after each step: 2 5 7 10 12
  rig.arrive(1, document({2}), 5, 1 + 50);
  rig.complete_pass();
  while (rig.world.passes.at(0).shape.prefill_sequences != 0) rig.complete_pass();
  const ForwardShape& shape = rig.world.passes.at(0).shape;
  EXPECT_EQ(shape.decode_sequences, 2U);
  EXPECT_EQ(shape.draft_tokens, 4U);
  EXPECT_EQ(shape.decode_yield_x1024, 2U * 2560);
  EXPECT_EQ(rig.world.passes[0].steps, 5U);
  rig.complete_pass();
  ASSERT_EQ(rig.events.records.size(), 1U);
  EXPECT_EQ(rig.events.records[0].request, 0U);
  EXPECT_EQ(rig.world.passes.at(0).steps, 15U) << "12.5 of 50 tokens are there";
  rig.drain();
  EXPECT_TRUE(rig.engine.idle());
}

TEST(Draft, a_burst_that_was_cut_counts_the_steps_done) {
  EngineRig rig(speculating(small_config(32, 0)));
  rig.arrive(0, document({1}), 5, 1 + 25);
  rig.complete_pass();
  auto burst = rig.world.passes.at(0);
  EXPECT_EQ(burst.steps, 10U);
  rig.arrive(1, document({2}), 5, 1);
  EXPECT_EQ(rig.world.cancelled.size(), 1U);
  rig.world.passes.pop_front();
  rig.complete(burst.id, Status::cancelled, 3);  // three steps: 7.5 tokens
  rig.complete_pass();                           // the prefill of the other request
  EXPECT_EQ(rig.world.passes.at(0).steps, 7U) << "the half of a token is kept";
  EXPECT_EQ(rig.world.passes.at(0).shape.decode_context_tokens, 5U + 7);
  rig.drain();
  EXPECT_EQ(rig.events.records.size(), 2U);
}

// ---- KV that doesn't come back ---------------------------------------------------------------------------

std::uint64_t yield_of_second(bool restored) {
  EngineConfig config = speculating(small_config(6, 16));
  config.draft_restored = restored;
  EngineRig rig(config);
  rig.arrive(0, document({1, 2, 3, 4}), 17, 1);
  rig.drain();
  rig.arrive(1, document({5, 6, 7, 8}), 17, 1);  // evicts most of it
  rig.drain();
  rig.arrive(2, document({1, 2, 3, 4}), 17, 3);
  EXPECT_EQ(rig.world.transfers.size(), 1U);
  rig.complete_transfer();
  while (rig.world.passes.at(0).shape.prefill_sequences != 0) rig.complete_pass();
  const std::uint64_t yield = rig.world.passes.at(0).shape.decode_yield_x1024;
  rig.drain();
  EXPECT_EQ(rig.events.records.at(2).reused_without_draft, restored ? 0U : 12U);
  EXPECT_EQ(rig.events.records.at(2).hit[Tier::device], 4U);
  return yield;
}

TEST(Draft, what_comes_back_without_its_kv_is_slow_to_decode) {
  EXPECT_EQ(yield_of_second(true), 2560U);
  EXPECT_EQ(yield_of_second(false), 1024U);
}

// Pages that are loaded directly from storage to L1 also lack the draft model's KV; computed pages have it.
TEST(Draft, pages_from_storage_lack_it) {
  EngineConfig config = speculating(stored_config(16, 0));
  config.draft_restored = false;
  EngineRig rig(config);
  put(rig, chain(1, 4));
  rig.arrive(0, chain(1, 4), 17, 3);
  rig.arrive(1, chain(2, 4), 17, 3);
  rig.drain();
  EXPECT_EQ(record_of(rig, 0).hit[Tier::disk], 16U);
  EXPECT_EQ(record_of(rig, 0).reused_without_draft, 16U);
  EXPECT_EQ(record_of(rig, 1).reused_without_draft, 0U);
}

}  // namespace
}  // namespace kvtwin
