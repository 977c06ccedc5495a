#include "traces/groups.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

namespace kvtwin {
namespace {

std::vector<TraceRequest> all_of(const GroupsConfig& config) {
  GroupsGenerator generator(config);
  std::vector<TraceRequest> requests;
  TraceRequest request;
  while (generator.next(request)) requests.push_back(request);
  EXPECT_FALSE(generator.next(request));
  return requests;
}

TEST(GroupsGenerator, EachGroupSharesItsPrefixAndNothingElse) {
  GroupsConfig config;
  config.groups = 20;
  config.prompts_per_group = 30;
  config.prefix_tokens = 100;
  config.question_tokens = 30;
  config.output_tokens = 7;
  config.requests_per_second = 4;
  const std::vector<TraceRequest> requests = all_of(config);
  ASSERT_EQ(requests.size(), 600U);
  std::map<std::vector<std::uint64_t>, int> heads;
  std::set<std::uint64_t> questions;
  TimeNs time = 0;
  std::size_t neighbours = 0;
  std::vector<std::uint64_t> last;
  for (const TraceRequest& r : requests) {
    EXPECT_GE(r.arrival, time);
    time = r.arrival;
    EXPECT_EQ(r.input, 130U);
    EXPECT_EQ(r.output, 7U);
    EXPECT_EQ(r.session, 0U);
    ASSERT_EQ(r.blocks.size(), 9U);  // 6 full blocks of 16 tokens are in the prefix
    const std::vector<std::uint64_t> head(r.blocks.begin(), r.blocks.begin() + 6);
    ++heads[head];
    neighbours += head == last ? 1 : 0;
    last = head;
    for (std::size_t block = 6; block < 9; ++block) EXPECT_TRUE(questions.insert(r.blocks[block]).second);
  }
  EXPECT_EQ(requests.front().arrival, 0);
  EXPECT_EQ(heads.size(), 20U);
  std::set<std::uint64_t> distinct;
  for (const auto& [head, count] : heads) {
    EXPECT_EQ(count, 30);
    distinct.insert(head.begin(), head.end());
  }
  EXPECT_EQ(distinct.size(), 120U) << "groups share nothing";
  for (const std::uint64_t block : questions) EXPECT_FALSE(distinct.contains(block));
  EXPECT_NEAR(static_cast<double>(time) / 1e9, 150, 25);
  EXPECT_LT(neighbours, 60U) << "shuffled, one in 20 follows its own group: 30";
}

TEST(GroupsGenerator, ClientsAskOneAfterTheOther) {
  GroupsConfig config;
  config.groups = 5;
  config.prompts_per_group = 3;
  config.clients = 4;
  const std::vector<TraceRequest> requests = all_of(config);
  ASSERT_EQ(requests.size(), 15U);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(requests[i].arrival, 0);
    EXPECT_EQ(requests[i].think, 0);
    EXPECT_EQ(requests[i].session, i % 4 + 1);
    EXPECT_EQ(requests[i].turn, i / 4 + 1);
  }
}

TEST(GroupsGenerator, RepeatsBySeed) {
  GroupsConfig config;
  const std::vector<TraceRequest> one = all_of(config), same = all_of(config);
  config.seed = 2;
  const std::vector<TraceRequest> other = all_of(config);
  ASSERT_EQ(one.size(), same.size());
  std::size_t equal = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].arrival, same[i].arrival);
    EXPECT_EQ(one[i].blocks, same[i].blocks);
    equal += one[i].blocks == other[i].blocks ? 1 : 0;
  }
  EXPECT_LT(equal, one.size() / 4);
}

TEST(GroupsGenerator, LengthsAreSpreadFromTheRatioToTheLength) {
  GroupsConfig config;
  config.groups = 200;
  config.prompts_per_group = 10;
  config.prefix_tokens = 103;
  config.question_tokens = 41;
  config.output_tokens = 10;
  config.range_ratio = 0.5;
  std::map<std::uint64_t, std::uint64_t> prefix_blocks;  // by the first block
  std::map<Tokens, int> inputs, outputs;
  std::set<std::uint64_t> seen;
  for (const TraceRequest& r : all_of(config)) {
    ++inputs[r.input];
    ++outputs[r.output];
    ASSERT_EQ(r.blocks.size(), (r.input - 1) / 16 + 1);
    std::uint64_t shared = 0;
    while (shared < r.blocks.size() && r.blocks[shared] < 200 * 6) ++shared;
    ASSERT_GE(shared, 51U / 16);
    ASSERT_LE(shared, 103U / 16);
    const auto [first, fresh] = prefix_blocks.try_emplace(r.blocks[0], shared);
    EXPECT_EQ(first->second, shared) << "a group has one length of the prefix";
    for (std::size_t block = shared; block < r.blocks.size(); ++block) {
      EXPECT_TRUE(seen.insert(r.blocks[block]).second) << "a question is unique";
    }
  }
  EXPECT_EQ(prefix_blocks.size(), 200U);
  EXPECT_GE(inputs.begin()->first, 51U + 20);
  EXPECT_LE(inputs.rbegin()->first, 103U + 41);
  EXPECT_GT(inputs.size(), 60U);
  // Both ends are included: [floor(0.5 * 10), 10] has six lengths, and 2,000 requests have each about 333 times.
  ASSERT_EQ(outputs.size(), 6U);
  EXPECT_EQ(outputs.begin()->first, 5U);
  for (const auto& [length, count] : outputs) EXPECT_NEAR(count, 333, 70) << length;
}

