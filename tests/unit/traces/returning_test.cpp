#include "traces/returning.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

namespace kvtwin {
namespace {

std::vector<TraceRequest> all_of(const ReturningConfig& config) {
  ReturningGenerator generator(config);
  std::vector<TraceRequest> requests;
  TraceRequest request;
  while (generator.next(request)) requests.push_back(request);
  EXPECT_FALSE(generator.next(request));
  return requests;
}

TEST(ReturningGenerator, ContextsComeBackWithNewQuestions) {
  ReturningConfig config;
  config.contexts = 10;
  config.requests = 2'000;
  config.prompt_tokens = 1'000;
  config.question_tokens = 100;
  config.output_tokens = 7;
  config.requests_per_second = 4;
  const std::vector<TraceRequest> requests = all_of(config);
  ASSERT_EQ(requests.size(), 2'000U);
  std::map<std::uint64_t, std::vector<std::uint64_t>> heads;
  std::map<std::uint64_t, std::uint64_t> visits;
  std::set<std::uint64_t> questions;
  TimeNs time = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const TraceRequest& r = requests[i];
    EXPECT_GE(r.arrival, time);
    time = r.arrival;
    EXPECT_EQ(r.input, 1'000U);
    EXPECT_EQ(r.output, 7U);
    ASSERT_EQ(r.blocks.size(), 16U);  // 14 full blocks are in the 900 tokens of the context
    if (i < 10) {
      EXPECT_EQ(r.session, i + 1) << "each is visited once first";
    }
    EXPECT_EQ(r.turn, ++visits[r.session]);
    const std::vector<std::uint64_t> head(r.blocks.begin(), r.blocks.begin() + 14);
    EXPECT_EQ(heads.emplace(r.session, head).first->second, head);
    for (std::size_t block = 14; block < 16; ++block) EXPECT_TRUE(questions.insert(r.blocks[block]).second);
  }
  std::set<std::uint64_t> distinct;
  for (const auto& [session, head] : heads) {
    distinct.insert(head.begin(), head.end());
    EXPECT_NEAR(static_cast<double>(visits[session]), 200, 60);
  }
  EXPECT_EQ(distinct.size(), 140U) << "contexts share nothing";
  for (const std::uint64_t block : questions) EXPECT_FALSE(distinct.contains(block));
  EXPECT_NEAR(static_cast<double>(time) / 1e9, 500, 50);
}

TEST(ReturningGenerator, RepeatsBySeed) {
  ReturningConfig config;
  const std::vector<TraceRequest> one = all_of(config), two = all_of(config);
  config.seed = 2;
  const std::vector<TraceRequest> other = all_of(config);
  ASSERT_EQ(one.size(), 256U);
  bool differs = false;
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].arrival, two[i].arrival);
    EXPECT_EQ(one[i].blocks, two[i].blocks);
    differs = differs || one[i].session != other[i].session;
  }
  EXPECT_TRUE(differs);
}

TEST(ReturningGenerator, RequestsArriveTogether) {
  ReturningConfig config;
  config.requests = 4'002;
  config.requests_per_second = 8;
  config.at_once = 4;
  const std::vector<TraceRequest> requests = all_of(config);
  for (std::size_t i = 1; i < requests.size(); ++i) {
    EXPECT_EQ(requests[i].arrival == requests[i - 1].arrival, i % 4 != 0) << i;
  }
  EXPECT_NEAR(static_cast<double>(requests.back().arrival) / 1e9, 500, 50) << "the rate is that of requests";
}

TEST(ReturningGenerator, RefusesWhatMakesNoSense) {
  const auto refused = [](auto change) {
    ReturningConfig config;
    change(config);
    EXPECT_THROW(ReturningGenerator{config}, TraceError);
  };
  refused([](ReturningConfig& c) { c.contexts = 0; });
  refused([](ReturningConfig& c) { c.contexts = 10'000'001; });
  refused([](ReturningConfig& c) { c.prompt_tokens = 0; });
  refused([](ReturningConfig& c) { c.question_tokens = c.prompt_tokens; });
  refused([](ReturningConfig& c) { c.at_once = 0; });
  refused([](ReturningConfig& c) { c.output_tokens = 0; });
  refused([](ReturningConfig& c) { c.requests_per_second = 0; });
}

}  // namespace
}  // namespace kvtwin
