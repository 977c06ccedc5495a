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

SessionsConfig users_example() {
  SessionsConfig config = example();
  config.users = 40;
  config.requests = 0;
  config.duration = 3'600 * kNsPerSecond;
  config.turns_least = 30;
  config.turns_most = 60;
  config.think_s = 20;
  config.service_s = 0;
  config.new_tokens = 500;
  return config;
}

TEST(SessionsGenerator, AnAnswerIsPartOfTheNextPrompt) {
  std::map<std::uint64_t, TraceRequest> last;
  std::uint64_t compared = 0;
  for (const TraceRequest& r : all_of(example())) {
    const auto before = last.find(r.session);
    if (before != last.end()) {
      const TraceRequest& b = before->second;
      ASSERT_EQ(b.answer_blocks.size(), (b.input + b.output) / 64 - b.input / 64);
      for (std::size_t i = 0; i < b.answer_blocks.size(); ++i, ++compared) {
        ASSERT_EQ(b.answer_blocks[i], r.blocks[b.input / 64 + i]);
      }
    }
    last[r.session] = r;
  }
  EXPECT_GT(compared, 10'000U);
}

TEST(SessionsGenerator, AUserHasOneConversationAfterAnother) {
  const SessionsConfig config = users_example();
  std::map<std::uint64_t, std::vector<std::uint64_t>> turns;  // of the conversations, by user
  std::map<std::uint64_t, std::uint64_t> last;                // conversation, by user
  double requests = 0;
  for (const TraceRequest& r : all_of(config)) {
    const std::uint64_t user = (r.session - 1) % 40;
    if (last[user] != r.session) {
      EXPECT_TRUE(last[user] == 0 || r.session == last[user] + 40);
      turns[user].push_back(0);
    }
    last[user] = r.session;
    EXPECT_EQ(r.turn, ++turns[user].back());
    EXPECT_EQ(r.think < 0, r.turn == 1) << "a user's think time is not the conversation's";
    ++requests;
  }
  EXPECT_NEAR(requests / 3600, 40 / 20.0, 0.1) << "users / think time";
  ASSERT_EQ(turns.size(), 40U);
  std::uint64_t complete = 0;
  for (const auto& [user, counts] : turns) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      EXPECT_LE(counts[i], 60U);
      if (i == 0 || i + 1 == counts.size()) continue;
      EXPECT_GE(counts[i], 30U);
      ++complete;
    }
  }
  EXPECT_GT(complete, 40U);
}

TEST(SessionsGenerator, UsersStartInTheMiddleOfTheirConversations) {
  SessionsConfig config = users_example();
  config.users = 4000;
  config.duration = 1'800 * kNsPerSecond;
  std::map<std::uint64_t, std::uint64_t> first;  // conversation, by user
  std::map<std::uint64_t, double> left;          // requests of that conversation
  for (const TraceRequest& r : all_of(config)) {
    const std::uint64_t user = (r.session - 1) % config.users;
    if (first.emplace(user, r.session).first->second == r.session) ++left[user];
  }
  double sum = 0;
  for (const auto& [user, count] : left) sum += count;
  // The mean rest of a renewal process, with the current turn: (E[T^2] / E[T] + 1) / 2, for T uniform from 30 to 60.
  const double mean = 45, variance = (31.0 * 31.0 - 1) / 12;
  EXPECT_NEAR(sum / static_cast<double>(left.size()), ((variance + mean * mean) / mean + 1) / 2, 0.8);
}

TEST(SessionsGenerator, AConversationEndsBeforeItExceedsTheContext) {
  SessionsConfig config = users_example();
  config.context_max = 10'000;
  Tokens longest = 0;
  std::map<std::uint64_t, std::uint64_t> turns;
  for (const TraceRequest& r : all_of(config)) {
    EXPECT_LE(r.input + r.output, 10'000U);
    longest = std::max(longest, r.input + r.output);
    ++turns[r.session];
  }
  EXPECT_GT(longest, 9'000U);
  for (const auto& [session, count] : turns) EXPECT_LT(count, 30U);
  config.context_max = 701;
  EXPECT_THROW(SessionsGenerator{config}, FigureError);
  config.context_max = 702;
  for (const TraceRequest& r : all_of(config)) EXPECT_LE(r.input + r.output, 702U);
}

TEST(SessionsGenerator, ByRateTheMiddleOfUniformConversationsIsThere) {
  SessionsConfig config = users_example();
  config.users = 0;
  config.requests_per_second = 2;
  double requests = 0;
  for (const TraceRequest& r : all_of(config)) requests += r.arrival < config.duration ? 1 : 0;
  EXPECT_NEAR(requests / 3600, 2, 0.25);
}

TEST(SessionsGenerator, AUserWhoWaitsForAnswersHasTheSameConversations) {
  SessionsConfig config = users_example();
  config.users = 3;
  std::map<std::uint64_t, std::vector<Tokens>> inputs;
  for (const TraceRequest& r : all_of(config)) inputs[r.session].push_back(r.input);
  SessionsGenerator live(config);
  TraceRequest request;
  for (int i = 0; i < 100; ++i) {  // user 2 is fast, and the others never come
    ASSERT_TRUE(live.user_traffic()->next_of(2, request));
    EXPECT_EQ(request.session % 3, 0U);
    EXPECT_EQ(request.input, inputs[request.session][request.turn - 1]);
    EXPECT_GE(request.think, 0);
  }
}

}  // namespace
}  // namespace kvtwin
