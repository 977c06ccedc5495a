// The search finds what trying every point finds, with few tests.
#include "lab/plan/cheapest_search.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

struct World {
  std::vector<LatticePoint> points;
  std::vector<bool> none_first;
  std::vector<bool> passes;
};

bool at_most(const World& world, std::size_t a, std::size_t b) {
  for (std::size_t axis = 0; axis < world.none_first.size(); ++axis) {
    const auto x = world.points[a].place[axis], y = world.points[b].place[axis];
    if (x > y || (world.none_first[axis] && (x == 0) != (y == 0))) return false;
  }
  return true;
}

// Random sizes and prices; a point passes if it has at least as much as one of a few random points.
World random_world(Splitmix& random) {
  World world;
  const std::size_t axes = 1 + random.next() % 3;
  std::vector<std::uint32_t> sizes;
  std::vector<double> prices;
  for (std::size_t axis = 0; axis < axes; ++axis) {
    sizes.push_back(static_cast<std::uint32_t>(axis == 0 ? 1 + random.next() % 40 : 1 + random.next() % 6));
    prices.push_back(1 + static_cast<double>(random.next() % 50));
    world.none_first.push_back(random.next() % 3 == 0);
  }
  std::size_t count = 1;
  for (const std::uint32_t size : sizes) count *= size;
  for (std::size_t i = 0; i < count; ++i) {
    LatticePoint point;
    std::size_t rest = i;
    for (std::size_t axis = 0; axis < axes; ++axis) {
      point.place.push_back(static_cast<std::uint32_t>(rest % sizes[axis]));
      point.price += prices[axis] * point.place.back();
      rest /= sizes[axis];
    }
    world.points.push_back(std::move(point));
  }
  std::vector<std::size_t> least;
  for (std::size_t i = random.next() % 4; i > 0; --i) least.push_back(random.next() % count);
  for (std::size_t i = 0; i < count; ++i) {
    world.passes.push_back(std::ranges::any_of(least, [&](std::size_t one) { return at_most(world, one, i); }));
  }
  return world;
}

TEST(CheapestSearch, FindsWhatTryingAllFinds) {
  Splitmix random(7);
  std::size_t tests = 0, points = 0;
  for (int round = 0; round < 400; ++round) {
    const World world = random_world(random);
    CheapestSearch search(world.points, world.none_first);
    std::vector<bool> tested(world.points.size());
    while (const auto point = search.next()) {
      ASSERT_FALSE(tested[*point]) << "a point is tested once";
      tested[*point] = true;
      search.put(*point, world.passes[*point] ? TestResult::passes : TestResult::fails);
      ++tests;
    }
    points += world.points.size();
    double cheapest = INFINITY;
    for (std::size_t i = 0; i < world.points.size(); ++i) {
      if (world.passes[i]) cheapest = std::min(cheapest, world.points[i].price);
    }
    const auto best = search.best();
    ASSERT_EQ(best.has_value(), std::isfinite(cheapest)) << "round " << round;
    if (best) {
      EXPECT_EQ(world.points[*best].price, cheapest) << "round " << round;
    }
    EXPECT_TRUE(search.contradictions().empty());
  }
  EXPECT_LT(tests * 6, points) << tests << " tests of " << points << " points";
}

TEST(CheapestSearch, OneAxisIsBisected) {
  std::vector<LatticePoint> points;
  for (std::uint32_t i = 0; i < 1024; ++i) points.push_back({{i}, static_cast<double>(i), static_cast<double>(i + 1)});
  for (const std::uint32_t least : {0U, 1U, 511U, 1000U, 1024U}) {
    CheapestSearch search(points, {false});
    std::size_t tests = 0;
    while (const auto point = search.next()) {
      search.put(*point, *point >= least ? TestResult::passes : TestResult::fails);
      ++tests;
    }
    EXPECT_LE(tests, 11U);
    EXPECT_EQ(search.best().value_or(1024), least);
  }
}

TEST(CheapestSearch, StopsAtThePriceOfOthers) {
  std::vector<LatticePoint> points;
  for (std::uint32_t i = 0; i < 64; ++i) points.push_back({{i}, static_cast<double>(i), static_cast<double>(i + 1)});
  CheapestSearch search(points, {false});
  EXPECT_FALSE(search.next(0).has_value());
  while (const auto point = search.next(10)) {
    EXPECT_LT(*point, 10U);
    search.put(*point, TestResult::fails);
  }
  EXPECT_FALSE(search.best().has_value());
}

TEST(CheapestSearch, AWithdrawnResultGoesOnWithWhatIsLeft) {
  std::vector<LatticePoint> points;
  for (std::uint32_t i = 0; i < 64; ++i) points.push_back({{i}, static_cast<double>(i), static_cast<double>(i + 1)});
  CheapestSearch search(points, {false});
  const auto run = [&](std::uint32_t least) {
    while (const auto point = search.next()) {
      search.put(*point, *point >= least ? TestResult::passes : TestResult::fails);
    }
    return search.best();
  };
  ASSERT_EQ(run(20), 20U);
  search.put(20, TestResult::fails);
  EXPECT_EQ(run(20), 21U);
}

