#include "impl/disk/block_threads.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <map>

namespace kvtwin::test {
namespace {

constexpr std::uint64_t kOperations = 100;

void submit_all(BlockThreads& threads) {
  for (std::uint64_t i = 0; i < kOperations; ++i) threads.submit({.offset = 1000 + i, .tag = i});
}

std::map<std::uint64_t, std::int64_t> results(BlockThreads& threads) {
  std::map<std::uint64_t, std::int64_t> by_tag;
  std::vector<BlockEnd> ends;
  while (by_tag.size() < kOperations) {
    ends.clear();
    threads.wait(ends);
    if (ends.empty()) break;  // empty: no operation is in progress
    for (const BlockEnd& end : ends) EXPECT_TRUE(by_tag.emplace(end.tag, end.result).second) << end.tag;
  }
  return by_tag;
}

TEST(BlockThreads, HandEachEndBackOnce) {
  BlockThreads threads([](const BlockOperation& operation) { return static_cast<std::int64_t>(operation.offset); });
  for (int i = 0; i < 3; ++i) threads.add();
  submit_all(threads);
  const auto ended = results(threads);
  EXPECT_EQ(ended.size(), kOperations);
  for (const auto& [tag, result] : ended) EXPECT_EQ(result, static_cast<std::int64_t>(1000 + tag));
  std::vector<BlockEnd> more;
  threads.wait(more);  // no operation is in progress
  EXPECT_TRUE(more.empty());
}

// The destructor completes all operations in their order, also those that nobody waits for.
TEST(BlockThreads, CarryOutAllInOrderBeforeTheyGo) {
  std::vector<std::uint64_t> seen, all;
  {
    BlockThreads threads([&](const BlockOperation& operation) {
      seen.push_back(operation.tag);
      return 0;
    });
    threads.add();
    submit_all(threads);
  }
  for (std::uint64_t i = 0; i < kOperations; ++i) all.push_back(i);
  EXPECT_EQ(seen, all);
}

TEST(BlockThreads, AnswerAllWithTheErrorOfTheirBeginning) {
  std::atomic<int> begun = 0, carried_out = 0;
  {
    BlockThreads threads([&](const BlockOperation&) { return ++carried_out; },
                         [&] {
                           ++begun;
                           return -EIO;
                         });
    for (int i = 0; i < 3; ++i) threads.add();
    submit_all(threads);
    const auto ended = results(threads);
    EXPECT_EQ(ended.size(), kOperations);
    for (const auto& [tag, result] : ended) EXPECT_EQ(result, -EIO) << tag;
  }
  EXPECT_EQ(begun, 3);
  EXPECT_EQ(carried_out, 0);
}

}  // namespace
}  // namespace kvtwin::test
