// The engine in the adversarial world: random configurations, random traffic with shared prefixes, late and
// failing transfers. It must never let a pass attend to wrong bytes, and must always come to rest.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "policy/engine.hpp"
#include "sim/adversarial_world.hpp"
#include "tests/policy_test_support.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

constexpr std::uint64_t kSeeds = 500;

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

void run_seed(std::uint64_t seed, std::map<std::string, std::uint64_t>& coverage) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Splitmix rng(mix(seed));
  const EngineConfig config = random_engine(rng);
  AdversarialConfig adversity;
  adversity.seed = seed;
  adversity.page_tokens = config.shape.page_tokens;
  adversity.device_pages = config.device_pages;
  adversity.host_pages = config.host_pages;
  adversity.ranks = config.ranks;
  const auto world = make_adversarial_world(adversity);
  DecisionLog decisions;
  Engine engine(config, world->substrate(), decisions, world.get());
  Conversations source(seed, config.shape.page_tokens, rng.between(1, config.device_pages), rng.between(5, 60));
  world->run(source, engine);
  EXPECT_EQ(world->violation_count(), 0u) << world->violations().front();
  EXPECT_TRUE(engine.idle()) << engine.state_summary();
  engine.check_invariants();
  for (const auto& [name, count] : world->coverage()) coverage[std::string(name)] += count;
}

TEST(EngineSwarm, NeverAttendsToWrongBytes) {
  std::map<std::string, std::uint64_t> coverage;
  const ThrowingChecks checks;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    try {
      run_seed(seed, coverage);
    } catch (const BrokenPromise& broken) {
      ADD_FAILURE() << "seed " << seed << ": " << broken.what();
    }
    if (HasFailure()) break;
  }
  for (const char* name : {"load_done", "load_failed", "backup_done", "backup_failed", "lane_overtaken", "gate_failed",
                           "pass_waited_for_gate", "gate_had_landed", "burst_cut", "cancel_too_late",
                           "completion_delayed", "reduction_delayed", "slot_poisoned"}) {
    EXPECT_GT(coverage[name], 0u) << name << " never happened";
  }
}

}  // namespace
}  // namespace kvtwin::test
