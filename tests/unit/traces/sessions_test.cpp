#include "traces/sessions.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "traces/figure_error.hpp"
#include "traces/info.hpp"

namespace kvtwin {
namespace {

SessionsConfig example() {
  SessionsConfig config;
  config.requests = 20'000;
  config.duration = 0;
  config.requests_per_second = 5;
  config.prompt_tokens = 3'000;
  config.output_tokens = 200;
  config.turns = 4;
  config.think_s = 50;
  config.service_s = 10;
  config.prefix_tokens = 700;
  config.length_spread = 0.7;
  return config;
}

std::vector<TraceRequest> all_of(const SessionsConfig& config) {
  SessionsGenerator generator(config);
  std::vector<TraceRequest> requests;
  TraceRequest request;
  while (generator.next(request)) requests.push_back(request);
  EXPECT_FALSE(generator.next(request));
  return requests;
}

TEST(SessionsGenerator, APromptHoldsAllBeforeIt) {
  const std::vector<TraceRequest> requests = all_of(example());
  ASSERT_EQ(requests.size(), 20'000U);
  std::map<std::uint64_t, const TraceRequest*> last;
  std::map<std::uint64_t, std::uint64_t> owners;  // session of a block after the shared prefix
  TimeNs time = 0;
  for (const TraceRequest& r : requests) {
    EXPECT_GE(r.arrival, time);
    time = r.arrival;
    ASSERT_EQ(r.blocks.size(), (r.input - 1) / SessionsGenerator::kBlockTokens + 1);
    ASSERT_GE(r.blocks.size(), 11U);
    for (std::uint64_t i = 0; i < 10; ++i) EXPECT_EQ(r.blocks[i], i) << "700 tokens are 10 whole blocks";
    for (std::size_t i = 10; i < r.blocks.size(); ++i) {
      EXPECT_EQ(owners.emplace(r.blocks[i], r.session).first->second, r.session) << "nothing else is shared";
    }
    const TraceRequest*& before = last[r.session];
    if (before != nullptr) {
      EXPECT_EQ(r.turn, before->turn + 1);
      EXPECT_GT(r.input, before->input + before->output) << "history, answer and new tokens";
      const auto full = static_cast<std::ptrdiff_t>(before->input / SessionsGenerator::kBlockTokens);
      EXPECT_TRUE(std::equal(before->blocks.begin(), before->blocks.begin() + full, r.blocks.begin()));
      EXPECT_NEAR(static_cast<double>(r.arrival - before->arrival), static_cast<double>(r.think) + 10e9, 2);
    } else {
      EXPECT_EQ(r.turn, 1U);
    }
    before = &r;
  }
}

// A trace without live sessions at time 0 would start at a quarter of the rate, with prompts of first turns only.
TEST(SessionsGenerator, AveragesHoldFromTheFirstSecond) {
  SessionsConfig config = example();
  config.requests = 0;
  config.duration = 20 * kNsPerSecond;
  double requests = 0, input = 0;
  constexpr int kSeeds = 200;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    config.seed = static_cast<std::uint64_t>(seed);
    for (const TraceRequest& r : all_of(config)) {
      EXPECT_LT(r.arrival, config.duration);
      requests += 1;
      input += static_cast<double>(r.input);
    }
  }
  // 20,000 requests of Poisson starts; a session has at most about one request in 20 s. The standard errors are 0.7 %
  // and, with prompts whose coefficient of variation is about 0.9, 0.7 % again.
  EXPECT_NEAR(requests / kSeeds, 100, 4);
  EXPECT_NEAR(input / requests, 3'000, 100);
}

TEST(SessionsGenerator, TraceInfoFindsTheAverages) {
  SessionsConfig config = example();
  config.requests = 60'000;
  for (const bool named : {true, false}) {
    SCOPED_TRACE(named);
    class Source final : public TraceSource {
     public:
      Source(const SessionsConfig& config, bool named) : generator_(config), named_(named) {}
      bool next(TraceRequest& request) override {
        if (!generator_.next(request)) return false;
        if (!named_) request.session = 0;
        return true;
      }
      Tokens block_tokens() const override { return generator_.block_tokens(); }
      double fraction_read() const override { return generator_.fraction_read(); }

     private:
      SessionsGenerator generator_;
      bool named_;
    } source(config, named);
    const TraceAverages found = trace_info(source).averages;
    EXPECT_NEAR(found.requests_per_second, 5, 0.2);
    EXPECT_NEAR(found.prompt_tokens, 3'000, 90);
    EXPECT_NEAR(found.output_tokens, 200, 4);
    EXPECT_NEAR(found.turns, 4, 0.15);
    EXPECT_NEAR(found.prefix_tokens, 640, 1) << "whole blocks";
    EXPECT_NEAR(found.think_s + found.service_s, 60, 3);
    EXPECT_NEAR(found.service_s, 10, 2);
    EXPECT_NEAR(found.think_spread, 1.0, 0.1);
    // 60 tokens after the last whole block of the prefix are equal, so the new tokens look a little more equal.
    EXPECT_NEAR(found.length_spread, 0.65, 0.15);
  }
}

TEST(SessionsGenerator, RepeatsBySeed) {
  SessionsConfig config = example();
  config.requests = 100;
  const auto fingerprint = [&config] {
    std::vector<std::uint64_t> values;
    for (const TraceRequest& r : all_of(config)) {
      values.insert(values.end(), {static_cast<std::uint64_t>(r.arrival), r.input, r.output, r.session});
    }
    return values;
  };
  const auto one = fingerprint();
  EXPECT_EQ(one, fingerprint());
  config.seed = 2;
  EXPECT_NE(one, fingerprint());
}

TEST(SessionsGenerator, EqualLengthsAndTimesWithoutSpread) {
  SessionsConfig config = example();
  config.length_spread = config.think_spread = 0;
  config.prompt_tokens = 3'300;  // 700 + 4 * 500 + 3 * 200
  for (const TraceRequest& r : all_of(config)) {
    EXPECT_EQ(r.output, 200U);
    EXPECT_EQ((r.input - 1'200) % 700, 0U);
    if (r.think != -1) {
      EXPECT_NEAR(static_cast<double>(r.think), 50e9, 1e3);
    }
  }
}

TEST(SessionsGenerator, MemoryIsThatOfTheLiveSessions) {
  SessionsConfig config = example();
  config.requests = 200'000;
  SessionsGenerator generator(config);
  TraceRequest request;
  std::size_t most = 0;
  while (generator.next(request)) most = std::max(most, generator.live_sessions());
  EXPECT_LT(most, 300U) << "225 on average: 3.75 follow-ups per second, each waits 60 s";
}

TEST(SessionsGenerator, RefusesWhatItCannotServe) {
  struct Case {
    std::function<void(SessionsConfig&)> change;
    std::string figure, text;
  };
  const Case cases[] = {
      {[](SessionsConfig& c) { c.requests_per_second = 0; }, "requests_per_second", "0.001"},
      {[](SessionsConfig& c) { c.turns = 0.5; }, "turns", "from 1"},
      {[](SessionsConfig& c) { c.think_s = -1; }, "think_s", "from 0"},
      {[](SessionsConfig& c) { c.think_s = 1e6, c.requests_per_second = 1e6; }, "think_s", "100 million turns"},
      {[](SessionsConfig& c) { c.service_s = 2e6; }, "service_s", "from 0"},
      {[](SessionsConfig& c) { c.output_tokens = 0; }, "output_tokens", "from 1"},
      {[](SessionsConfig& c) { c.prompt_tokens = 0; }, "prompt_tokens", "from 1"},
      {[](SessionsConfig& c) { c.prompt_tokens = 1'303; }, "prompt_tokens", "must be at least 1304"},
      {[](SessionsConfig& c) { c.prefix_tokens = ~Tokens{0}; }, "prompt_tokens", "must be at least more"},
      {[](SessionsConfig& c) { c.length_spread = 3.1; }, "length_spread", "to 3"},
      {[](SessionsConfig& c) { c.think_spread = -0.1; }, "think_spread", "from 0"},
      {[](SessionsConfig& c) { c.duration = -1; }, "duration", "0 (no limit)"},
  };
  for (const Case& one : cases) {
    SessionsConfig config = example();
    one.change(config);
    try {
      SessionsGenerator{config};
      ADD_FAILURE() << one.figure << ": " << one.text;
    } catch (const FigureError& error) {
      EXPECT_EQ(error.figure(), one.figure);
      EXPECT_NE(error.range().find(one.text), std::string::npos) << error.range();
    }
  }
  SessionsConfig least = example();
  least.prompt_tokens = 1'304;
  EXPECT_EQ(all_of(least).size(), 20'000U);
}

TEST(SessionsGenerator, AThinkTimeBelowANanosecondIsNone) {
  SessionsConfig config = example();
  config.requests = 500;
  config.think_s = 5e-324;
  for (const TraceRequest& r : all_of(config)) EXPECT_LE(r.think, 0);
}

TEST(SessionsGenerator, EndsAtTheLastTime) {
  SessionsConfig config = example();
  config.requests_per_second = 1e-3;
  config.turns = 1e6;
  config.prompt_tokens = 900'000'000;
  config.prefix_tokens = 0;
  config.think_s = 0;
  config.service_s = 0;
  config.requests = 50;
  EXPECT_EQ(all_of(config).size(), 50U);
}

}  // namespace
}  // namespace kvtwin
