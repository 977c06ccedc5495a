#include "policy/seam/decorators.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "decorated_rig.hpp"
#include "tests/policy_test_support.hpp"

namespace kvtwin::test {
namespace {

// A handler that runs the test's action while it handles the next input.
struct Acting final : InputHandler {
  void handle(const Input& input) override {
    seen.push_back(kept(input, {}));
    if (act) std::exchange(act, nullptr)();
  }
  std::function<void()> act;  // run only once
  std::vector<KeptRecord> seen;
};

// A pass (or, below, a transfer) together with the data that it points to.
struct OwnedPass {
  explicit OwnedPass(std::uint64_t steps = 1, std::vector<OperationId> gated_by = {}) : gates(std::move(gated_by)) {
    sequence = {0, 4, steps == 1 ? 3 : steps, slots, keys};
    operation.steps = steps;
    if (steps == 1) {
      operation.shape = {.prefill_tokens = 3, .prefill_context_tokens = 4, .prefill_sequences = 1};
    } else {
      operation.shape = {.decode_sequences = 1, .decode_context_tokens = 4};
    }
    operation.sequences = std::span(&sequence, 1);
    operation.gates = gates;
  }
  OwnedPass(const OwnedPass&) = delete;
  OwnedPass& operator=(const OwnedPass&) = delete;
  std::vector<SlotId> slots = {0, 1, 2};
  std::vector<PageKey> keys{3};
  std::vector<OperationId> gates;
  SequenceWork sequence;
  ForwardOperation operation;
};

struct OwnedTransfer {
  explicit OwnedTransfer(Lane lane = Lane::h2d) {
    operation.lane = lane;
    operation.plan = plan_transfer(runs, lane == Lane::h2d ? Direction::host_to_device : Direction::device_to_host,
                                   {{2, 2, 1, 8, 4}, Layout::page_first}, IoBackend::automatic, {});
    operation.pages = moves;
  }
  OwnedTransfer(const OwnedTransfer&) = delete;
  OwnedTransfer& operator=(const OwnedTransfer&) = delete;
  std::vector<PageRun> runs = {{4, 0, 2}, {9, 7, 1}};
  std::vector<PageMove> moves = {{{}, 4, 0}, {{}, 5, 1}, {{}, 9, 7}};
  TransferOperation operation;
};

// ---- Recording --------------------------------------------------------------------------------------------

TEST(Recording, journals_what_it_handed_on_with_the_decisions_after_it) {
  ByteVector bytes;
  JournalWriter writer(bytes, "");
  DecisionLog decisions;
  Acting inner;
  Recording recording(inner, decisions, writer);
  inner.act = [&] {
    EXPECT_EQ(writer.records(), 0U) << "first handed on";
    decisions.add({});
  };
  recording.handle({5, TimerFired{OperationId{1}}});
  const DecisionMark after{decisions.count(), decisions.digest()};
  recording.handle({6, TimerFired{OperationId{2}}});
  const WholeJournal read = read_all(bytes.bytes);
  ASSERT_EQ(read.records.size(), 2U);
  EXPECT_EQ(read.records[0], kept({5, TimerFired{OperationId{1}}}, after));
  EXPECT_EQ(read.records[1], kept({6, TimerFired{OperationId{2}}}, after));
  EXPECT_EQ(inner.seen.size(), 2U);
}

// ---- Checking ---------------------------------------------------------------------------------------------

class CheckingTest : public testing::Test {
 protected:
  CheckingTest() { checking.connect(handler); }

  // Runs the action as if the policy did it while it handles an input.
  void act(const std::function<void()>& action) {
    handler.act = action;
    checking.handle({world.time, Hint{}});
  }
  template <typename Owned>
  OperationId submit(const Owned& owned) {
    OperationId id = OperationId::none;
    act([&] { id = checking.submit(owned.operation); });
    return id;
  }
  void answer(const decltype(Input::what)& what) {
    checking.handle({world.time, what});
  }

