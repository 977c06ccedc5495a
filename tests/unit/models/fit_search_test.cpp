// The search on formulas in place of simulations.
#include "models/fit_search.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

// A figure of `a` seconds per unit of work and `b` seconds, on work 1 .. 40, and of nothing else.
double predicted(const SearchPoint& x, std::size_t i) { return x[0] * static_cast<double>(i + 1) + x[1]; }

SearchTask line(double noise, std::uint64_t seed) {
  SearchTask task;
  task.numbers = {{2, 2, 1e-3, 1e3}, {5, 5, 1e-3, 1e3}, {7, 7, 1e-3, 1e3}};
  Splitmix random(seed);
  for (std::size_t i = 0; i < 40; ++i) {
    const double unit = static_cast<double>(random.below(2001)) / 1000 - 1;
    task.measured.push_back(predicted({0.5, 20}, i) * (1 + noise * unit));
    task.kind.push_back(0);
  }
  task.predict = [](const std::vector<SearchPoint>& points) {
    std::vector<Predictions> all;
    for (const SearchPoint& x : points) {
      Predictions& one = all.emplace_back();
      for (std::size_t i = 0; i < 40; ++i) one.push_back(predicted(x, i));
    }
    return all;
  };
  return task;
}

TEST(FitSearch, FindsNumbersAndNamesTheOneWithoutEffect) {
  const SearchResult found = search_numbers(line(0, 1));
  EXPECT_NEAR(found.numbers[0].value, 0.5, 0.01);
  EXPECT_NEAR(found.numbers[1].value, 20, 0.2);
  EXPECT_EQ(found.numbers[2].identified, Identified::no_effect);
  EXPECT_EQ(found.numbers[2].effect, 0);
  EXPECT_EQ(found.numbers[2].value, 7);
  EXPECT_TRUE(found.complete);
}

TEST(FitSearch, IntervalsHoldTheTruthOfNoisyFigures) {
  int inside = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const SearchResult found = search_numbers(line(0.1, seed));
    EXPECT_NEAR(found.numbers[1].value, 20, 2) << seed;
    inside += found.numbers[0].low <= 0.5 && 0.5 <= found.numbers[0].high ? 1 : 0;
    inside += found.numbers[1].low <= 20 && 20 <= found.numbers[1].high ? 1 : 0;
  }
  EXPECT_GE(inside, 34);  // of 40 intervals of 95 %
}

// All figures of a kind are off by a common factor, which no number of figures makes smaller.
TEST(FitSearch, IntervalsHoldTheTruthOfFiguresWithACommonError) {
  const double common = 0.1;
  std::array<int, 2> inside{};
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const bool told : {false, true}) {
      SearchTask task = line(0.02, seed);
      Splitmix random(seed);
      std::array<double, 2> factors{};
      for (double& factor : factors) {  // a sum of twelve draws is nearly normal
        double sum = -6;
        for (int i = 0; i < 12; ++i) sum += static_cast<double>(random.below(1'000'000)) / 1'000'000;
        factor = std::exp(common * sum);
      }
      for (std::size_t i = 0; i < task.measured.size(); ++i) {
        task.kind[i] = i % 2;
        task.measured[i] *= factors[i % 2];
      }
      task.common_error = told ? common : 0;
      const SearchResult found = search_numbers(task);
      for (const auto& [number, truth] : {std::pair<std::size_t, double>{0, 0.5}, {1, 20}}) {
        const bool holds = found.numbers[number].low <= truth && truth <= found.numbers[number].high;
        inside[told ? 1 : 0] += holds ? 1 : 0;
      }
    }
  }
  EXPECT_GE(inside[1], 35);  // of 40 intervals of 95 %
  EXPECT_LE(inside[0], 25);
}

// A tenth of the figures is ten times as large as predicted: Huber's loss leaves them out.
TEST(FitSearch, OutliersDoNotMoveTheNumbers) {
  SearchTask task = line(0.01, 3);
  for (std::size_t i = 0; i < task.measured.size(); i += 10) task.measured[i] *= 10;
  const SearchResult found = search_numbers(task);
  EXPECT_NEAR(found.numbers[0].value, 0.5, 0.1);
  EXPECT_NEAR(found.numbers[1].value, 20, 2);
}

// Only the product of the two numbers matters: one of them keeps its base, and the other one takes the whole change.
TEST(FitSearch, NumbersThatCannotBeToldApartKeepTheirBase) {
  SearchTask task;
  task.numbers = {{1, 1, 1e-3, 1e3}, {1, 1, 1e-3, 1e3}};
  task.measured.assign(20, 3.0);
  task.kind.assign(20, 0);
  task.predict = [](const std::vector<SearchPoint>& points) {
    std::vector<Predictions> all;
    for (const SearchPoint& x : points) all.emplace_back(20, x[0] * x[1]);
    return all;
  };
  const SearchResult found = search_numbers(task);
  int kept = 0;
  for (const SearchResult::Number& number : found.numbers) {
    kept += number.identified == Identified::uncertain ? 1 : 0;
    if (number.identified != Identified::uncertain) continue;
    EXPECT_GT(number.spread, 2) << "the product is known, and the number is not";
    EXPECT_LT(number.spread_alone, 1.1) << "with the other number known, the figures tell it";
  }
  EXPECT_EQ(kept, 1);
  EXPECT_NEAR(found.numbers[0].value * found.numbers[1].value, 3, 0.05);
}

