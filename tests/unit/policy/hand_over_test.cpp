// When a prefill engine takes notices, and what it writes if ranks do not know the same.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "manual_world.hpp"
#include "tests/policy_test_support.hpp"

namespace kvtwin {
namespace {

// In the reductions of an engine with a role and without storage tiers.
constexpr std::size_t kNotices = 8, kWriteFailure = 10;

EngineConfig prefill_engine(HandOverUnit unit) {
  EngineConfig config = small_config(32, 0);
  config.chunk_tokens = 8;
  config.hand_over.role = EngineRole::prefill;
  config.hand_over.unit = unit;
  config.hand_over.from = config.hand_over.to = {config.shape, 1, Layout::layer_first};
  return config;
}

// Room for a prompt of two pages.
Notice room_for(RequestId request, const std::vector<SlotId>& slots) {
  Notice notice;
  notice.kind = NoticeKind::room;
  notice.request = request;
  notice.peer = 1;
  notice.slots = slots;
  return notice;
}

class Prefill : public testing::Test {
 protected:
  // Request 0 has been computed, and the pass of request 1 is in flight.
  void start(HandOverUnit unit) {
    rig_.emplace(prefill_engine(unit));
    rig_->arrive_part(0, document({1, 2}), 8);
    rig_->arrive_part(1, document({3, 4}), 8);
    rig_->complete_pass();
    ASSERT_EQ(rig_->world.passes.size(), 1U);
    ASSERT_TRUE(rig_->world.hand_overs.empty());
  }

  std::optional<EngineRig> rig_;
  const std::vector<SlotId> slots_{7, 8};
};

TEST_F(Prefill, TakesRoomInTheNextStep) {
  for (const HandOverUnit unit : {HandOverUnit::chunks, HandOverUnit::whole}) {
    start(unit);
    rig_->notice(room_for(0, slots_));
    EXPECT_TRUE(rig_->world.hand_overs.empty()) << "a pass is in flight";
    rig_->complete_pass();
    ASSERT_EQ(rig_->world.hand_overs.size(), 1U);
    const ManualWorld::HandOver& write = rig_->world.hand_overs[0];
    EXPECT_TRUE(write.last);
    ASSERT_EQ(write.pages.size(), 2U);
    EXPECT_EQ(write.pages[0].target, 7U);
    EXPECT_EQ(write.pages[1].target, 8U);
  }
}

TEST_F(Prefill, TakesRoomAtOnceIfItWritesByLayers) {
  start(HandOverUnit::layers);
  rig_->notice(room_for(1, slots_));
  rig_->notice(room_for(0, slots_));
  ASSERT_EQ(rig_->world.hand_overs.size(), 2U);
  EXPECT_EQ(rig_->world.hand_overs[0].pass, rig_->world.passes[0].id) << "beside the pass that computes it";
  EXPECT_EQ(rig_->world.hand_overs[1].pass, OperationId::none);
}

TEST_F(Prefill, TakesWhatAllRanksHaveReceived) {
  start(HandOverUnit::chunks);
  rig_->arrive_part(2, document({5, 6}), 8);
  rig_->other_ranks = [](ReduceVector& values) { values[kNotices] = 0; };
  rig_->notice(room_for(0, slots_));
  rig_->complete_pass();
  EXPECT_TRUE(rig_->world.hand_overs.empty());
  ASSERT_EQ(rig_->world.passes.size(), 1U);
  rig_->other_ranks = {};
  rig_->complete_pass();
  EXPECT_EQ(rig_->world.hand_overs.size(), 1U);
}

TEST_F(Prefill, WritesAgainWhatFailedOnAnotherRank) {
  start(HandOverUnit::chunks);
  rig_->complete_pass();
  rig_->notice(room_for(0, slots_));
  ASSERT_EQ(rig_->world.hand_overs.size(), 1U);
  rig_->other_ranks = [](ReduceVector& values) { values[kWriteFailure] = 0; };
  rig_->complete_hand_over();
  rig_->other_ranks = {};
  ASSERT_EQ(rig_->world.hand_overs.size(), 1U) << "the first write was done here";
  EXPECT_EQ(rig_->world.hand_overs[0].first, 0U);
  EXPECT_TRUE(rig_->world.hand_overs[0].last);
  EXPECT_EQ(rig_->events.count(EventKind::handed_over), 0U);
  rig_->complete_hand_over();
  EXPECT_EQ(rig_->events.count(EventKind::handed_over), 1U);
}

// The windows of the last pages and the state go with the last page, from the slots that the request has by then.
TEST(PrefillOfAHybridModel, HandsOverTheEndOfThePrompt) {
  EngineConfig config = prefill_engine(HandOverUnit::chunks);
  config.evict_unit = EvictUnit::node;
  config.window_release_tokens = 1;
  config.state_points = "extra_buffer(chunk=4, interval=64)";
  config.pools = {{Closure::tail, 4, 30, 0, config.shape}, {Closure::point, 0, 8, 0, config.shape}};
  config.hand_over.from.beside = config.hand_over.to.beside = {config.shape, config.shape};
  EngineRig rig(config);
  rig.arrive_part(0, document({1, 2, 3, 4, 5, 6}), 24);
  const std::vector<SlotId> slots{7, 8, 9, 10, 11, 12, 17, 27};
  rig.notice(room_for(0, slots));
  rig.complete_pass();
  ASSERT_EQ(rig.world.hand_overs.size(), 1U);
  EXPECT_FALSE(rig.world.hand_overs[0].last) << "the first chunk";
  EXPECT_TRUE(rig.world.hand_overs[0].beside.empty());
  rig.complete_hand_over();
  rig.complete_pass();
  ASSERT_EQ(rig.world.hand_overs.size(), 1U);
  rig.complete_hand_over();
  rig.complete_pass();
  ASSERT_EQ(rig.world.hand_overs.size(), 1U);
  const ManualWorld::HandOver& write = rig.world.hand_overs[0];
  EXPECT_TRUE(write.last);
  ASSERT_EQ(write.beside.size(), 2U) << "the window of the last page, and the state";
  EXPECT_EQ(write.beside[0].target, 17U);
  EXPECT_EQ(write.beside[1].target, 27U);
  EXPECT_EQ(write.beside[0].key, document({1, 2, 3, 4, 5, 6}).back());
  rig.engine.check_invariants();
  rig.complete_hand_over();
  EXPECT_EQ(rig.events.count(EventKind::handed_over), 1U);
  EXPECT_TRUE(rig.engine.idle());
}

// Four failures in a row, on whichever ranks.
TEST_F(Prefill, WithdrawsAfterTheSameFailuresOnAllRanks) {
  start(HandOverUnit::chunks);
  rig_->complete_pass();
  rig_->notice(room_for(0, slots_));
  std::int64_t failed = 0;
  rig_->other_ranks = [&](ReduceVector& values) { values[kWriteFailure] = failed; };
  for (; failed < 4; ++failed) {
    ASSERT_EQ(rig_->world.hand_overs.size(), 1U) << failed;
    EXPECT_TRUE(rig_->world.notices.empty());
    rig_->complete_hand_over(failed % 2 == 0 ? Status::done : Status::failed);
  }
  EXPECT_TRUE(rig_->world.hand_overs.empty());
  EXPECT_EQ(rig_->world.notices, (std::vector{NoticeKind::withdrawn}));
}

}  // namespace
}  // namespace kvtwin
