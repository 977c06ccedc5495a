// Hand-overs between two engines of the event world: times by formula, layers, failures, notices, deaths.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sim/world.hpp"
#include "tests/policy_test_support.hpp"

namespace kvtwin {
namespace {

constexpr TimeNs kPassNs = 1'600'000;

class FlatCost final : public CostModel {
 public:
  TimeNs forward_ns(const ForwardShape&, std::uint64_t steps) const override {
    return kPassNs * static_cast<TimeNs>(steps);
  }
  TransferCost transfer(const Plan& plan) const override { return {0, plan.bytes, 0}; }
  TransferCost storage(const StorageWork&) const override { return {}; }
  TransferCost hand_over(const HandOverWork& work) const override { return {latency_ns, work.bytes, rate}; }
  TimeNs broadcast_ns(Bytes) const override { return broadcast; }
  TimeNs latency_ns = 0, broadcast = 0;
  std::uint64_t rate = 0;
};

// Runs `act` at the first input, and writes down all others.
class Scribe final : public InputHandler {
 public:
  void handle(const Input& input) override {
    if (act) return std::exchange(act, nullptr)();
    if (const auto* done = std::get_if<Completion>(&input.what)) completions.emplace_back(input.now, *done);
    if (const auto* notice = std::get_if<Notice>(&input.what)) {
      notices.emplace_back(input.now, *notice);
      slots.assign(notice->slots.begin(), notice->slots.end());
    }
    if (std::get_if<TimerFired>(&input.what) != nullptr) on_timer();
  }
  std::function<void()> act, on_timer;
  std::vector<std::pair<TimeNs, Completion>> completions;
  std::vector<std::pair<TimeNs, Notice>> notices;
  std::vector<SlotId> slots;
};

class OneArrival final : public InputSource {
 public:
  bool next(Input& input) override {
    if (std::exchange(given_, true)) return false;
    input = {0, Arrival{0, 1, 1, 0, 0, {}}};
    return true;
  }

 private:
  bool given_ = false;
};

class BothEngines final : public InputRoute {
 public:
  Way way_of(const Input&) override { return {1, 0}; }
  void engine_lost(std::size_t engine) override { lost.push_back(engine); }
  std::vector<std::size_t> lost;
};

class HandOverWorld : public testing::Test {
 protected:
  HandOverWorld() {
    config.engines = 2;
    config.prefill_engines = 1;
    config.h2d_bytes_per_second = config.d2h_bytes_per_second = 50'000'000'000;
    config.nic_bytes_per_second = 10'000'000'000;
    config.notice_ns = 5000;
    config.cost = &cost;
    operation.request = 3;
    operation.attempt = 2;
    operation.peer = 1;
    operation.last = true;
    operation.work.pages = 1;
    operation.work.bytes = 16'000'000;  // 1.6 ms at the NIC's rate
    operation.work.writes = 1;
    operation.pages = pages;
  }
  void run(const std::function<void(Substrate&)>& act) {
    world = make_event_world(config);
    prefill.act = [&] { act(world->substrate_of(0)); };
    decode.act = [] {};
    OneArrival source;
    InputHandler* const handlers[] = {&prefill, &decode};
    world->run_seats(source, handlers, &route);
  }
  // The operation twice; the second one is the last of the request.
  void run_two() {
    run([&](Substrate& substrate) {
      operation.last = false;
      substrate.submit(operation);
      operation.last = true;
      substrate.submit(operation);
    });
  }
  static OperationId submit_pass(Substrate& substrate) {
    ForwardOperation pass;
    pass.shape.prefill_tokens = pass.shape.prefill_sequences = 1;
    return substrate.submit(pass);
  }

