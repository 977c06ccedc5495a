#include "lab/validate/validate_errors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/splitmix.hpp"

namespace kvtwin {
namespace {

using Pairs = std::vector<std::pair<double, double>>;

// tau-b by its textbook form: pairs that agree, disagree, and are tied on one side only.
std::optional<double> slow_tau(const Pairs& pairs) {
  double agree = 0, disagree = 0, tied_first = 0, tied_second = 0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    for (std::size_t j = i + 1; j < pairs.size(); ++j) {
      const double first = pairs[i].first - pairs[j].first, second = pairs[i].second - pairs[j].second;
      if (first == 0 && second == 0) continue;
      if (first == 0) {
        ++tied_first;
      } else if (second == 0) {
        ++tied_second;
      } else {
        ++(first * second > 0 ? agree : disagree);
      }
    }
  }
  const double below = (agree + disagree + tied_first) * (agree + disagree + tied_second);
  if (below == 0) return std::nullopt;
  return (agree - disagree) / std::sqrt(below);
}

TEST(KendallTau, OfKnownOrders) {
  EXPECT_DOUBLE_EQ(*kendall_tau(Pairs{{1, 10}, {2, 20}, {3, 30}}), 1);
  EXPECT_DOUBLE_EQ(*kendall_tau(Pairs{{1, 30}, {2, 20}, {3, 10}}), -1);
  EXPECT_DOUBLE_EQ(*kendall_tau(Pairs{{1, 10}, {2, 30}, {3, 20}}), 1.0 / 3);
  EXPECT_NEAR(*kendall_tau(Pairs{{1, 1}, {2, 1}, {3, 2}}), 2 / std::sqrt(6.0), 1e-12) << "a tie on one side";
  EXPECT_FALSE(kendall_tau(Pairs{}));
  EXPECT_FALSE(kendall_tau(Pairs{{1, 1}}));
  EXPECT_FALSE(kendall_tau(Pairs{{1, 5}, {2, 5}})) << "nothing is said of order";
}

TEST(KendallTau, IsTheTextbooks) {
  test::Splitmix random(1);
  for (int i = 0; i < 500; ++i) {
    Pairs pairs;
    for (std::uint64_t left = random.between(0, 12); left > 0; --left) {
      pairs.emplace_back(static_cast<double>(random.below(6)), static_cast<double>(random.below(6)));
    }
    const auto fast = kendall_tau(pairs), slow = slow_tau(pairs);
    ASSERT_EQ(fast.has_value(), slow.has_value());
    if (fast) {
      EXPECT_NEAR(*fast, *slow, 1e-12);
    }
  }
}

TEST(Choices, TellWhatTheSimulatorsPickCosts) {
  // Of work "a" the simulator takes the first, which is 25 % worse than the third; "b" has one cell.
  const std::vector<Ranked> cells{{"a", {5}, 1}, {"b", {1}, 1}, {"a", {6}, 3}, {"a", {4}, 2}};
  const std::vector<Choice> choices = choices_of(cells);
  ASSERT_EQ(choices.size(), 1U);
  EXPECT_EQ(choices[0].cells, (std::vector<std::size_t>{0, 2, 3}));
  EXPECT_EQ(choices[0].chosen, 0U);
  EXPECT_EQ(choices[0].best, (std::vector<std::size_t>{3}));
  EXPECT_DOUBLE_EQ(*choices[0].regret, 0.25);
  EXPECT_DOUBLE_EQ(*choices[0].tau, 1.0 / 3);
  EXPECT_FALSE(choices[0].has_repeats);
}

// Half of a mean's 95 % interval of three runs is 4.303 / sqrt(3) of their standard deviation.
TEST(Choices, SayNothingThatRepeatsDoNotTell) {
  const Ranked one{"a", {1.0, 1.1, 1.2}, 3}, like_it{"a", {1.1, 1.2, 1.3}, 1}, far{"a", {9, 9.1, 9.2}, 2};
  const Choice alike = choices_of(std::vector{one, like_it})[0];
  EXPECT_FALSE(alike.chosen);
  EXPECT_FALSE(alike.regret);
  EXPECT_FALSE(alike.tau);
  EXPECT_EQ(alike.best, (std::vector<std::size_t>{0, 1}));
  // The chosen one is told from the worst, but not from the best.
  const Choice good = choices_of(std::vector{one, like_it, far})[0];
  EXPECT_EQ(good.chosen, 1U);
  EXPECT_FALSE(good.regret);
  EXPECT_EQ(good.best, (std::vector<std::size_t>{0, 1}));
  Ranked hoped = far;
  hoped.predicted = 0.5;
  const Choice bad = choices_of(std::vector{one, like_it, hoped})[0];
  EXPECT_EQ(bad.chosen, 2U);
  EXPECT_NEAR(*bad.regret, 9.1 / 1.1 - 1, 1e-12);
}

TEST(Choices, LeaveOutWhoServesFew) {
  const Ranked honest{"a", {2}, 2}, other{"a", {3}, 3};
  const Ranked rejects{"a", {0.1}, 0.1, 0.9, 1}, would_reject{"a", {0.1}, 0.1, 1, 0.9};
  const Choice choice = choices_of(std::vector{rejects, honest, would_reject, other})[0];
  EXPECT_EQ(choice.cells, (std::vector<std::size_t>{1, 3}));
  EXPECT_EQ(choice.chosen, 1U);
  EXPECT_EQ(choice.regret, 0.0);
  EXPECT_TRUE(choices_of(std::vector{rejects, honest}).empty());
}

TEST(MeanAndSpread, AreTheSamples) {
  const std::vector<double> values{1, 2, 3};
  EXPECT_DOUBLE_EQ(mean_and_spread(values, false).first, 2);
  EXPECT_DOUBLE_EQ(*mean_and_spread(values, false).second, 0.5) << "relative";
  EXPECT_DOUBLE_EQ(*mean_and_spread(values, true).second, 1) << "of a share as it is";
  EXPECT_FALSE(mean_and_spread(std::vector<double>{7}, false).second);
  EXPECT_FALSE(mean_and_spread(std::vector<double>{0, 0}, false).second);
}

TEST(Quantiles, AreNearestRanks) {
  std::vector<double> values;
  for (int i = 200; i > 0; --i) values.push_back(i);
  const Quantiles q = quantiles_of(values);
  EXPECT_EQ(q.p50, 100);
  EXPECT_EQ(q.p90, 180);
  EXPECT_EQ(q.p99, 198);
  EXPECT_EQ(q.max, 200);
  EXPECT_EQ(quantiles_of({3}).p50, 3);
  EXPECT_EQ(quantiles_of({}).max, 0);
}

RunFigures run_of(double ttft, double share, double busy_s) {
  RunFigures run;
  run.figures = {{"ttft_mean_s", ttft}, {"hit_host", share}};
  run.requests = {{0, {100, ttft}}, {1, {200, 2 * ttft}}};
  run.lanes = {{"h2d", {1e9, 10, busy_s}}, {"compute", {0, 5, 4}}};
  run.completed = 2;
  return run;
}

TEST(CellErrors, AreAgainstTheMeanOfTheRuns) {
  ValidationCell cell;
  cell.measured = {run_of(1, 0.2, 1), run_of(3, 0.4, 1)};
  cell.predicted = run_of(3, 0.35, 1);
  const CellErrors errors = errors_of(cell);
  const ComparedFigure* const ttft = errors.figure("ttft_mean_s");
  ASSERT_NE(ttft, nullptr);
  EXPECT_DOUBLE_EQ(ttft->measured, 2);
  EXPECT_DOUBLE_EQ(*ttft->error, 0.5);
  EXPECT_DOUBLE_EQ(*ttft->spread, std::sqrt(2.0) / 2);
  EXPECT_NEAR(*errors.figure("hit_host")->error, 0.05, 1e-12) << "points";
  EXPECT_EQ(errors.figure("tpot_mean_s"), nullptr) << "nobody tells it";
  ASSERT_TRUE(errors.requests);
  EXPECT_EQ(errors.requests->joined, 2U);
  EXPECT_DOUBLE_EQ(errors.requests->seconds.max, 2);
  EXPECT_DOUBLE_EQ(errors.requests->relative.max, 0.5);
}

TEST(CellErrors, LeaveOutRequestsThatAreOthers) {
  ValidationCell cell;
  cell.measured = {run_of(1, 0, 1), run_of(1, 0, 1)};
  cell.predicted = run_of(1, 0, 1);
  cell.measured[1].requests.at(1).prompt_tokens = 201;
  cell.measured[0].requests.erase(0);
  const CellErrors errors = errors_of(cell);
  ASSERT_TRUE(errors.requests);
  EXPECT_EQ(errors.requests->joined, 0U);
  EXPECT_EQ(errors.requests->other_prompts, 1U);
  EXPECT_EQ(errors.requests->one_side_only, 1U);
  cell.measured[0].requests.clear();
  cell.measured[1].requests.clear();
  EXPECT_FALSE(errors_of(cell).requests);
}

TEST(CellErrors, NameLanesThatAreOffByMoreThanTheSpread) {
  ValidationCell cell;
  cell.measured = {run_of(1, 0, 1), run_of(1, 0, 1)};
  cell.predicted = run_of(1, 0, 0.5);
  CellErrors errors = errors_of(cell);
  ASSERT_EQ(errors.lanes.size(), 2U);
  EXPECT_EQ(errors.lanes[0].lane, "h2d") << "the furthest off";
  EXPECT_DOUBLE_EQ(errors.lanes[0].ratio, 0.5);
  EXPECT_TRUE(errors.lanes[0].off);
  EXPECT_DOUBLE_EQ(errors.lanes[0].measured_s, 1e-9);
  EXPECT_EQ(std::string(errors.lanes[1].unit), "request");
  EXPECT_DOUBLE_EQ(errors.lanes[1].measured_s, 2);
  EXPECT_FALSE(errors.lanes[1].off);
  // The same error, but the runs differ as much.
  cell.measured = {run_of(1, 0, 0.3), run_of(1, 0, 1.7)};
  errors = errors_of(cell);
  EXPECT_DOUBLE_EQ(errors.lanes[0].ratio, 0.5);
  EXPECT_FALSE(errors.lanes[0].off);
  cell.predicted.lanes.erase("h2d");
  cell.predicted.lanes["d2h"] = {1, 1, 1};
  errors = errors_of(cell);
  ASSERT_EQ(errors.one_side_only.size(), 2U);
  EXPECT_EQ(errors.one_side_only[0].substr(0, 4), "h2d:");
  EXPECT_EQ(errors.one_side_only[1].substr(0, 4), "d2h:");
}

}  // namespace
}  // namespace kvtwin
