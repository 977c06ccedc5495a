#include "traces/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace kvtwin {
namespace {

double ulps_off(double got, double want) {
  return std::fabs(got - want) / (std::nextafter(std::fabs(want), INFINITY) - std::fabs(want));
}

TEST(Random, ExpAndLogAreWithinFourUlps) {
  Random random(1);
  double worst_exp = 0.0, worst_log = 0.0;
  for (int i = 0; i < 200'000; ++i) {
    const double x = (random.uniform() * 2.0 - 1.0) * (i % 2 == 0 ? 700.0 : 2.0);
    worst_exp = std::max(worst_exp, ulps_off(exp_of(x), std::exp(x)));
    const double y = i % 2 == 0 ? std::exp(x) : 0.5 + 2.0 * random.uniform();
    worst_log = std::max(worst_log, ulps_off(log_of(y), std::log(y)));
  }
  EXPECT_LE(worst_exp, 4.0);
  EXPECT_LE(worst_log, 4.0);
  EXPECT_EQ(exp_of(0.0), 1.0);
  EXPECT_EQ(log_of(1.0), 0.0);
  EXPECT_EQ(log_of(0x1p-53), std::log(0x1p-53));
}

TEST(Random, IsTheSameEverywhere) {
  Random random(42);
  EXPECT_EQ(random.next(), 0xbdd732262feb6e95ULL) << "SplitMix64's first number from seed 42";
  EXPECT_EQ(random.next(), 0x28efe333b266f103ULL);
  EXPECT_EQ(random.exponential(1.0), 0x1.4e668d23c24a4p-2);
  EXPECT_EQ(random.normal(), -0x1.9ff099ae16628p-4);
  EXPECT_EQ(random.lognormal(1.0, 2.0), 0x1.a0f0d70af5126p+2);
}

TEST(Random, IntegersCoverTheirRange) {
  Random random(3);
  std::vector<int> counts(6, 0);
  for (int i = 0; i < 60'000; ++i) ++counts[random.integer(10, 15) - 10];
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 400);
  EXPECT_EQ(random.integer(7, 7), 7U);
}

// Expects that the share of draws below `x` is within 4.5 standard errors of `share`, the true probability.
template <class Draw>
void expect_share_below(Draw draw, double x, double share) {
  constexpr int kDraws = 200'000;
  int below = 0;
  for (int i = 0; i < kDraws; ++i) below += draw() < x ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(below) / kDraws, share, 4.5 * std::sqrt(share * (1.0 - share) / kDraws)) << x;
}

TEST(Random, DistributionsAreRight) {
  Random random(7);
  for (const double x : {-3.0, -2.0, -1.0, -0.3, 0.0, 0.5, 1.3, 2.5}) {
    const double share = 0.5 * std::erfc(-x / std::sqrt(2.0));
    expect_share_below([&] { return random.normal(); }, x, share);
    expect_share_below([&] { return random.lognormal(1.0, 0.5); }, std::exp(1.0 + 0.5 * x), share);
  }
  for (const double x : {0.01, 0.1, 1.0, 3.0, 6.0}) {
    expect_share_below([&] { return random.exponential(2.0); }, 2.0 * x, 1.0 - std::exp(-x));
  }
}

TEST(Random, IntegersFromBitsCoverTheirRangeEvenly) {
  EXPECT_EQ(integer_from(0, 5), 0U);
  EXPECT_EQ(integer_from(~std::uint64_t{0}, 5), 5U);
  EXPECT_EQ(integer_from(~std::uint64_t{0}, 0), 0U);
  EXPECT_EQ(integer_from(12345, ~std::uint64_t{0}), 12345U);
  EXPECT_EQ(integer_from(std::uint64_t{1} << 63, 1), 1U);
  EXPECT_EQ(integer_from((std::uint64_t{1} << 63) - 1, 1), 0U);
}

}  // namespace
}  // namespace kvtwin
