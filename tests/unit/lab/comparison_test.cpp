// Tests kvtwin compare --vary with rows written by hand: means, intervals, the best setting, and settings that are as
// good.
#include "lab/sweep/comparison.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lab/error.hpp"
#include "models/json.hpp"

namespace kvtwin {
namespace {

const std::size_t kTtft = figure_index("ttft_mean_s");

SweepPlan plan_of(const std::vector<std::string>& lists, std::size_t seeds) {
  SweepPlan plan;
  for (const std::string& list : lists) plan.vary(list);
  plan.check();
  if (seeds > 1) plan.repeat("seed", 7, seeds, "--seeds");
  return plan;
}

// Returns a row for prompts of 100 tokens.
Json row(double hits, double ttft, const std::string& digest) {
  return {{"requests", 10},        {"completed", 10},          {"rejected", 0},          {"failed", 0},
          {"prompt_tokens", 100},  {"hit_ratio", hits / 100},  {"opt_hit_ratio", 0.5},   {"lru_hit_ratio", 0.05},
          {"gap_closed", nullptr}, {"saved_s", hits / 10},     {"opt_saved_s", 5.0},     {"lru_saved_s", 0.5},
          {"ttft_mean_s", ttft},   {"ttft_p90_s", 1.5 * ttft}, {"ttft_p99_s", 2 * ttft}, {"decisions_digest", digest}};
}

// Returns a row in which `rejected` of 10 requests are rejected.
Json rejecting(int rejected, double hits, double ttft) {
  Json row_of = row(hits, ttft, "r");
  row_of["rejected"] = rejected;
  row_of["completed"] = 10 - rejected;
  if (rejected == 10) {
    row_of["prompt_tokens"] = 0;
    for (const char* figure : {"hit_ratio", "ttft_mean_s", "ttft_p90_s", "ttft_p99_s"}) row_of[figure] = nullptr;
  }
  return row_of;
}

TEST(Comparison, IntervalsAreStudents) {
  const Estimate one = estimate(std::vector<double>{3});
  EXPECT_EQ(one.mean, 3);
  EXPECT_FALSE(one.half);
  EXPECT_NEAR(*estimate(std::vector<double>{1, 2, 3}).half, 4.303 / std::sqrt(3.0), 1e-12);
  EXPECT_NEAR(*estimate(std::vector<double>{1, 2}).half, 12.706 * 0.5, 1e-12);
  std::vector<double> many;
  double before = 1e9;
  for (int i = 0; i < 150; ++i) {  // more of the same values never make the interval wider
    many.insert(many.end(), {0, 2});
    const Estimate now = estimate(many);
    EXPECT_NEAR(now.mean, 1, 1e-9);
    EXPECT_LT(*now.half, before);
    before = *now.half;
  }
}

// The values differ much more between seeds than between settings, but one setting is always better by the same amount.
TEST(Comparison, GoesByDifferencesSeedBySeed) {
  const SweepPlan plan = plan_of({"cache.eviction=lru,fifo,slru"}, 3);
  SweepRows rows;
  for (const double hits : {10.0, 20.0, 30.0}) rows.push_back(row(hits, 1 / hits, "a"));
  for (const double hits : {9.0, 19.0, 29.1}) rows.push_back(row(hits, 1 / hits, "b"));
  for (const double hits : {9.0, 22.0, 28.0}) rows.push_back(row(hits, 1 / hits, "c"));
  const Comparison comparison = compare_rows(plan, rows, {.seeds = 3});
  ASSERT_EQ(comparison.settings.size(), 3U);
  EXPECT_EQ(comparison.groups.size(), 1U);
  EXPECT_EQ(comparison.settings[0].standing[0], Standing::best);
  EXPECT_EQ(comparison.settings[1].standing[0], Standing::none);
  EXPECT_EQ(comparison.settings[2].standing[0], Standing::equal);
  EXPECT_NEAR(comparison.settings[0].figures[0]->mean, 0.2, 1e-12);
  EXPECT_NEAR(*comparison.settings[0].figures[0]->half, 4.303 * 0.1 / std::sqrt(3.0), 1e-12);
  EXPECT_FALSE(comparison.settings[0].figures[2]) << "no gap to close in these runs";
  const std::string text = comparison_text(plan, comparison, {.seeds = 3}, true);
  EXPECT_NE(text.find("20.00 ±24.84 *"), std::string::npos) << text;
  EXPECT_NE(text.find("\n(optimal)              50.00           5.000    1.00\n"), std::string::npos) << text;
  EXPECT_NE(text.find("(3 seeds)"), std::string::npos) << text;
}

// Capacities are circumstances: a policy is compared only with policies of the same capacity.
TEST(Comparison, IsUnderEqualCircumstances) {
  const SweepPlan plan = plan_of({"cache.eviction=lru,fifo", "tiers.host.tokens=1000,2000"}, 1);
  const SweepRows rows{row(10, 0.5, "a"), row(30, 0.3, "b"), row(20, 0.6, "c"), row(30, 0.3, "b")};
  const Comparison comparison = compare_rows(plan, rows, {.seeds = 1});
  EXPECT_EQ(comparison.is_choice, (std::vector<bool>{true, false}));
  EXPECT_EQ(comparison.groups, (std::vector<std::vector<std::size_t>>{{0, 2}, {1, 3}}));
  EXPECT_EQ(comparison.settings[2].standing[0], Standing::best);
  EXPECT_EQ(comparison.settings[0].standing[kTtft], Standing::best) << "less is better";
  EXPECT_EQ(comparison.settings[0].standing[0], Standing::none);
  EXPECT_EQ(comparison.settings[1].standing[0], Standing::equal) << "there is no best of two that are alike";
  EXPECT_EQ(comparison.settings[3].standing[0], Standing::equal);
  EXPECT_EQ(comparison.settings[3].same_decisions, 1U);
  EXPECT_FALSE(comparison.settings[2].same_decisions);
  const std::string text = comparison_text(plan, comparison, {.seeds = 1}, true);
  EXPECT_NE(text.find("decided as lru did"), std::string::npos) << text;
  EXPECT_NE(text.find("nothing is known of noise"), std::string::npos) << text;
  EXPECT_EQ(text.find("±"), std::string::npos) << text;
  const SweepRows told = comparison_rows(plan, comparison, {.seeds = 1});
  EXPECT_EQ(told[3].at("same_decisions_as"), "lru");
  EXPECT_EQ(told[3].at("hit_ratio_standing"), "equal");
  EXPECT_EQ(told[3].at("tiers.host.tokens"), 2000);
  EXPECT_TRUE(told[3].at("hit_ratio_ci95").is_null());
  EXPECT_EQ(told[0].at("opt_hit_ratio"), 0.5);
}

TEST(Comparison, WithoutAChoiceAllAreHeldAgainstAll) {
  const SweepPlan plan = plan_of({"tiers.host.tokens=1000,2000"}, 2);
  const SweepRows rows{row(10, 0.5, "a"), row(10, 0.5, "a"), row(30, 0.3, "b"), row(30, 0.3, "b")};
  const Comparison comparison = compare_rows(plan, rows, {.seeds = 2});
  EXPECT_EQ(comparison.groups.size(), 1U);
  EXPECT_EQ(comparison.settings[1].standing[0], Standing::best);
  EXPECT_FALSE(comparison.has_noise);
  const std::string text = comparison_text(plan, comparison, {.seeds = 2}, true);
  EXPECT_NE(text.find("All 2 seeds give the same figures"), std::string::npos) << "equal runs say so, not ±0: " << text;
  EXPECT_EQ(text.find("no random draws"), std::string::npos) << "equal figures are no evidence of it: " << text;
  EXPECT_NE(comparison_text(plan, comparison, {.seeds = 2}, false).find("no random draws"), std::string::npos);
  EXPECT_EQ(text.find("±"), std::string::npos) << text;
  EXPECT_EQ(text.find("(optimal)"), std::string::npos) << "there is one for each: " << text;
}

// A plan with the hardware as given, and three hardware variants.
SweepPlan drawn_plan(const std::vector<std::string>& lists) {
  SweepPlan plan = plan_of(lists, 1);
  plan.repeat("hardware.draw", 0, 4, "--draws");
  return plan;
}

TEST(Comparison, DrawsAreHeldAgainstEachOtherMachineByMachine) {
  const SweepPlan plan = drawn_plan({"cache.eviction=lru,fifo,slru"});
  SweepRows rows;
  for (const double hits : {20.0, 10.0, 20.0, 30.0}) rows.push_back(row(hits, 1, "a"));
  for (const double hits : {19.0, 9.0, 19.0, 29.0}) rows.push_back(row(hits, 1, "b"));
  for (const double hits : {19.0, 11.0, 19.0, 29.0}) rows.push_back(row(hits, 1, "c"));
  const Repeats repeats{.draws = 3};
  const Comparison comparison = compare_rows(plan, rows, repeats);
  ASSERT_EQ(comparison.settings.size(), 3U);
  EXPECT_EQ(comparison.settings[0].standing[0], Standing::best);
  EXPECT_EQ(comparison.settings[1].standing[0], Standing::none);
  EXPECT_EQ(comparison.settings[2].standing[0], Standing::equal);
  const Estimate& hits = *comparison.settings[0].figures[0];
  EXPECT_EQ(hits.mean, 0.2) << "of the machine itself";
  EXPECT_NEAR(hits.range->first, 0.105, 1e-12);
  EXPECT_NEAR(hits.range->second, 0.295, 1e-12);
  EXPECT_NE(comparison_text(plan, comparison, repeats, false).find("20.00 (10.50 to 29.50) *"), std::string::npos)
      << comparison_text(plan, comparison, repeats, false);
  EXPECT_NEAR(comparison_rows(plan, comparison, repeats)[0].at("hit_ratio_low").get<double>(), 0.105, 1e-12);
}

// The result is the smallest size that meets the goal, if all larger sizes meet the goal too.
TEST(Comparison, AGoalIsMetFromASizeOn) {
  const SweepPlan plan = drawn_plan({"cluster.engines=1,2,3", "tiers.host.gib=64,16,32"});
  SweepRows rows;
  const auto add = [&](double ttft, double drawn) {
    rows.push_back(row(1, ttft / 1.5, "a"));
    for (int i = 0; i < 3; ++i) rows.push_back(row(1, (i == 2 ? drawn : ttft) / 1.5, "a"));
  };
  for (const auto& [ttft, drawn] : {std::pair{1.0, 1.0}, {3.0, 3.0}, {2.0, 2.5}}) add(ttft, drawn);
  for (const auto& [ttft, drawn] : {std::pair{1.0, 1.0}, {1.0, 1.0}, {2.5, 2.5}}) add(ttft, drawn);
  for (const auto& [ttft, drawn] : {std::pair{2.1, 1.0}, {1.0, 1.0}, {1.0, 1.0}}) add(ttft, drawn);
  const Repeats repeats{.draws = 3};
  const Goal goal = Goal::from_text("ttft_p90_s=2");
  const Comparison comparison = compare_rows(plan, rows, repeats, goal);
  const GoalLines lines = goal_lines(plan, comparison);
  ASSERT_EQ(lines.along, 1U);
  ASSERT_EQ(lines.lines.size(), 3U);
  EXPECT_EQ(lines.lines[0].from, 2U) << "32 GiB";
  EXPECT_EQ(lines.lines[0].surely_from, 0U) << "64 GiB";
  EXPECT_EQ(lines.lines[1].from, 0U);
  EXPECT_FALSE(lines.lines[2].from);
  const std::string text = goal_text(plan, comparison, goal, repeats);
  EXPECT_NE(text.find("goal: ttft_p90_s at most 2, by tiers.host.gib\n"), std::string::npos) << text;
  EXPECT_NE(text.find("cluster.engines=1: from 32 on; in 97.5 % of the machines: from 64 on\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("cluster.engines=3: not even at the largest\n"), std::string::npos) << text;
  EXPECT_NEAR(comparison_rows(plan, comparison, repeats, goal)[2].at("goal_share").get<double>(), 2.0 / 3, 1e-12);
}

TEST(Comparison, ARatioOfTheHostTierIsASize) {
  const SweepPlan plan = plan_of({"tiers.host.ratio=1,2,4"}, 1);
  EXPECT_TRUE(is_capacity(plan.axes[0]));
  EXPECT_FALSE(is_capacity(plan_of({"tiers.device.window_ratio=0.1,0.2"}, 1).axes[0]));
  const Goal goal = Goal::from_text("ttft_mean_s=2");
  const Comparison comparison = compare_rows(plan, {row(1, 3, "a"), row(1, 1, "b"), row(1, 1, "c")}, {}, goal);
  const std::string text = goal_text(plan, comparison, goal, {});
  EXPECT_NE(text.find("by tiers.host.ratio"), std::string::npos) << text;
  EXPECT_NE(text.find("from 2 on"), std::string::npos) << text;
}

// A setting that rejects requests has short TTFTs for the rest.
TEST(Comparison, WhoSendsRequestsAwayMeetsNoGoalAndIsNotTheBest) {
  const SweepPlan plan = plan_of({"tiers.host.gib=16,32,64,128"}, 1);
  const SweepRows rows{rejecting(10, 0, 0), rejecting(1, 5, 0.1), row(1, 1, "c"), row(2, 1, "d")};
  const Goal goal = Goal::from_text("ttft_mean_s=2");
  const Comparison comparison = compare_rows(plan, rows, {}, goal);
  EXPECT_FALSE(comparison.settings[0].figures[kTtft]);
  EXPECT_EQ(comparison.settings[0].goal_share, 0);
  EXPECT_EQ(comparison.settings[1].goal_share, 0);
  EXPECT_FALSE(comparison.settings[1].meets_goal);
  EXPECT_EQ(comparison.settings[2].goal_share, 1);
  for (const std::size_t setting : {0U, 1U}) {
    for (const Standing standing : comparison.settings[setting].standing) EXPECT_EQ(standing, Standing::none);
  }
  EXPECT_EQ(comparison.settings[3].standing[0], Standing::best) << "0.05 are hit by one that rejects every tenth";
  EXPECT_EQ(comparison.settings[2].standing[kTtft], Standing::best);
  EXPECT_EQ(comparison.settings[3].standing[kTtft], Standing::equal);
  const GoalLines lines = goal_lines(plan, comparison);
  EXPECT_EQ(lines.lines[0].from, 2U);
  EXPECT_NE(goal_text(plan, comparison, goal, {}).find("of 1 settings the figure would do"), std::string::npos);
  const std::string text = comparison_text(plan, comparison, {}, true, goal);
  EXPECT_NE(text.find("rejected %  failed %\n"), std::string::npos) << text;
  EXPECT_NE(text.find("less than 99 % of the highest number of completed requests is not marked: 2 of 4"),
            std::string::npos)
      << text;
  const std::string none = text.substr(text.find("\n16"), text.find("\n32") - text.find("\n16"));
  EXPECT_EQ(std::ranges::count(none, '-'), 5) << "hits, gap closed and each TTFT: " << none;
  EXPECT_NE(none.find("100.00      0.00"), std::string::npos) << none;
  const SweepRows told = comparison_rows(plan, comparison, {}, goal);
  EXPECT_TRUE(told[0].at("ttft_p99_s").is_null());
  EXPECT_TRUE(told[0].at("hit_ratio").is_null());
  EXPECT_EQ(told[0].at("rejected_share"), 1);
  EXPECT_EQ(told[1].at("rejected_share"), 0.1);
  EXPECT_EQ(told[1].at("failed_share"), 0);
  EXPECT_EQ(told[1].at("meets_goal"), false);
}

TEST(Comparison, HowManyRequestsAreEnoughCanBeSet) {
  const SweepPlan plan = plan_of({"tiers.host.gib=16,32"}, 1);
  const SweepRows rows{rejecting(1, 5, 0.1), row(1, 1, "c")};
  const Goal goal = Goal::from_text("ttft_mean_s=2");
  const Comparison comparison = compare_rows(plan, rows, {}, goal, 0.9);
  EXPECT_EQ(comparison.settings[0].standing[kTtft], Standing::best);
  EXPECT_TRUE(comparison.settings[0].meets_goal);
  // If all settings reject the same share, they can be compared. But a goal is for all requests.
  const SweepRows alike{rejecting(6, 5, 0.1), rejecting(6, 1, 1)};
  const Comparison of_few = compare_rows(plan, alike, {}, goal);
  EXPECT_EQ(of_few.settings[0].standing[kTtft], Standing::best);
  EXPECT_FALSE(of_few.settings[0].meets_goal);
}

// One setting is better with one seed and worse with the other seed, so none is the best.
TEST(Comparison, WhereRepeatsTellNothingApartThereIsNoBest) {
  const SweepPlan plan = plan_of({"cache.eviction=lru,fifo"}, 2);
  const SweepRows rows{row(10, 0.3, "a"), row(20, 0.4, "b"), row(11, 0.4, "c"), row(19.5, 0.2, "d")};
  const Comparison comparison = compare_rows(plan, rows, {.seeds = 2});
  for (const ComparedSetting& setting : comparison.settings) {
    EXPECT_EQ(setting.standing[0], Standing::equal);
    EXPECT_EQ(setting.standing[kTtft], Standing::equal);
  }
  const std::string text = comparison_text(plan, comparison, {.seeds = 2}, true);
  EXPECT_EQ(text.find(" *"), std::string::npos) << text;
}

// The value 2.0004 does not meet the goal 2, so it must not be printed as 2.0, even if other values of the column have
// one decimal.
TEST(Comparison, PrintedFiguresDecideAsTheFiguresDo) {
  const SweepPlan plan = plan_of({"tiers.host.gib=16,32,64"}, 1);
  const SweepRows rows{row(1, 200, "a"), row(1, 2.0004, "b"), row(1, 1.9996, "c")};
  const Goal goal = Goal::from_text("ttft_mean_s=2");
  const Comparison comparison = compare_rows(plan, rows, {}, goal);
  const std::string text = comparison_text(plan, comparison, {}, true, goal);
  for (const char* printed : {"200.0000", "2.0004", "1.9996 *"}) {
    EXPECT_NE(text.find(printed), std::string::npos) << printed << ":\n" << text;
  }
  const Goal exact = Goal::from_text("ttft_mean_s=1.9996000000001");
  const Comparison close = compare_rows(plan, rows, {}, exact);
  EXPECT_NE(goal_text(plan, close, exact, {}).find("at most 1.9996000000001,"), std::string::npos);
  // A setting without the mark must not show the same number as the best setting.
  const SweepRows nearly{row(1, 200, "a"), row(1, 2.00004, "b"), row(1, 2.00003, "c")};
  const std::string apart = comparison_text(plan, compare_rows(plan, nearly, {}), {}, true);
  EXPECT_NE(apart.find("2.00004"), std::string::npos) << apart;
  EXPECT_NE(apart.find("2.00003 *"), std::string::npos) << apart;
}

TEST(Comparison, AGoalIsAFigureAndANumber) {
  EXPECT_TRUE(Goal::from_text("hit_ratio=0.5").met_by(0.6));
  EXPECT_FALSE(Goal::from_text("ttft_mean_s=0.5").met_by(0.6));
  for (const char* wrong : {"", "ttft_p90_s", "ttft_p90_s=", "ttft_p90_s=two", "ttft_p90_s=nan", "ttft_p90_s=-1",
                            "ttft_p90=2", "gap_closed=1", "=2", "ttft_p90_s=2GiB", "hit_ratio=30"}) {
    EXPECT_THROW(Goal::from_text(wrong), InputError) << wrong;
  }
}

TEST(Comparison, SeedsVaryOnce) {
  EXPECT_THROW(plan_of({"seed=1,2"}, 2), InputError);
  EXPECT_THROW(plan_of({"cache.page_tokens+seed=16,32"}, 2), InputError);
  const SweepPlan plan = plan_of({"cache.eviction=lru,fifo"}, 2);
  EXPECT_EQ(plan.cells().size(), 4U);
  EXPECT_EQ(plan.name_of(plan.cells()[1]), "cache.eviction=lru, seed=8");
}

}  // namespace
}  // namespace kvtwin
