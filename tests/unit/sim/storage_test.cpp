// Tests storage operations in both simulated worlds: stored pages, moved bytes, shared links, and the traffic in host
// memory.
#include <gtest/gtest.h>

#include <vector>

#include "sim/seats.hpp"
#include "world_script.hpp"

namespace kvtwin::test {
namespace {

constexpr auto kLookUp = StorageVerb::look_up;
constexpr auto kGet = StorageVerb::get;
constexpr auto kSet = StorageVerb::set;
constexpr auto kRemove = StorageVerb::remove;

// A page has 100,000 bytes. The drives read a page in 10,000 ns and write a page in 20,000 ns, the NICs move a page in
// 5,000 ns, and the link of a GPU moves a page in 2,000 ns.
WorldConfig storage_config() {
  WorldConfig config = plain_config();
  config.disk_read_bytes_per_second = 10'000'000'000;
  config.disk_write_bytes_per_second = 5'000'000'000;
  config.nic_bytes_per_second = 20'000'000'000;
  config.fabric_bytes_per_second = 100'000'000'000;
  config.storage = {{Tier::disk, 1'000, false}, {Tier::remote, 1'000, true}};
  return config;
}

class Storage : public testing::TestWithParam<Which> {
 protected:
  Log run(const WorldConfig& config, const std::vector<Input>& inputs, const Act& act) {
    return run_on(GetParam(), config, inputs, act);
  }
  // Stores pages [0, stored) on disk and remote (operations 1 and 2), and then calls `once` at 1 s. In the returned
  // log, times count from 1 s, and ids from 1.
  Log run_stored(const WorldConfig& config, Pages stored, const std::function<void(Substrate&)>& once,
                 const std::function<void(Substrate&, const Input&)>& later = nullptr) {
    const auto act = [&](Substrate& s, const Input& input) {
      if (const auto* a = std::get_if<Arrival>(&input.what)) {
        if (a->request == 1) return once(s);
        StorageCall(kSet, Tier::disk, 0, stored).submit(s);
        StorageCall(kSet, Tier::remote, 0, stored).submit(s);
      } else if (later && input.now >= kNsPerSecond) {
        later(s, input);
      }
    };
    const Log log = run(config, {arrival(0, 0), arrival(kNsPerSecond, 1)}, act);
    Log rest;
    for (Seen seen : log) {
      if (seen.now < kNsPerSecond || seen.kind == kArrivalKind) continue;
      seen.now -= kNsPerSecond;
      seen.id -= 2;
      rest.push_back(seen);
    }
    return rest;
  }
};

INSTANTIATE_TEST_SUITE_P(Both, Storage, testing::ValuesIn(worlds_here()), name_of_world);

TEST_P(Storage, SetGetLookUpRemove) {
  const Log log = run_stored(storage_config(), 10, [](Substrate& s) {
    StorageCall(kLookUp, Tier::disk, 0, 20).latency(7).submit(s);
    StorageCall(kGet, Tier::disk, 2, 4).latency(100).submit(s);
    StorageCall(kGet, Tier::remote, 8, 4).latency(100).submit(s);       // two pages are stored
    StorageCall(kGet, Tier::remote, 30, 4).latency(100).submit(s);      // no page is stored
    StorageCall(kSet, Tier::disk, 8, 4).latency(100).submit(s);         // two pages are stored already
    StorageCall(kRemove, Tier::disk, 0, 3).latency(50).submit(s);       // ends after the set
    StorageCall(kLookUp, Tier::disk, 0, 20).latency(30'000).submit(s);  // ends before set and remove
    StorageCall(kLookUp, Tier::disk, 3, 20).latency(90'000).submit(s);  // ends after set and remove
    StorageCall(kLookUp, Tier::disk, 0, 20).latency(90'000).submit(s);
  });
  const Log first = {stored(7, 1, 10, 0), stored(10'100, 3, 2, 200'000, Status::failed, Cause::missing),
                     stored(10'200, 4, 0, 0, Status::failed, Cause::missing), stored(30'000, 7, 10, 0)};
  // In SimGrid, reads and writes share the time of the drives. A written byte takes as long as two read bytes, so both
  // move at 10 / 3 bytes per ns.
  const Log drives = GetParam() == Which::event
                         ? Log{stored(40'100, 2, 4, 400'000), stored(40'100, 5, 4, 200'000), stored(40'150, 6, 3, 0)}
                         : Log{stored(60'100, 5, 4, 200'000), stored(60'150, 6, 3, 0), stored(80'100, 2, 4, 400'000)};
  const Log last = {stored(90'000, 8, 9, 0), stored(90'000, 9, 0, 0)};
  Log all = first;
  all.insert(all.end(), drives.begin(), drives.end());
  all.insert(all.end(), last.begin(), last.end());
  EXPECT_EQ(log, all);
}

TEST_P(Storage, AFullTierSaysSoAndOneThatEvictsDropsTheOldest) {
  WorldConfig config = storage_config();
  config.storage = {{Tier::disk, 12, false}, {Tier::remote, 12, true}};
  const Log log = run_stored(config, 10, [](Substrate& s) {
    StorageCall(kSet, Tier::disk, 9, 5).submit(s);                         // 1: one page is stored, two have room
    StorageCall(kGet, Tier::remote, 0, 1).submit(s);                       // 2: page 0 becomes the most recent
    StorageCall(kSet, Tier::remote, 20, 5).latency(9'000).submit(s);       // 3: evicts pages 1, 2 and 3
    StorageCall(kLookUp, Tier::disk, 0, 20).latency(100'000).submit(s);    // 4
    StorageCall(kLookUp, Tier::remote, 0, 10).latency(100'000).submit(s);  // 5
    StorageCall(kLookUp, Tier::remote, 4, 10).latency(100'000).submit(s);  // 6
    StorageCall(kLookUp, Tier::remote, 20, 5).latency(100'000).submit(s);  // 7
  });
  ASSERT_EQ(log.size(), 7u);
  EXPECT_EQ(log[1], stored(34'000, 3, 5, 500'000));
  EXPECT_EQ(log[2], stored(40'001, 1, 3, 200'000, Status::failed, Cause::full));
  EXPECT_EQ(log[3].pages, 12u);
  EXPECT_EQ(log[4].pages, 1u);
  EXPECT_EQ(log[5].pages, 6u);
  EXPECT_EQ(log[6].pages, 5u);
}

// The effect of one operation on the store determines how many bytes the next operation moves.
TEST_P(Storage, RemovesMakeRoomForTheNextSet) {
  WorldConfig config = storage_config();
  config.storage = {{Tier::disk, 10, false}};
  const auto act = [](Substrate& s, const Input& input) {
    if (!std::holds_alternative<Arrival>(input.what)) return;
    StorageCall(kSet, Tier::disk, 0, 10).submit(s);                // ends at 200,001
    StorageCall(kRemove, Tier::disk, 5, 2).submit(s);              // ends at 200,002
    StorageCall(kSet, Tier::disk, 5, 3).submit(s);                 // one page is still stored
    StorageCall(kSet, Tier::disk, 5, 3).submit(s);                 // all pages are stored
    StorageCall(kRemove, Tier::disk, 5, 1).submit(s);              // its lane is free before that of the next operation
    StorageCall(kSet, Tier::disk, 20, 1, Tier::device).submit(s);  // ends in the order of submission
    StorageCall(kRemove, Tier::disk, 0, 1).submit(s);
    StorageCall(kSet, Tier::disk, 30, 1).submit(s);
  };
  Log log = run(config, {arrival(0, 0)}, act);
  log.erase(log.begin());
  ASSERT_EQ(log.size(), 8u);
  const TimeNs shared =
      GetParam() == Which::event ? 0 : 20'000;  // the drives also write the page of the sixth operation
  EXPECT_EQ(log[0], stored(200'001 + shared, 1, 10, 1'000'000));
  EXPECT_EQ(log[1], stored(200'002 + shared, 2, 2, 0));
  EXPECT_EQ(log[2], stored(240'003 + shared, 3, 3, 200'000));
  EXPECT_EQ(log[3], stored(240'004 + shared, 4, 3, 0));
  EXPECT_EQ(log[4], stored(240'005 + shared, 5, 1, 0));
  EXPECT_EQ(log[5], stored(240'005 + shared, 6, 1, 100'000));
  EXPECT_EQ(log[6], stored(240'006 + shared, 7, 1, 0));
  EXPECT_EQ(log[7], stored(260'007 + shared, 8, 1, 100'000));
}

TEST_P(Storage, LanesAreFifoAndEndsKeepTheOrderOfTheirTier) {
  const Log log = run_stored(storage_config(), 50, [](Substrate& s) {
    StorageCall(kGet, Tier::disk, 0, 3).submit(s);                  // 1
    StorageCall(kGet, Tier::disk, 3, 1).submit(s);                  // 2
    StorageCall(kGet, Tier::remote, 0, 1, Tier::device).submit(s);  // 3
    StorageCall(kGet, Tier::remote, 1, 3).submit(s);                // 4
    StorageCall(kGet, Tier::remote, 4, 1, Tier::device).submit(s);  // 5: lands before 4
  });
  ASSERT_EQ(log.size(), 5u);
  std::vector<std::uint64_t> ids;
  for (const Seen& seen : log) ids.push_back(seen.id);
  EXPECT_EQ(ids, (std::vector<std::uint64_t>{3, 4, 5, 1, 2}));
  EXPECT_EQ(log[1].now, log[2].now) << "it waited for the one before";
  EXPECT_EQ(log[3], stored(30'001, 1, 3, 300'000));
  EXPECT_EQ(log[4], stored(40'002, 2, 1, 100'000));
}

TEST_P(Storage, AllRanksMoveTogether) {
  WorldConfig config = storage_config();
  config.ranks = 4;
  const Log log = run_stored(config, 10, [](Substrate& s) {
    StorageCall(kGet, Tier::disk, 0, 2).of_ranks(4).submit(s);                  // 800,000 bytes through the drives
    StorageCall(kGet, Tier::remote, 0, 2, Tier::device).of_ranks(4).submit(s);  // 800,000 bytes through the NICs
  });
  EXPECT_EQ(log, (Log{stored(40'001, 2, 2, 800'000), stored(80'001, 1, 2, 800'000)}));
}

// One of four ranks writes an MLA latent, so the link of one rank is the limit.
TEST_P(Storage, OneWriterLoadsOneLink) {
  WorldConfig config = storage_config();
  config.ranks = 4;
  config.nic_bytes_per_second = 800'000'000'000;
  config.fabric_bytes_per_second = 800'000'000'000;
  const Log log = run_stored(config, 1, [](Substrate& s) {
    StorageCall(kSet, Tier::remote, 10, 4, Tier::device).submit(s);
    StorageCall(kSet, Tier::remote, 20, 4, Tier::device).of_ranks(4).submit(s);
  });
  EXPECT_EQ(log, (Log{stored(8'001, 1, 4, 400'000), stored(16'002, 2, 4, 1'600'000)}));
}

TEST_P(Storage, CancelCountsWholePages) {
  const Log log = run_stored(
      storage_config(), 20,
      [](Substrate& s) {
        StorageCall(kGet, Tier::disk, 0, 5).latency(1'000).submit(s);        // 1
        StorageCall(kGet, Tier::disk, 5, 5).submit(s);                       // 2: queued
        StorageCall(kSet, Tier::remote, 18, 6).latency(1'000).submit(s);     // 3: two pages are stored, four move
        StorageCall(kRemove, Tier::remote, 0, 6).submit(s);                  // 4: queued
        StorageCall(kLookUp, Tier::remote, 0, 6).latency(90'000).submit(s);  // 5
        s.call_at(s.now() + 17'000);                                         // 6
      },
      [](Substrate& s, const Input& input) {
        if (!std::holds_alternative<TimerFired>(input.what)) return;
        for (std::uint64_t id = 3; id <= 7; ++id) s.cancel(OperationId{id});
        StorageCall(kLookUp, Tier::remote, 0, 30).submit(s);  // 7
      });
  ASSERT_EQ(log.size(), 7u);
  EXPECT_EQ(log[1], stored(17'000, 1, 1, 100'000, Status::cancelled));
  EXPECT_EQ(log[2], stored(17'000, 2, 0, 0, Status::cancelled));
  // 16,000 ns at 20 bytes per ns move three whole pages.
  EXPECT_EQ(log[3], stored(17'000, 3, 5, 300'000, Status::cancelled));
  EXPECT_EQ(log[4], stored(17'000, 4, 0, 0, Status::cancelled));
  EXPECT_EQ(log[5], stored(17'000, 5, 0, 0, Status::cancelled));
  EXPECT_EQ(log[6], stored(17'001, 7, 23, 0));
}

// By the contract, an operation that counts all its pages has the status `done`, even if it was cancelled.
TEST_P(Storage, ACancelledSetOfWhatIsThereIsDone) {
  const Log log = run_stored(
      storage_config(), 5,
      [](Substrate& s) {
        StorageCall(kSet, Tier::disk, 0, 5).latency(1'000).submit(s);
        s.call_at(s.now() + 500);
      },
      [](Substrate& s, const Input& input) {
        if (std::holds_alternative<TimerFired>(input.what)) s.cancel(OperationId{3});
      });
  ASSERT_EQ(log.size(), 2u);
  EXPECT_EQ(log[1], stored(500, 1, 5, 0));
}

// A get moves whole pages: all layers of one page, then all layers of the next. So the pass waits for the whole get.
TEST_P(Storage, AGetIntoTheDeviceGatesAsAWhole) {
  const Log log = run_stored(storage_config(), 20, [](Substrate& s) {
    const OperationId gate = StorageCall(kGet, Tier::disk, 0, 10, Tier::device).latency(500).submit(s);
    s.submit(pass(10'000, 0, 1, std::span(&gate, 1)));
    const OperationId queued = StorageCall(kGet, Tier::disk, 10, 10, Tier::device).latency(500).submit(s);
    s.submit(pass(10'000, 0, 1, std::span(&queued, 1)));
    const OperationId missing = StorageCall(kGet, Tier::disk, 19, 2, Tier::device).latency(500).submit(s);
    s.submit(pass(10'000, 0, 1, std::span(&missing, 1)));
  });
  EXPECT_EQ(log,
            (Log{stored(100'500, 1, 10, 1'000'000), pass_end(110'500, 2, 1, 100'500), stored(201'000, 3, 10, 1'000'000),
                 pass_end(211'000, 4, 1, 90'500), stored(211'500, 5, 1, 100'000, Status::failed, Cause::missing),
                 pass_end(211'500, 6, 0, 500, Status::gate_failed)}));
}

TEST_P(Storage, StallsAreDrawnFromTheSeed) {
  WorldConfig config = storage_config();
  config.storage_stall_share = 0.25;
  const auto gets = [](Substrate& s) {
    for (std::uint64_t i = 0; i < 400; ++i) StorageCall(kGet, Tier::disk, i % 10, 1).latency(100).submit(s);
  };
  const auto stalled = [&](std::uint64_t seed) {
    config.seed = seed;
    std::vector<std::uint64_t> ids;
    TimeNs last = 0;
    for (const Seen& seen : run_stored(config, 10, gets)) {
      const TimeNs took = seen.now - last;
      last = seen.now;
      EXPECT_TRUE(took == 10'100 || took == 20 * 10'100) << took;
      if (took > 10'100) ids.push_back(seen.id);
    }
    return ids;
  };
  const std::vector<std::uint64_t> ids = stalled(1);
  EXPECT_GT(ids.size(), 70u);
  EXPECT_LT(ids.size(), 130u);
  EXPECT_EQ(ids, stalled(1));
  EXPECT_NE(ids, stalled(2));
}

// ---- shared links ------------------------------------------------------------------------------------

class SharedStorage : public Storage {};
// In the event-heap world, transfers do not share links.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SharedStorage);
#if KVTWIN_TEST_SIMGRID
INSTANTIATE_TEST_SUITE_P(SimGrid, SharedStorage, testing::Values(Which::simgrid), name_of_world);
#endif

TEST_P(SharedStorage, WritesSlowReads) {
  const auto end_of_read = [&](bool with_writes) {
    return run_stored(storage_config(), 10,
                      [&](Substrate& s) {
                        if (with_writes) StorageCall(kSet, Tier::disk, 100, 50).submit(s);
                        StorageCall(kGet, Tier::disk, 0, 10).submit(s);
                      })
        .front();
  };
  EXPECT_EQ(end_of_read(false), stored(100'001, 1, 10, 1'000'000));
  EXPECT_EQ(end_of_read(true), stored(300'001, 2, 10, 1'000'000));
}

// A load and a direct get of one GPU share its link. A load and a direct set use different directions, so they share
// only the limit of both directions together.
TEST_P(SharedStorage, OneGpuLinkIsSharedByLoadsAndDirectGets) {
  for (const std::uint32_t ranks : {1u, 8u}) {
    WorldConfig config = storage_config();
    config.ranks = ranks;
    config.nic_bytes_per_second = config.fabric_bytes_per_second = 900'000'000'000;
    const auto pair = [&](StorageVerb verb) {
      return run_stored(config, 10, [&](Substrate& s) {
        s.submit(transfer(Lane::h2d, 1'000'000, 1));
        StorageCall(verb, Tier::remote, verb == kGet ? 0 : 100, 10, Tier::device).of_ranks(ranks).submit(s);
      });
    };
    EXPECT_EQ(pair(kGet), (Log{completion(40'001, 1, 1'000'000 * ranks), stored(40'001, 2, 10, 1'000'000 * ranks)}));
    EXPECT_EQ(pair(kSet), (Log{completion(20'001, 1, 1'000'000 * ranks), stored(20'001, 2, 10, 1'000'000 * ranks)}));
    config.both_ways_bytes_per_second = 80'000'000'000;  // 0.8 of two times 50 GB/s
    EXPECT_EQ(pair(kSet), (Log{completion(25'001, 1, 1'000'000 * ranks), stored(25'001, 2, 10, 1'000'000 * ranks)}));
  }
}

TEST_P(SharedStorage, BothDirectionsOfALinkTakeFromEachOther) {
  WorldConfig config = plain_config();
  config.both_ways_bytes_per_second = 80'000'000'000;
  const Log log = run(config, {arrival(0, 0)}, at_first([](Substrate& s) {
                        s.submit(transfer(Lane::h2d, 1'000'000, 0));
                        s.submit(transfer(Lane::d2h, 2'000'000, 0));
                      }));
  ASSERT_EQ(log.size(), 3u);
  EXPECT_EQ(log[1], completion(25'000, 1, 1'000'000));
  EXPECT_EQ(log[2], completion(45'000, 2, 2'000'000));
}

// Transfers through host memory slow down a backup; direct transfers do not.
TEST_P(SharedStorage, OnlyWhatBouncesTakesHostMemory) {
  WorldConfig config = storage_config();
  config.nic_bytes_per_second = config.fabric_bytes_per_second = 50'000'000'000;
  config.dram_bytes_per_second = 50'000'000'000;
  const auto both = [&](Tier memory) {
    return run_stored(config, 10, [&](Substrate& s) {
      s.submit(transfer(Lane::d2h, 1'000'000, 1));
      StorageCall(kGet, Tier::remote, 0, 10, memory).submit(s);
    });
  };
  EXPECT_EQ(both(Tier::host), (Log{completion(40'001, 1, 1'000'000), stored(40'001, 2, 10, 1'000'000)}));
  EXPECT_EQ(both(Tier::device), (Log{completion(20'001, 1, 1'000'000), stored(20'001, 2, 10, 1'000'000)}));
}

TEST_P(SharedStorage, RootAndPoolAreSharedByAll) {
  WorldConfig config = storage_config();
  config.root_bytes_per_second = 20'000'000'000;
  // Both reads cross the root. The drives' 10 bytes per ns are half of the root's bandwidth.
  Log log = run_stored(config, 10, [](Substrate& s) {
    StorageCall(kGet, Tier::disk, 0, 10).submit(s);
    StorageCall(kGet, Tier::remote, 0, 10).submit(s);
  });
  EXPECT_EQ(log, (Log{stored(100'001, 1, 10, 1'000'000), stored(100'001, 2, 10, 1'000'000)}));
  // A direct get crosses the root twice: in and out.
  log = run_stored(config, 10, [](Substrate& s) {
    StorageCall(kGet, Tier::remote, 0, 10, Tier::device).submit(s);
    s.submit(transfer(Lane::h2d, 1'000'000, 1));
  });
  EXPECT_EQ(log, (Log{stored(100'001, 1, 10, 1'000'000), completion(100'001, 2, 1'000'000)}));
  config = storage_config();
  config.fabric_bytes_per_second = 5'000'000'000;
  log = run_stored(config, 10, [](Substrate& s) {
    StorageCall(kGet, Tier::remote, 0, 1).submit(s);
    StorageCall(kGet, Tier::remote, 1, 1, Tier::device).submit(s);
    StorageCall(kSet, Tier::remote, 50, 1).submit(s);
  });
  EXPECT_EQ(log, (Log{stored(20'001, 3, 1, 100'000), stored(40'001, 1, 1, 100'000), stored(40'001, 2, 1, 100'000)}));
}

// ---- the host's memory -------------------------------------------------------------------------------

// Returns the bytes that cross host memory when `first` runs, and `then` runs one second later.
Bytes dram_of(const std::function<void(Substrate&)>& first, const std::function<void(Substrate&)>& then) {
  struct Alone final : FlowBackend {  // every flow moves 10 bytes per ns
    void start_flow(std::uint32_t, std::uint32_t slot, const Flow&) override {
      core->flow_rate(slot, Instant{core->now(), 0.0}, 10.0);
      core->flow_ended(slot);
    }
    void stop_flow(std::uint32_t, std::uint32_t) override {}
    WorldCore* core = nullptr;
  } backend;
  WorldConfig config = storage_config();
  config.ranks = 2;
  Seats seats(config, backend);
  WorldCore& core = seats.core(0);
  backend.core = &core;
  ListedInputs source({arrival(0, 0), arrival(kNsPerSecond, 1)});
  LoggingHandler handler(core, [&](Substrate& s, const Input& input) {
    if (const auto* a = std::get_if<Arrival>(&input.what)) (a->request == 0 ? first : then)(s);
  });
  InputHandler* const only = &handler;
  seats.begin(source, std::span(&only, 1), nullptr);
  while (seats.next_time() != kNever) seats.step();
  return core.dram_bytes();
}

// Stores seven pages of two ranks and reads them back: through L2, and with GPUDirect.
TEST(HostMemory, GpuDirectHalvesWhatARoundTripCosts) {
  constexpr Bytes kAll = 7 * 100'000 * 2;
  for (const Tier tier : {Tier::disk, Tier::remote}) {
    const auto store = [tier](Substrate& s) {
      s.submit(transfer(Lane::d2h, 700'000, 0, 0, 7));
      StorageCall(kSet, tier, 0, 7).of_ranks(2).submit(s);
    };
    const Bytes bounced = dram_of(store, [tier](Substrate& s) {
      StorageCall(kGet, tier, 0, 7).of_ranks(2).submit(s);
      s.submit(transfer(Lane::h2d, 700'000, 0, 0, 7));
    });
    const Bytes direct =
        dram_of(store, [tier](Substrate& s) { StorageCall(kGet, tier, 0, 7, Tier::device).of_ranks(2).submit(s); });
    EXPECT_EQ(bounced, 4 * kAll);
    EXPECT_EQ(bounced, 2 * direct);
  }
}

// One direction: a byte that goes through host memory crosses it twice; a direct transfer does not cross it.
TEST(HostMemory, EachDmaIsOneCrossing) {
  const auto nothing = [](Substrate&) {};
  const auto direct_set = [](Substrate& s) { StorageCall(kSet, Tier::disk, 0, 7, Tier::device).submit(s); };
  EXPECT_EQ(dram_of(direct_set, nothing), 0u);
  EXPECT_EQ(dram_of([](Substrate& s) { StorageCall(kSet, Tier::disk, 0, 7).submit(s); }, nothing), 700'000u);
  EXPECT_EQ(dram_of(direct_set, [](Substrate& s) { StorageCall(kGet, Tier::disk, 0, 9).submit(s); }), 700'000u)
      << "seven are there";
}

}  // namespace
}  // namespace kvtwin::test
