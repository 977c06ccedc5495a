#include "policy/prefetch/termination.hpp"

#include <gtest/gtest.h>

namespace kvtwin {
namespace {

std::unique_ptr<Termination> policy(PrefetchPolicy which) {
  EngineConfig config;
  config.prefetch_policy = which;
  return make_termination(config);
}

// Waits at `now`?
bool waits(const Termination& policy, const PrefetchFacts& facts, TimeNs now) { return now < policy.stop_at(facts); }

TEST(Termination, best_effort_never_waits) {
  const auto best_effort = policy(PrefetchPolicy::best_effort);
  for (const PrefetchFacts& facts : {PrefetchFacts{5, 0, 0}, {5, 4096, 0}, {5, 4096, 4000}}) {
    EXPECT_FALSE(waits(*best_effort, facts, 5)) << "not even in the step in which it was issued";
    EXPECT_FALSE(waits(*best_effort, facts, 6));
  }
}

TEST(Termination, wait_complete_always_waits) {
  const auto wait_complete = policy(PrefetchPolicy::wait_complete);
  for (const PrefetchFacts& facts : {PrefetchFacts{5, 0, 0}, {5, 4096, 0}, {5, 4096, 4000}}) {
    EXPECT_EQ(wait_complete->stop_at(facts), kNoStop);
    EXPECT_TRUE(waits(*wait_complete, facts, 1'000'000 * kNsPerSecond));
  }
}

TEST(Termination, timeout_is_base_plus_slope_per_1024_tokens_of_the_hit) {
  const auto timeout = policy(PrefetchPolicy::timeout);
  const auto limit = [&](Tokens hit) { return timeout->stop_at({7, hit, 0}) - 7 - 1; };
  EXPECT_EQ(limit(0), kNsPerSecond);
  EXPECT_EQ(limit(256), kNsPerSecond + kNsPerSecond / 16);
  EXPECT_EQ(limit(1000), kNsPerSecond + 1000 * (kNsPerSecond / 4) / 1024);
  EXPECT_EQ(limit(1024), kNsPerSecond + kNsPerSecond / 4);
  EXPECT_EQ(limit(1'048'576), kNsPerSecond + 256 * kNsPerSecond);
  EXPECT_TRUE(waits(*timeout, {7, 0, 0}, 7 + kNsPerSecond)) << "as long isn't longer";
  EXPECT_FALSE(waits(*timeout, {7, 0, 0}, 7 + kNsPerSecond + 1));
}

TEST(Termination, timeout_counts_the_hit_and_not_what_has_arrived) {
  const auto timeout = policy(PrefetchPolicy::timeout);
  EXPECT_EQ(timeout->stop_at({7, 2048, 0}), timeout->stop_at({7, 2048, 2000}));
}

TEST(Termination, no_slope_is_so_steep_that_a_time_wraps) {
  EngineConfig config;
  config.prefetch_policy = PrefetchPolicy::timeout;
  for (const TimeNs slope : {TimeNs{1'000'000'000'000'000}, kNoStop / 8, kNoStop - 1}) {
    config.prefetch_timeout_per_ki_token_ns = slope;
    const auto timeout = make_termination(config);
    for (const Tokens hit : {Tokens{256}, Tokens{16'384}, Tokens{1} << 40}) {
      const TimeNs now = 1'000'000 * kNsPerSecond;
      EXPECT_GT(timeout->stop_at({now, hit, 0}), now + kNsPerSecond) << slope << " " << hit;
      EXPECT_LT(timeout->stop_at({now, hit, 0}), kNoStop) << slope << " " << hit;
    }
  }
}

TEST(Termination, timeout_takes_its_figures_from_the_configuration_and_is_capped) {
  EngineConfig config;
  config.prefetch_policy = PrefetchPolicy::timeout;
  config.prefetch_timeout_base_ns = 2000;
  config.prefetch_timeout_per_ki_token_ns = 1024;
  config.prefetch_timeout_most_ns = 5000;
  const auto timeout = make_termination(config);
  EXPECT_EQ(timeout->stop_at({10, 0, 0}), 10 + 2000 + 1);
  EXPECT_EQ(timeout->stop_at({10, 3000, 0}), 10 + 5000 + 1) << "just the cap";
  EXPECT_EQ(timeout->stop_at({10, 3001, 0}), 10 + 5000 + 1);
  EXPECT_EQ(timeout->stop_at({10, 1'000'000'000, 0}), 10 + 5000 + 1);
}

// ---- cost_stop ----------------------------------------------------------------------------------------------------

PrefetchFacts weighed(TimeNs saves, TimeNs takes) {
  PrefetchFacts facts{5, 4096, 0};
  facts.saves_ns = facts.saves_alone_ns = saves;
  facts.takes_ns = facts.takes_alone_ns = takes;
  facts.progress = 1'000;
  facts.patience_ns = 10;
  return facts;
}

TEST(Termination, cost_stop_waits_while_reading_is_faster_than_computing) {
  const auto cost_stop = policy(PrefetchPolicy::cost_stop);
  EXPECT_TRUE(waits(*cost_stop, weighed(500, 499), 1'001));
  EXPECT_FALSE(waits(*cost_stop, weighed(500, 500), 1'001));
  EXPECT_FALSE(waits(*cost_stop, weighed(500, 500), 5)) << "not even in the step in which it was issued";
}

TEST(Termination, cost_stop_leaves_a_silent_medium_after_what_it_would_save) {
  const auto cost_stop = policy(PrefetchPolicy::cost_stop);
  EXPECT_EQ(cost_stop->stop_at(weighed(500, 100)), 1'000 + 400);
  EXPECT_EQ(cost_stop->stop_at(weighed(500, 495)), 1'000 + 10) << "silence isn't noticed at once";
}

TEST(Termination, cost_stop_knows_how_long_the_medium_is_silent) {
  const auto cost_stop = policy(PrefetchPolicy::cost_stop);
  PrefetchFacts facts = weighed(500, 100);
  facts.silence_ns = 320;  // it will speak again in time
  EXPECT_EQ(cost_stop->stop_at(facts), 1'000 + 400);
  facts.silence_ns = 360;
  EXPECT_EQ(cost_stop->stop_at(facts), 1'000 + 405);
  facts.silence_ns = 4'000;  // there is no point in waiting for that
  EXPECT_EQ(cost_stop->stop_at(facts), 1'000 + 10);
}

}  // namespace
}  // namespace kvtwin