TEST(CheapestSearch, AClearFailureRulesOutOtherKindsOfMachines) {
  std::vector<LatticePoint> points;
  for (std::uint32_t engines = 0; engines < 8; ++engines) {
    for (std::uint32_t host = 0; host < 5; ++host) {
      for (std::uint32_t drives = 0; drives < 5; ++drives) {
        points.push_back({{engines, host, drives}, 100.0 * engines + 3.0 * host + drives, engines + 1.0});
      }
    }
  }
  const auto tests_of = [&](TestResult failure) {
    CheapestSearch search(points, {false, true, true});
    std::size_t tests = 0;
    while (const auto point = search.next()) {
      search.put(*point, points[*point].place[0] >= 5 ? TestResult::passes : failure);
      ++tests;
    }
    EXPECT_EQ(points.at(search.best().value()).place, (std::vector<std::uint32_t>{5, 0, 0}));
    return tests;
  };
  EXPECT_LE(tests_of(TestResult::fails_clearly), 8U);
  EXPECT_LT(tests_of(TestResult::fails_clearly), tests_of(TestResult::fails));
}

TEST(CheapestSearch, FailuresOfOtherReasonsRuleOutLess) {
  std::vector<LatticePoint> points;
  for (std::uint32_t i = 0; i < 64; ++i) points.push_back({{i}, static_cast<double>(i), static_cast<double>(i + 1)});
  // Only the two smallest pass, as if more engines had fewer hits.
  for (const TestResult failure : {TestResult::fails_near, TestResult::fails_alone}) {
    CheapestSearch search(points, {false});
    std::size_t tests = 0;
    while (const auto point = search.next()) {
      search.put(*point, *point < 2 ? TestResult::passes : failure);
      ++tests;
    }
    EXPECT_EQ(search.best(), 0U);
    EXPECT_LE(tests, failure == TestResult::fails_near ? 24U : 64U);
  }
}

TEST(CheapestSearch, AMissByLittleLeavesOtherAmountsOfItsSize) {
  // Amount 3 misses by little although amount 1 passes.
  std::vector<LatticePoint> points;
  for (std::uint32_t engines = 0; engines < 8; ++engines) {
    for (std::uint32_t amount = 0; amount < 4; ++amount) {
      points.push_back({{engines, amount}, 100.0 * engines + amount, static_cast<double>(engines + 1)});
    }
  }
  CheapestSearch search(points, {false, false});
  while (const auto point = search.next()) {
    const LatticePoint& at = search.points()[*point];
    const bool passes = at.place[0] > 4 || (at.place[0] == 4 && at.place[1] == 1);
    search.put(*point, passes             ? TestResult::passes
                       : at.place[0] == 4 ? TestResult::fails_by_little
                                          : TestResult::fails);
  }
  ASSERT_TRUE(search.best().has_value());
  EXPECT_EQ(search.points()[*search.best()].price, 401);
}

TEST(CheapestSearch, OfEqualPricesTheOneThatHasLess) {
  std::vector<LatticePoint> points;
  for (std::uint32_t i = 0; i < 32; ++i) points.push_back({{0, i}, 5, 1});
  CheapestSearch search(points, {false, false});
  std::size_t tests = 0;
  while (const auto point = search.next()) {
    search.put(*point, *point >= 9 ? TestResult::passes : TestResult::fails);
    ++tests;
  }
  EXPECT_EQ(search.best(), 9U);
  EXPECT_LE(tests, 6U);
}

TEST(CheapestSearch, APriceThatTheTestFoundCounts) {
  std::vector<LatticePoint> points{{{0}, 1, 1}, {{1}, 2, 2}, {{2}, 3, 3}};
  CheapestSearch search(points, {false});
  search.put(0, TestResult::passes, 10);
  EXPECT_EQ(search.next(), 1U);
  search.put(1, TestResult::passes);
  EXPECT_EQ(search.best(), 1U);
}

TEST(CheapestSearch, ContradictionsAreFound) {
  CheapestSearch search({{{0}, 1, 1}, {{1}, 2, 2}, {{2}, 3, 3}}, {false});
  search.put(0, TestResult::passes);
  search.put(2, TestResult::fails);
  ASSERT_EQ(search.contradictions().size(), 1U);
  EXPECT_EQ(search.contradictions().front(), (std::pair<std::size_t, std::size_t>(0, 2)));
  CheapestSearch apart({{{0}, 1, 1}, {{1}, 2, 2}}, {true});
  apart.put(0, TestResult::passes);
  apart.put(1, TestResult::fails);
  EXPECT_TRUE(apart.contradictions().empty()) << "without a tier is another machine";
}

}  // namespace
}  // namespace kvtwin::test
