#include "traces/shrink.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "policy/seam/substrate.hpp"
#include "traces/generate.hpp"
#include "traces/groups.hpp"
#include "traces/paging.hpp"

namespace kvtwin {
namespace {

std::unique_ptr<TraceSource> chat() {
  ChatConfig config;
  config.requests = 200;
  config.duration = 0;
  return std::make_unique<ChatGenerator>(config);
}

TEST(ShrunkTrace, KeepsTimesAndBlocks) {
  const auto full = chat();
  ShrunkTrace shrunk(chat(), 16);
  EXPECT_EQ(shrunk.block_tokens(), 32u);
  TraceRequest a, b;
  int requests = 0;
  while (full->next(a)) {
    ASSERT_TRUE(shrunk.next(b));
    EXPECT_EQ(b.arrival, a.arrival);
    EXPECT_EQ(b.blocks, a.blocks);
    EXPECT_EQ(b.input, (a.input + 15) / 16);
    EXPECT_EQ(b.output, (a.output + 15) / 16);
    EXPECT_EQ((b.input + 31) / 32, b.blocks.size());
    ++requests;
  }
  EXPECT_FALSE(shrunk.next(b));
  EXPECT_EQ(requests, 200);
}

// A page of the shrunk trace is shared by exactly those requests that share the full page.
TEST(ShrunkTrace, SharesThePagesThatWereShared) {
  const auto full = chat();
  ShrunkTrace shrunk(chat(), 64);
  TraceInputOptions wide, narrow;
  wide.page_tokens = 512;
  narrow.page_tokens = 8;
  TraceInputSource from(*full, wide), to(shrunk, narrow);
  Input a, b;
  while (from.next(a)) {
    ASSERT_TRUE(to.next(b));
    const auto& x = std::get<Arrival>(a.what);
    const auto& y = std::get<Arrival>(b.what);
    // The last block may be full in only one of the two traces.
    const std::size_t common = std::min(x.keys.size(), y.keys.size());
    ASSERT_GE(common + 1, std::max(x.keys.size(), y.keys.size()));
  }
}

// The system prompt is a part of the shrunk input.
TEST(ShrunkTrace, ShrinksTheSystemPrompt) {
  GroupsConfig config;
  config.prefix_tokens = 1000;
  ShrunkTrace shrunk(std::make_unique<GroupsGenerator>(config), 8);
  TraceRequest request;
  ASSERT_TRUE(shrunk.next(request));
  EXPECT_EQ(request.system, 1000U / 8);
}

}  // namespace
}  // namespace kvtwin
