// The window in which a run is warm, of series whose start and trend are known.
#include "lab/report/warm_window.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tests/splitmix.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kRequests = 6400;

// One request a second. `hit`, `wait_s`: means at a time; each request is up to `noise` of them off.
std::vector<WarmSample> run(const std::function<double(double)>& hit, const std::function<double(double)>& wait_s,
                            double noise = 0.3) {
  test::Splitmix random(1);
  const auto around = [&](double mean) {
    return mean * (1 + noise * (2 * static_cast<double>(random.below(1'000'001)) / 1e6 - 1));
  };
  std::vector<WarmSample> samples;
  for (std::size_t i = 0; i < kRequests; ++i) {
    const auto second = static_cast<double>(i);
    samples.push_back({static_cast<TimeNs>(i) * kNsPerSecond, static_cast<TimeNs>(around(wait_s(second)) * 1e9), 1000,
                       static_cast<Tokens>(1000 * std::min(1.0, around(hit(second))))});
  }
  return samples;
}

std::function<double(double)> always(double value) {
  return [=](double) { return value; };
}

TEST(WarmWindow, BeginsWhereACacheHasFilled) {
  const WarmWindow window = warm_window(run([](double s) { return 0.6 * (1 - std::exp(-s / 300)); }, always(0.2)), 0);
  EXPECT_EQ(window.not_flat, "");
  EXPECT_GE(window.from, 800 * kNsPerSecond);  // 93 % of the way
  EXPECT_LE(window.from, 2400 * kNsPerSecond);
  EXPECT_EQ(window.to, (kRequests - 1) * kNsPerSecond);
}

TEST(WarmWindow, BeginsWhereAQueueIsGone) {
  const WarmWindow window = warm_window(run(always(0.5), [](double s) { return s < 1500 ? 20 - s / 75 : 0.2; }), 0);
  EXPECT_EQ(window.not_flat, "");
  EXPECT_GE(window.from, 1300 * kNsPerSecond);
  EXPECT_LE(window.from, 2000 * kNsPerSecond);
}

TEST(WarmWindow, IsNearlyTheWholeRunIfNothingChanges) {
  const WarmWindow window = warm_window(run(always(0.5), always(0.2)), 0);
  EXPECT_EQ(window.not_flat, "");
  EXPECT_LE(window.from, 3200 * kNsPerSecond);
}

TEST(WarmWindow, SaysWhatStillChanges) {
  EXPECT_EQ(warm_window(run(always(0.5), [](double s) { return s / 100; }), 0).not_flat.substr(0, 18),
            "the wait goes from");
  EXPECT_EQ(warm_window(run([](double s) { return 0.1 + s / 10'000; }, always(0.2)), 0).not_flat.substr(0, 23),
            "the hit ratio goes from");
}

TEST(WarmWindow, SaysThatWaitsGrowAlsoWhereAnotherReasonComesFirst) {
  const WarmWindow window = warm_window(run(always(0.5), [](double s) { return 1 + s / 5000; }), 9000 * kNsPerSecond);
  EXPECT_NE(window.not_flat.find("9000 s are needed"), std::string::npos) << window.not_flat;
  EXPECT_EQ(window.growth.substr(0, 18), "the wait goes from");
  EXPECT_FALSE(window.overloaded);
}

TEST(WarmWindow, NeedsItsLength) {
  const std::vector<WarmSample> samples = run(always(0.5), always(0.2));
  EXPECT_EQ(warm_window(samples, 3000 * kNsPerSecond).not_flat, "");
  const std::string why = warm_window(samples, 9000 * kNsPerSecond).not_flat;
  EXPECT_NE(why.find("and 9000 s are needed"), std::string::npos) << why;
}

TEST(WarmWindow, NeedsRequests) {
  std::vector<WarmSample> samples = run(always(0.5), always(0.2));
  samples.resize(255);
  EXPECT_EQ(warm_window(samples, 0).not_flat, "255 requests are too few to tell");
  EXPECT_EQ(warm_window({}, 0).not_flat, "no request has ended");
}

TEST(WarmWindow, DoesNotHangOnTheOrderOfTheSamples) {
  std::vector<WarmSample> samples = run([](double s) { return 0.6 * (1 - std::exp(-s / 300)); }, always(0.2));
  const WarmWindow window = warm_window(samples, 0);
  std::ranges::reverse(samples);
  const WarmWindow other = warm_window(samples, 0);
  EXPECT_EQ(other.from, window.from);
  EXPECT_EQ(other.to, window.to);
}

}  // namespace
}  // namespace kvtwin
