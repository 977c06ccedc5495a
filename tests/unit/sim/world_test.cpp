// What both simulated worlds must do, tested on each of them: exact times, FIFO lanes, order, cancel, gates.
#include "sim/world.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "world_script.hpp"

namespace kvtwin::test {
namespace {

class Worlds : public testing::TestWithParam<Which> {
 protected:
  Log run(const WorldConfig& config, const std::vector<Input>& inputs, const Act& act) {
    return run_on(GetParam(), config, inputs, act);
  }
  // Runs `once` at an arrival at time 0, and returns the log without that arrival.
  Log run_once(const WorldConfig& config, std::function<void(Substrate&)> once) {
    Log log = run(config, {arrival(0, 0)}, at_first(std::move(once)));
    if (!log.empty()) log.erase(log.begin());
    return log;
  }
};

INSTANTIATE_TEST_SUITE_P(Both, Worlds, testing::ValuesIn(worlds_here()), name_of_world);

TEST_P(Worlds, OneTransferTakesLatencyAndBytesOverRateToTheNanosecond) {
  const Log log = run_once(plain_config(), [](Substrate& s) { s.submit(transfer(Lane::h2d, 1'000'000, 1'000)); });
  EXPECT_EQ(log, (Log{completion(21'000, 1, 1'000'000)}));
}

TEST_P(Worlds, ManySizesAreExact) {
  for (const Bytes bytes : {Bytes{1}, Bytes{24}, Bytes{25}, Bytes{4097}, Bytes{1} << 31, Bytes{1} << 40}) {
    for (const std::uint64_t most : {0ULL, 50'000'000'000ULL, 28'123'456'789ULL}) {
      const std::uint64_t rate = most == 0 ? 50'000'000'000 : most;
      const auto exact = static_cast<unsigned __int128>(bytes) * kNsPerSecond * 2 + rate;  // rounds to nearest, half up
      const auto want = static_cast<TimeNs>(exact / (2 * static_cast<unsigned __int128>(rate)));
      const Log log = run_once(plain_config(), [&](Substrate& s) { s.submit(transfer(Lane::d2h, bytes, 7, most)); });
      EXPECT_EQ(log, (Log{completion(7 + want, 1, bytes)})) << bytes << " at " << rate;
    }
  }
}

TEST_P(Worlds, BytesCountAllRanks) {
  WorldConfig config = plain_config();
  config.ranks = 8;
  const Log log = run_once(config, [](Substrate& s) { s.submit(transfer(Lane::h2d, 1'000'000, 0)); });
  EXPECT_EQ(log, (Log{completion(20'000, 1, 8'000'000)}));
}

TEST_P(Worlds, LanesAreFifoAndIndependent) {
  const Log log = run_once(plain_config(), [](Substrate& s) {
    s.submit(transfer(Lane::h2d, 500'000, 1'000));  // 1: ends at 11,000
    s.submit(transfer(Lane::h2d, 50, 1'000));       // 2: ends after 1, at 12,001
    s.submit(transfer(Lane::d2h, 1'000'000, 0));    // 3: 20,000
    s.submit(transfer(Lane::h2d, 50, 0));           // 4: 12,002
  });
  EXPECT_EQ(log, (Log{completion(11'000, 1, 500'000), completion(12'001, 2, 50), completion(12'002, 4, 50),
                      completion(20'000, 3, 1'000'000)}));
}

TEST_P(Worlds, EqualTimesComeByOperationIdThenArrivals) {
  const auto act = [](Substrate& s, const Input& input) {
    if (const auto* a = std::get_if<Arrival>(&input.what); a != nullptr && a->request == 0) {
      s.call_at(20'000);                            // 1
      s.submit(transfer(Lane::h2d, 1'000'000, 0));  // 2
      s.submit(pass(20'000, 0, 1));                 // 3
      s.submit(transfer(Lane::d2h, 1'000'000, 0));  // 4
    }
    if (std::holds_alternative<TimerFired>(input.what)) s.reduce_min(ReduceVector{42});  // 5
  };
  const Log log = run(plain_config(), {arrival(0, 0), arrival(20'000, 1), arrival(20'000, 2)}, act);
  ASSERT_EQ(log.size(), 8u);
  const std::vector<std::uint64_t> kinds = {kArrivalKind,    kTimerKind,     kCompletionKind, kCompletionKind,
                                            kCompletionKind, kReductionKind, kArrivalKind,    kArrivalKind};
  const std::vector<std::uint64_t> ids = {0, 1, 2, 3, 4, 5, 1, 2};
  for (std::size_t i = 0; i < log.size(); ++i) {
    EXPECT_EQ(log[i].kind, kinds[i]) << i;
    EXPECT_EQ(log[i].id, ids[i]) << i;
    EXPECT_EQ(log[i].now, i == 0 ? 0 : 20'000) << i;
  }
  EXPECT_EQ(log[5].bytes, 42u);
}

// Transfer 1 ends at 20.4 ns and transfer 2 at 19.6 ns; both round to 20. The timer of 20 was set after both.
TEST_P(Worlds, EndsThatRoundToTheSameNanosecondAreHeldAndOrdered) {
  const Log log = run_once(plain_config(), [](Substrate& s) {
    s.submit(transfer(Lane::h2d, 1020, 0));
    s.submit(transfer(Lane::d2h, 980, 0));
    s.call_at(20);
  });
  ASSERT_EQ(log.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(log[i].now, 20);
    EXPECT_EQ(log[i].id, i + 1);
  }
}

TEST_P(Worlds, TimersOfThePastFireNow) {
  const Log log = run(plain_config(), {arrival(100, 0)}, at_first([](Substrate& s) { s.call_at(5); }));
  ASSERT_EQ(log.size(), 2u);
  EXPECT_EQ(log[1].now, 100);
}

TEST_P(Worlds, CancelReportsWholePagesMovedAndFreesTheLane) {
  const auto act = [](Substrate& s, const Input& input) {
    if (std::holds_alternative<Arrival>(input.what)) {
      s.submit(transfer(Lane::h2d, 1'000'000, 1'000, 0, 10));  // 1: page of 2,000 ns
      s.submit(transfer(Lane::h2d, 1'000'000, 0, 0, 10));      // 2
      s.submit(transfer(Lane::h2d, 50'000, 0, 0, 1));          // 3
      s.call_at(1'000 + 7 * 2'000 + 1'999);                    // 4
    }
    if (std::holds_alternative<TimerFired>(input.what)) {
      s.cancel(OperationId{1});
      s.cancel(OperationId{2});
      s.cancel(OperationId{1});
      s.cancel(OperationId{77});
    }
  };
  const Log log = run(plain_config(), {arrival(0, 0)}, act);
  ASSERT_EQ(log.size(), 5u);
  EXPECT_EQ(log[2], completion(16'999, 1, 700'000, Status::cancelled));
  EXPECT_EQ(log[3], completion(16'999, 2, 0, Status::cancelled));
  EXPECT_EQ(log[4], completion(17'999, 3, 50'000));
}

TEST_P(Worlds, CancelDuringLatencyAndAtTheEnd) {
  const auto act = [](Substrate& s, const Input& input) {
    if (std::holds_alternative<Arrival>(input.what)) {
      s.call_at(20'000);                                 // 1: at the time at which 2 ends
      s.submit(transfer(Lane::h2d, 1'000'000, 0));       // 2: has ended when cancelled
      s.submit(transfer(Lane::d2h, 1'000'000, 30'000));  // 3: still in its latency
    }
    if (std::holds_alternative<TimerFired>(input.what)) {
      s.cancel(OperationId{2});
      s.cancel(OperationId{3});
    }
  };
  const Log log = run(plain_config(), {arrival(0, 0)}, act);
  ASSERT_EQ(log.size(), 4u);
  EXPECT_EQ(log[2], completion(20'000, 2, 1'000'000));
  EXPECT_EQ(log[3], completion(20'000, 3, 0, Status::cancelled));
}

TEST_P(Worlds, CancelledTimerFiresAtOnce) {
  const auto act = [](Substrate& s, const Input& input) {
    if (std::holds_alternative<Arrival>(input.what)) {
      s.call_at(1'000);
      s.call_at(10);
    } else if (input.now == 10) {
      s.cancel(OperationId{1});
    }
  };
  const Log log = run(plain_config(), {arrival(0, 0)}, act);
  ASSERT_EQ(log.size(), 3u);
  EXPECT_EQ(log[2].now, 10);
  EXPECT_EQ(log[2].id, 1u);
}

TEST_P(Worlds, PassesQueueOnTheComputeLane) {
  const Log log = run_once(plain_config(), [](Substrate& s) {
    s.submit(pass(0, 1'000, 3));  // 3,000
    s.submit(pass(500, 0, 1));
  });
  EXPECT_EQ(log, (Log{pass_end(3'000, 1, 3), pass_end(3'500, 2, 1)}));
}

TEST_P(Worlds, CancelledBurstEndsWithTheStepUnderWay) {
  const auto act = [](Substrate& s, const Input& input) {
    if (std::holds_alternative<Arrival>(input.what)) {
      s.submit(pass(0, 1'000, 10));  // 1
      s.submit(pass(0, 1'000, 5));   // 2: cancelled while queued
      s.call_at(3'000);              // 3: exactly at a step's end
    }
    if (std::holds_alternative<TimerFired>(input.what)) {
      s.cancel(OperationId{1});
      s.cancel(OperationId{2});
    }
  };
  const Log log = run(plain_config(), {arrival(0, 0)}, act);
  ASSERT_EQ(log.size(), 4u);
  EXPECT_EQ(log[2], pass_end(3'000, 1, 3, 0, Status::cancelled));
  EXPECT_EQ(log[3], pass_end(3'000, 2, 0, 0, Status::cancelled));
}

TEST_P(Worlds, CancelInTheLastStepIsDone) {
  const auto act = [](Substrate& s, const Input& input) {
    if (std::holds_alternative<Arrival>(input.what)) {
      s.submit(pass(0, 1'000, 4));
      s.call_at(3'001);
    }
    if (std::holds_alternative<TimerFired>(input.what)) s.cancel(OperationId{1});
  };
  const Log log = run(plain_config(), {arrival(0, 0)}, act);
  EXPECT_EQ(log.back(), pass_end(4'000, 1, 4));
}

// The pass has 10 groups of 1,000 ns; the bytes of a group arrive every 2,000 ns, so group 10 starts at 20,000.
TEST_P(Worlds, GatedPassIsLimitedByTheLoad) {
  const Log log = run_once(plain_config(), [](Substrate& s) {
    const OperationId gate = s.submit(layered(10, transfer(Lane::h2d, 1'000'000, 0)));
    s.submit(pass(10'000, 0, 1, std::span(&gate, 1)));
  });
  EXPECT_EQ(log, (Log{completion(20'000, 1, 1'000'000), pass_end(21'000, 2, 1, 11'000)}));
}

// The pass has 10 groups of 3,000 ns: only the first group waits for its bytes.
TEST_P(Worlds, GatedPassIsLimitedByCompute) {
  const Log log = run_once(plain_config(), [](Substrate& s) {
    const OperationId gate = s.submit(layered(10, transfer(Lane::h2d, 1'000'000, 0)));
    s.submit(pass(30'000, 0, 1, std::span(&gate, 1)));
  });
  EXPECT_EQ(log, (Log{completion(20'000, 1, 1'000'000), pass_end(32'000, 2, 1, 2'000)}));
}

// A pass cannot start before such a load is complete.
TEST_P(Worlds, ALoadInOneGroupGatesAsAWhole) {
  const Log log = run_once(plain_config(), [](Substrate& s) {
    const OperationId gate = s.submit(transfer(Lane::h2d, 1'000'000, 0));
    s.submit(pass(30'000, 0, 1, std::span(&gate, 1)));
  });
  EXPECT_EQ(log, (Log{completion(20'000, 1, 1'000'000), pass_end(50'000, 2, 1, 20'000)}));
}

TEST_P(Worlds, GateBehindOthersInItsLaneAndGateThatHasLanded) {
  const auto act = [](Substrate& s, const Input& input) {
    if (std::holds_alternative<Arrival>(input.what)) {
      s.submit(layered(4, transfer(Lane::h2d, 1'000'000, 0)));  // 1: 20,000
      s.submit(layered(4, transfer(Lane::h2d, 400'000, 0)));    // 2: 28,000, a quarter each 2,000
      const OperationId gates[] = {OperationId{1}, OperationId{2}};
      s.submit(pass(4'000, 0, 1, gates));  // 3
    } else if (std::get_if<Completion>(&input.what)->id == OperationId{3}) {
      const OperationId gates[] = {OperationId{1}, OperationId{2}};
      s.submit(pass(4'000, 0, 1, gates));  // 4: both have landed
    }
  };
  const Log log = run(plain_config(), {arrival(0, 0)}, act);
  ASSERT_EQ(log.size(), 5u);
  EXPECT_EQ(log[3], pass_end(29'000, 3, 1, 25'000));
  EXPECT_EQ(log[4], pass_end(33'000, 4, 1, 0));
}

TEST_P(Worlds, GatedBurstStallsItsFirstStepOnly) {
  const auto act = [](Substrate& s, const Input& input) {
    if (std::holds_alternative<Arrival>(input.what)) {
      const OperationId gate = s.submit(layered(10, transfer(Lane::h2d, 1'000'000, 0)));
      s.submit(pass(0, 10'000, 5, std::span(&gate, 1)));  // first step ends at 21,000
      s.call_at(5'000);                                   // cancelled before its gate has landed
    }
    if (std::holds_alternative<TimerFired>(input.what)) s.cancel(OperationId{2});
  };
  const Log log = run(plain_config(), {arrival(0, 0)}, act);
  EXPECT_EQ(log.back(), pass_end(21'000, 2, 1, 11'000, Status::cancelled));
}

TEST_P(Worlds, CancelledGateFailsThePass) {
  const auto act = [](Substrate& s, const Input& input) {
    if (std::holds_alternative<Arrival>(input.what)) {
      const OperationId gate = s.submit(transfer(Lane::h2d, 1'000'000, 0));
      s.submit(pass(500, 0, 1, std::span(&gate, 1)));  // 2: holds the compute lane
      s.submit(pass(500, 0, 1, std::span(&gate, 1)));  // 3: queued
      s.submit(pass(700, 0, 1));                       // 4
      s.call_at(5'000);
    }
    if (std::holds_alternative<TimerFired>(input.what)) s.cancel(OperationId{1});
  };
  const Log log = run(plain_config(), {arrival(0, 0)}, act);
  ASSERT_EQ(log.size(), 6u);
  EXPECT_EQ(log[3], pass_end(5'000, 2, 0, 5'000, Status::gate_failed));
  EXPECT_EQ(log[4], pass_end(5'000, 3, 0, 0, Status::gate_failed));
  EXPECT_EQ(log[5], pass_end(5'700, 4, 1));
}

TEST_P(Worlds, HintsComeLikeArrivals) {
  const std::vector<Input> inputs = {arrival(5, 0), Input{5, Hint{HintKind::pin, 9, 1}}, arrival(6, 1)};
  const Log log = run(plain_config(), inputs, [](Substrate&, const Input&) {});
  ASSERT_EQ(log.size(), 3u);
  EXPECT_EQ(log[1].kind, kHintKind);
  EXPECT_EQ(log[1].id, 9u);
}

TEST(EventWorld, TellsWhatHeldALane) {
  struct Spans final : LaneObserver {
    void on_lane(const LaneSpan& span) override { seen.push_back(span); }
    std::vector<LaneSpan> seen;
  } spans;
  auto world = make_event_world(plain_config());
  world->watch_lanes(&spans);
  run_world(*world, {arrival(500'000'000, 0)}, at_first([](Substrate& s) {
    s.submit(transfer(Lane::h2d, 50'000'000'000, 0));
    s.submit(pass(250'000'000, 0, 1));
  }));
  ASSERT_EQ(spans.seen.size(), 2u);
  EXPECT_EQ(spans.seen[0].lane, Lane::compute);
  EXPECT_EQ(spans.seen[0].begin, 500'000'000);
  EXPECT_EQ(spans.seen[0].end, 750'000'000);
  EXPECT_EQ(spans.seen[0].steps, 1u);
  EXPECT_EQ(spans.seen[1].lane, Lane::h2d);
  EXPECT_EQ(spans.seen[1].end, 1'500'000'000);
  EXPECT_EQ(spans.seen[1].bytes, 50'000'000'000u);
}

TEST(SimGridWorld, PrintsNothing) {
  if (!have_simgrid()) GTEST_SKIP() << "built without SimGrid";
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  run_simgrid(plain_config(), {arrival(0, 0)},
              at_first([](Substrate& s) { s.submit(transfer(Lane::h2d, 1'000'000, 1'000)); }));
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(EventWorld, TicksEveryThousandInputs) {
  std::vector<Input> inputs;
  for (RequestId i = 0; i < 3500; ++i) inputs.push_back(arrival(static_cast<TimeNs>(i), i));
  auto world = make_event_world(plain_config());
  int ticks = 0;
  world->set_progress([](void* context, TimeNs) { ++*static_cast<int*>(context); }, &ticks);
  run_world(*world, inputs, [](Substrate&, const Input&) {});
  EXPECT_EQ(ticks, 3);
}

}  // namespace
}  // namespace kvtwin::test
