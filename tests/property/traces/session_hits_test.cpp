// Compares the estimated hit ratio of LRU with replays of generated traffic, for random averages.
#include "traces/session_hits.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "sim/bounds/hitrate.hpp"
#include "traces/paging.hpp"
#include "traces/random.hpp"

namespace kvtwin {
namespace {

constexpr Tokens kPage = SessionsGenerator::kBlockTokens;
constexpr double kInfinite = std::numeric_limits<double>::infinity();

double between(Random& random, double least, double most) { return least + (most - least) * random.uniform(); }

SessionsConfig draw(Random& random) {
  SessionsConfig config;
  config.requests = 6'000;
  config.duration = 0;
  config.requests_per_second = between(random, 0.5, 10);
  config.turns = between(random, 1, 8);
  config.output_tokens = random.integer(20, 400);
  config.prefix_tokens = random.chance(0.3) ? 0 : random.integer(1, 2'000);
  config.think_s = between(random, 20, 200);
  config.service_s = random.chance(0.5) ? 0 : between(random, 1, 20);
  config.length_spread = between(random, 0, 1);
  config.think_spread = between(random, 0.2, 1.3);
  const double new_tokens = between(random, 300, 3'000);
  config.prompt_tokens =
      config.prefix_tokens +
      static_cast<Tokens>(config.turns * new_tokens + (config.turns - 1) * static_cast<double>(config.output_tokens));
  return config;
}

std::vector<double> replayed(const SessionsConfig& config, const std::vector<Pages>& capacities) {
  SessionsGenerator traffic(config);
  TraceInputOptions input;
  input.page_tokens = kPage;
  input.last_page = LastPage::partial;
  TraceInputSource source(traffic, input);
  HitRateConfig replay;
  replay.evictions = {"lru"};
  replay.capacities = capacities;
  replay.block_tokens = kPage;
  replay.warm_up = config.requests / 2;
  std::vector<double> ratios;
  for (const HitRate& result : replay_hit_rates(source, replay)) ratios.push_back(result.token_hit_ratio);
  return ratios;
}

// The bound has two parts. The replay is a sample: four standard errors of the mean over the seeds. The estimate is an
// approximation: it takes the load of a moment to be the mean. That is wrong by about sqrt(1 / n) with n prompts in the
// cache, and moves a hit ratio only where the ratio depends on the capacity. With 10 prompts or more, 4 points.
TEST(SessionHitsProperty, AgreesWithReplays) {
  Random random(20261125);
  constexpr int kTraffics = 12, kSeeds = 5;
  double worst = 0, sum = 0;
  int cases = 0;
  for (int i = 0; i < kTraffics; ++i) {
    SessionsConfig config = draw(random);
    const auto own = static_cast<double>(config.prompt_tokens - config.prefix_tokens);
    const double live = config.requests_per_second * (config.think_s + config.service_s) * config.follow_up_share();
    std::vector<Pages> capacities;
    for (const double prompts : {10.0, 30.0, std::max(10.0, live / 3), std::max(10.0, live), live * 4 + 10, 1e6}) {
      capacities.push_back(static_cast<Pages>((static_cast<double>(config.prefix_tokens) + prompts * own) / kPage) + 1);
    }
    std::vector<double> sums(capacities.size()), squares(capacities.size());
    for (int seed = 1; seed <= kSeeds; ++seed) {
      config.seed = static_cast<std::uint64_t>(100 * i + seed);
      const std::vector<double> ratios = replayed(config, capacities);
      for (std::size_t c = 0; c < ratios.size(); ++c) sums[c] += ratios[c], squares[c] += ratios[c] * ratios[c];
    }
    for (std::size_t c = 0; c < capacities.size(); ++c) {
      SCOPED_TRACE("traffic " + std::to_string(i) + ", capacity " + std::to_string(capacities[c]));
      const double mean = sums[c] / kSeeds;
      const double error = std::sqrt(std::max(0.0, squares[c] / kSeeds - mean * mean) / (kSeeds - 1));
      const double estimate =
          estimate_session_hits(config, static_cast<double>(capacities[c] * kPage), kPage, false).hit_ratio;
      EXPECT_NEAR(estimate, mean, 0.04 + 4 * error);
      worst = std::max(worst, std::abs(estimate - mean));
      sum += std::abs(estimate - mean);
      ++cases;
    }
  }
  RecordProperty("worst", std::to_string(worst));
  RecordProperty("mean", std::to_string(sum / cases));
  EXPECT_LT(sum / cases, 0.01) << "on average over all capacities";
}

TEST(SessionHitsProperty, HasTheRightLimitsAndIsMonotone) {
  Random random(7);
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE(i);
    SessionsConfig config = draw(random);
    if (i % 10 == 0) config.think_spread = 0;
    if (i % 10 == 1) config.think_s = 0;
    if (i % 10 == 2) config.turns = 1;
    if (i % 10 == 3) config.think_s = 5e-324;
    if (i % 10 == 4) config.think_spread = 5e-324;
    const bool answers = random.chance(0.5);
    const Tokens page = random.chance(0.5) ? 1 : 64;
    const auto at = [&](double capacity) { return estimate_session_hits(config, capacity, page, answers).hit_ratio; };
    EXPECT_EQ(at(0), 0);
    const auto prompt = static_cast<double>(config.prompt_tokens), prefix = static_cast<double>(config.prefix_tokens);
    if (page == 1) {
      // Every follow-up hits the whole prompt before it, but for half a token, and the answer.
      const double p = config.follow_up_share();
      const double before = prompt - prefix + (answers ? static_cast<double>(config.output_tokens) : 0) - 0.5;
      EXPECT_NEAR(at(kInfinite), (prefix + p * before) / prompt, 1e-12);
    }
    double last = 0;
    for (double capacity = 1; capacity < 1e12; capacity *= 1.7) {
      const double ratio = at(capacity);
      // The approximation of the normal distribution has an error of 7.5e-8.
      EXPECT_GE(ratio, last - 1e-6) << capacity;
      EXPECT_LE(ratio, 1) << capacity;
      last = ratio;
    }
    EXPECT_LE(last, at(kInfinite) + 1e-6);
    EXPECT_NEAR(last, at(kInfinite), 1e-3) << "10^12 tokens hold all that comes back";
  }
}

TEST(SessionHitsProperty, APrefixThatFillsTheCacheHitsAlone) {
  SessionsConfig config;
  config.prefix_tokens = 1'000;
  config.prompt_tokens = 4'000;
  EXPECT_EQ(estimate_session_hits(config, 500, 1, false).hit_ratio, 0.125);
  EXPECT_EQ(estimate_session_hits(config, 1'000, 1, false).hit_ratio, 0.25);
}

}  // namespace
}  // namespace kvtwin