TEST(GroupsGenerator, NoLengthIsBelowOneAndNoPrefixStaysNone) {
  GroupsConfig config;
  config.prefix_tokens = 0;
  config.question_tokens = 3;
  config.output_tokens = 1;
  config.range_ratio = 0;
  std::set<Tokens> inputs;
  for (const TraceRequest& r : all_of(config)) {
    inputs.insert(r.input);
    EXPECT_EQ(r.output, 1U);
  }
  EXPECT_EQ(inputs, (std::set<Tokens>{1, 2, 3}));
}

TEST(GroupsGenerator, ARatioChangesNeitherArrivalsNorOrder) {
  GroupsConfig config;
  const std::vector<TraceRequest> equal = all_of(config);
  config.range_ratio = 0.8;
  const std::vector<TraceRequest> spread = all_of(config);
  ASSERT_EQ(equal.size(), spread.size());
  for (std::size_t i = 0; i < equal.size(); ++i) {
    EXPECT_EQ(equal[i].arrival, spread[i].arrival);
    EXPECT_EQ(equal[i].blocks.front(), spread[i].blocks.front()) << "the same group";
  }
}

TEST(GroupsGenerator, SendsThePromptsAgainAfterTheLastOne) {
  GroupsConfig config;
  config.groups = 3;
  config.prompts_per_group = 4;
  config.requests = 30;
  config.range_ratio = 0.5;
  const std::vector<TraceRequest> requests = all_of(config);
  ASSERT_EQ(requests.size(), 30U);
  for (std::size_t i = 12; i < 30; ++i) {
    EXPECT_EQ(requests[i].blocks, requests[i - 12].blocks);
    EXPECT_EQ(requests[i].input, requests[i - 12].input);
    EXPECT_EQ(requests[i].output, requests[i - 12].output);
    EXPECT_GT(requests[i].arrival, requests[i - 1].arrival);
  }
  config.requests = 5;
  EXPECT_EQ(all_of(config).size(), 5U);
}

TEST(GroupsGenerator, StagesHaveRatesOfTheirOwn) {
  GroupsConfig config;
  config.prompts_per_group = 100;
  config.rates = {{2'000, 10}, {2'000, 1'000}};
  config.requests_per_second = 100;
  const std::vector<TraceRequest> requests = all_of(config);
  ASSERT_EQ(requests.size(), 6'400U);
  const auto seconds = [&](std::size_t from, std::size_t to) {
    return static_cast<double>(requests[to].arrival - requests[from].arrival) / 1e9;
  };
  EXPECT_NEAR(seconds(0, 1'999), 200, 20);
  EXPECT_NEAR(seconds(1'999, 3'999), 2, 0.2);
  EXPECT_NEAR(seconds(3'999, 6'399), 24, 2.4);
}

TEST(GroupsGenerator, TheLastArrivalsStayWithinTheRangeOfTimes) {
  GroupsConfig config;
  config.groups = config.question_tokens = 1;
  config.prompts_per_group = 10'000'000;
  config.prefix_tokens = 0;
  config.requests_per_second = 1e-3;
  GroupsGenerator generator(config);
  TraceRequest request;
  TimeNs time = 0;
  while (generator.next(request)) {
    ASSERT_GE(request.arrival, time) << "1e10 s on average are more than the range";
    time = request.arrival;
  }
}

TEST(GroupsGenerator, WithoutAQuestionThePromptsOfAGroupAreEqual) {
  GroupsConfig config;
  config.groups = 2;
  config.prompts_per_group = 3;
  config.question_tokens = 0;
  config.prefix_tokens = 64;
  std::set<std::vector<std::uint64_t>> prompts;
  for (const TraceRequest& r : all_of(config)) {
    EXPECT_EQ(r.input, 64U);
    EXPECT_EQ(r.blocks.size(), 4U);
    prompts.insert(r.blocks);
  }
  EXPECT_EQ(prompts.size(), 2U);
  config.prefix_tokens = 70;  // only whole blocks are shared
  std::set<std::uint64_t> last_blocks;
  for (const TraceRequest& r : all_of(config)) {
    ASSERT_EQ(r.blocks.size(), 5U);
    EXPECT_TRUE(last_blocks.insert(r.blocks[4]).second);
    EXPECT_GE(r.blocks[4], 8U);
  }
  config.prefix_tokens = 7;
  config.range_ratio = 0;
  for (const TraceRequest& r : all_of(config)) EXPECT_EQ(r.blocks.size(), 1U);
}

TEST(GroupsGenerator, RefusesWhatMakesNoSense) {
  const auto refused = [](auto change) {
    GroupsConfig config;
    change(config);
    EXPECT_THROW(GroupsGenerator{config}, TraceError);
  };
  refused([](GroupsConfig& c) { c.groups = 0; });
  refused([](GroupsConfig& c) { c.prompts_per_group = 0; });
  refused([](GroupsConfig& c) { c.groups = c.prompts_per_group = 1'000'000'000'000; });
  refused([](GroupsConfig& c) { c.question_tokens = c.prefix_tokens = 0; });
  refused([](GroupsConfig& c) { c.question_tokens = kMaxTraceTokens; });
  refused([](GroupsConfig& c) { c.prefix_tokens = kMaxTraceTokens; });
  refused([](GroupsConfig& c) { c.output_tokens = 0; });
  refused([](GroupsConfig& c) { c.requests_per_second = 0; });
  refused([](GroupsConfig& c) { c.rates = {{1, 0}}; });
  refused([](GroupsConfig& c) { c.range_ratio = -0.1; });
  refused([](GroupsConfig& c) { c.range_ratio = 1.1; });
  GroupsConfig least;
  least.groups = least.prompts_per_group = least.question_tokens = 1;
  least.prefix_tokens = 0;
  EXPECT_EQ(all_of(least).size(), 1U);
}

}  // namespace
}  // namespace kvtwin
