// Several ranks, each of them a real world (not simulated) in its own thread: reductions, common passes, and errors.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "real_rig.hpp"
#include "tests/thread_ranks.hpp"

namespace kvtwin::test {
namespace {

using Script = std::function<void(RealRig& rig, std::size_t rank)>;

// Runs the script in one thread per rank, each with its own rig. The script must run its rig at the end.
void play(std::size_t ranks, const Script& script, const HostDeviceConfig& config = small_device()) {
  ThreadRanks group(ranks);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      HostDeviceConfig own = config;
      own.ranks = &group.of(rank);
      RealRig rig(own);
      script(rig, rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(RealRanks, ReduceToTheLeastOfAll) {
  for (const std::size_t ranks : {1U, 2U, 5U}) {
    play(ranks, [&](RealRig& rig, std::size_t rank) {
      std::vector<OperationId> ids;
      for (std::int64_t step = 0; step < 50; ++step) {
        rig.then([&, step] {
          const auto mine = static_cast<std::int64_t>(rank);
          ids.push_back(rig.reduce_min({100 + mine, 100 - mine, step, mine == 1 ? -7 : 7}));
        });
      }
      rig.run();
      for (std::size_t step = 0; step < ids.size(); ++step) {
        const auto values = std::get<Reduction>(rig.inputs.at(rig.place(ids[step])).what).values;
        EXPECT_EQ(values[0], 100);
        EXPECT_EQ(values[1], 101 - static_cast<std::int64_t>(ranks));
        EXPECT_EQ(values[2], static_cast<std::int64_t>(step));
        EXPECT_EQ(values[3], ranks == 1 ? 7 : -7);
      }
    });
  }
}

// Reductions are answered in the order in which they were requested, even with operations, timers and arrivals in
// between.
TEST(RealRanks, ReduceInOrderWhateverElseHappens) {
  play(3, [](RealRig& rig, std::size_t rank) {
    const std::vector<PageKey> keys = some_keys(4);
    std::vector<OperationId> ids;
    rig.then([&] { rig.compute(keys, {0, 1, 2, 3}); });
    for (int step = 0; step < 20; ++step) {
      rig.then([&, rank] {
        rig.back_up(keys, {0, 1, 2, 3}, {4, 5, 6, 7});
        for (int i = 0; i < 3; ++i) ids.push_back(rig.reduce_min({static_cast<std::int64_t>(rank)}));
        rig.call_at(rig.now() + static_cast<TimeNs>(rank) * 20'000);
        rig.read(keys, {0, 1, 2, 3}, 9);
      });
    }
    EXPECT_EQ(rig.run({arrival_at(0, 0), arrival_at(100'000, 1), arrival_at(200'000, 2)}).wrong_reads, 0U);
    for (std::size_t i = 1; i < ids.size(); ++i) EXPECT_GT(rig.place(ids[i]), rig.place(ids[i - 1]));
  });
}

// Rank 0 starts its pass after rank 1 has cancelled it: from then on, the ranks do at most one more step.
TEST(RealRanks, ABurstThatOneCancelsEndsOnAllAtTheSameStep) {
  for (int round = 0; round < 20; ++round) {
    std::latch cancelled(1);
    std::vector<Completion> ends(3);
    play(3, [&](RealRig& rig, std::size_t rank) {
      OperationId pass = OperationId::none;
      rig.then([&] {
        if (rank == 0) cancelled.wait();
        pass = rig.decode({{{0, 1, 2, 3, 4, 5, 6, 7}, some_keys(8), 0, 32}});
        if (rank != 1) return;
        rig.cancel(pass);
        cancelled.count_down();
      });
      rig.run();
      ends[rank] = rig.completion(pass);
    });
    for (const Completion& end : ends) {
      EXPECT_EQ(end.status, Status::cancelled);
      EXPECT_EQ(end.steps, ends[0].steps);
      EXPECT_GE(end.steps, 1U);
      EXPECT_LE(end.steps, 2U);
    }
  }
}

// A single step isn't interrupted: all ranks do it, or none does.
TEST(RealRanks, APrefillThatOneCancelsIsDoneByAll) {
  play(2, [&](RealRig& rig, std::size_t rank) {
    OperationId pass = OperationId::none;
    rig.then([&] {
      pass = rig.compute(some_keys(2), {0, 1});
      if (rank == 1) rig.cancel(pass);
    });
    rig.run();
    EXPECT_EQ(rig.completion(pass).status, Status::done);
    EXPECT_EQ(rig.completion(pass).steps, 1U);
  });
}

// Rank 1 cancels its load, mostly before any bytes are copied. Rank 0 has no load to wait for.
TEST(RealRanks, ALoadThatOneLosesFailsThePassOnAll) {
  const std::vector<PageKey> keys = some_keys(4);
  std::size_t lost = 0;
  for (int round = 0; lost < 3; ++round) {
    ASSERT_LT(round, 10'000) << "no load was ever cancelled in time";
    std::vector<Completion> ends(3);
    Status load_status = Status::done;
    play(3, [&](RealRig& rig, std::size_t rank) {
      OperationId load = OperationId::none, pass = OperationId::none, next = OperationId::none;
      rig.then([&] { rig.compute(keys, {0, 1, 2, 3}); });
      rig.then([&] { rig.back_up(keys, {0, 1, 2, 3}, {0, 1, 2, 3}); });
      rig.then([&] {
        if (rank == 0) {
          pass = rig.read(keys, {0, 1, 2, 3}, 9);
          return;
        }
        load = rig.load(keys, {0, 1, 2, 3}, {4, 5, 6, 7});
        if (rank == 1) rig.cancel(load);
        pass = rig.read(keys, {4, 5, 6, 7}, 9, {load});
      });
      rig.then([&] { next = rig.read(keys, {0, 1, 2, 3}, 10); });
      rig.run();
      ends[rank] = rig.completion(pass);
      if (rank == 1) load_status = rig.completion(load).status;
      EXPECT_EQ(rig.completion(next).status, Status::done) << "the next pass has nothing to do with it";
    });
    if (load_status == Status::done) {
      for (const Completion& end : ends) EXPECT_EQ(end.status, Status::done);
      continue;
    }
    ++lost;
    EXPECT_EQ(ends[0].status, Status::failed);
    EXPECT_EQ(ends[1].status, Status::gate_failed);
    EXPECT_EQ(ends[2].status, Status::gate_failed);
    for (const Completion& end : ends) EXPECT_EQ(end.steps, 0U);
  }
}

// A rank leaves while the others run passes or reductions, or wait for it.
TEST(RealRanks, AreNotWaitedForWhenTheyHaveLeft) {
  for (int at = 0; at < 4; ++at) {
    std::atomic<int> thrown = 0;
    play(3, [&](RealRig& rig, std::size_t rank) {
      const auto busy = [&] {
        rig.decode({{{0, 1, 2, 3, 4, 5, 6, 7}, some_keys(8), 0, 32}});
        rig.reduce_min({static_cast<std::int64_t>(rank)});
      };
      for (int step = 0; step < 6; ++step) {
        rig.then([&, step] {
          if (rank == 2 && step == at) throw std::logic_error("of this rank alone");
          busy();
          if (rank == 2 && step + 1 == at) throw std::logic_error("with operations in flight");
        });
      }
      try {
        rig.run();
      } catch (const std::logic_error&) {
        ++thrown;  // the rig and its world are destroyed after this
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "another rank has left the run");
        ++thrown;
      }
    });
    EXPECT_EQ(thrown, 3);
  }
}

// If one rank cannot start, the run of the other ranks ends with an error.
TEST(RealRanks, ARankThatCantStartEndsTheOthers) {
  ThreadRanks group(2);
  std::thread other([&] {
    HostDeviceConfig config = small_device();
    config.ranks = &group.of(1);
    config.before = [](const char* step) {
      if (std::string(step) == "compute thread") throw std::runtime_error("no thread");
    };
    auto rig = std::make_unique<RealRig>(config);
    EXPECT_THROW(rig->run(), std::runtime_error);
    rig.reset();
    EXPECT_TRUE(group.left());
  });
  HostDeviceConfig config = small_device();
  config.ranks = &group.of(0);
  RealRig rig(config);
  rig.then([&] { rig.reduce_min({1}); });
  EXPECT_THROW(rig.run(), std::runtime_error);
  other.join();
}

}  // namespace
}  // namespace kvtwin::test
