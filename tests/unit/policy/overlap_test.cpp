// State points where prompts have been seen to part: the choice of points against an exhaustive search, and what the
// policy remembers.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "policy/config.hpp"
#include "policy/state_points.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin {
namespace {

std::unique_ptr<StatePoints> overlap(const std::string& parameters, std::uint32_t page = 16) {
  EngineConfig config;
  config.shape = {1, 1, 1, 16, page};
  config.state_points = "overlap(chunk=64, " + parameters + ")";
  return make_state_points(config);
}

using Points = std::vector<Tokens>;
using Counts = std::map<Tokens, std::uint64_t>;

// Tokens that prompts save which part at these lengths.
std::uint64_t saved(const Counts& parts, const Points& points, Tokens from) {
  std::uint64_t sum = 0;
  for (const auto& [tokens, count] : parts) {
    Tokens deepest = from;
    for (const Tokens point : points) {
      if (point <= tokens) deepest = point;
    }
    sum += count * (deepest - from);
  }
  return sum;
}

TEST(OverlapPoints, SaveAsMuchAsAnyChoice) {
  std::uint64_t points_chosen = 0;
  for (std::uint64_t seed = 0; seed < 800; ++seed) {
    test::Splitmix random(seed);
    const std::uint64_t states = 1 + random.below(4);
    const Tokens apart = 1 + random.below(300);
    const std::uint64_t eighths = random.below(2);  // the least share
    const auto policy = overlap("states=" + std::to_string(states) + ", apart=" + std::to_string(apart) +
                                ", share=" + (eighths == 0 ? "0" : "0.125"));
    Counts learned;
    for (std::uint64_t i = random.below(60); i > 0; --i) {
      const Tokens present = 16 * (1 + random.below(random.below(2) == 0 ? 12 : 100));
      policy->learn(present);
      ++learned[present];
    }
    const Tokens from = 64 * random.below(8), to = from + random.below(2000);
    const Tokens branch = random.below(3) == 0 ? 0 : 64 * random.below(24);
    Counts parts;
    std::uint64_t all = 0;
    for (const auto& [tokens, count] : learned) all += count;
    for (const auto& [tokens, count] : learned) {
      if (count >= 2 && 8 * count >= eighths * all) parts[tokens / 64 * 64] += count;
    }
    if (branch > 0) parts[branch] += all + 1;
    std::erase_if(parts, [&](const auto& one) { return one.first < from + apart || one.first + apart > to; });
    std::vector<Tokens> lengths;
    for (const auto& [tokens, count] : parts) lengths.push_back(tokens);
    ASSERT_LE(lengths.size(), 20U);
    std::uint64_t most = 0;
    for (std::uint64_t chosen = 0; chosen < std::uint64_t{1} << lengths.size(); ++chosen) {
      Points points;
      bool close = false;
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        if ((chosen >> i & 1U) == 0) continue;
        close = close || (!points.empty() && points.back() + apart > lengths[i]);
        points.push_back(lengths[i]);
      }
      if (points.size() + 1 <= states && !close) most = std::max(most, saved(parts, points, from));
    }
    const Points points = policy->pass_ends(from, to, branch);
    ASSERT_EQ(saved(parts, points, from), most) << "seed " << seed;
    ASSERT_LT(points.size(), states);
    ASSERT_TRUE(std::ranges::is_sorted(points));
    for (std::size_t i = 0; i < points.size(); ++i) {
      ASSERT_EQ(points[i] % 64, 0U);
      ASSERT_GE(points[i], (i == 0 ? from : points[i - 1]) + apart);
    }
    points_chosen += points.size();
  }
  EXPECT_GT(points_chosen, 300U);
}

TEST(OverlapPoints, AreThoseOfALengthThatManyPromptsShare) {
  const auto policy = overlap("states=2");
  EXPECT_EQ(policy->pass_ends(0, 5000, 0), Points{});
  policy->learn(2048);
  EXPECT_EQ(policy->pass_ends(0, 5000, 0), Points{}) << "once is chance";
  policy->learn(2048);
  policy->learn(0);
  EXPECT_EQ(policy->pass_ends(0, 5000, 0), Points{2048});
  EXPECT_EQ(policy->pass_ends(2048, 5000, 0), Points{});
  EXPECT_EQ(policy->pass_ends(0, 2100, 0), Points{}) << "the end of the prompt is as good";
  EXPECT_EQ(policy->pass_ends(0, 5000, 1024), Points{1024}) << "a branch counts as all others together";
  EXPECT_EQ(overlap("states=1")->pass_ends(0, 5000, 1024), Points{});
}

TEST(OverlapPoints, ForgetOldTrafficAndRareLengths) {
  const auto policy = overlap("states=2");
  for (int i = 0; i < 400; ++i) policy->learn(1024);
  for (Tokens i = 0; i < 5000; ++i) policy->learn(100'000 + 64 * i);
  EXPECT_EQ(policy->pass_ends(0, 50'000, 0), Points{}) << "the count has been halved to nothing";
  for (int i = 0; i < 300; ++i) policy->learn(3072);
  for (Tokens i = 0; i < 100; ++i) policy->learn(200'000 + 64 * i);
  EXPECT_EQ(policy->pass_ends(0, 50'000, 0), Points{3072}) << "64 lengths are known, and the rarest ones make room";
  for (int i = 0; i < 500; ++i) {
    policy->learn(4096);
    if (i % 100 == 0) policy->learn(2048);
  }
  EXPECT_EQ(policy->pass_ends(0, 3000, 0), Points{}) << "one in 100 is chance";
}

TEST(OverlapPoints, TheEndOfAPassHasTheRunningState) {
  const auto policy = overlap("states=2");
  EXPECT_EQ(policy->after_prefill(16, 640, 0), 640U);
  EXPECT_EQ(policy->after_prefill(16, 650, 0), 16 + 576U) << "as extra_buffer";
  EXPECT_EQ(policy->after_prefill(64, 640, 128), 128U);
  EXPECT_EQ(policy->tracking_slots(), 2U);
  EXPECT_TRUE(policy->after_decode(256));
}

}  // namespace
}  // namespace kvtwin
