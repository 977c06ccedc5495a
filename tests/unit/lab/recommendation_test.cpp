// The one setting that a comparison recommends, with rows written by hand.
#include "lab/sweep/recommendation.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/json.hpp"

namespace kvtwin {
namespace {

Json row(double ttft, double gpus = 1, Json price = nullptr) {
  return {{"requests", 10},         {"completed", 10}, {"rejected", 0},       {"failed", 0},
          {"hit_ratio", ttft},      {"gpus", gpus},    {"ttft_mean_s", ttft}, {"price_per_month", std::move(price)},
          {"decisions_digest", "d"}};
}

SweepPlan plan_of(const std::vector<std::string>& lists, std::size_t seeds = 1) {
  SweepPlan plan;
  for (const std::string& list : lists) plan.vary(list);
  plan.check();
  if (seeds > 1) plan.repeat("seed", 7, seeds, "--seeds");
  return plan;
}

Recommendation of(const SweepPlan& plan, const SweepRows& rows, const std::string& goal = "", Repeats repeats = {}) {
  const std::optional<Goal> wanted = goal.empty() ? std::nullopt : std::optional(Goal::from_text(goal));
  return recommend(plan, compare_rows(plan, rows, repeats, wanted), wanted);
}

TEST(Recommendation, WithAGoalIsTheCheapestThatMeetsIt) {
  const SweepPlan plan = plan_of({"tiers.host.gib=64,32,128"});
  const auto sizes = of(plan, {row(0.9), row(0.8), row(0.7)}, "ttft_mean_s=1");
  EXPECT_EQ(sizes.setting, 1U);
  EXPECT_EQ(sizes.reason, "3 of 3 settings meet the goal; this one has the smallest tiers, then the best ttft_mean_s");
  EXPECT_EQ(of(plan, {row(0.9, 1), row(0.8, 2), row(0.7, 1)}, "ttft_mean_s=1").setting, 0U) << "fewer GPUs";
  const auto priced = of(plan, {row(0.9, 1, 7), row(0.8, 2, 7), row(0.7, 8, 5)}, "ttft_mean_s=1");
  EXPECT_EQ(priced.setting, 2U);
  EXPECT_NE(priced.reason.find("the lowest price"), std::string::npos) << priced.reason;
  EXPECT_EQ(of(plan, {row(1.9), row(1.8), row(0.7)}, "ttft_mean_s=1").reason, "only this setting meets the goal");
  EXPECT_EQ(of(plan, {row(0.2), row(0.4), row(0.3)}, "hit_ratio=0.35").setting, 1U) << "at least";
}

TEST(Recommendation, IsNothingWhereNoSettingMeetsTheGoal) {
  const SweepPlan plan = plan_of({"tiers.host.gib=64,32"});
  const auto none = of(plan, {row(3), row(2)}, "ttft_mean_s=1");
  EXPECT_FALSE(none.setting);
  EXPECT_EQ(none.nearest, 1U);
  SweepRows rejecting{row(3), row(0.5)};
  rejecting[1]["rejected"] = rejecting[1]["completed"] = 5;
  EXPECT_FALSE(of(plan, rejecting, "ttft_mean_s=1").setting) << "half of the requests are rejected";
  EXPECT_EQ(of(plan, rejecting).setting, 0U);
}

TEST(Recommendation, WithoutAGoalSettingsWithinTheNoiseAreAsGood) {
  const SweepPlan plan = plan_of({"cluster.engines=2,1"}, 3);
  const SweepRows rows{row(1.0, 2), row(1.1, 2), row(0.9, 2), row(1.05, 1), row(1.15, 1), row(0.95, 1)};
  const auto close = of(plan, rows, "", {3, 0});
  EXPECT_EQ(close.setting, 1U);
  EXPECT_EQ(close.reason,
            "2 settings have the best ttft_mean_s, or cannot be told from the best; this one has the fewest GPUs");
  SweepRows apart = rows;
  for (std::size_t i = 3; i < 6; ++i) apart[i]["ttft_mean_s"] = 2.0;
  EXPECT_EQ(of(plan, apart, "", {3, 0}).setting, 0U);
}

TEST(Recommendation, StandsOnTheScreenWithItsCommands) {
  const SweepPlan plan = plan_of({"cache.eviction=lru,lfu"});
  const Comparison comparison = compare_rows(plan, {row(2), row(1)}, {});
  const Recommendation found = recommend(plan, comparison, {});
  const std::vector<EngineCommand> commands{{"sglang", {"python -m x", {"a", "b"}}}, {"vllm", {"vllm serve", {}}}};
  EXPECT_EQ(
      recommendation_text(plan, comparison, found, commands, {}),
      "recommend  cache.eviction=lfu: ttft_mean_s 1; it has the best ttft_mean_s; no goal was given, so that price "
      "and sizes do not count\n"
      "sglang     python -m x\n"
      "           without, as no flag says it: a, b\n"
      "vllm       vllm serve\n");
  const auto json = recommendation_json(plan, comparison, found, commands);
  EXPECT_EQ(json.at("row"), 1);
  EXPECT_EQ(json.at("settings").at("cache.eviction"), "lfu");
  EXPECT_EQ(json.at("servers").at("vllm").at("command"), "vllm serve");
}

}  // namespace
}  // namespace kvtwin