  ThrowingChecks checks;
  ManualWorld world;
  Checking checking{world, {.page_tokens = 4}};
  Acting handler;
};

TEST_F(CheckingTest, passes_on_what_keeps_the_contract) {
  const OwnedTransfer load, backup(Lane::d2h);
  const OperationId load_id = submit(load), backup_id = submit(backup);
  const OwnedPass pass(1, {load_id}), burst(5);
  const OperationId pass_id = submit(pass);
  act([&] { checking.reduce_min({5, 6}), checking.call_at(70), checking.cancel(backup_id); });
  EXPECT_EQ(checking.outstanding(), 5U);
  EXPECT_EQ(world.transfers.size(), 2U);
  EXPECT_EQ(world.cancelled, std::vector{backup_id});
  answer(Reduction{OperationId{4}, {5, 6}});
  world.time = 60;
  answer(Completion{.id = load_id, .bytes = 64});
  answer(Completion{.id = backup_id, .status = Status::cancelled});
  answer(Completion{.id = pass_id, .steps = 1, .stalled_ns = 60});
  world.time = 70;
  answer(TimerFired{OperationId{5}});
  const OperationId burst_id = submit(burst);
  act([&] { checking.cancel(burst_id); });
  answer(Completion{.id = burst_id, .status = Status::cancelled, .steps = 4});
  answer(Arrival{3, 1, 1, 0, 0, {}});
  checking.finish();
}

TEST_F(CheckingTest, ids_are_1_2_3) {
  world.call_at(0);  // not through `checking`, so the ids no longer agree
  EXPECT_THROW(act([&] { checking.call_at(5); }), BrokenPromise);
}

TEST_F(CheckingTest, each_operation_is_answered_once) {
  act([&] { checking.call_at(0); });
  answer(TimerFired{OperationId{1}});
  EXPECT_THROW(answer(TimerFired{OperationId{1}}), BrokenPromise);
  EXPECT_THROW(answer(TimerFired{OperationId{2}}), BrokenPromise);
  EXPECT_THROW(answer(Completion{.id = OperationId{2}}), BrokenPromise);
  EXPECT_THROW(answer(Reduction{OperationId{2}, {}}), BrokenPromise);
}

TEST_F(CheckingTest, each_operation_is_answered_by_its_kind) {
  const OwnedTransfer load;
  const OperationId load_id = submit(load);
  act([&] { checking.call_at(0), checking.reduce_min({}); });
  const OperationId timer{2}, reduction{3};
  EXPECT_THROW(answer(TimerFired{load_id}), BrokenPromise);
  EXPECT_THROW(answer(Reduction{load_id, {}}), BrokenPromise);
  EXPECT_THROW(answer(Completion{.id = timer}), BrokenPromise);
  EXPECT_THROW(answer(Reduction{timer, {}}), BrokenPromise);
  EXPECT_THROW(answer(Completion{.id = reduction}), BrokenPromise);
  EXPECT_THROW(answer(TimerFired{reduction}), BrokenPromise);
  EXPECT_THROW(answer(Completion{.id = load_id, .status = Status::gate_failed}), BrokenPromise);
  EXPECT_THROW(answer(Completion{.id = load_id, .status = Status::cancelled}), BrokenPromise) << "nobody asked";
  EXPECT_THROW(checking.finish(), BrokenPromise);
}

TEST_F(CheckingTest, a_pass_ends_as_it_can) {
  const OwnedPass burst(5);
  const OperationId id = submit(burst);
  EXPECT_THROW(answer(Completion{.id = id, .steps = 6}), BrokenPromise);
  EXPECT_THROW(answer(Completion{.id = id, .steps = 4}), BrokenPromise) << "done means all";
  EXPECT_THROW(answer(Completion{.id = id, .status = Status::cancelled, .steps = 4}), BrokenPromise);
  EXPECT_THROW(answer(Completion{.id = id, .status = Status::failed, .steps = 1}), BrokenPromise);
  EXPECT_THROW(answer(Completion{.id = id, .status = Status::gate_failed}), BrokenPromise) << "it has no gate";
  EXPECT_THROW(answer(Completion{.id = id, .steps = 5, .stalled_ns = 1}), BrokenPromise);
  answer(Completion{.id = id, .steps = 5});
}

TEST_F(CheckingTest, a_burst_may_end_early_by_the_terms) {
  Checking lenient(world, {.page_tokens = 4, .bursts_end_early = true});
  lenient.connect(handler);
  const OwnedPass burst(5), prefill;
  handler.act = [&] { lenient.submit(burst.operation), lenient.submit(prefill.operation); };
  lenient.handle({0, Hint{}});
  lenient.handle({0, Completion{.id = OperationId{1}, .status = Status::cancelled, .steps = 2}});
  EXPECT_THROW(lenient.handle({0, Completion{.id = OperationId{2}, .status = Status::cancelled}}), BrokenPromise);
}

TEST_F(CheckingTest, a_pass_counts_only_with_all_its_gates) {
  const OwnedTransfer first, second;
  const OperationId a = submit(first), b = submit(second);
  const OwnedPass pass(1, {a, b});
  const OperationId id = submit(pass);
  answer(Completion{.id = a});
  EXPECT_THROW(answer(Completion{.id = id, .steps = 1}), BrokenPromise) << "b is on its way";
  answer(Completion{.id = b, .status = Status::failed});
  EXPECT_THROW(answer(Completion{.id = id, .steps = 1}), BrokenPromise) << "b failed";
  answer(Completion{.id = id, .status = Status::gate_failed});
  checking.finish();
}

TEST_F(CheckingTest, time_neither_goes_back_nor_moves_while_an_input_is_handled) {
  world.time = 10;
  answer(Hint{});
  EXPECT_THROW(checking.handle({11, Hint{}}), BrokenPromise) << "an input carries the world's time";
  world.time = 9;
  EXPECT_THROW(answer(Hint{}), BrokenPromise);
  world.time = 20;
  EXPECT_THROW(act([&] { ++world.time; }), BrokenPromise);
}

TEST_F(CheckingTest, the_clock_is_looked_at_in_calls_too) {
  EXPECT_THROW(act([&] {
                 ++world.time;
                 checking.call_at(0);
               }),
               BrokenPromise);
}

TEST_F(CheckingTest, inputs_and_calls_dont_nest) {
  EXPECT_THROW(checking.call_at(5), BrokenPromise) << "no input is being handled";
  EXPECT_THROW(act([&] { answer(Hint{}); }), BrokenPromise);
}

// A world that sends an input before the call returns, which the contract forbids.
struct HastyWorld final : Substrate {
  TimeNs now() const override { return 0; }
  OperationId submit(const Operation&) override { return give(); }
  OperationId call_at(TimeNs) override { return give(); }
  OperationId reduce_min(const ReduceVector&) override { return give(); }
  void cancel(OperationId) override { give(); }
  OperationId give() {
    handler->handle({0, Hint{}});
    return OperationId{1};
  }
  InputHandler* handler = nullptr;
};

TEST(Checking, no_input_comes_during_a_call) {
  const ThrowingChecks checks;
  const OwnedPass pass;
  const std::vector<std::function<void(Substrate&)>> calls = {[&](Substrate& s) { s.submit(pass.operation); },
                                                              [](Substrate& s) { s.call_at(0); },
                                                              [](Substrate& s) { s.reduce_min({}); }};
  for (const auto& call : calls) {
    HastyWorld world;
    Checking checking(world, {.page_tokens = 4});
    Acting handler;
    world.handler = &checking;
    checking.connect(handler);
    handler.act = [&] { call(checking); };
    EXPECT_THROW(checking.handle({0, Hint{}}), BrokenPromise);
    EXPECT_EQ(handler.seen.size(), 1U);
  }
}

TEST_F(CheckingTest, timers_are_late_at_most_and_minima_low_at_most) {
  act([&] { checking.call_at(50), checking.call_at(60), checking.reduce_min({5, 0, -7}); });
  EXPECT_THROW(answer(TimerFired{OperationId{1}}), BrokenPromise);
  act([&] { checking.cancel(OperationId{1}); });
  answer(TimerFired{OperationId{1}});
  world.time = 61;
  answer(TimerFired{OperationId{2}});
  EXPECT_THROW(answer(Reduction{OperationId{3}, {6, 0, -7}}), BrokenPromise);
  EXPECT_THROW(answer(Reduction{OperationId{3}, {5, -1, -7}}), BrokenPromise);
  answer(Reduction{OperationId{3}, {4, 0, -9}});
}

// In a journal of version 2, zeros follow the engine's own values.
TEST_F(CheckingTest, minima_are_as_wide_as_what_was_entered_or_go_on_with_zeros) {
  act([&] { checking.reduce_min({5, 6}), checking.reduce_min({5, 6}); });
  EXPECT_THROW(answer(Reduction{OperationId{1}, {5}}), BrokenPromise);
  EXPECT_THROW(answer(Reduction{OperationId{1}, {5, 6, 1}}), BrokenPromise);
  EXPECT_THROW(answer(Reduction{OperationId{1}, {5, 6, -1}}), BrokenPromise);
  answer(Reduction{OperationId{1}, {5, 6}});
  answer(Reduction{OperationId{2}, {5, 6, 0}});
}

TEST_F(CheckingTest, arrivals_are_in_order) {
  answer(Arrival{4, 1, 1, 0, 0, {}});
  EXPECT_THROW(answer(Arrival{4, 1, 1, 0, 0, {}}), BrokenPromise);
  EXPECT_THROW(answer(Arrival{2, 1, 1, 0, 0, {}}), BrokenPromise);
  EXPECT_THROW(answer(Arrival{5, 0, 1, 0, 0, {}}), BrokenPromise);
}

TEST_F(CheckingTest, only_the_known_is_cancelled) {
  EXPECT_THROW(act([&] { checking.cancel(OperationId::none); }), BrokenPromise);
}

TEST_F(CheckingTest, the_unknown_is_not_cancelled) {
  EXPECT_THROW(act([&] { checking.cancel(OperationId{1}); }), BrokenPromise);
}

TEST(Checking, a_transfer_moves_its_plans_pages) {
  const SeamContract contract({.page_tokens = 4});
  EXPECT_EQ(contract.judge(Operation(OwnedTransfer().operation)), nullptr);
  EXPECT_EQ(contract.judge(Operation(OwnedTransfer(Lane::d2h).operation)), nullptr);
  const std::vector<std::function<void(OwnedTransfer&)>> spoils = {
      [](OwnedTransfer& t) { t.operation.lane = Lane::compute; },
      [](OwnedTransfer& t) { t.operation.lane = Lane::d2h; },
      [](OwnedTransfer& t) { t.operation.plan.direction = Direction::device_to_host; },
      [](OwnedTransfer& t) { t.operation.pages = {}; },
      [](OwnedTransfer& t) { t.operation.pages = std::span(t.moves).first(2); },
      [](OwnedTransfer& t) { ++t.operation.plan.bytes; },
      [](OwnedTransfer& t) { t.moves[1].source = 6; },
      [](OwnedTransfer& t) { t.moves[1].target = 2; },
      [](OwnedTransfer& t) { std::swap(t.moves[0], t.moves[2]); },
      [](OwnedTransfer& t) { t.runs[1].pages = 2; },
      [](OwnedTransfer& t) { t.runs[1].pages = 0; },
      [](OwnedTransfer& t) { t.moves[2].target = t.runs[1].target_first = kNoSlot; },
      [](OwnedTransfer& t) { t.moves[2].target = t.runs[1].target_first = t.runs[0].target_first; },
      [](OwnedTransfer& t) { t.moves[2].target = t.runs[1].target_first = t.runs[0].target_first + 1; },
      [](OwnedTransfer& t) {
        t.operation.plan.path = TransferPath::staged;
        t.operation.plan.host_layout = Layout::layer_first;
      },
      [](OwnedTransfer& t) { t.operation.plan.path = TransferPath::ring; },  // not possible with rows of 8 bytes
      [](OwnedTransfer& t) { t.operation.plan.layer_groups = 0; },
      [](OwnedTransfer& t) { t.operation.plan.layer_groups = 3; },  // more groups than the 2 layers
  };
  for (std::size_t i = 0; i < spoils.size(); ++i) {
    OwnedTransfer transfer;
    spoils[i](transfer);
    EXPECT_NE(contract.judge(Operation(transfer.operation)), nullptr) << "way " << i;
  }
}

TEST(Checking, a_pass_agrees_with_its_sequences) {
  const SeamContract contract({.page_tokens = 4});
  EXPECT_EQ(contract.judge(Operation(OwnedPass().operation)), nullptr);
  EXPECT_EQ(contract.judge(Operation(OwnedPass(8).operation)), nullptr);
  const std::vector<std::function<void(OwnedPass&)>> spoils = {
      [](OwnedPass& p) { p.operation.sequences = {}; },
      [](OwnedPass& p) { p.operation.steps = 0; },
      [](OwnedPass& p) { p.operation.steps = 2; },
      [](OwnedPass& p) { p.operation.shape.decode_sequences = 1; },
      [](OwnedPass& p) { p.operation.shape.prefill_tokens = 4; },
      [](OwnedPass& p) { p.operation.shape.prefill_context_tokens = 5; },
      [](OwnedPass& p) { p.sequence.new_tokens = 0; },
      [](OwnedPass& p) { p.sequence.slots = std::span(p.slots).first(2); },
      [](OwnedPass& p) { p.sequence.new_tokens = p.operation.shape.prefill_tokens = 9; },
      [](OwnedPass& p) { p.sequence.context_tokens = p.operation.shape.prefill_context_tokens = 10; },
      [](OwnedPass& p) { p.slots[2] = kNoSlot; },
      [](OwnedPass& p) {
        p.gates = {OperationId{1}};
        p.operation.gates = p.gates;
      },
  };
  for (std::size_t i = 0; i < spoils.size(); ++i) {
    OwnedPass pass;
    spoils[i](pass);
    EXPECT_NE(contract.judge(Operation(pass.operation)), nullptr) << "way " << i;
  }
}

TEST_F(CheckingTest, a_gate_is_a_load_in_flight) {
  const OwnedTransfer backup(Lane::d2h);
  const OperationId backup_id = submit(backup);
  const OwnedPass on_backup(1, {backup_id});
  EXPECT_THROW(submit(on_backup), BrokenPromise);
}

TEST_F(CheckingTest, a_gate_has_not_been_answered) {
  const OwnedTransfer load;
  const OperationId load_id = submit(load);
  answer(Completion{.id = load_id, .status = Status::failed});
  const OwnedPass pass(1, {load_id});
  EXPECT_THROW(submit(pass), BrokenPromise);
  EXPECT_TRUE(world.passes.empty()) << "judged before the world hears of it";
}

TEST(Checking, an_engine_keeps_the_contract) {
  DecoratedRig rig(small_config(6, 16));
  rig.serve_ten();
  EXPECT_EQ(rig.events.records.size(), 10U);
  EXPECT_TRUE(rig.engine.idle());
}

// ---- Faulty -----------------------------------------------------------------------------------------------

TEST(Faulty, without_shares_changes_nothing) {
  DecoratedRig plain(small_config(6, 16), {}, 1), other(small_config(6, 16), {}, 2);
  plain.serve_ten();
  other.serve_ten();
  EXPECT_EQ(plain.journal.bytes, other.journal.bytes);
  EXPECT_EQ(plain.faulty.counts().failed_transfers, 0U);
  EXPECT_EQ(plain.faulty.counts().cut_bursts, 0U);
  EXPECT_EQ(plain.events.count(EventKind::load_failed), 0U);
}

TEST(Faulty, fails_transfers_and_the_passes_they_gate) {
  ManualWorld world;
  Faulty faulty(world, {.failed_transfers = 1024}, 7);
  Acting handler;
  faulty.connect(handler);
  const OwnedTransfer load;
  const OperationId load_id = faulty.submit(load.operation);
  const OwnedPass gated(1, {load_id}), free_pass;
  const OperationId gated_id = faulty.submit(gated.operation), free_id = faulty.submit(free_pass.operation);
  faulty.handle({0, Completion{.id = load_id, .bytes = 64}});
  faulty.handle({0, Completion{.id = gated_id, .steps = 1}});
  faulty.handle({0, Completion{.id = free_id, .steps = 1}});
  ASSERT_EQ(handler.seen.size(), 3U);
  EXPECT_EQ(handler.seen[0], kept({0, Completion{.id = load_id, .status = Status::failed}}, {}));
  EXPECT_EQ(handler.seen[1], kept({0, Completion{.id = gated_id, .status = Status::gate_failed}}, {}));
  EXPECT_EQ(handler.seen[2], kept({0, Completion{.id = free_id, .steps = 1}}, {}));
  EXPECT_EQ(faulty.counts().failed_transfers, 1U);
  EXPECT_EQ(faulty.counts().failed_gates, 1U);
}

TEST(Faulty, leaves_alone_what_the_world_failed_itself) {
  ManualWorld world;
  Faulty faulty(world, {.failed_transfers = 1024}, 7);
  Acting handler;
  faulty.connect(handler);
  const OwnedTransfer load;
  const OperationId id = faulty.submit(load.operation);
  faulty.cancel(id);
  EXPECT_EQ(world.cancelled, std::vector{id});
  faulty.handle({0, Completion{.id = id, .status = Status::cancelled, .bytes = 32}});
  EXPECT_EQ(handler.seen.at(0), kept({0, Completion{.id = id, .status = Status::cancelled, .bytes = 32}}, {}));
  EXPECT_EQ(faulty.counts().failed_transfers, 0U);
}

TEST(Faulty, cuts_bursts_at_once_or_when_something_else_happens) {
  std::uint64_t at_once = 0, later = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    ManualWorld world;
    Faulty faulty(world, {.cut_bursts = 1024}, seed << 32);
    Acting handler;
    faulty.connect(handler);
    const OwnedPass burst(5), prefill;
    faulty.submit(burst.operation);
    at_once += world.cancelled.size();
    faulty.handle({0, Hint{}});
    ASSERT_EQ(world.cancelled, std::vector{OperationId{1}});
    faulty.submit(prefill.operation);
    faulty.handle({0, Hint{}});
    ASSERT_EQ(world.cancelled.size(), 1U) << "once, and only bursts";
    ASSERT_EQ(faulty.counts().cut_bursts, 1U);
    const OperationId third = faulty.submit(burst.operation);
    later += world.cancelled.size() == 1;
    const std::size_t cancels = world.cancelled.size();
    faulty.handle({0, Completion{.id = third, .steps = 5}});
    ASSERT_EQ(world.cancelled.size(), cancels) << "too late";
  }
  EXPECT_GT(at_once, 5U);
  EXPECT_GT(later, 5U);
}

TEST(Faulty, draws_the_same_from_the_same_seed) {
  const FaultShares shares{.failed_transfers = 300, .cut_bursts = 300};
  std::vector<std::vector<std::byte>> journals;
  for (const std::uint64_t seed : {5U, 5U, 6U}) {
    DecoratedRig rig(small_config(6, 16), shares, seed);
    rig.serve_ten();
    journals.push_back(rig.journal.bytes);
  }
  EXPECT_EQ(journals[0], journals[1]);
  EXPECT_NE(journals[0], journals[2]);
}

TEST(Faulty, is_survived_by_the_engine) {
  FaultCounts all;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    DecoratedRig rig(small_config(6, 16), {.failed_transfers = 400, .cut_bursts = 400}, seed << 32);
    rig.serve_ten();
    ASSERT_EQ(rig.events.records.size(), 10U) << "seed " << seed;
    ASSERT_TRUE(rig.engine.idle()) << "seed " << seed;
    const FaultCounts& counts = rig.faulty.counts();
    all.failed_transfers += counts.failed_transfers;
    all.failed_gates += counts.failed_gates;
    all.cut_bursts += counts.cut_bursts;
  }
  EXPECT_GT(all.failed_transfers, 100U);
  EXPECT_GT(all.failed_gates, 20U);
  EXPECT_GT(all.cut_bursts, 50U);
}

}  // namespace
}  // namespace kvtwin::test
