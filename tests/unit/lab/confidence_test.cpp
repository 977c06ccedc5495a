#include "lab/plan/confidence.hpp"

#include <gtest/gtest.h>

#include <string>

#include "models/json.hpp"

namespace kvtwin::test {
namespace {

Goal goal(const char* text) { return Goal::from_text(text); }

ErrorFactors errors(std::vector<ErrorFactors::Factors> runs) {
  ErrorFactors of;
  of.runs = std::move(runs);
  return of;
}

TEST(Confidence, IsTheShareOfThePublishedRunsThatKeepTheGoals) {
  const ErrorFactors half = errors({{1, 1}, {3, 1}});
  const Json figures{{"ttft_p90_s", 0.5}, {"tpot_p90_s", 0.02}};
  const GoalOdds odds = goal_odds({goal("ttft_p90_s=1")}, figures, half);
  EXPECT_DOUBLE_EQ(odds.probability, 2.0 / 4) << "one of two runs holds: (1 + 1) / (2 + 2)";
  EXPECT_TRUE(odds.any);
}

// TTFT and TPOT of one run stay together: a run that breaks one goal breaks the plan.
TEST(Confidence, CountsRunsThatKeepAllGoals) {
  const ErrorFactors runs = errors({{3, 1}, {1, 3}, {1, 1}, {3, 3}});
  const Json figures{{"ttft_p90_s", 0.5}, {"tpot_p90_s", 0.02}};
  const std::vector<Goal> goals{goal("ttft_p90_s=1"), goal("tpot_p90_s=0.04")};
  EXPECT_DOUBLE_EQ(goal_odds(goals, figures, runs).probability, 2.0 / 6);
}

TEST(Confidence, IsNeverCertain) {
  const ErrorFactors exact = errors(std::vector<ErrorFactors::Factors>(20, {1, 1}));
  const GoalOdds odds = goal_odds({goal("ttft_p90_s=1")}, Json{{"ttft_p90_s", 0.1}}, exact);
  EXPECT_DOUBLE_EQ(odds.probability, 21.0 / 22);
}

TEST(Confidence, OfEndToEndIsByTheShareOfTheFirstToken) {
  const ErrorFactors runs = errors({{2, 1}});
  const Json figures{{"ttft_mean_s", 1}, {"e2e_mean_s", 4}, {"e2e_p90_s", 8}};
  const GoalOdds odds = goal_odds({goal("e2e_p90_s=9")}, figures, runs);
  EXPECT_DOUBLE_EQ(odds.ranges.at("e2e_p90_s").first, 10) << "a quarter of 8 s doubles";
  EXPECT_DOUBLE_EQ(odds.probability, 1.0 / 3);
}

TEST(Confidence, GoalsWithoutPublishedErrorsAreNamedOrCountAsSimulated) {
  const ErrorFactors runs = errors({{1, 1}});
  const Json figures{{"hit_ratio", 0.5}, {"good_share", 0.99}};
  const GoalOdds odds = goal_odds({goal("hit_ratio=0.6"), goal("good_share=0.9")}, figures, runs);
  EXPECT_EQ(odds.not_judged, std::vector<std::string>{"good_share"});
  EXPECT_FALSE(odds.any) << "neither goal depends on TTFT or TPOT";
  EXPECT_DOUBLE_EQ(odds.probability, 1.0 / 3) << "the hit ratio misses in the simulation";
}

// The value that is not exceeded with 3 of 4 runs; a figure that is no time stays as it is.
TEST(Confidence, ValuesWithAProbability) {
  const ErrorFactors runs = errors({{1, 1}, {2, 1}, {3, 1}, {9, 1}, {4, 1}});
  const Json figures{{"ttft_mean_s", 1}, {"e2e_mean_s", 4}};
  EXPECT_DOUBLE_EQ(value_with_probability("ttft_p90_s", 2, figures, runs, 0.75), 8);
  EXPECT_DOUBLE_EQ(value_with_probability("hit_ratio", 0.5, figures, runs, 0.75), 0.5);
}

TEST(Confidence, WithoutRunsNothingIsJudged) {
  EXPECT_FALSE(goal_odds({goal("ttft_p90_s=1")}, Json{{"ttft_p90_s", 0.5}}, errors({})).any);
}

}  // namespace
}  // namespace kvtwin::test
