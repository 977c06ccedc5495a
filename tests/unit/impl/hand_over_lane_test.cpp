// The lane of hand-overs: order, waits for passes, failures and cancels. A list takes the place of the other engines.
#include "impl/runtime/hand_over_lane.hpp"

#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace kvtwin::test {
namespace {

// Writes nothing. Each write waits until the test lets it end.
class HeldPools final : public PeerPools {
 public:
  Answer write(std::uint32_t, std::span<const Moves> all, const std::atomic<bool>& stop) override {
    std::unique_lock lock(mutex_);
    for (const Moves& of : all) {
      for (const PageMove& move : of.moves) slots_.emplace_back(of.slots, move.source, move.target);
    }
    written_.push_back(all.front().moves.front().target);
    changed_.notify_all();
    changed_.wait(lock, [this] { return !answers_.empty(); });
    const Answer answer = answers_.front();
    answers_.erase(answers_.begin());
    return stop ? Answer::stopped : answer;
  }
  void answer(Answer answer) {
    const std::lock_guard lock(mutex_);
    answers_.push_back(answer);
    changed_.notify_all();
  }
  // Waits until so many writes have begun. Returns the first target slot of each.
  std::vector<SlotId> begun(std::size_t writes) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return written_.size() >= writes; });
    return written_;
  }
  // All that was to move: kind of slots, source, target.
  std::vector<std::tuple<std::size_t, SlotId, SlotId>> slots() {
    const std::lock_guard lock(mutex_);
    return slots_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Answer> answers_;
  std::vector<SlotId> written_;
  std::vector<std::tuple<std::size_t, SlotId, SlotId>> slots_;
};

class HandOverLaneTest : public testing::Test, public EnginePost {
 protected:
  HandOverLaneTest() {
    auto pools = std::make_unique<HeldPools>();
    pools_ = pools.get();
    lane_.emplace(std::move(pools), *this);
    clock_.start();
    lane_->start(queue_, clock_);
  }
  void notify(std::uint32_t, const Notice&) override {}
  void landed(std::uint32_t peer, const LandedPages& pages) override {
    const std::lock_guard lock(mutex_);
    landed_.emplace_back(peer, pages.request, pages.write);
  }
  // Writes one page of the prompt, which has the number of its target slot.
  OperationId submit(RequestId request, SlotId target, bool last = false, OperationId pass = OperationId::none,
                     std::vector<HandOverOperation::Part> parts = {}) {
    const PageMove move{{}, 0, target};
    HandOverOperation operation;
    operation.parts = std::move(parts);
    operation.request = request;
    operation.peer = 7;
    operation.first = target;
    operation.last = last;
    operation.pass = pass;
    operation.work.bytes = 100;
    operation.pages = std::span(&move, 1);
    const OperationId id{++ids_};
    lane_->submit(id, operation);
    return id;
  }
  // Waits for the next completion and takes it.
  Completion next() {
    while (next_ == finished_.size()) {
      finished_.clear();
      next_ = 0;
      queue_.take(finished_);
      if (finished_.empty()) queue_.wait(std::nullopt);
    }
    const Finished& finished = finished_[next_++];
    failure_ = finished.failure == nullptr ? "" : *finished.failure;
    lane_->retire(finished.completion);
    return finished.completion;
  }
  void expect(OperationId id, Status status) {
    const Completion got = next();
    EXPECT_EQ(got.id, id);
    EXPECT_EQ(got.status, status);
    EXPECT_EQ(got.bytes, status == Status::done ? 100U : 0U);
  }

  std::mutex mutex_;
  std::vector<std::tuple<std::uint32_t, RequestId, std::uint64_t>> landed_;  // peer, request, write
  CompletionQueue queue_;
  RunClock clock_;
  HeldPools* pools_ = nullptr;
  std::optional<HandOverLane> lane_;
  std::vector<Finished> finished_;
  std::size_t next_ = 0;
  std::string failure_;
  std::uint64_t ids_ = 0;
};

