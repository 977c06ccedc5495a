// Tests the event loop and the host device at the seam: the completions, their times and their order. device_test.cpp
// tests the bytes.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <vector>

#include "real_rig.hpp"

namespace kvtwin::test {
namespace {

TEST(RealWorld, AnswersEachKindOnceAndWithWhatItAskedFor) {
  const std::vector<PageKey> keys = some_keys(3);
  RealRig rig(small_device());
  OperationId pass{}, backup{}, load{}, gated{}, timer{}, reduction{};
  rig.then([&] { pass = rig.compute(keys, slots(0, 3)); });
  rig.then([&] { backup = rig.back_up(keys, slots(0, 3), slots(5, 3)); });
  rig.then([&] {
    load = rig.load(keys, slots(5, 3), slots(8, 3));
    gated = rig.read(keys, slots(8, 3), 12, {load});
    timer = rig.call_at(rig.now());
    reduction = rig.reduce_min({5, -3, 0, 7, 1, 2, 3, 4});
  });
  const Verification& seen = rig.run();
  EXPECT_EQ(rig.completion(pass).status, Status::done);
  EXPECT_EQ(rig.completion(pass).steps, 1U);
  const Bytes bytes = 3 * KvShape{2, 2, 2, 5, 4}.page_bytes();
  for (const OperationId id : {backup, load}) {
    EXPECT_EQ(rig.completion(id).status, Status::done);
    EXPECT_EQ(rig.completion(id).bytes, bytes);
  }
  EXPECT_EQ(rig.completion(gated).status, Status::done);
  EXPECT_GT(rig.place(gated), rig.place(load));
  EXPECT_EQ(std::get<Reduction>(rig.inputs.at(rig.place(reduction)).what).values,
            (ReduceVector{5, -3, 0, 7, 1, 2, 3, 4}));
  EXPECT_TRUE(std::holds_alternative<TimerFired>(rig.inputs.at(rig.place(timer)).what));
  EXPECT_EQ(seen.wrong_reads, 0U);
  EXPECT_EQ(seen.pages_read, 3U);
  EXPECT_EQ(rig.world().loop().inputs, rig.inputs.size());
  EXPECT_EQ(rig.world().loop().calls, 4U);
}

TEST(RealWorld, EndsAtOnceWithoutInputs) {
  RealRig rig(small_device());
  const Verification& seen = rig.run({});
  EXPECT_EQ(seen.pages_read + seen.pages_audited + seen.wrong_reads, 0U);
}

TEST(RealWorld, WorksWithoutAHostPool) {
  RealRig rig(small_device(8, 0));
  rig.then([&] { rig.compute(some_keys(2), slots(0, 2)); });
  rig.then([&] { rig.read(some_keys(2), slots(0, 2), 5); });
  EXPECT_EQ(rig.run().wrong_reads, 0U);
}

TEST(RealWorld, DeliversArrivalsAndHintsInOrderAndNotBeforeTheyAreDue) {
  std::vector<Input> due{arrival_at(0, 0), arrival_at(0, 1)};
  Hint hint;
  hint.kind = HintKind::pin;
  hint.subject = 7;
  hint.value = -5;
  due.push_back({100'000, hint});
  for (RequestId request = 2; request < 40; ++request) {
    due.push_back(arrival_at(static_cast<TimeNs>(request / 2 * 100'000), request));
  }
  RealRig rig(small_device());
  rig.run(due);
  ASSERT_EQ(rig.inputs.size(), due.size());
  RequestId next = 0;
  for (std::size_t i = 0; i < due.size(); ++i) {
    EXPECT_GE(rig.inputs[i].now, due[i].now);
    ASSERT_EQ(rig.inputs[i].what.index(), due[i].what.index()) << "input " << i;
    if (const auto* arrival = std::get_if<Arrival>(&rig.inputs[i].what)) {
      EXPECT_EQ(arrival->request, next++);
    } else {
      const Hint& got = std::get<Hint>(rig.inputs[i].what);
      EXPECT_EQ(got.kind, HintKind::pin);
      EXPECT_EQ(got.subject, 7U);
      EXPECT_EQ(got.value, -5);
    }
  }
}

TEST(RealWorld, FiresTimersInTheirOrderAndNotEarly) {
  RealRig rig(small_device());
  std::vector<std::pair<OperationId, TimeNs>> timers;
  rig.then([&] {
    for (const TimeNs wait : {900'000, 300'000, 0, 600'000, 300'000}) {
      const TimeNs time = rig.now() + wait;
      timers.emplace_back(rig.call_at(time), time);
    }
  });
  rig.run();
  for (const auto& [id, time] : timers) EXPECT_GE(rig.inputs.at(rig.place(id)).now, time);
  // Timer 2 is before 1, 1 before 4, 4 before 3, 3 before 0.
  for (const std::size_t earlier_later : {21U, 14U, 43U, 30U}) {
    EXPECT_LT(rig.place(timers[earlier_later / 10].first), rig.place(timers[earlier_later % 10].first));
  }
}

// Without the cancel, the run would take an hour.
TEST(RealWorld, ACancelledTimerIsAnsweredAtOnce) {
  RealRig rig(small_device());
  OperationId timer{};
  rig.then([&] {
    timer = rig.call_at(3600 * kNsPerSecond);
    rig.cancel(timer);
    rig.cancel(timer);
  });
  rig.then([&] { rig.cancel(timer); });  // the timer has fired: no effect
  rig.run();
  EXPECT_LT(rig.inputs.at(rig.place(timer)).now, 3600 * kNsPerSecond);
}

TEST(RealWorld, ACancelledReductionIsAnsweredAllTheSame) {
  RealRig rig(small_device());
  rig.then([&] { rig.cancel(rig.reduce_min({1, 2, 3})); });
  rig.run();
  EXPECT_EQ(rig.answers.size(), 1U);
}

// Cancels transfers of many pages that are queued, in flight, or complete. Every completion must report the moved bytes
// correctly.
TEST(RealWorld, CancelledTransfersSayWhatTheyMoved) {
  HostDeviceConfig config = small_device(256, 256);
  config.shape = {4, 2, 2, 64, 16};
  const std::vector<PageKey> keys = some_keys(64);
  bool all_seen = false;
  for (int round = 0; round < 200 && !all_seen; ++round) {
    for (const Lane lane : {Lane::h2d, Lane::d2h}) {
      RealRig rig(config);
      rig.io = IoBackend::direct;
      std::vector<OperationId> copies;
      rig.then([&] { rig.compute(keys, slots(0, 64)); });
      rig.then([&] { rig.back_up(keys, slots(0, 64), slots(0, 64)); });
      rig.then([&] {
        std::vector<SlotId> backwards(64);  // 64 runs
        for (SlotId i = 0; i < 64; ++i) backwards[i] = 191 - i;
        for (int i = 0; i < 20; ++i) copies.push_back(rig.transfer(lane, keys, slots(0, 64), backwards));
        for (std::size_t i = 0; i < copies.size(); i += 2) rig.cancel(copies[i]);
      });
      // Completed transfers have left correct bytes. The last transfer was not cancelled.
      if (lane == Lane::d2h) {
        rig.then([&] {
          std::vector<SlotId> backwards(64);
          for (SlotId i = 0; i < 64; ++i) backwards[i] = 191 - i;
          rig.load(keys, backwards, slots(128, 64));
        });
        rig.then([&] { rig.read(keys, slots(128, 64), 200); });
      } else {
        rig.then([&] {
          std::vector<SlotId> backwards(64);
          for (SlotId i = 0; i < 64; ++i) backwards[i] = 191 - i;
          rig.read(keys, backwards, 200);
        });
      }
      EXPECT_EQ(rig.run().wrong_reads, 0U);
      bool cancelled = false;
      for (std::size_t i = 0; i < copies.size(); ++i) {
        const Completion& told = rig.completion(copies[i]);
        const Bytes bytes = 64 * config.shape.page_bytes();
        if (told.status == Status::cancelled) {
          EXPECT_EQ(i % 2, 0U) << "only what was cancelled ends cancelled";
          EXPECT_LT(told.bytes, bytes);
          EXPECT_EQ(told.bytes % config.shape.page_bytes(), 0U);
          cancelled = true;
        } else {
          EXPECT_EQ(told.status, Status::done);
          EXPECT_EQ(told.bytes, bytes);
        }
        if (i > 0) {
          EXPECT_GT(rig.place(copies[i]), rig.place(copies[i - 1])) << "a lane is a FIFO";
        }
      }
      all_seen = cancelled;
    }
  }
  EXPECT_TRUE(all_seen) << "no cancel has met a transfer that wasn't done";
}

TEST(RealWorld, ACancelledBurstSaysHowFarItCame) {
  HostDeviceConfig config = small_device(2100, 0);
  constexpr Tokens kSteps = 8000;
  const std::vector<PageKey> keys = some_keys(2001);
  std::optional<Completion> cut;
  for (int round = 0; round < 200 && !cut; ++round) {
    RealRig rig(config);
    OperationId burst{};
    rig.then([&] { rig.compute(some_keys(1), slots(0, 1)); });
    rig.then([&] {
      burst = rig.decode({{slots(0, 2001), keys, 4, kSteps}});
      rig.cancel(burst);
    });
    // Continues after the cancelled burst, to check that all its tokens are correct.
    rig.then([&] {
      const Tokens there = 4 + rig.completion(burst).steps;
      rig.decode({{slots(0, 2001), keys, there, 4}});
    });
    EXPECT_EQ(rig.run().wrong_reads, 0U);
    const Completion& told = rig.completion(burst);
    if (told.status == Status::done) {
      EXPECT_EQ(told.steps, kSteps);
      continue;
    }
    EXPECT_EQ(told.status, Status::cancelled);
    EXPECT_LT(told.steps, kSteps);
    cut = told;
  }
  EXPECT_TRUE(cut.has_value());
}

// A burst keeps the compute thread busy; the passes behind it are cancelled before they begin.
TEST(RealWorld, CancelledPassesInTheQueueDoNothing) {
  HostDeviceConfig config = small_device(600, 0);
  bool seen = false;
  for (int round = 0; round < 200 && !seen; ++round) {
    RealRig rig(config);
    OperationId burst{}, queued{};
    rig.then([&] {
      burst = rig.decode({{slots(0, 501), some_keys(501), 0, 2000}});
      queued = rig.compute(some_keys(3, 1), slots(510, 3));
      rig.cancel(queued);
    });
    rig.run();
    EXPECT_EQ(rig.completion(burst).status, Status::done);
    seen = rig.completion(queued).status == Status::cancelled;
    EXPECT_EQ(rig.completion(queued).steps, seen ? 0U : 1U);
  }
  EXPECT_TRUE(seen);
}

// A pass completes after all its gates, with every combination of results.
TEST(RealWorld, PassesAreAnsweredAfterTheirGates) {
  HostDeviceConfig config = small_device(256, 256);
  config.shape = {4, 2, 2, 32, 16};
  const std::vector<PageKey> keys = some_keys(32);
  std::array<int, 4> ends{};  // by Status
  for (int round = 0; round < 60; ++round) {
    RealRig rig(config);
    rig.io = round % 2 == 0 ? IoBackend::kernel : IoBackend::automatic;  // with a kernel, or staged
    std::vector<OperationId> gates;
    OperationId pass{}, burst{};
    rig.then([&] { rig.compute(keys, slots(0, 32)); });
    rig.then([&] { rig.back_up(keys, slots(0, 32), slots(0, 32)); });
    rig.then([&] {
      for (SlotId i = 0; i < 4; ++i) gates.push_back(rig.load(keys, slots(0, 32), slots(40 + 32 * i, 32)));
      std::vector<Sequence> sequences;
      for (SlotId i = 0; i < 4; ++i) {
        Sequence sequence{slots(40 + 32 * i, 32), keys, 32 * 16, 1};
        sequence.slots.push_back(200 + i);
        sequence.keys.push_back(chain_key(keys.back(), i));
        sequences.push_back(sequence);
      }
      pass = rig.prefill(sequences, gates);
      for (Sequence& sequence : sequences) sequence.fresh = 3;
      for (std::size_t i = 0; i < 4; ++i) sequences[i].slots.back() = static_cast<SlotId>(210 + i);
      burst = rig.decode(sequences, gates);
      if (round % 3 == 1) rig.cancel(gates[static_cast<std::size_t>(round) % 4]);
      if (round % 5 == 1) rig.cancel(pass);
      if (round % 5 == 2) rig.cancel(burst);
    });
    rig.run();
    bool lost = false;
    for (const OperationId gate : gates) lost = lost || rig.completion(gate).status != Status::done;
    for (const OperationId id : {pass, burst}) {
      const Completion& told = rig.completion(id);
      ++ends.at(static_cast<std::size_t>(told.status));
      for (const OperationId gate : gates) EXPECT_GT(rig.place(id), rig.place(gate)) << "round " << round;
      if (lost) {
        EXPECT_NE(told.status, Status::done);
        EXPECT_EQ(told.steps, 0U);
      }
    }
  }
  EXPECT_GT(ends[static_cast<std::size_t>(Status::done)], 0);
  EXPECT_GT(ends[static_cast<std::size_t>(Status::gate_failed)], 0);
}

// The gates of a pass have completed, but the completions have not been delivered; or they complete during the
// submission of the pass.
TEST(RealWorld, GatesThatHaveLandedDontHoldUpAPass) {
  RealRig rig(small_device());
  const std::vector<PageKey> keys = some_keys(1);
  rig.then([&] { rig.compute(keys, {0}); });
  rig.then([&] { rig.back_up(keys, {0}, {0}); });
  std::vector<std::pair<OperationId, OperationId>> pairs;  // load and pass
  for (int i = 0; i < 2000; ++i) {
    rig.then([&] {
      const OperationId load = rig.load(keys, {0}, {1});
      pairs.emplace_back(load, rig.read(keys, {1}, 2, {load}));
    });
  }
  EXPECT_EQ(rig.run().wrong_reads, 0U);
  for (const auto& [load, pass] : pairs) EXPECT_GT(rig.place(pass), rig.place(load));
}

// A place in a copy. The copy waits there until the other thread has done its part, which waits for the copy.
class Cut {
 public:
  void reach() {
    set(reached_);
    passed_.wait(false);
  }
  template <typename Part>
  void pass(const Part& part) {
    reached_.wait(false);
    part();
    set(passed_);
  }

 private:
  static void set(std::atomic<bool>& flag) {
    flag = true;
    flag.notify_all();
  }
  std::atomic<bool> reached_{false}, passed_{false};
};

// A load is cancelled while a pass runs behind the load, layer by layer. A page that the pass has partly written is
// neither the old page nor the new one. The cancel waits until the load has come to the cut, and the load waits there
// until the cancel has been requested.
TEST(RealWorld, APassThatLosesItsGateHalfWayLeavesNoPageBehind) {
  constexpr OperationId kLoad{4};
  for (const std::uint32_t layers_before_cancel : {0U, 1U, 5U, 15U}) {
    SCOPED_TRACE(layers_before_cancel);
    HostDeviceConfig config = small_device(256, 256);
    config.shape = {16, 2, 2, 64, 16};
    Cut cut;
    config.before_portion = [&](OperationId id, std::uint64_t layers) {
      if (id == kLoad && layers >= layers_before_cancel) cut.reach();
    };
    const std::vector<PageKey> keys = some_keys(64), old_keys = some_keys(8, 1), new_keys = some_keys(8, 2);
    RealRig rig(config);
    OperationId timer{}, pass{};
    rig.then([&] { rig.compute(keys, slots(0, 64)); });
    rig.then([&] { rig.back_up(keys, slots(0, 64), slots(0, 64)); });
    rig.then([&] { rig.compute(old_keys, slots(240, 8)); });
    rig.then([&] {
      EXPECT_EQ(rig.load(keys, slots(0, 64), slots(100, 64)), kLoad);
      pass = rig.prefill({{slots(240, 8), new_keys, 0, 128}}, {kLoad});
      timer = rig.call_at(rig.now());
    });
    rig.on_answer = [&](OperationId id) {
      if (id == timer) cut.pass([&] { rig.cancel(kLoad); });
    };
    EXPECT_EQ(rig.run().wrong_reads, 0U);
    EXPECT_EQ(rig.completion(kLoad).status, Status::cancelled);
    EXPECT_EQ(rig.completion(pass).status, Status::gate_failed);
  }
}

// The same for a backup: some old pages on the host are lost, and some new pages are present. The cancel waits until
// the backup has come to the cut, and the backup waits there until the cancel has been requested.
TEST(RealWorld, ABackupThatIsCancelledHalfWayLeavesNoPageInPartBehind) {
  constexpr Pages kPages = 64;
  constexpr OperationId kBackup{4};
  for (const Pages before_cancel : {0U, 1U, 20U}) {
    SCOPED_TRACE(before_cancel);
    HostDeviceConfig config = small_device(kPages, kPages);
    config.shape = {8, 2, 2, 64, 128};  // 16 MiB: two portions of a CUDA device
    Cut cut;
    config.before_portion = [&](OperationId id, Pages moved) {
      if (id == kBackup && moved >= before_cancel) cut.reach();
    };
    const std::vector<PageKey> keys = some_keys(kPages), old_keys = some_keys(kPages, 1);
    std::vector<SlotId> backwards(kPages);  // one run per page
    for (SlotId i = 0; i < kPages; ++i) backwards[i] = static_cast<SlotId>(kPages - 1 - i);
    RealRig rig(config);
    OperationId timer{};
    rig.then([&] { rig.compute(old_keys, slots(0, kPages)); });
    rig.then([&] { rig.back_up(old_keys, slots(0, kPages), slots(0, kPages)); });
    rig.then([&] { rig.compute(keys, slots(0, kPages)); });
    rig.then([&] {
      EXPECT_EQ(rig.back_up(keys, slots(0, kPages), backwards), kBackup);
      timer = rig.call_at(rig.now());
    });
    rig.on_answer = [&](OperationId id) {
      if (id == timer) cut.pass([&] { rig.cancel(kBackup); });
    };
    const Verification& seen = rig.run();
    EXPECT_EQ(seen.wrong_reads, 0U);
    const Completion& told = rig.completion(kBackup);
    const Pages moved = told.bytes / config.shape.page_bytes();
    EXPECT_EQ(told.status, Status::cancelled);
    EXPECT_GE(moved, before_cancel);
    EXPECT_EQ(moved == 0, before_cancel == 0);
    EXPECT_LT(moved, kPages);
    EXPECT_EQ(seen.pages_audited, kPages + moved);
  }
}

TEST(RealWorld, TellsEachStayOnALane) {
  struct Spans final : LaneObserver {
    void on_lane(const LaneSpan& span) override { list.push_back(span); }
    std::vector<LaneSpan> list;
  } spans;
  const std::vector<PageKey> keys = some_keys(2);
  RealRig rig(small_device());
  rig.world().watch_lanes(&spans);
  rig.then([&] { rig.compute(keys, slots(0, 2)); });
  rig.then([&] { rig.back_up(keys, slots(0, 2), slots(0, 2)); });
  rig.then([&] { rig.decode({{slots(4, 1), some_keys(1, 3), 0, 4}}, {rig.load(keys, slots(0, 2), slots(2, 2))}); });
  rig.run();
  ASSERT_EQ(spans.list.size(), 4U);
  constexpr Lane kLanesInOrder[] = {Lane::compute, Lane::d2h, Lane::h2d, Lane::compute};
  const Bytes bytes = 2 * KvShape{2, 2, 2, 5, 4}.page_bytes();
  for (std::size_t i = 0; i < 4; ++i) {
    const LaneSpan& span = spans.list[i];
    EXPECT_EQ(span.id, OperationId{i + 1});
    EXPECT_EQ(span.lane, kLanesInOrder[i]);
    EXPECT_LE(span.begin, span.end);
    EXPECT_LE(span.end, rig.inputs.at(rig.place(span.id)).now);
    EXPECT_LE(span.stalled_ns, span.end - span.begin);
    EXPECT_EQ(span.status, Status::done);
    EXPECT_EQ(span.bytes, span.lane == Lane::compute ? 0 : bytes);
    if (span.lane != Lane::compute) {
      EXPECT_GE(span.flowing, span.begin);
    }
  }
  EXPECT_EQ(spans.list[3].steps, 4U);
}

}  // namespace
}  // namespace kvtwin::test
