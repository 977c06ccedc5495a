#include "lab/validate/scoreboard.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/json.hpp"

namespace kvtwin::test {
namespace {

ValidatedCell cell(const std::string& group, const std::string& work, double ttft, double predicted_ttft,
                   double rate = 1, double predicted_rate = 1) {
  ValidatedCell made;
  made.cell.name = group + work;
  made.cell.work = work;
  made.cell.group = group;
  made.cell.source = "made up";
  made.cell.measured.emplace_back();
  made.cell.measured[0].figures = {{"ttft_mean_s", ttft}, {"output_tokens_per_second", rate}};
  made.cell.predicted.figures = {{"ttft_mean_s", predicted_ttft}, {"output_tokens_per_second", predicted_rate}};
  made.errors = errors_of(made.cell);
  return made;
}

const FigureScore* score(const std::vector<FigureScore>& scores, const std::string& figure, const std::string& group) {
  for (const FigureScore& one : scores) {
    if (one.kind->name == figure && one.group == group) return &one;
  }
  return nullptr;
}

TEST(Scoreboard, HasEachFigureOfEachGroupAndOfAll) {
  const std::vector<FigureScore> scores =
      scoreboard({cell("a", "1", 1, 1.1), cell("a", "2", 2, 1.6), cell("b", "3", 4, 4.4), cell("b", "4", 8, 8)});
  const FigureScore* all = score(scores, "ttft_mean_s", "");
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(all->cells, 4U);
  EXPECT_NEAR(all->mean_abs, (0.1 + 0.2 + 0.1 + 0) / 4, 1e-12);
  EXPECT_NEAR(all->bias, (0.1 - 0.2 + 0.1 + 0) / 4, 1e-12);
  EXPECT_NEAR(all->p90, 0.2, 1e-12);
  EXPECT_NEAR(*all->tau, 1.0, 1e-12);
  EXPECT_EQ(all->choices, 0U) << "no two cells serve the same work";
  EXPECT_FALSE(all->regret_mean);
  const FigureScore* a = score(scores, "ttft_mean_s", "a");
  ASSERT_NE(a, nullptr);
  EXPECT_NEAR(a->bias, -0.05, 1e-12);
  EXPECT_NE(score(scores, "output_tokens_per_second", "b"), nullptr);
  EXPECT_EQ(score(scores, "tpot_mean_s", ""), nullptr) << "nobody has it";
  EXPECT_EQ(score(scoreboard({cell("a", "1", 1, 1)}), "ttft_mean_s", ""), nullptr) << "of one cell";
}

// A stage past workload.limit has measured figures, and no predicted one.
TEST(Scoreboard, CountsCellsThatAreInNoNumber) {
  std::vector<ValidatedCell> cells{cell("a", "1", 1, 1.1), cell("a", "2", 2, 1.6), cell("a", "3", 3, 3),
                                   cell("b", "4", 0, 1)};
  cells[2].cell.predicted.figures.clear();
  cells[2].cell.predicted.planned = 40;
  cells[2].errors = errors_of(cells[2].cell);
  EXPECT_EQ(cells[2].errors.not_compared, (std::vector<std::string>{"ttft_mean_s", "output_tokens_per_second"}));
  EXPECT_NE(cells[2].errors.why_not.find("workload.limit ends before this stage, which should have 40"),
            std::string::npos);
  EXPECT_EQ(cells[3].errors.not_compared, (std::vector<std::string>{"ttft_mean_s"}));
  EXPECT_NE(cells[3].errors.why_not.find("measured figure is 0"), std::string::npos);
  const std::vector<FigureScore> scores = scoreboard(cells);
  EXPECT_EQ(score(scores, "ttft_mean_s", "")->cells, 2U);
  EXPECT_EQ(score(scores, "ttft_mean_s", "")->left_out, 2U);
  EXPECT_EQ(score(scores, "ttft_mean_s", "a")->left_out, 1U);
  EXPECT_EQ(score(scores, "output_tokens_per_second", "")->left_out, 1U);
  EXPECT_EQ(scoreboard_json(scores)[0].at("left_out"), 2);
  EXPECT_NE(scoreboard_text(scores).find("left out"), std::string::npos);
  EXPECT_EQ(ranking_of(cells).cells, 3U) << "the third has no predicted TTFT";
}

// Three runs of one setting: 1, 1 and 2. The best prediction is 1: errors of 0, 0 and 50 %.
TEST(Scoreboard, KnowsTheSpreadOfSettingsThatWerePublishedAgain) {
  std::vector<ValidatedCell> cells{cell("a", "1", 1, 2), cell("a", "1", 1, 2), cell("a", "1", 2, 2),
                                   cell("a", "2", 3, 3), cell("a", "3", 4, 4), cell("a", "3", 4, 4)};
  for (ValidatedCell& one : cells) one.cell.setting = one.cell.work;
  const std::vector<FigureScore> scores = scoreboard(cells);
  const FigureScore* ttft = score(scores, "ttft_mean_s", "");
  EXPECT_EQ(ttft->repeated, 3U) << "equal figures are one run";
  EXPECT_EQ(ttft->settings, 1U);
  EXPECT_NEAR(*ttft->floor, 0.5 / 3, 1e-12);
  EXPECT_NEAR(ttft->repeated_mean_abs, 2.0 / 3, 1e-12);
  EXPECT_NE(scoreboard_text(scores).find("repeats    TTFT mean, s: 3 cells of 1 settings"), std::string::npos);
  EXPECT_FALSE(score(scores, "output_tokens_per_second", "")->floor);
}

TEST(Scoreboard, NamesAStageThatGotOnlyAPartOfItsRequests) {
  ValidatedCell part = cell("a", "1", 1, 1.1);
  part.cell.predicted.arrived = 12;
  part.cell.predicted.planned = 40;
  EXPECT_NE(errors_of(part.cell).other_load.find("12 of its 40 requests"), std::string::npos);
  EXPECT_TRUE(errors_of(part.cell).not_compared.empty());
  part.cell.predicted.arrived = 40;
  EXPECT_EQ(errors_of(part.cell).other_load, "");
}

TEST(Scoreboard, RegretIsTheMeasuredCostOfTheChoice) {
  // The simulator takes the second cell by TTFT (20 % above the best), and the first by throughput (half of the best).
  const std::vector<FigureScore> scores =
      scoreboard({cell("a", "1", 1, 3, 50, 90), cell("a", "1", 1.2, 2, 100, 80), cell("a", "2", 1, 1, 7, 7)});
  const FigureScore* ttft = score(scores, "ttft_mean_s", "");
  EXPECT_EQ(ttft->choices, 1U);
  EXPECT_NEAR(*ttft->regret_mean, 0.2, 1e-12);
  const FigureScore* rate = score(scores, "output_tokens_per_second", "");
  EXPECT_NEAR(*rate->regret_mean, 1.0, 1e-12);
  EXPECT_NEAR(*rate->regret_max, 1.0, 1e-12);
}

TEST(Scoreboard, IsPrintedAndIsJson) {
  const std::vector<FigureScore> scores = scoreboard({cell("h100 vllm", "1", 1, 1.1), cell("h100 vllm", "2", 2, 1.6)});
  const std::string text = scoreboard_text(scores);
  EXPECT_NE(text.find("h100 vllm"), std::string::npos);
  EXPECT_NE(text.find("15.0"), std::string::npos) << text;
  const Json json = scoreboard_json(scores);
  EXPECT_EQ(json[0].at("figure"), "ttft_mean_s");
  EXPECT_TRUE(json[0].at("group").is_null());
  EXPECT_NEAR(json[0].at("mean_abs_error").get<double>(), 0.15, 1e-12);
}

}  // namespace
}  // namespace kvtwin::test