TEST_F(HandOverLaneTest, WritesInOrderAndAnnouncesTheLastPage) {
  const OperationId first = submit(1, 10), second = submit(1, 11, true);
  pools_->answer(PeerPools::Answer::done);
  expect(first, Status::done);
  EXPECT_TRUE(landed_.empty());
  pools_->answer(PeerPools::Answer::done);
  expect(second, Status::done);
  ASSERT_EQ(landed_.size(), 1U);
  EXPECT_EQ(landed_[0], std::tuple(7U, RequestId{1}, std::uint64_t{2}));
  EXPECT_EQ(pools_->begun(2), (std::vector<SlotId>{10, 11}));
}

TEST_F(HandOverLaneTest, WaitsForItsPassAndFailsWithIt) {
  const OperationId pass{99}, lost{98};
  const OperationId first = submit(1, 10, false, pass), second = submit(2, 11), third = submit(3, 12, true, lost);
  lane_->pass_ended(lost, false);
  lane_->pass_ended(pass, true);
  EXPECT_EQ(pools_->begun(1), (std::vector<SlotId>{10})) << "nothing overtakes";
  pools_->answer(PeerPools::Answer::done);
  pools_->answer(PeerPools::Answer::done);
  expect(first, Status::done);
  expect(second, Status::done);
  expect(third, Status::gate_failed);
  EXPECT_TRUE(landed_.empty());
}

TEST_F(HandOverLaneTest, WritesWindowsAndStatesWithThePages) {
  const std::vector<PageMove> windows{{{}, 3, 4}, {{}, 5, 6}}, state{{{}, 7, 8}};
  const OperationId all = submit(1, 10, true, OperationId::none, {{0, windows}, {1, state}});
  pools_->answer(PeerPools::Answer::done);
  expect(all, Status::done);
  using Slots = std::tuple<std::size_t, SlotId, SlotId>;
  EXPECT_EQ(pools_->slots(), (std::vector{Slots{0, 0, 10}, Slots{1, 3, 4}, Slots{1, 5, 6}, Slots{2, 7, 8}}));
  EXPECT_EQ(landed_.size(), 1U);
}

// Also those that are submitted after the completion: another rank may not know of the failure yet.
TEST_F(HandOverLaneTest, AFailureTakesTheLaterWritesOfTheRequestWithItUntilItsPagesAreWrittenAgain) {
  const OperationId first = submit(1, 10), second = submit(1, 11, true), other = submit(2, 12);
  pools_->answer(PeerPools::Answer::failed);
  pools_->answer(PeerPools::Answer::done);
  expect(first, Status::failed);
  expect(second, Status::failed);
  expect(other, Status::done);
  const OperationId third = submit(1, 12, true), again = submit(1, 10, true);
  expect(third, Status::failed);
  pools_->answer(PeerPools::Answer::done);
  expect(again, Status::done);
  EXPECT_EQ(pools_->begun(3), (std::vector<SlotId>{10, 12, 10}));
  ASSERT_EQ(landed_.size(), 1U);
  EXPECT_EQ(landed_[0], std::tuple(7U, RequestId{1}, std::uint64_t{5}));
}

// A rank on which all went well writes again, too, when another rank's write failed.
TEST_F(HandOverLaneTest, TellsOfEachLastWrite) {
  const OperationId first = submit(1, 10, true);
  pools_->answer(PeerPools::Answer::done);
  expect(first, Status::done);
  const OperationId again = submit(1, 10, true);
  pools_->answer(PeerPools::Answer::done);
  expect(again, Status::done);
  EXPECT_EQ(landed_, (std::vector{std::tuple(7U, RequestId{1}, std::uint64_t{1}),
                                  std::tuple(7U, RequestId{1}, std::uint64_t{2})}));
}

TEST_F(HandOverLaneTest, CancelsAWriteInProgressAndOneThatHasNotBegun) {
  const OperationId first = submit(1, 10), second = submit(2, 11);
  pools_->begun(1);
  lane_->cancel(first);
  lane_->cancel(second);
  pools_->answer(PeerPools::Answer::done);
  expect(first, Status::cancelled);
  expect(second, Status::cancelled);
  EXPECT_EQ(pools_->begun(1).size(), 1U);
}

// Bytes that may still land are no failure that the policy can handle.
TEST_F(HandOverLaneTest, ALateWriteEndsTheRun) {
  submit(1, 10);
  pools_->answer(PeerPools::Answer::late);
  next();
  EXPECT_NE(failure_.find("engine 7"), std::string::npos) << failure_;
}

}  // namespace
}  // namespace kvtwin::test
