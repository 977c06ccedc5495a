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

TEST(GroupsGenerator, RefusesWhatMakesNoSense) {
  const auto refused = [](auto change) {
    GroupsConfig config;
    change(config);
    EXPECT_THROW(GroupsGenerator{config}, TraceError);
  };
  refused([](GroupsConfig& c) { c.groups = 0; });
  refused([](GroupsConfig& c) { c.prompts_per_group = 0; });
  refused([](GroupsConfig& c) { c.groups = c.prompts_per_group = 1'000'000'000'000; });
  refused([](GroupsConfig& c) { c.question_tokens = 0; });
  refused([](GroupsConfig& c) { c.prefix_tokens = kMaxTraceTokens; });
  refused([](GroupsConfig& c) { c.output_tokens = 0; });
  refused([](GroupsConfig& c) { c.requests_per_second = 0; });
  GroupsConfig least;
  least.groups = least.prompts_per_group = least.question_tokens = 1;
  least.prefix_tokens = 0;
  EXPECT_EQ(all_of(least).size(), 1U);
}

}  // namespace
}  // namespace kvtwin
