// Checks the contract of the seam (policy/seam/contract.hpp) on both sides: an engine with random traffic in the
// adversarial world and on the event heap, and random storage operations in the adversarial world, with or without
// `Faulty` above it. swarm_test.cpp checks the bytes that passes read; this test checks the bytes from storage.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "policy/engine.hpp"
#include "policy/seam/decorators.hpp"
#include "sim/world.hpp"
#include "tests/adversary/adversarial_world.hpp"
#include "tests/engine_traffic.hpp"
#include "tests/listed_inputs.hpp"
#include "tests/policy_test_support.hpp"
#include "tests/splitmix.hpp"
#include "tests/storage_traffic.hpp"

namespace kvtwin::test {
namespace {

constexpr std::uint64_t kSeeds = 300;

// A linear cost model with integer factors.
class PlainCost final : public CostModel {
 public:
  TimeNs forward_ns(const ForwardShape& shape, std::uint64_t steps) const override {
    return static_cast<TimeNs>(100 + 10 * shape.prefill_tokens + 50 * steps);
  }
  TransferCost storage(const StorageWork&) const override { return {}; }
  TransferCost transfer(const Plan& plan) const override { return {20, plan.bytes, 0}; }
};

void run_checked(World& world, Observer* observer, const EngineConfig& config, std::uint64_t seed, Splitmix& rng) {
  Checking checking(world.substrate(), ContractTerms{.page_tokens = config.shape.page_tokens});
  DecisionLog decisions;
  Engine engine(config, checking, decisions, observer);
  checking.connect(engine);
  EngineTraffic source(seed, config.shape.page_tokens, rng.between(1, config.device_pages), rng.between(5, 60));
  world.run(source, checking);
  checking.finish();
  EXPECT_TRUE(engine.idle()) << engine.state_summary();
  engine.check_invariants();
}

void in_adversarial_world(std::uint64_t seed) {
  Splitmix rng(mix(seed));
  const EngineConfig config = random_engine(rng);
  AdversarialConfig adversity;
  adversity.seed = seed;
  adversity.page_tokens = config.shape.page_tokens;
  adversity.device_pages = config.device_pages;
  adversity.host_pages = config.host_pages;
  adversity.ranks = config.ranks;
  const auto world = make_adversarial_world(adversity);
  run_checked(*world, world.get(), config, seed, rng);
  EXPECT_EQ(world->violation_count(), 0u) << world->violations().front();
}

void on_event_heap(std::uint64_t seed) {
  Splitmix rng(mix(seed));
  const EngineConfig config = random_engine(rng);
  const PlainCost cost;
  WorldConfig world;
  world.ranks = config.ranks;
  world.h2d_bytes_per_second = world.d2h_bytes_per_second = 1 + rng.below(10'000'000'000);
  world.cost = &cost;
  run_checked(*make_event_world(world), nullptr, config, seed, rng);
}

void for_all_seeds(void (*run)(std::uint64_t seed)) {
  const ThrowingChecks checks;
  for (std::uint64_t seed = 1; seed <= kSeeds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    try {
      run(seed);
    } catch (const BrokenPromise& broken) {
      ADD_FAILURE() << broken.what();
    }
  }
}

// ---- with faults on the way, and storage operations ---------------------------------------------------------------

constexpr std::array kCounts = {
    &FaultCounts::failed_transfers,
    &FaultCounts::failed_gates,
    &FaultCounts::read_errors,
    &FaultCounts::short_reads,
    &FaultCounts::corrupt_pages,
    &FaultCounts::write_errors,
    &FaultCounts::full,
    &FaultCounts::lost_writes,
    &FaultCounts::lost_found,
    &FaultCounts::link_down,
    &FaultCounts::dead_node,
    &FaultCounts::slow,
    &FaultCounts::late,
    &FaultCounts::duplicates,
    &FaultCounts::cancels,
};
std::array<std::uint64_t, kCounts.size()> struck{};

FaultShares random_shares(Splitmix& rng) {
  FaultShares shares;
  for (const auto share : {&FaultShares::failed_transfers, &FaultShares::read_errors, &FaultShares::short_reads,
                           &FaultShares::corrupt_pages, &FaultShares::write_errors, &FaultShares::full,
                           &FaultShares::lost_writes, &FaultShares::link_down, &FaultShares::slow, &FaultShares::late,
                           &FaultShares::duplicates, &FaultShares::cancels}) {
    shares.*share = rng.chance(40) ? static_cast<std::uint32_t>(rng.below(200)) : 0;
  }
  shares.dead_node = rng.chance(20) ? 20 : 0;
  return shares;
}

// The stack is world - Checking - Faulty - Checking - traffic: each part must keep the contract with the next one.
void storage_traffic(std::uint64_t seed, const FaultShares& shares, const ContractTerms& terms) {
  AdversarialConfig adversity;
  adversity.seed = seed;
  adversity.page_tokens = 4;
  adversity.device_pages = adversity.host_pages = 24;
  adversity.disk.pages = 1 + seed % 20;
  adversity.remote.pages = 1 + seed % 13;
  adversity.tracks_slots = false;
  const auto world = make_adversarial_world(adversity);
  Checking inner(world->substrate(), {.page_tokens = 4});
  Faulty faulty(inner, shares, seed << 32);
  Checking outer(faulty, terms);
  inner.connect(faulty);
  faulty.connect(outer);
  StorageTraffic traffic(outer, {.seed = seed});
  outer.connect(traffic);
  ListedInputs source({{0, Arrival{.request = 0, .prompt_tokens = 1, .output_tokens = 1, .keys = {}}}});
  world->run(source, inner);
  outer.finish();
  inner.finish();
  EXPECT_TRUE(traffic.idle());
  EXPECT_EQ(traffic.duplicates(), faulty.counts().duplicates);
  EXPECT_EQ(world->violation_count(), 0U) << world->violations().front();
  for (std::size_t i = 0; i < kCounts.size(); ++i) struck[i] += faulty.counts().*kCounts[i];
}

void storage_without_faulty(std::uint64_t seed) { storage_traffic(seed, {}, {.page_tokens = 4}); }

void storage_with_faulty(std::uint64_t seed) {
  Splitmix rng(mix(seed));
  storage_traffic(seed, random_shares(rng), {.page_tokens = 4, .cancels_unrequested = true, .duplicates = true});
}

// An engine whose transfers fail, are late and are cancelled.
void engine_with_faulty(std::uint64_t seed) {
  Splitmix rng(mix(seed));
  const EngineConfig config = random_engine(rng);
  AdversarialConfig adversity;
  adversity.seed = seed;
  adversity.page_tokens = config.shape.page_tokens;
  adversity.device_pages = config.device_pages;
  adversity.host_pages = config.host_pages;
  adversity.ranks = config.ranks;
  const auto world = make_adversarial_world(adversity);
  FaultShares shares = random_shares(rng);
  shares.cut_bursts = static_cast<std::uint32_t>(rng.below(400));
  Faulty faulty(world->substrate(), shares, seed << 32);
  Checking outer(faulty, {.page_tokens = config.shape.page_tokens,
                          .bursts_end_early = true,
                          .cancels_unrequested = true,
                          .duplicates = true});
  DecisionLog decisions;
  Engine engine(config, outer, decisions, world.get());
  faulty.connect(outer);
  outer.connect(engine);
  EngineTraffic source(seed, config.shape.page_tokens, rng.between(1, config.device_pages), rng.between(5, 60));
  world->run(source, faulty);
  outer.finish();
  EXPECT_TRUE(engine.idle()) << engine.state_summary();
  engine.check_invariants();
  EXPECT_EQ(world->violation_count(), 0U) << world->violations().front();
}

TEST(SeamContract, HoldsForAnEngineWithFaults) { for_all_seeds(engine_with_faulty); }
TEST(SeamContract, HoldsForStorageInTheAdversarialWorld) { for_all_seeds(storage_without_faulty); }
TEST(SeamContract, HoldsForStorageWithFaults) {
  struck = {};
  for_all_seeds(storage_with_faulty);
  for (std::size_t i = 0; i < struck.size(); ++i) EXPECT_GT(struck[i], 0U) << "fault " << i << " never struck";
}

TEST(SeamContract, HoldsInTheAdversarialWorld) { for_all_seeds(in_adversarial_world); }
TEST(SeamContract, HoldsOnTheEventHeap) { for_all_seeds(on_event_heap); }

}  // namespace
}  // namespace kvtwin::test
