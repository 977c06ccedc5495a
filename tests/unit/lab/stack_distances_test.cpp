// All sizes at once against a replay of each size, and the bounds of memory and of the sampling error.
#include "lab/watch/stack_distances.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <span>
#include <vector>

#include "tests/trace_files.hpp"
#include "tests/unit/lab/hit_rates.hpp"
#include "traces/trace.hpp"

namespace kvtwin {
namespace {

// Replays a trace, and counts the look-ups by distance.
struct Counted {
  std::map<std::uint64_t, std::uint64_t> at;
  std::uint64_t looked_up = 0, sampled = 0, requests = 0;

  std::uint64_t within(std::uint64_t size) const {
    std::uint64_t hits = 0;
    for (const auto& [distance, count] : at) hits += distance != StackDistances::kNew && distance <= size ? count : 0;
    return hits;
  }
};

Counted count(TraceSource& trace, StackDistances& stack) {
  TraceInputOptions options;
  options.page_tokens = trace.block_tokens();
  options.last_page = LastPage::partial;
  TraceInputSource source(trace, options);
  Counted counted;
  std::vector<std::uint64_t> keys, distances;
  for (Input input; source.next(input);) {
    const auto* const arrival = std::get_if<Arrival>(&input.what);
    if (arrival == nullptr) continue;
    keys.clear();
    for (const PageKey& key : arrival->keys) keys.push_back(key.words[0]);
    stack.visit(keys, distances);
    ++counted.requests;
    counted.looked_up += keys.size();
    for (const std::uint64_t distance : distances) {
      if (distance == StackDistances::kNotSampled) continue;
      ++counted.sampled;
      ++counted.at[distance];
    }
  }
  return counted;
}

void expect_equal_to_replays(const std::string& path, std::size_t max_blocks, const std::vector<Pages>& capacities) {
  TraceReader reader(path);
  StackDistances stack(max_blocks);
  const Counted counted = count(reader, stack);
  for (const HitRate& one : test::hit_rates(path, capacities)) {
    EXPECT_EQ(counted.looked_up, one.lookup_blocks);
    EXPECT_EQ(counted.within(one.capacity_blocks), one.hit_blocks) << one.capacity_blocks << " blocks of " << path;
  }
  EXPECT_LE(stack.memory_bytes(), StackDistances::kBytesPerBlock * max_blocks + StackDistances::kFixedBytes);
}

TEST(StackDistances, EqualAReplayOfEachSize) {
  expect_equal_to_replays(test::bundled_trace(), 1 << 20, {1, 2, 3, 7, 50, 100, 333, 1000, 4000, 10'000, 1'000'000});
  expect_equal_to_replays(test::fixture("vllm/kv_events.jsonl"), 1 << 20, {1, 3, 10, 50, 99, 100, 101, 300, 5000});
}

TEST(StackDistances, ForgottenBlocksLeaveSmallerSizesExact) {
  expect_equal_to_replays(test::bundled_trace(), 1000, {1, 20, 500, 999, 1000});
  expect_equal_to_replays(test::fixture("vllm/kv_events.jsonl"), 3, {1, 2, 3});
}

TEST(StackDistances, ARequestLongerThanAllSizesKeepsItsBegin) {
  StackDistances stack(4);
  std::vector<std::uint64_t> distances, keys(10);
  std::iota(keys.begin(), keys.end(), 100);
  stack.visit(keys, distances);
  EXPECT_EQ(distances, std::vector<std::uint64_t>(10, StackDistances::kNew));
  stack.visit(keys, distances);
  EXPECT_EQ(distances, (std::vector<std::uint64_t>{1, 2, 3, 4, 0, 0, 0, 0, 0, 0}));
  stack.visit(std::vector<std::uint64_t>{}, distances);
  EXPECT_TRUE(distances.empty());
  EXPECT_EQ(stack.blocks(), 4U);
}

TEST(StackDistances, TheSameKeyTwiceInARequestIsOneBlock) {
  StackDistances stack(8);
  std::vector<std::uint64_t> distances;
  const std::vector<std::uint64_t> keys{5, 5, 5};
  for (int i = 0; i < 10'000; ++i) stack.visit(keys, distances);
  EXPECT_EQ(stack.blocks(), 1U);
  EXPECT_EQ(distances, (std::vector<std::uint64_t>{1, 1, 1}));
}

TEST(StackDistances, MemoryIsBoundedWhateverComes) {
  const std::size_t max_blocks = 50'000;
  StackDistances stack(max_blocks);
  std::vector<std::uint64_t> keys(300), distances;
  std::uint64_t next = 1;
  for (int request = 0; request < 3000; ++request) {
    for (std::uint64_t& key : keys) key = next++;
    stack.visit(keys, distances);
    ASSERT_LE(stack.memory_bytes(), StackDistances::kBytesPerBlock * max_blocks + StackDistances::kFixedBytes);
  }
  EXPECT_EQ(stack.blocks(), max_blocks);
  EXPECT_EQ(stack.forgotten(), next - 1 - max_blocks);
}

TEST(StackDistances, OneInEightIsNearAllOfThem) {
  TraceReader all_of(test::bundled_trace()), some_of(test::bundled_trace());
  StackDistances all(1 << 20), some(1 << 20, 8);
  const Counted exact = count(all_of, all), sampled = count(some_of, some);
  EXPECT_EQ(sampled.looked_up, exact.looked_up);
  EXPECT_LT(some.blocks(), all.blocks() / 6);
  const double expected = static_cast<double>(sampled.looked_up) / 8;
  for (const std::uint64_t size : {1000U, 10'000U, 100'000U}) {
    const double right = static_cast<double>(exact.within(size)) / static_cast<double>(exact.looked_up);
    // Blocks of a system prompt are looked up more often than others: those that are too many or few in the sample hit.
    const double hits = static_cast<double>(sampled.within(size)) + expected - static_cast<double>(sampled.sampled);
    EXPECT_NEAR(hits / expected, right, 0.03) << size;
  }
}

}  // namespace
}  // namespace kvtwin
