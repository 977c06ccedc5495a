#include "models/run_choice.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace kvtwin::test {
namespace {

// A run whose requests all have the same slopes.
MeasurableRun run_of(const Slopes& slopes, std::size_t requests, double cost = 1) {
  return {{std::vector<Slopes>(requests, slopes)}, cost};
}

TEST(RunChoice, HasThePriorWithoutARun) {
  const RunChoiceTask task{{0.1, 0.2}, {1, 0.5}, {}, 3};
  const RunChoice choice = choose_runs(task);
  EXPECT_NEAR(choice.before, std::sqrt(0.1 * 0.1 + 0.1 * 0.1), 1e-12);
  EXPECT_TRUE(choice.chosen.empty());
}

// Many equal requests leave the noise that they have in common.
TEST(RunChoice, ManyRequestsDoNotRemoveTheNoiseOfTheirRun) {
  const RunChoiceTask task{{0.2}, {1}, {run_of({1}, 1), run_of({1}, 100), run_of({1}, 10000)}, 1};
  const auto after = [&](std::size_t run) { return deviation_after(task, {run}); };
  const double one = kRequestNoise * kRequestNoise + kRunNoise * kRunNoise, prior = 0.2 * 0.2;
  EXPECT_NEAR(after(0), std::sqrt(1 / (1 / prior + 1 / one)), 1e-12);
  EXPECT_LT(after(1), after(0));
  const double common = kRunNoise * kRunNoise;
  EXPECT_NEAR(after(2), std::sqrt(1 / (1 / prior + 1 / common)), 1e-4);
  // Two runs of 50 requests tell more than one of 100: their common noise is drawn twice.
  const RunChoiceTask halves{{0.2}, {1}, {run_of({1}, 50), run_of({1}, 50), run_of({1}, 100)}, 2};
  EXPECT_LT(deviation_after(halves, {0, 1}), deviation_after(halves, {2}));
}

// The second run is of the other number, although a repeat of the first kind tells more of the first number.
TEST(RunChoice, TakesRunsThatTellDifferentNumbers) {
  const RunChoiceTask task{
      {0.2, 0.2}, {1, 0.9}, {run_of({1, 0}, 50), run_of({1, 0}, 60), run_of({0, 0.5}, 20), run_of({0, 0}, 100)}, 2};
  const RunChoice choice = choose_runs(task);
  ASSERT_EQ(choice.chosen.size(), 2U);
  EXPECT_EQ(choice.chosen[0].run, 0U) << "as good as the next one within 5 %, and first";
  EXPECT_EQ(choice.chosen[1].run, 2U);
  EXPECT_LT(choice.chosen[0].numbers[0], 0.05);
  EXPECT_DOUBLE_EQ(choice.chosen[0].numbers[1], 0.2);
  EXPECT_LT(choice.chosen[1].deviation, choice.chosen[0].deviation);
  EXPECT_DOUBLE_EQ(choice.chosen[1].deviation, deviation_after(task, {0, 2}));
  EXPECT_DOUBLE_EQ(choice.alone[3], choice.before) << "tells nothing";
}

TEST(RunChoice, OfRunsThatTellAsMuchTakesTheCheapest) {
  const RunChoiceTask task{{0.2}, {1}, {run_of({1}, 100, 9), run_of({1}, 90, 2), run_of({1}, 2, 1)}, 1};
  EXPECT_EQ(choose_runs(task).chosen.front().run, 1U);
}

// A run of two numbers tells their sum; a run of one of them tells both apart.
TEST(RunChoice, KnowsNumbersThatOnlyMatterTogether) {
  const RunChoiceTask task{{0.2, 0.2}, {1, -1}, {run_of({1, 1}, 100), run_of({1, 0}, 100)}, 2};
  EXPECT_NEAR(deviation_after(task, {0}), choose_runs(task).before, 1e-9) << "the difference is as unknown as before";
  EXPECT_LT(deviation_after(task, {0, 1}), 0.5 * deviation_after(task, {1}));
}

}  // namespace
}  // namespace kvtwin::test
