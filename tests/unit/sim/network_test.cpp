// Tests the network to the remote pool, and planned failures, in both simulated worlds.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "seat_script.hpp"
#include "sim/store_model.hpp"

namespace kvtwin::test {
namespace {

constexpr auto kGet = StorageVerb::get;
constexpr auto kSet = StorageVerb::set;
constexpr auto kLookUp = StorageVerb::look_up;
constexpr PageKey kSpace{{1, 2, 3, 4}};  // of StorageCall

class Network : public SeatsOf {
 protected:
  // Each engine sets its pages at time 0. Returns the times of the ends, by engine.
  void expect_ends(const WorldConfig& config, const std::vector<StorageCall>& calls, std::vector<TimeNs> ends) {
    on_world(config, [&](World& world) {
      std::vector<Input> inputs;
      for (std::size_t engine = 0; engine < calls.size(); ++engine) inputs.push_back(arrival(0, engine));
      const SeatLog log = run_seats(world, config.engines, inputs, [&](std::size_t seat, Substrate& s, const Input& i) {
        if (is_arrival(i)) calls[seat].submit(s);
      });
      std::vector<TimeNs> seen(calls.size(), -1);
      for (const SeatSeen& it : log) {
        if (it.seen.kind == kCompletionKind) seen[it.seat] = it.seen.now;
      }
      EXPECT_EQ(seen, ends);
    });
  }
  bool shares() const { return GetParam() == Which::simgrid; }
};

INSTANTIATE_TEST_SUITE_P(Both, Network, testing::ValuesIn(worlds_here()), name_of_world);

// A page has 100,000 bytes. A NIC moves it in 5,000 ns, the port of a node in 10,000 ns. A latency takes 1 ns.
WorldConfig nodes_of(std::uint32_t engines, std::uint32_t nodes) {
  WorldConfig config = plain_config();
  config.nic_bytes_per_second = 20'000'000'000;
  config.network.nodes = nodes;
  config.network.node_bytes_per_second = 10'000'000'000;
  config.storage = {{Tier::remote, 1'000, true}};
  config.engines = engines;
  return config;
}

// Sets one page on each of these nodes. No two calls with another `first` have a page in common.
StorageCall set_on(const std::vector<std::uint32_t>& where, std::uint32_t nodes, std::uint64_t first) {
  StorageCall call(kSet, Tier::remote, 0, 0);
  std::uint64_t number = 10'000 * first;
  for (const std::uint32_t node : where) {
    for (;; ++number) {
      const StorageCall one(kSet, Tier::remote, number, 1);
      if (pool_node_of(kSpace, one.pages[0].key, nodes) != node) continue;
      call.pages.push_back(one.pages[0]);
      break;
    }
    ++number;
  }
  call.work.pages = call.pages.size();
  return call;
}

TEST_P(Network, EnginesThatUseOneNodeShareItsPort) {
  const WorldConfig config = nodes_of(4, 2);
  std::vector<StorageCall> calls;
  for (std::uint64_t i = 0; i < 4; ++i) calls.push_back(set_on({0}, 2, i));
  expect_ends(config, calls, std::vector<TimeNs>(4, shares() ? 40'001 : 10'001));
  calls[2] = set_on({1}, 2, 2);
  calls[3] = set_on({1}, 2, 3);
  expect_ends(config, calls, std::vector<TimeNs>(4, shares() ? 20'001 : 10'001));
}

// The time of a batch is that of its fullest port, or of the NIC.
TEST_P(Network, ABatchIsSpreadOverTheNodes) {
  expect_ends(nodes_of(1, 2), {set_on({0, 0, 1}, 2, 0)}, {20'001});
  expect_ends(nodes_of(1, 4), {set_on({0, 1, 2, 3}, 4, 0)}, {20'001});
  expect_ends(nodes_of(1, 4), {set_on({0, 1, 2, 2, 2, 2}, 4, 0)}, {40'001});
}

// Engine e sets one page on node n(e): m engines on a node get min(NIC, port / m) each.
TEST_P(Network, IncastFollowsTheFormula) {
  Splitmix rng(7);
  for (int round = 0; round < 12; ++round) {
    const auto engines = static_cast<std::uint32_t>(rng.between(2, 9));
    const auto nodes = static_cast<std::uint32_t>(rng.between(1, 5));
    std::vector<StorageCall> calls;
    std::vector<std::uint32_t> at;
    std::map<std::uint32_t, TimeNs> on;
    for (std::uint32_t engine = 0; engine < engines; ++engine) {
      at.push_back(static_cast<std::uint32_t>(rng.below(nodes)));
      ++on[at.back()];
      calls.push_back(set_on({at.back()}, nodes, engine));
    }
    std::vector<TimeNs> ends;
    for (const std::uint32_t node : at) ends.push_back(1 + 10'000 * (shares() ? on[node] : 1));
    expect_ends(nodes_of(engines, nodes), calls, ends);
  }
}

TEST_P(Network, AllEnginesShareTheLinksBetweenSwitches) {
  WorldConfig config = nodes_of(2, 4);
  config.network.node_bytes_per_second = 100'000'000'000;
  config.network.switch_bytes_per_second = 10'000'000'000;
  expect_ends(config, {set_on({0}, 4, 0), set_on({1}, 4, 1)}, std::vector<TimeNs>(2, shares() ? 20'001 : 10'001));
}

TEST_P(Network, WithPeersAPageCrossesTheNicOfItsHost) {
  WorldConfig config = nodes_of(3, 3);
  config.network.peers = true;
  config.dram_bytes_per_second = 100'000'000'000;
  // Engines 0 and 2 write to host 1, whose NIC takes 20 bytes per ns; engine 1 writes to host 0.
  expect_ends(config, {set_on({1}, 3, 0), set_on({0}, 3, 1), set_on({1}, 3, 2)},
              shares() ? std::vector<TimeNs>{10'001, 5'001, 10'001} : std::vector<TimeNs>{5'001, 5'001, 5'001});
  // Half of the batch stays on the own host: 100,000 bytes cross the NIC.
  expect_ends(config, {set_on({0, 1}, 3, 0)}, {5'001});
  // Nothing crosses a NIC: the host's memory is the limit. The event heap does not model it; there, the cost of the
  // operation is.
  if (shares()) expect_ends(config, {set_on({0, 0}, 3, 0)}, {2'001});
}

TEST_P(Network, ARankUsesTheNicsOfItsRail) {
  WorldConfig config = nodes_of(1, 1);
  config.ranks = 2;
  config.network.node_bytes_per_second = 100'000'000'000;
  StorageCall call = set_on({0}, 1, 0);
  call.of_ranks(2);
  expect_ends(config, {call}, {10'001});  // both ranks share 20 bytes per ns
  config.network.rails = 2;
  expect_ends(config, {call}, {10'001});  // each rank has 10 bytes per ns
  config.network.rails = 4;
  expect_ends(config, {call}, {20'001});  // each rank has 5 bytes per ns
  call.of_ranks(1);
  expect_ends(config, {call}, {20'001});
}

TEST_P(Network, ALinkAtAShareOfItsRate) {
  WorldConfig config = nodes_of(1, 1);
  config.network.node_bytes_per_second = 100'000'000'000;
  config.slow_links = {{NetworkPart::nic, 0, 0.5, {2'501, 100'000}}};
  // 2,500 ns at 20 bytes per ns, then 5,000 ns at 10.
  expect_ends(config, {set_on({0}, 1, 0)}, {shares() ? 7'501 : 5'001});
  config.slow_links = {{NetworkPart::nic, 0, 0.5, {0, 2'501}}};
  // 2,500 ns at 10 bytes per ns, then 3,750 ns at 20.
  expect_ends(config, {set_on({0}, 1, 0)}, {shares() ? 6'251 : 10'001});
  config = nodes_of(2, 2);
  config.slow_links = {{NetworkPart::node, 1, 0.25, {0, 1'000'000}}};
  expect_ends(config, {set_on({0}, 2, 0), set_on({1}, 2, 1)}, {10'001, 40'001});
  config.slow_links = {{NetworkPart::pool, 0, 0.5, {0, 1'000'000}}};
  expect_ends(config, {set_on({0}, 2, 0), set_on({1}, 2, 1)}, {20'001, 20'001});
}

TEST_P(Network, ANodeThatIsDownIsUnreachableAndThenEmpty) {
  WorldConfig config = nodes_of(1, 2);
  config.node_downs = {{1, {kNsPerSecond, 2 * kNsPerSecond}}};
  const StorageCall set = set_on({0, 0, 1, 0}, 2, 0);
  StorageCall get = set, look_up = set;
  get.work.verb = kGet;
  look_up.work.verb = kLookUp;
  const auto act = [&](Substrate& s, const Input& input) {
    const auto* a = std::get_if<Arrival>(&input.what);
    if (a == nullptr) return;
    if (a->request == 0 || a->request == 3) set.submit(s);
    if (a->request == 1 || a->request == 2 || a->request == 4) {
      look_up.submit(s);
      get.submit(s);
    }
    if (a->request == 1) set.submit(s);
  };
  const TimeNs second = kNsPerSecond;
  const Log log = run_on(
      GetParam(), config,
      {arrival(0, 0), arrival(second + 1, 1), arrival(2 * second, 2), arrival(3 * second, 3), arrival(4 * second, 4)},
      act);
  std::vector<std::vector<std::uint64_t>> seen;  // pages, status, cause
  for (const Seen& it : log) {
    if (it.kind == kCompletionKind) seen.push_back({it.id, it.pages, it.status, it.cause});
  }
  std::ranges::sort(seen);
  const auto done = static_cast<std::uint64_t>(Status::done), failed = static_cast<std::uint64_t>(Status::failed);
  const auto none = static_cast<std::uint64_t>(Cause::none), gone = static_cast<std::uint64_t>(Cause::unreachable),
             missing = static_cast<std::uint64_t>(Cause::missing);
  EXPECT_EQ(seen, (std::vector<std::vector<std::uint64_t>>{{1, 4, done, none},    // stored
                                                           {2, 2, failed, gone},  // down: look-up, get, set
                                                           {3, 2, failed, gone},
                                                           {4, 2, failed, gone},
                                                           {5, 2, done, none},  // up again, and empty
                                                           {6, 2, failed, missing},
                                                           {7, 4, done, none},  // stored again
                                                           {8, 4, done, none},
                                                           {9, 4, done, none}}));
}

// The memory of the store has room for four pages, so it evicts the first four of eight, which each engine then reads:
// 400,000 bytes at 10 bytes per ns.
TEST_P(Network, EnginesShareTheDrivesBehindTheMemoryOfAStore) {
  for (const std::uint32_t engines : {1U, 2U, 4U}) {
    WorldConfig config = plain_config();
    config.nic_bytes_per_second = config.fabric_bytes_per_second = 400'000'000'000;
    config.storage = {{.tier = Tier::remote, .pages = 4, .evicts_itself = true, .drive_pages = 100}};
    config.store_drive_bytes_per_second = 10'000'000'000;
    config.engines = engines;
    on_world(config, [&](World& world) {
      std::vector<Input> inputs{arrival(0, 0), arrival(kNsPerSecond, 1)};
      for (std::uint32_t engine = 0; engine < engines; ++engine) inputs.push_back(arrival(2 * kNsPerSecond, engine));
      SeatLog log = run_seats(world, engines, inputs, [&](std::size_t seat, Substrate& s, const Input& input) {
        if (!is_arrival(input)) return;
        if (input.now < 2 * kNsPerSecond) {
          StorageCall(kSet, Tier::remote, input.now == 0 ? 0 : 4, 4).submit(s);
        } else {
          StorageCall(kGet, Tier::remote, 0, 4).submit(s);
          if (seat == 0) StorageCall(kGet, Tier::remote, 4, 4).submit(s);  // these are in memory
        }
      });
      std::erase_if(
          log, [](const SeatSeen& it) { return it.seen.kind != kCompletionKind || it.seen.now < 2 * kNsPerSecond; });
      ASSERT_EQ(log.size(), engines + 1);
      for (std::size_t i = 0; i < engines; ++i) {
        EXPECT_EQ(log[i].seen.now - 2 * kNsPerSecond, 1 + 40'000 * (shares() ? engines : 1)) << engines << " engines";
        EXPECT_EQ(log[i].seen.pages, 4U);
      }
      EXPECT_LT(log.back().seen.now - log[0].seen.now, 10'000) << "of the memory";
    });
  }
}

TEST_P(Network, SlowDrivesTakeLonger) {
  WorldConfig config = plain_config();
  config.disk_read_bytes_per_second = config.disk_write_bytes_per_second = 10'000'000'000;
  config.storage = {{Tier::disk, 1'000, false}};
  config.slow_drives = {{4, {5'000, 15'000}}};
  const StorageCall first(kSet, Tier::disk, 0, 1), second(kSet, Tier::disk, 10, 1), third(kSet, Tier::disk, 20, 1);
  const Log log = run_on(GetParam(), config, {arrival(0, 0)}, at_first([&](Substrate& s) {
                           first.submit(s);   // begins before
                           second.submit(s);  // begins in the time
                           third.submit(s);   // begins after it
                         }));
  ASSERT_EQ(log.size(), 4U);
  EXPECT_EQ(log[1].now, 10'001);
  EXPECT_EQ(log[2].now, 10'001 + 40'004);
  EXPECT_EQ(log[3].now, 10'001 + 40'004 + 10'001);
}

}  // namespace
}  // namespace kvtwin::test
