#include "policy/termination.hpp"
#include "tests/timeout_text.hpp"

#include <gtest/gtest.h>

namespace kvtwin {
namespace {

std::unique_ptr<Termination> policy(std::string_view which) {
  EngineConfig config;
  config.prefetch_policy = which;
  return make_termination(config);
}

// Returns true if the policy still waits at `now`.
bool waits(const Termination& policy, const PrefetchFacts& facts, TimeNs now) { return now < policy.stop_at(facts); }

PrefetchFacts waiting(TimeNs since, Tokens asked) { return {.asked_tokens = asked, .waits_since = since}; }

TEST(Termination, best_effort_never_waits) {
  const auto best_effort = policy("best_effort");
  for (const PrefetchFacts& facts : {PrefetchFacts{5, 0, 0}, {5, 4096, 0}, {5, 4096, 4000}}) {
    EXPECT_FALSE(waits(*best_effort, facts, 5)) << "not even in the step in which it was issued";
    EXPECT_FALSE(waits(*best_effort, facts, 6));
  }
}

TEST(Termination, wait_complete_always_waits) {
  const auto wait_complete = policy("wait_complete");
  for (const PrefetchFacts& facts : {PrefetchFacts{5, 0, 0}, {5, 4096, 0}, {5, 4096, 4000}}) {
    EXPECT_EQ(wait_complete->stop_at(facts), kNoStop);
    EXPECT_TRUE(waits(*wait_complete, facts, 1'000'000 * kNsPerSecond));
  }
}

TEST(Termination, timeout_is_base_plus_slope_per_1024_tokens_asked_for) {
  const auto timeout = policy("timeout");
  const auto limit = [&](Tokens asked) { return timeout->stop_at(waiting(7, asked)) - 7 - 1; };
  EXPECT_EQ(limit(0), kNsPerSecond);
  EXPECT_EQ(limit(256), kNsPerSecond + kNsPerSecond / 16);
  EXPECT_EQ(limit(1000), kNsPerSecond + 1000 * (kNsPerSecond / 4) / 1024);
  EXPECT_EQ(limit(1024), kNsPerSecond + kNsPerSecond / 4);
  EXPECT_EQ(limit(1'048'576), kNsPerSecond + 256 * kNsPerSecond);
  EXPECT_TRUE(waits(*timeout, waiting(7, 0), 7 + kNsPerSecond)) << "as long isn't longer";
  EXPECT_FALSE(waits(*timeout, waiting(7, 0), 7 + kNsPerSecond + 1));
}

TEST(Termination, timeout_counts_the_tokens_asked_for_and_not_those_that_arrived) {
  const auto timeout = policy("timeout");
  PrefetchFacts facts = waiting(7, 2048);
  const TimeNs stop = timeout->stop_at(facts);
  facts.arrived_tokens = facts.read_tokens = 2000;
  facts.issued = 3;
  EXPECT_EQ(timeout->stop_at(facts), stop);
}

TEST(Termination, timeout_from_the_issue_counts_the_tokens_read) {
  EngineConfig config;
  config.prefetch_policy = "timeout";
  config.prefetch_timeout_from = TimeoutFrom::issue;
  const auto timeout = make_termination(config);
  PrefetchFacts facts = waiting(7, 2048);
  facts.issued = 3;
  EXPECT_EQ(timeout->stop_at(facts), 3 + kNsPerSecond + 1) << "the look-up has not been answered";
  facts.read_tokens = 1024;
  EXPECT_EQ(timeout->stop_at(facts), 3 + kNsPerSecond + kNsPerSecond / 4 + 1);
}

TEST(Termination, no_slope_is_so_steep_that_a_time_wraps) {
  EngineConfig config;
  config.prefetch_policy = "timeout";
  for (const TimeNs slope : {TimeNs{1'000'000'000'000}, TimeNs{1'000'000'000'000'000}}) {
    config.prefetch_policy = test::timeout_text(kNsPerSecond, slope);
    const auto timeout = make_termination(config);
    for (const Tokens hit : {Tokens{256}, Tokens{16'384}, Tokens{1} << 40}) {
      const TimeNs now = 1'000'000 * kNsPerSecond;
      EXPECT_GT(timeout->stop_at(waiting(now, hit)), now + kNsPerSecond) << slope << " " << hit;
      EXPECT_LT(timeout->stop_at(waiting(now, hit)), kNoStop) << slope << " " << hit;
    }
  }
}

TEST(Termination, timeout_takes_its_figures_from_its_parameters_and_is_capped) {
  EngineConfig config;
  config.prefetch_policy = test::timeout_text(2000, 1024, 5000);
  const auto timeout = make_termination(config);
  EXPECT_EQ(timeout->stop_at(waiting(10, 0)), 10 + 2000 + 1);
  EXPECT_EQ(timeout->stop_at(waiting(10, 3000)), 10 + 5000 + 1) << "just the cap";
  EXPECT_EQ(timeout->stop_at(waiting(10, 3001)), 10 + 5000 + 1);
  EXPECT_EQ(timeout->stop_at(waiting(10, 1'000'000'000)), 10 + 5000 + 1);
}

// ---- cost_stop ----------------------------------------------------------------------------------------------------

constexpr RequestId kSelf = 1, kOther = 2;

// The facts of a prefetch whose batch was started 50 ns ago and should take 100 ns; another batch of 100 ns follows.
PrefetchFacts weighed(const Lateness& medium, TimeNs saves) {
  PrefetchFacts facts{5, 4096, 0};
  facts.now = 1'050;
  facts.saves_ns = saves;
  facts.medium = &medium;
  facts.first = kSelf;
  facts.began = 1'000;
  facts.unit_ns = 100;
  facts.rest_ns = 100;
  return facts;
}

TEST(Termination, cost_stop_waits_while_reading_is_faster_than_computing) {
  const auto cost_stop = policy("cost_stop");
  const Lateness medium;
  EXPECT_TRUE(waits(*cost_stop, weighed(medium, 200), 1'050));
  EXPECT_FALSE(waits(*cost_stop, weighed(medium, 120), 1'050));
  EXPECT_EQ(cost_stop->stop_at(weighed(medium, 120)), 5) << "not even in the step in which it was issued";
}

TEST(Termination, cost_stop_leaves_a_silent_medium_for_what_it_would_save) {
  const auto cost_stop = policy("cost_stop");
  Lateness medium;
  const TimeNs patient = cost_stop->stop_at(weighed(medium, 5'000));
  EXPECT_GT(patient, 1'000 + 5'000);
  EXPECT_LT(patient, 1'000 + 3 * 5'000);
  for (int i = 0; i < 20; ++i) medium.given_up(100, 5'000);
  EXPECT_LT(cost_stop->stop_at(weighed(medium, 5'000)), patient) << "it has been dead before";
}

TEST(Termination, cost_stop_asks_what_a_look_up_may_bring) {
  const auto cost_stop = policy("cost_stop");
  PrefetchFacts facts{5, 0, 0};
  facts.now = facts.progress = 1'000;
  facts.saves_ns = 500;
  facts.rest_ns = 499;
  EXPECT_EQ(cost_stop->stop_at(facts), 1'500) << "no longer than all of it would save";
  facts.rest_ns = 500;
  EXPECT_EQ(cost_stop->stop_at(facts), 5) << "not at all";
}

TEST(Termination, cost_stop_in_a_queue_counts_on_those_before_it) {
  const auto cost_stop = policy("cost_stop");
  const Lateness medium;
  PrefetchFacts facts = weighed(medium, 500);
  facts.first = kOther;
  facts.ahead = {300, 150, 400};
  EXPECT_EQ(cost_stop->stop_at(facts), 1'300) << "looked at again when the other gives up";
  facts.rest_ns = 350;
  EXPECT_EQ(cost_stop->stop_at(facts), 5) << "350 after 150 are as much as computing";
  facts.rest_ns = 100;
  facts.ahead = {50, 0, 400};  // the request ahead should have given up by now
  EXPECT_EQ(cost_stop->stop_at(facts), 1'000 + 400) << "but isn't asked to";
}

}  // namespace
}  // namespace kvtwin