  FlatCost cost;
  WorldConfig config;
  std::vector<PageMove> pages{{{}, 0, 0}};
  HandOverOperation operation;
  Scribe prefill, decode;
  BothEngines route;
  std::unique_ptr<World> world;
};

TEST_F(HandOverWorld, MovesAtTheRateOfTheSlowerNicAndAnnouncesTheLastByte) {
  cost.latency_ns = 700;
  WorldConfig slower = config;
  slower.nic_bytes_per_second = 5'000'000'000;
  config.decode = &slower;
  run([&](Substrate& substrate) { substrate.submit(operation); });
  ASSERT_EQ(prefill.completions.size(), 1U);
  EXPECT_EQ(prefill.completions[0].first, 700 + 3'200'000);
  EXPECT_EQ(prefill.completions[0].second.bytes, operation.work.bytes);
  ASSERT_EQ(decode.notices.size(), 1U);
  EXPECT_EQ(decode.notices[0].first, 700 + 3'200'000);
  EXPECT_EQ(decode.notices[0].second.kind, NoticeKind::handed);
  EXPECT_EQ(decode.notices[0].second.request, 3U);
  EXPECT_EQ(decode.notices[0].second.attempt, 2U);
  EXPECT_EQ(decode.notices[0].second.peer, 0U);
}

TEST_F(HandOverWorld, SharesTheBytesAmongRanks) {
  config.h2d_bytes_per_second = config.d2h_bytes_per_second = 1'000'000'000;
  config.nic_bytes_per_second = 1'000'000'000'000;
  operation.work.senders = 4;
  operation.work.receivers = 8;
  run([&](Substrate& substrate) { substrate.submit(operation); });
  EXPECT_EQ(prefill.completions.at(0).first, 4'000'000) << "each of four GPUs sends a quarter at 1 GB/s";
}

TEST_F(HandOverWorld, StartsAfterItsPass) {
  run([&](Substrate& substrate) {
    operation.pass = submit_pass(substrate);
    substrate.submit(operation);
  });
  ASSERT_EQ(prefill.completions.size(), 2U);
  EXPECT_EQ(prefill.completions[1].first, kPassNs + 1'600'000);
}

TEST_F(HandOverWorld, InLayerGroupsEndsOneGroupAfterThePassIfTheNetworkKeepsUp) {
  operation.work.layer_groups = 16;
  operation.work.bytes = 8'000'000;  // 0.8 ms; a group takes 50 us, and is computed in 100 us
  run([&](Substrate& substrate) {
    operation.pass = submit_pass(substrate);
    substrate.submit(operation);
  });
  EXPECT_EQ(prefill.completions.at(1).first, kPassNs + 50'000);
}

TEST_F(HandOverWorld, InLayerGroupsIsAsSlowAsTheNetwork) {
  operation.work.layer_groups = 16;
  operation.work.bytes = 32'000'000;  // 3.2 ms
  run([&](Substrate& substrate) {
    operation.pass = submit_pass(substrate);
    substrate.submit(operation);
  });
  EXPECT_EQ(prefill.completions.at(1).first, kPassNs / 16 + 3'200'000) << "it begins after the first group";
}

TEST_F(HandOverWorld, OneGoesAfterTheOther) {
  run_two();
  EXPECT_EQ(prefill.completions.at(0).first, 1'600'000);
  EXPECT_EQ(prefill.completions.at(1).first, 3'200'000);
  ASSERT_EQ(decode.notices.size(), 1U);
  EXPECT_EQ(decode.notices[0].first, 3'200'000);
}

// A latent comes to one of eight ranks, which copies it to the others.
TEST_F(HandOverWorld, EndsWhenAllRanksHaveTheLatent) {
  config.ranks = 8;
  cost.broadcast = 300'000;
  run([&](Substrate& substrate) { substrate.submit(operation); });
  EXPECT_EQ(prefill.completions.at(0).first, 1'600'000 + 300'000);
  EXPECT_EQ(prefill.completions.at(0).second.bytes, operation.work.bytes);
  EXPECT_EQ(decode.notices.at(0).first, 1'600'000 + 300'000);
}

TEST_F(HandOverWorld, PagesOfEachRankAreNotCopied) {
  config.ranks = 8;
  cost.broadcast = 300'000;
  operation.work.senders = operation.work.receivers = 8;
  run([&](Substrate& substrate) { substrate.submit(operation); });
  EXPECT_EQ(prefill.completions.at(0).first, 1'600'000);
}

TEST_F(HandOverWorld, TheDecodeEnginesRanksCopyByTheirOwnCost) {
  FlatCost other;
  other.broadcast = 100'000;
  WorldConfig two_ranks = config;
  two_ranks.ranks = 2;
  two_ranks.cost = &other;
  config.decode = &two_ranks;
  cost.broadcast = 300'000;
  run([&](Substrate& substrate) { substrate.submit(operation); });
  EXPECT_EQ(prefill.completions.at(0).first, 1'600'000 + 100'000);
}

TEST_F(HandOverWorld, RanksCopyWhileTheNextWriteComes) {
  config.ranks = 8;
  cost.broadcast = 300'000;
  run_two();
  EXPECT_EQ(prefill.completions.at(0).first, 1'900'000);
  EXPECT_EQ(prefill.completions.at(1).first, 3'200'000 + 300'000);
}

TEST_F(HandOverWorld, CopiesFollowOneAnotherWhereTheyTakeLongerThanTheWrites) {
  config.ranks = 8;
  cost.broadcast = 1'000'000;
  operation.work.layer_groups = 2;  // of 0.8 ms
  run([&](Substrate& substrate) { substrate.submit(operation); });
  EXPECT_EQ(prefill.completions.at(0).first, 800'000 + 2 * 1'000'000);
}

// The bytes are there: it is too late to cancel.
TEST_F(HandOverWorld, IsNotCancelledWhileRanksCopy) {
  config.ranks = 8;
  cost.broadcast = 300'000;
  run([&](Substrate& substrate) {
    const OperationId id = substrate.submit(operation);
    substrate.call_at(1'700'000);
    prefill.on_timer = [&substrate, id] { substrate.cancel(id); };
  });
  ASSERT_EQ(prefill.completions.size(), 1U);
  EXPECT_EQ(prefill.completions[0].first, 1'900'000);
  EXPECT_EQ(prefill.completions[0].second.status, Status::done);
  EXPECT_EQ(decode.notices.size(), 1U);
}

TEST_F(HandOverWorld, FailsIfTheEngineDiesWhileItsRanksCopy) {
  config.ranks = 8;
  cost.broadcast = 300'000;
  config.deaths = {{1, 1'700'000}};
  run([&](Substrate& substrate) { substrate.submit(operation); });
  ASSERT_EQ(prefill.completions.size(), 1U);
  EXPECT_EQ(prefill.completions[0].second.status, Status::failed);
  EXPECT_EQ(prefill.completions[0].second.bytes, 0U);
}

TEST_F(HandOverWorld, EndsAtOnceWhenItIsCancelledAndAnnouncesNothing) {
  run([&](Substrate& substrate) { substrate.cancel(substrate.submit(operation)); });
  ASSERT_EQ(prefill.completions.size(), 1U);
  EXPECT_EQ(prefill.completions[0].first, 0);
  EXPECT_EQ(prefill.completions[0].second.status, Status::cancelled);
  EXPECT_TRUE(decode.notices.empty());
}

TEST_F(HandOverWorld, NoticesTakeTheirTimeAndKeepTheirSlots) {
  run([&](Substrate& substrate) {
    const std::vector<SlotId> slots{4, 5};
    Notice notice;
    notice.kind = NoticeKind::room;
    notice.request = 9;
    notice.slots = slots;
    substrate.notify(1, notice);
  });
  ASSERT_EQ(decode.notices.size(), 1U);
  EXPECT_EQ(decode.notices[0].first, 5000);
  EXPECT_EQ(decode.slots, (std::vector<SlotId>{4, 5}));
}

TEST_F(HandOverWorld, ToADeadEngineFailsAndTheOthersLearnOfTheDeath) {
  config.deaths = {{1, 1'000'000}};
  config.detect_ns = 300'000;
  run([&](Substrate& substrate) { substrate.submit(operation); });
  ASSERT_EQ(prefill.completions.size(), 1U);
  EXPECT_EQ(prefill.completions[0].second.status, Status::failed);
  ASSERT_EQ(prefill.notices.size(), 1U);
  EXPECT_EQ(prefill.notices[0].first, 1'300'000);
  EXPECT_EQ(prefill.notices[0].second.kind, NoticeKind::peer_lost);
  EXPECT_EQ(prefill.notices[0].second.peer, 1U);
  EXPECT_TRUE(decode.notices.empty());
  EXPECT_EQ(route.lost, std::vector<std::size_t>{1});
  EXPECT_TRUE(world->has_died(1));
  EXPECT_FALSE(world->has_died(0));
}

TEST_F(HandOverWorld, OfADeadEngineStops) {
  config.deaths = {{0, 1'000'000}};
  config.detect_ns = 300'000;
  run([&](Substrate& substrate) { substrate.submit(operation); });
  EXPECT_TRUE(prefill.completions.empty());
  ASSERT_EQ(decode.notices.size(), 1U);
  EXPECT_EQ(decode.notices[0].second.kind, NoticeKind::peer_lost);
}

TEST_F(HandOverWorld, ADeathAfterTheLastWorkNeverComes) {
  config.deaths = {{0, 1'000'000'000}};
  run([&](Substrate& substrate) { substrate.submit(operation); });
  EXPECT_EQ(world->now(), 1'600'000);
  EXPECT_FALSE(world->has_died(0));
}

TEST_F(HandOverWorld, WhoseEarlierPagesFailedFailsToo) {
  run([&](Substrate& substrate) {
    operation.last = false;
    substrate.cancel(substrate.submit(operation));
    operation.first = 1;
    operation.last = true;
    substrate.submit(operation);
    operation.first = 0;
    substrate.submit(operation);
  });
  ASSERT_EQ(prefill.completions.size(), 3U);
  EXPECT_EQ(prefill.completions[1].second.status, Status::failed);
  EXPECT_EQ(prefill.completions[2].second.status, Status::done) << "it writes the lost pages again";
  EXPECT_EQ(decode.notices.size(), 1U);
}

// Two engines of two ranks that decide each for themselves.
class HandOverOfRanks : public HandOverWorld {
 protected:
  HandOverOfRanks() {
    config.instances = true;
    config.ranks = 2;
  }
  void run(const std::function<void(Substrate&, std::size_t rank)>& act) {
    world = make_event_world(config);
    std::vector<InputHandler*> handlers;
    for (std::size_t seat = 0; seat < 4; ++seat) {
      ranks[seat].act = [&, seat] {
        if (seat < 2) act(world->substrate_of(seat), seat);
      };
      handlers.push_back(&ranks[seat]);
    }
    operation.peer = 2;  // the first seat of the decode engine
    OneArrival source;
    world->run_seats(source, handlers, &route);
  }
  Scribe ranks[4];
};

TEST_F(HandOverOfRanks, IsAnnouncedWhenThePagesOfAllRanksHaveLanded) {
  config.slower = {1.0, 2.0};
  run([&](Substrate& substrate, std::size_t) { substrate.submit(operation); });
  EXPECT_EQ(ranks[0].completions.at(0).first, 1'600'000);
  EXPECT_EQ(ranks[1].completions.at(0).first, 3'200'000);
  for (const std::size_t seat : {2U, 3U}) {
    ASSERT_EQ(ranks[seat].notices.size(), 1U);
    EXPECT_EQ(ranks[seat].notices[0].first, 3'200'000 + (seat == 2 ? 0 : 5000)) << "the first rank passes it on";
    EXPECT_EQ(ranks[seat].notices[0].second.kind, NoticeKind::handed);
    EXPECT_EQ(ranks[seat].notices[0].second.peer, 0U);
  }
}

TEST_F(HandOverOfRanks, CountsTheRanksOfOneWrite) {
  run([&](Substrate& substrate, std::size_t rank) {
    const OperationId first = substrate.submit(operation);
    if (rank == 1) substrate.cancel(first);
    substrate.submit(operation);
  });
  EXPECT_EQ(ranks[0].completions.at(0).first, 1'600'000);
  EXPECT_EQ(ranks[0].completions.at(1).first, 3'200'000);
  EXPECT_EQ(ranks[1].completions.at(1).first, 1'600'000) << "the second write of rank 1, before that of rank 0";
  ASSERT_EQ(ranks[2].notices.size(), 1U);
  EXPECT_EQ(ranks[2].notices[0].first, 3'200'000);
}

TEST_F(HandOverOfRanks, SendTheSameNotices) {
  Notice notice;
  notice.kind = NoticeKind::withdrawn;
  notice.request = 9;
  run([&](Substrate& substrate, std::size_t) { substrate.notify(2, notice); });
  EXPECT_EQ(ranks[2].notices.size(), 1U);
  EXPECT_EQ(ranks[3].notices.size(), 1U);
  const test::ThrowingChecks checks;
  EXPECT_THROW(run([&](Substrate& substrate, std::size_t rank) {
                 notice.request = rank;
                 substrate.notify(2, notice);
               }),
               test::BrokenPromise);
}

}  // namespace
}  // namespace kvtwin
