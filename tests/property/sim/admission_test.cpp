// Prefetch admission by cost in its two extreme cases: if computing is very expensive, it decides exactly like the
// thresholds; if computing is free, it admits nothing.
#include <gtest/gtest.h>

#include "tests/instances.hpp"

namespace kvtwin::test {
namespace {

RankResult run(EngineConfig engine, std::uint64_t seed, std::string_view admission, std::uint64_t cost_token_ps) {
  engine.prefetch_admission = engine.load_back_admission = admission;
  engine.cost_token_ps = cost_token_ps;
  engine.load_token_ps = 1000;
  for (StorageTierConfig& tier : engine.storage) tier.read_token_ps = 1000;
  InstancesRun run;
  run.engine = std::move(engine);
  run.seed = seed;
  run.instances = false;
  const std::vector<RankResult> results = run_instances(run);
  EXPECT_TRUE(results.front().idle) << seed << ": " << results.front().left;
  return results.front();
}

TEST(AdmissionByCost, admits_all_that_is_dear_and_nothing_that_is_free) {
  constexpr std::uint64_t kSecondPs = 1'000'000'000'000;
  Tokens hit_host = 0, hit_stored = 0;
  for (std::uint64_t seed = 0; seed < 80; ++seed) {
    Splitmix random(seed);
    const EngineConfig engine = random_rank_engine(random, 1);
    const RankResult threshold = run(engine, seed, "threshold", kSecondPs);
    EXPECT_EQ(run(engine, seed, "cost", kSecondPs).digest, threshold.digest) << seed;
    hit_host += threshold.hit_host;
    hit_stored += threshold.hit_stored;
    const RankResult free = run(engine, seed, "cost", 0);
    EXPECT_EQ(free.hit_host + free.hit_stored, 0U) << seed;
  }
  EXPECT_GT(hit_host, 0U);
  EXPECT_GT(hit_stored, 0U);
}

}  // namespace
}  // namespace kvtwin::test
