// The contract of the seam (policy/contract.hpp), checked on both sides: an engine with random traffic in the
// adversarial world and on the event heap. What the bytes say is swarm_test.cpp's business.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "policy/decorators.hpp"
#include "policy/engine.hpp"
#include "sim/adversarial_world.hpp"
#include "sim/world.hpp"
#include "tests/engine_traffic.hpp"
#include "tests/policy_test_support.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

constexpr std::uint64_t kSeeds = 300;

// Linear, with whole numbers.
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
  world.layer_groups = 2;
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

TEST(SeamContract, HoldsInTheAdversarialWorld) { for_all_seeds(in_adversarial_world); }
TEST(SeamContract, HoldsOnTheEventHeap) { for_all_seeds(on_event_heap); }

}  // namespace
}  // namespace kvtwin::test
