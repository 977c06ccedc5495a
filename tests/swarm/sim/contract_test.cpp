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
#include "tests/policy_test_support.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

constexpr std::uint64_t kSeeds = 300;

// Requests that continue earlier ones, by a page or by many.
class Conversations final : public InputSource {
 public:
  Conversations(std::uint64_t seed, Tokens page_tokens, Pages longest, std::uint64_t requests)
      : rng_(mix(seed)), page_tokens_(page_tokens), longest_(longest), requests_(requests) {
    gap_ns_ = 1;
    for (std::uint64_t i = rng_.below(7); i > 0; --i) gap_ns_ *= 10;
  }

  bool next(Input& input) override {
    if (at_ == requests_) return false;
    keys_.clear();
    if (!past_.empty() && rng_.chance(70)) {
      const auto& before = past_[rng_.below(past_.size())];
      keys_.assign(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(rng_.below(before.size() + 1)));
    }
    const Pages pages = std::min<Pages>(longest_, keys_.size() + rng_.below(longest_ / 2 + 1));
    while (keys_.size() < pages) keys_.push_back(chain_key(keys_.empty() ? PageKey{} : keys_.back(), rng_.below(4)));
    past_.push_back(keys_);
    Arrival arrival;
    arrival.request = at_++;
    arrival.prompt_tokens = std::max<Tokens>(1, pages * page_tokens_ + rng_.below(page_tokens_));
    arrival.output_tokens = 1 + rng_.below(3 * page_tokens_ + 4);
    arrival.keys = keys_;
    input = Input{now_ += static_cast<TimeNs>(rng_.below(gap_ns_)), arrival};
    return true;
  }

 private:
  Splitmix rng_;
  Tokens page_tokens_;
  Pages longest_;
  std::uint64_t requests_, at_ = 0, gap_ns_ = 1;
  TimeNs now_ = 0;
  std::vector<PageKey> keys_;
  std::vector<std::vector<PageKey>> past_;
};

EngineConfig random_engine(Splitmix& rng) {
  EngineConfig config;
  config.shape = KvShape{2, 2, 1, 16, static_cast<std::uint32_t>(rng.between(1, 6))};
  config.ranks = static_cast<std::uint32_t>(rng.between(1, 4));
  config.device_pages = rng.between(12, 80);
  config.host_pages = rng.chance(20) ? 0 : rng.between(4, 120);
  config.evict_unit = rng.chance(50) ? EvictUnit::page : EvictUnit::node;
  config.write_threshold = static_cast<std::uint32_t>(rng.between(1, 2));
  config.load_back_min_tokens = rng.below(8);
  config.load_back_quota_pages = rng.chance(50) ? 0 : rng.between(1, 20);
  config.cache_output = rng.chance(80);
  config.order = rng.chance(50) ? RequestOrder::fcfs : RequestOrder::longest_prefix;
  config.overtake_limit = static_cast<std::uint32_t>(rng.between(1, 20));
  config.max_running = static_cast<std::uint32_t>(rng.between(1, 12));
  config.max_waiting = rng.chance(80) ? 0 : rng.between(1, 20);
  config.chunk_tokens = rng.between(1, 60);
  config.burst_steps = static_cast<std::uint32_t>(rng.between(1, 16));
  return config;
}

// Linear, with whole numbers.
class PlainCost final : public CostModel {
 public:
  TimeNs forward_ns(const ForwardShape& shape, std::uint64_t steps) const override {
    return static_cast<TimeNs>(100 + 10 * shape.prefill_tokens + 50 * steps);
  }
  TransferCost transfer(const Plan& plan) const override { return {20, plan.bytes, 0}; }
};

void run_checked(World& world, Observer* observer, const EngineConfig& config, std::uint64_t seed, Splitmix& rng) {
  Checking checking(world.substrate(), ContractTerms{.page_tokens = config.shape.page_tokens});
  DecisionLog decisions;
  Engine engine(config, checking, decisions, observer);
  checking.connect(engine);
  Conversations source(seed, config.shape.page_tokens, rng.between(1, config.device_pages), rng.between(5, 60));
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
