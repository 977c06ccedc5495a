// The device pools of two engines, on a stand-in for NIXL: pages, a draft model's pages, windows and states reach the
// slots of the other engine, and no other byte changes.
#include "impl/remote/peer_pools.hpp"

#include <gtest/gtest.h>

#include <barrier>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/nixl_stand_in_rig.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

struct Kind {
  KvShape shape;
  std::size_t slots;  // which
};
// Pages, the draft model's, windows, states. The states are larger than a transfer.
const std::vector<Kind> kKinds{
    {{2, 2, 2, 5, 4}, 0}, {{1, 2, 3, 4, 4}, 0}, {{3, 2, 1, 6, 4}, 1}, {{2, 1, 1, 3000, 1}, 2}};

struct Engine {
  explicit Engine(Pages pages, std::uint64_t seed, const std::vector<Kind>& kinds = kKinds) {
    Splitmix random(seed);
    for (const Kind& kind : kinds) {
      auto bytes = std::make_shared<std::vector<std::byte>>(pages * kind.shape.page_bytes());
      for (std::byte& one : *bytes) one = static_cast<std::byte>(random.next());
      pools.push_back({*bytes, bytes, kind.shape, pages, kind.slots});
    }
  }
  std::span<std::byte> block(std::size_t pool, SlotId slot, std::uint32_t layer, std::uint32_t plane) const {
    const DevicePool& of = pools[pool];
    return of.bytes.subspan(
        byte_offset(Layout::layer_first, of.shape, of.pages, {.page = slot, .plane = plane, .layer = layer}),
        of.shape.row_bytes() * of.shape.page_tokens);
  }
  std::vector<DevicePool> pools;
};

// Both engines register their memory at the same time, as processes do. Returns the pools that engine 0 writes, or the
// error of engine 0.
std::pair<std::vector<std::unique_ptr<PeerPools>>, std::string> meet(const Engine& prefill, const Engine& decode) {
  nixl().reset();
  std::vector<std::string> all(2);
  std::vector<std::unique_ptr<PeerPools>> opened(2);
  std::string error;
  std::barrier together(2);
  const auto open = [&](std::size_t process, const Engine& engine) {
    PeerPoolsConfig config;
    config.library = nixl_stand_in_library();
    config.bytes_in_flight = 1000;  // several transfers a call
    config.process = process;
    config.peers = {PeerPoolsConfig::kNoPeer, process == 0 ? 1 : PeerPoolsConfig::kNoPeer};
    config.exchange = [&, process](const std::string& own) {
      all[process] = own;
      together.arrive_and_wait();
      return all;
    };
    try {
      opened[process] = open_peer_pools(config, engine.pools);
    } catch (const std::runtime_error& failed) {
      if (process == 0) error = failed.what();
    }
    together.arrive_and_wait();
  };
  std::thread other([&] { open(1, decode); });
  open(0, prefill);
  other.join();
  return {std::move(opened), error};
}

TEST(PeerPools, EveryKindReachesItsSlotsAndNothingElseChanges) {
  const Engine prefill(16, 1), decode(24, 2), before(24, 2);
  const auto [pools, error] = meet(prefill, decode);
  ASSERT_EQ(error, "");
  const std::vector<PeerPools::Moves> all{
      {0, {{{}, 3, 20}, {{}, 4, 21}, {{}, 5, 7}}}, {1, {{{}, 15, 0}, {{}, 2, 23}}}, {2, {{{}, 9, 11}}}};
  EXPECT_EQ(pools[0]->write(1, all, false), PeerPools::Answer::done);
  for (std::size_t pool = 0; pool < kKinds.size(); ++pool) {
    const KvShape& shape = kKinds[pool].shape;
    for (SlotId slot = 0; slot < 24; ++slot) {
      const PageMove* from = nullptr;
      for (const PeerPools::Moves& of : all) {
        for (const PageMove& move : of.moves) {
          if (of.slots == kKinds[pool].slots && move.target == slot) from = &move;
        }
      }
      for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
        for (std::uint32_t plane = 0; plane < shape.planes; ++plane) {
          const auto wanted = from == nullptr ? before.block(pool, slot, layer, plane)
                                              : prefill.block(pool, from->source, layer, plane);
          EXPECT_TRUE(std::ranges::equal(decode.block(pool, slot, layer, plane), wanted))
              << "pool " << pool << ", slot " << slot << ", layer " << layer << ", plane " << plane;
        }
      }
    }
  }
}

TEST(PeerPools, AStopEndsALargeWrite) {
  const Engine prefill(16, 1), decode(16, 2);
  const auto [pools, error] = meet(prefill, decode);
  ASSERT_EQ(error, "");
  const std::vector<PeerPools::Moves> state{{2, {{{}, 9, 11}}}};
  EXPECT_EQ(pools[0]->write(1, state, true), PeerPools::Answer::stopped);
}

TEST(PeerPools, EnginesOfAnotherFormAreRefused) {
  std::vector<Kind> other = kKinds;
  other[3].shape.head_bytes = 2999;
  EXPECT_EQ(meet(Engine(16, 1), Engine(16, 2, other)).second, "The pages of engine 1 have another form.");
  other.pop_back();
  EXPECT_EQ(meet(Engine(16, 1), Engine(16, 2, other)).second, "The pages of engine 1 have another form.");
}

}  // namespace
}  // namespace kvtwin::test
