// Tests worlds with several seats and one clock: the resources that engines share, and the collectives of ranks.
#include "sim/seats.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "seat_script.hpp"

namespace kvtwin::test {
namespace {

constexpr auto kGet = StorageVerb::get;
constexpr auto kSet = StorageVerb::set;
constexpr auto kLookUp = StorageVerb::look_up;

INSTANTIATE_TEST_SUITE_P(Both, SeatsOf, testing::ValuesIn(worlds_here()), name_of_world);

WorldConfig two_engines() {
  WorldConfig config = plain_config();
  config.disk_read_bytes_per_second = config.disk_write_bytes_per_second = 10'000'000'000;
  config.nic_bytes_per_second = 20'000'000'000;
  config.fabric_bytes_per_second = 20'000'000'000;
  config.storage = {{Tier::disk, 1'000, false}, {Tier::remote, 1'000, true}};
  config.engines = 2;
  return config;
}

// Both engines use the same remote pool. Each engine has its own disk.
TEST_P(SeatsOf, EnginesShareThePoolAndNoDisk) {
  on_world(two_engines(), [](World& world) {
    ASSERT_EQ(world.seats(), 2U);
    const SeatLog log = run_seats(world, 2, {arrival(0, 0), arrival(kNsPerSecond, 1)},
                                  [](std::size_t seat, Substrate& s, const Input& i) {
                                    if (!is_arrival(i)) return;
                                    for (const Tier tier : {Tier::disk, Tier::remote}) {
                                      StorageCall(seat == 0 ? kSet : kGet, tier, 0, 4).submit(s);
                                    }
                                  });
    ASSERT_EQ(log.size(), 6U);
    EXPECT_EQ(log[3].seat, 1U) << "each engine gets its own arrivals";
    EXPECT_EQ(log[4], (SeatSeen{1, stored(kNsPerSecond + 1, 1, 0, 0, Status::failed, Cause::missing)}))
        << "ids are the seat's own";
    EXPECT_EQ(log[5], (SeatSeen{1, stored(kNsPerSecond + 20'001, 2, 4, 400'000)}));
  });
}

// Each engine alone gets 20 bytes per ns. With separate links, both end after 20 us; if they share the fabric, after 40
// us.
TEST_P(SeatsOf, EnginesShareTheFabric) {
  on_world(two_engines(), [](World& world) {
    const SeatLog log =
        run_seats(world, 2, {arrival(0, 0), arrival(0, 1)}, [](std::size_t seat, Substrate& s, const Input& i) {
          if (!is_arrival(i)) return;
          StorageCall(kSet, Tier::remote, 100 * seat, 4).submit(s);
          s.submit(transfer(Lane::h2d, 1'000'000, 0));  // each engine has its own GPU
        });
    const TimeNs shared = GetParam() == Which::simgrid ? 40'001 : 20'001;
    SeatLog expected = {{0, flat(arrival(0, 0))}, {1, flat(arrival(0, 1))}};
    for (std::size_t seat : {0U, 1U}) expected.push_back({seat, completion(20'000, 2, 1'000'000)});
    for (std::size_t seat : {0U, 1U}) expected.push_back({seat, stored(shared, 1, 4, 400'000)});
    EXPECT_EQ(log, expected);
  });
}

WorldConfig ranks_of(std::uint32_t ranks) {
  WorldConfig config = plain_config();
  config.ranks = ranks;
  config.instances = true;
  config.reduce_ns = 5'000;
  return config;
}

TEST_P(SeatsOf, AReductionIsAnsweredToAllWhenTheLastHasEntered) {
  on_world(ranks_of(3), [](World& world) {
    const SeatLog log = run_seats(world, 1, {arrival(0, 0)}, [](std::size_t seat, Substrate& s, const Input& i) {
      if (is_arrival(i)) {
        s.call_at(static_cast<TimeNs>(1'000 * seat));
      } else if (std::holds_alternative<TimerFired>(i.what)) {
        s.reduce_min({static_cast<std::int64_t>(10 - seat)});
        if (seat == 0) s.reduce_min({7});  // the nth reductions of all ranks belong together, at any time
      } else if (seat != 0 && std::get<Reduction>(i.what).values[0] == 8) {
        s.reduce_min({99});
      }
    });
    const auto result = [](TimeNs now, std::uint64_t id, std::uint64_t least) {
      return Seen{.now = now, .kind = kReductionKind, .id = id, .bytes = least};
    };
    SeatLog results;
    for (const SeatSeen& seen : log) {
      if (seen.seen.kind == kReductionKind) results.push_back(seen);
    }
    EXPECT_EQ(results, (SeatLog{{0, result(7'000, 2, 8)},
                                {1, result(7'000, 2, 8)},
                                {2, result(7'000, 2, 8)},
                                {0, result(12'000, 3, 7)},
                                {1, result(12'000, 3, 7)},
                                {2, result(12'000, 3, 7)}}));
  });
}

// If one rank does not enter a reduction, no rank gets the result. The run ends, and the policies are not idle.
TEST_P(SeatsOf, AReductionThatNotAllEnterIsNeverAnswered) {
  on_world(ranks_of(2), [](World& world) {
    const SeatLog log = run_seats(world, 1, {arrival(0, 0)}, [](std::size_t seat, Substrate& s, const Input& i) {
      if (is_arrival(i) && seat == 0) s.reduce_min({1});
    });
    EXPECT_EQ(log.size(), 2U);
  });
}

// Rank 1 submits the pass late, and the load of rank 0 ends even later. After that, the pass takes one step of 1,000
// ns.
TEST_P(SeatsOf, APassOfAllRanksWaitsForTheLastAndForEveryGate) {
  on_world(ranks_of(2), [](World& world) {
    const SeatLog log = run_seats(world, 1, {arrival(0, 0)}, [](std::size_t seat, Substrate& s, const Input& i) {
      if (is_arrival(i) && seat == 0) {
        const OperationId gate = s.submit(transfer(Lane::h2d, 100'000, 0));
        s.submit(pass(1'000, 0, 1, std::span(&gate, 1)));
      } else if (is_arrival(i)) {
        s.call_at(1'500);
      } else if (std::holds_alternative<TimerFired>(i.what)) {
        s.submit(pass(1'000, 0, 1));
      }
    });
    ASSERT_EQ(log.size(), 6U);
    EXPECT_EQ(log[4], (SeatSeen{0, pass_end(3'000, 2, 1, 500)})) << "from 1,500 on it stalled for 500";
    EXPECT_EQ(log[5], (SeatSeen{1, pass_end(3'000, 2, 1, 500)}));
  });
}

TEST_P(SeatsOf, ACancelByOneRankCutsForAllAndAGateThatFailsFailsForAll) {
  on_world(ranks_of(2), [](World& world) {
    const SeatLog log =
        run_seats(world, 1, {arrival(0, 0), arrival(100'000, 1)}, [](std::size_t seat, Substrate& s, const Input& i) {
          const auto* a = std::get_if<Arrival>(&i.what);
          if (a != nullptr && a->request == 0) {
            s.submit(pass(0, 1'000, 50));
            if (seat == 1) s.call_at(2'500);
          } else if (a != nullptr) {
            const OperationId gate = s.submit(transfer(Lane::h2d, 500'000, 0));
            const auto gates = std::span(&gate, seat == 0 ? 0 : 1);
            s.submit(pass(1'000, 0, 1, gates));
            if (seat == 1) s.cancel(gate);
          } else if (std::holds_alternative<TimerFired>(i.what)) {
            s.cancel(OperationId{1});
          }
        });
    SeatLog passes;
    for (const SeatSeen& seen : log) {
      if (seen.seen.kind == kCompletionKind && seen.seen.bytes == 0) passes.push_back(seen);
    }
    std::erase_if(passes, [](const SeatSeen& s) { return s.seat == 1 && s.seen.id == 3; });  // removes the gate
    EXPECT_EQ(passes, (SeatLog{{0, pass_end(3'000, 1, 3, 0, Status::cancelled)},
                               {1, pass_end(3'000, 1, 3, 0, Status::cancelled)},
                               {0, pass_end(100'000, 3, 0, 0, Status::failed)},  // had no gate that could fail
                               {1, pass_end(100'000, 4, 0, 0, Status::gate_failed)}}));
  });
}

// Engines share the content, capacity and bandwidth of the file system. Each engine has its own NIC.
TEST_P(SeatsOf, EnginesShareTheSharedFileSystem) {
  WorldConfig config = two_engines();
  config.shared_fs_read_bytes_per_second = 10'000'000'000;
  config.shared_fs_write_bytes_per_second = 5'000'000'000;
  config.storage = {{Tier::shared_fs, 15, true}};
  const bool shares = GetParam() != Which::event;
  on_world(config, [shares](World& world) {
    const auto act = [](std::size_t seat, Substrate& s, const Input& i) {
      if (is_arrival(i)) {
        if (seat == 0) StorageCall(kSet, Tier::shared_fs, 0, 10).submit(s);
        s.call_at(kNsPerSecond);
        s.call_at(2 * kNsPerSecond);
      } else if (std::holds_alternative<TimerFired>(i.what) && i.now == kNsPerSecond) {
        StorageCall(kGet, Tier::shared_fs, 0, 10).submit(s);
      } else if (std::holds_alternative<TimerFired>(i.what)) {
        if (seat == 1) StorageCall(kSet, Tier::shared_fs, 20, 8).submit(s);
        StorageCall(kLookUp, Tier::shared_fs, 0, 10).latency(500'000'000).submit(s);
        StorageCall(kLookUp, Tier::shared_fs, 3, 7).latency(500'000'000).submit(s);
      }
    };
    const SeatLog log = run_seats(world, 2, {arrival(0, 0), arrival(0, 1)}, act);
    std::vector<SeatSeen> ends;
    for (const SeatSeen& one : log) {
      if (one.seen.kind == kCompletionKind) ends.push_back(one);
    }
    ASSERT_EQ(ends.size(), 8U);
    EXPECT_EQ(ends[0].seen.now, 200'001) << "written at 5 bytes a ns";
    // Both engines read 1 MB at the same time.
    const TimeNs took = shares ? 200'001 : 100'001;
    for (const std::size_t get : {1U, 2U}) {
      EXPECT_EQ(ends[get].seen.now, kNsPerSecond + took);
      EXPECT_EQ(ends[get].seen.pages, 10U);
    }
    EXPECT_EQ(ends[3].seen.now, 2 * kNsPerSecond + 160'001);
    for (const std::size_t look_up : {4U, 5U, 6U, 7U}) {
      const bool all = ends[look_up].seen.pages == 7U;
      EXPECT_TRUE(all || ends[look_up].seen.pages == 0U) << "18 pages in room for 15: the first three have gone";
    }
    EXPECT_EQ(std::ranges::count_if(ends, [](const SeatSeen& end) { return end.seen.pages == 7U; }), 2);
  });
}

// A machine without NICs can use the shared file system, too.
TEST_P(SeatsOf, TheSharedFileSystemNeedsNoNic) {
  WorldConfig config = plain_config();
  config.shared_fs_read_bytes_per_second = config.shared_fs_write_bytes_per_second = 10'000'000'000;
  config.storage = {{Tier::shared_fs, 100, true}};
  on_world(config, [](World& world) {
    const SeatLog log = run_seats(world, 1, {arrival(0, 0)}, [](std::size_t, Substrate& s, const Input& i) {
      if (is_arrival(i)) StorageCall(kSet, Tier::shared_fs, 0, 4).submit(s);
    });
    ASSERT_EQ(log.size(), 2U);
    EXPECT_EQ(log[1], (SeatSeen{0, stored(40'001, 1, 4, 400'000)}));
  });
}

// A slow rank has slow transfers and slow storage operations. Every rank has its own store.
TEST_P(SeatsOf, ARanksTransfersAndStoresAreItsOwn) {
  WorldConfig config = ranks_of(2);
  config.slower = {1.0, 3.0};
  config.disk_read_bytes_per_second = config.disk_write_bytes_per_second = 10'000'000'000;
  config.storage = {{Tier::disk, 1'000, false}};
  on_world(config, [](World& world) {
    const SeatLog log = run_seats(world, 1, {arrival(0, 0)}, [](std::size_t seat, Substrate& s, const Input& i) {
      if (is_arrival(i)) {
        s.submit(transfer(Lane::h2d, 500'000, 100));
        if (seat == 0) StorageCall(kSet, Tier::disk, 0, 4).latency(200'000).submit(s);
        s.call_at(kNsPerSecond);
      } else if (std::holds_alternative<TimerFired>(i.what)) {
        StorageCall(kLookUp, Tier::disk, 0, 4).latency(100).submit(s);
      }
    });
    ASSERT_EQ(log.size(), 9U);
    EXPECT_EQ(log[2], (SeatSeen{0, completion(10'100, 1, 1'000'000)}));
    EXPECT_EQ(log[3], (SeatSeen{1, completion(30'300, 1, 1'000'000)}));
    EXPECT_EQ(log[7], (SeatSeen{0, stored(kNsPerSecond + 100, 4, 4, 0)}));
    EXPECT_EQ(log[8], (SeatSeen{1, stored(kNsPerSecond + 300, 3, 0, 0)}));
  });
}

}  // namespace
}  // namespace kvtwin::test