TEST(FitSearch, StopsAtTheLimitAndAtTheBounds) {
  SearchTask task = line(0, 1);
  task.max_points = 30;
  const SearchResult cut = search_numbers(task);
  EXPECT_FALSE(cut.complete);
  task = line(0, 1);
  task.numbers[1].most = 10;
  const SearchResult bound = search_numbers(task);
  EXPECT_EQ(bound.numbers[1].value, 10);
  EXPECT_TRUE(bound.numbers[1].at_bound);
}

TEST(FitSearch, WithoutFiguresNothingIsIdentified) {
  SearchTask task = line(0, 1);
  task.measured.clear();
  task.kind.clear();
  for (const SearchResult::Number& number : search_numbers(task).numbers) {
    EXPECT_EQ(number.identified, Identified::no_figures);
  }
}

// A second minimum far from the first: figures that are too high at all values between.
TEST(FitSearch, ANumberThatJumpsIsSearchedBeyondItsMinimum) {
  SearchTask task;
  task.numbers = {{3.5, 3.5, 1e-3, 1e3}};
  for (std::size_t i = 0; i < 40; ++i) {
    task.measured.push_back(1 + static_cast<double>(i));
    task.kind.push_back(0);
  }
  // At 0.5, the predictions are exact; at 3, they have a minimum that is off by 20 %.
  task.predict = [](const std::vector<SearchPoint>& points) {
    std::vector<Predictions> all;
    for (const SearchPoint& x : points) {
      Predictions& one = all.emplace_back();
      const double off = x[0] < 0.75 ? std::abs(x[0] - 0.5) : 0.2 + 0.1 * std::abs(x[0] - 3);
      for (std::size_t i = 0; i < 40; ++i)
        one.push_back((1 + static_cast<double>(i)) * (1 + off * (i % 2 == 0 ? 1 : 0.8)));
    }
    return all;
  };
  EXPECT_GT(search_numbers(task).numbers[0].value, 2) << "the minimum near the start";
  task.numbers[0].jumps = true;
  EXPECT_NEAR(search_numbers(task).numbers[0].value, 0.5, 0.05);
}

// Far above 1, a drive is so fast that its rate has no effect. The figures were measured at 0.02.
TEST(FitSearch, ANumberThatJumpsIsFoundFromAStartWithoutAnEffect) {
  SearchTask task;
  task.numbers = {{7, 7, 0.001, 32}};
  const auto figure = [](double rate, std::size_t i) {
    return (1 + static_cast<double>(i)) * (1 + (i % 5 == 0 ? std::max(0.0, 1 / rate - 1) : 0.0));
  };
  for (std::size_t i = 0; i < 40; ++i) task.measured.push_back(figure(0.02, i) * (i % 2 == 0 ? 1.03 : 0.97));
  task.kind.assign(40, 0);
  task.predict = [figure](const std::vector<SearchPoint>& points) {
    std::vector<Predictions> all;
    for (const SearchPoint& x : points) {
      Predictions& one = all.emplace_back();
      for (std::size_t i = 0; i < 40; ++i) one.push_back(figure(x[0], i));
    }
    return all;
  };
  EXPECT_EQ(search_numbers(task).numbers[0].identified, Identified::no_effect);
  task.numbers[0].jumps = true;
  const SearchResult found = search_numbers(task);
  EXPECT_EQ(found.numbers[0].identified, Identified::yes);
  EXPECT_NEAR(found.numbers[0].value, 0.02, 0.002);
}

// The third number moves each figure by a thousandth of its own change.
TEST(FitSearch, ANumberWithALittleEffectIsNotCalledOneWithout) {
  SearchTask task = line(0, 1);
  const auto without = task.predict;
  task.predict = [without](const std::vector<SearchPoint>& points) {
    std::vector<Predictions> all = without(points);
    for (std::size_t i = 0; i < points.size(); ++i) {
      for (double& figure : all[i]) figure *= 1 + 1e-3 * (points[i][2] / 7 - 1);
    }
    return all;
  };
  const SearchResult found = search_numbers(task);
  EXPECT_EQ(found.numbers[2].identified, Identified::no_effect);
  EXPECT_NEAR(found.numbers[2].effect, 1e-3 * (1.3 - 1 / 1.3), 3e-4);
}

// Number 1 is a time that a queue hides while the rate, number 0, is far too low. The search moves the rate, and then
// sees the time.
TEST(FitSearch, ATimeThatAQueueHidesIsFoundOnceTheRateIsRight) {
  SearchTask task;
  task.numbers = {{1, 1, 0.01, 1e4}, {1, 1, 0.01, 1e4}};
  const auto predicted = [](const SearchPoint& at) {
    Predictions figures;
    for (int i = 1; i <= 12; ++i) {
      const double work = 20.0 * i / at[0], queue = work > 10 ? 4 * work * work : 0;
      figures.push_back(queue + work + at[1] * (1 + i % 3));
    }
    return figures;
  };
  task.predict = [&](const std::vector<SearchPoint>& points) {
    std::vector<Predictions> all;
    for (const SearchPoint& point : points) all.push_back(predicted(point));
    return all;
  };
  task.measured = predicted({60, 3});
  task.kind.assign(task.measured.size(), 0);
  const SearchResult found = search_numbers(task);
  ASSERT_EQ(found.numbers[1].identified, Identified::yes) << found.numbers[0].value << " " << found.numbers[1].value
                                                          << " " << found.points << " " << found.numbers[1].spread;
  EXPECT_NEAR(found.numbers[0].value, 60, 6);
  EXPECT_NEAR(found.numbers[1].value, 3, 0.3);
}

}  // namespace
}  // namespace kvtwin::test
