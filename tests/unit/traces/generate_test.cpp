#include "traces/generate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "tests/trace_files.hpp"
#include "traces/info.hpp"

namespace kvtwin {
namespace {

bool equal(const TraceRequest& a, const TraceRequest& b) {
  return a.arrival == b.arrival && a.input == b.input && a.output == b.output && a.blocks == b.blocks &&
         a.session == b.session && a.turn == b.turn && a.is_hint == b.is_hint;
}

TEST(ChatGenerator, MakesTheBundledTrace) {
  ChatGenerator generator{ChatConfig{}};
  TraceReader bundled(test::bundled_trace());
  TraceRequest made, stored;
  while (bundled.next(stored)) {
    ASSERT_TRUE(generator.next(made));
    ASSERT_TRUE(equal(made, stored)) << "line " << bundled.line();
  }
  EXPECT_FALSE(generator.next(made));
  EXPECT_FALSE(generator.next(made));
}

TEST(ChatGenerator, IsAProperTrace) {
  ChatConfig config;
  config.seed = 9;
  config.timestamp_step = 1;
  ChatGenerator generator(config);
  TraceRequest r;
  std::map<std::uint64_t, TraceRequest> last;                            // last request of each session
  std::map<std::uint64_t, std::pair<std::uint64_t, std::size_t>> owner;  // block to session and position
  TimeNs time = 0;
  while (generator.next(r)) {
    EXPECT_GE(r.arrival, time);
    time = r.arrival;
    EXPECT_LT(r.arrival, config.duration);
    ASSERT_EQ(r.blocks.size(), (r.input + 511) / 512);
    EXPECT_GE(r.input, 890U);
    EXPECT_LE(r.input, 126'000U);
    EXPECT_GE(r.output, 1U);
    EXPECT_LE(r.output, 2'000U);
    EXPECT_EQ(r.blocks.front(), 0U) << "the system prompt is everyone's";
    for (std::size_t i = 1; i < r.blocks.size(); ++i) {
      const auto [entry, fresh] = owner.emplace(r.blocks[i], std::pair(r.session, i));
      ASSERT_EQ(entry->second, std::pair(r.session, i)) << "a block belongs to one place of one session";
    }
    TraceRequest& before = last[r.session];
    EXPECT_EQ(r.turn, before.turn + 1);
    if (before.turn > 0) {
      EXPECT_GT(r.arrival, before.arrival);
      if (before.input % 512 != 0 && r.blocks.size() >= before.blocks.size()) {
        EXPECT_NE(r.blocks[before.blocks.size() - 1], before.blocks.back()) << "a partial block is never kept";
      }
    }
    before = r;
  }
  EXPECT_GT(last.size(), 5'000U);
}

TEST(ChatGenerator, EndsWhereItIsTold) {
  const auto count = [](std::uint64_t requests, TimeNs duration) {
    ChatConfig config;
    config.requests = requests;
    config.duration = duration;
    ChatGenerator generator(config);
    TraceRequest r;
    std::uint64_t n = 0;
    while (n < 30'000 && generator.next(r)) ++n;
    return n;
  };
  EXPECT_EQ(count(0, 0), 30'000U) << "without limits it goes on";
  EXPECT_EQ(count(1, 0), 1U);
  EXPECT_EQ(count(20'000, 0), 20'000U);
  EXPECT_EQ(count(100, 3'600 * kNsPerSecond), 100U);
  EXPECT_EQ(count(0, 1), 0U);
  EXPECT_NEAR(static_cast<double>(count(0, 600 * kNsPerSecond)), 1'600.0, 400.0);
}

TEST(ChatGenerator, HoldsLiveSessionsOnly) {
  ChatConfig config;
  config.requests = 100'000;
  config.duration = 0;
  ChatGenerator generator(config);
  TraceRequest r;
  std::size_t most = 0;
  while (generator.next(r)) most = std::max(most, generator.live_sessions());
  EXPECT_GT(most, 200U);
  EXPECT_LT(most, 600U);
}

TEST(ChatGenerator, ScalesItsRate) {
  const auto info = [](double rate, std::uint64_t seed) {
    ChatConfig config;
    config.seed = seed;
    config.sessions_per_second = rate;
    ChatGenerator generator(config);
    return trace_info(generator);
  };
  const TraceInfo one = info(2.08, 5), five = info(10.4, 5);
  EXPECT_NEAR(static_cast<double>(five.requests) / static_cast<double>(one.requests), 5.0, 0.3);
  EXPECT_NEAR(five.ideal_block_hit_ratio, one.ideal_block_hit_ratio, 0.03);
  EXPECT_NE(info(2.08, 6).blocks, one.blocks);
}

TEST(ChatGenerator, LooksLikeTheMeasuredHour) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    ChatConfig config;
    config.seed = seed;
    ChatGenerator generator(config);
    const TraceInfo info = trace_info(generator);
    EXPECT_NEAR(static_cast<double>(info.requests), 12'031.0, 600.0);
    EXPECT_NEAR(static_cast<double>(info.blocks), 288'500.0, 20'000.0);
    EXPECT_NEAR(static_cast<double>(info.unique_blocks), 182'790.0, 13'000.0);
    EXPECT_NEAR(info.ideal_block_hit_ratio, 0.3664, 0.02);
    EXPECT_NEAR(info.input.mean, 12'035.0, 700.0);
    EXPECT_NEAR(info.output.mean, 343.0, 25.0);
    EXPECT_NEAR(static_cast<double>(info.input.p50), 6'909.0, 500.0);
    EXPECT_NEAR(static_cast<double>(info.input.p90), 27'367.0, 2'500.0);
    EXPECT_NEAR(static_cast<double>(info.requests) / static_cast<double>(info.sessions), 1.63, 0.06);
  }
}

TEST(ChatGenerator, RefusesFiguresOutOfRange) {
  const auto make = [](auto change) {
    ChatConfig config;
    change(config);
    return ChatGenerator(config);
  };
  EXPECT_THROW(make([](ChatConfig& c) { c.sessions_per_second = 0.0; }), TraceError);
  EXPECT_THROW(make([](ChatConfig& c) { c.sessions_per_second = std::numeric_limits<double>::quiet_NaN(); }),
               TraceError);
  EXPECT_THROW(make([](ChatConfig& c) { c.timestamp_step = 0; }), TraceError);
  EXPECT_THROW(make([](ChatConfig& c) { c.duration = -1; }), TraceError);
}

}  // namespace
}  // namespace kvtwin
