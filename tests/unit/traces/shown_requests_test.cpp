// Requests out of events, within limits of memory; and recordings as events.
#include "traces/shown_requests.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "policy/base/types.hpp"
#include "tests/program.hpp"
#include "tests/trace_files.hpp"
#include "traces/trace.hpp"

namespace kvtwin {
namespace {

BlockEvent stored(const std::vector<std::uint64_t>& blocks, std::optional<std::uint64_t> parent, TimeNs time) {
  BlockEvent event;
  event.time = time;
  event.block_tokens = 16;
  event.blocks = blocks;
  event.parent = parent;
  return event;
}

TEST(ShownRequests, AChainThatIsTooLongIsForgotten) {
  ShownRequests shown({.known_blocks = 100, .open_blocks = 1000});
  std::vector<std::uint64_t> blocks(10);
  std::uint64_t next = 1;
  std::optional<std::uint64_t> parent;
  TraceRequest request;
  std::size_t longest = 0;
  for (int i = 0; i < 1000; ++i) {
    for (std::uint64_t& block : blocks) block = next++;
    EXPECT_FALSE(shown.take(stored(blocks, parent, i * 60 * kNsPerSecond)));
    parent = blocks.back();
    ASSERT_LE(shown.known_blocks(), 100U);
    while (shown.has_next()) {
      ASSERT_TRUE(shown.next(request));
      longest = std::max(longest, request.blocks.size());
    }
  }
  EXPECT_LE(longest, 112U);
  EXPECT_GE(shown.forgotten(), 90U);
}

TEST(ShownRequests, AnAnswerWithoutAnEndEndsAtTheLimit) {
  ShownRequests shown({.known_blocks = 100, .open_blocks = 1000});
  TraceRequest request;
  std::size_t answers = 0;
  const std::vector<std::uint64_t> block{7};
  for (int i = 0; i < 5000; ++i) {
    EXPECT_FALSE(shown.take(stored(block, i == 0 ? std::nullopt : std::optional<std::uint64_t>(7), i)));
    while (shown.has_next() && shown.next(request)) answers = std::max(answers, request.answer_blocks.size());
  }
  EXPECT_GT(answers, 900U);
  EXPECT_LE(answers, 1001U);
}

TEST(ShownRequests, BlocksOfAnotherRankContinueNoRequest) {
  ShownRequests shown;
  const std::vector<std::uint64_t> first{101}, second{200}, third{300};
  EXPECT_FALSE(shown.take(stored(first, {}, 0)));
  BlockEvent other = stored(second, 100, 1);  // 100 of rank 1, and not 101 of rank 0
  other.rank = 1;
  EXPECT_FALSE(shown.take(other));
  TraceRequest request;
  ASSERT_TRUE(shown.next(request));
  EXPECT_EQ(request.blocks.front(), 101U);
  EXPECT_TRUE(request.answer_blocks.empty());
  ASSERT_TRUE(shown.next(request)) << "the store of rank 1 is a request of its own";
  EXPECT_EQ(request.blocks.front(), 100U);
  EXPECT_FALSE(shown.next(request));
  // Nothing that has ended is gone on with.
  EXPECT_FALSE(shown.take(stored(third, 200, 2)));
  other = stored(third, 200, 3);
  other.rank = 1;
  EXPECT_FALSE(shown.take(other));
  std::size_t requests = 0;
  while (shown.next(request)) ++requests;
  EXPECT_EQ(requests, 2U);
}

TEST(ShownRequests, NamesWhatItCannotTake) {
  ShownRequests shown;
  const std::vector<std::uint64_t> blocks{1};
  BlockEvent event = stored(blocks, {}, 0);
  event.block_tokens = 0;
  EXPECT_STREQ(shown.take(event)->key, "block_size");
  event = stored(blocks, {}, 0);
  EXPECT_FALSE(shown.take(event));
  event.block_tokens = 32;
  EXPECT_EQ(shown.take(event)->what, "is 32, and was 16 before; a group of layers has one block size");
  event.rank = 64;
  EXPECT_STREQ(shown.take(event)->key, "rank");
}

TEST(BlockEventFile, ReadsARecording) {
  BlockEventFile file(test::fixture("vllm/kv_events.jsonl"));
  std::size_t stored_blocks = 0, removed_blocks = 0, others = 0;
  for (BlockEvent event; file.next(event);) {
    if (event.kind == BlockEvent::Kind::stored) stored_blocks += event.blocks.size();
    if (event.kind == BlockEvent::Kind::removed) removed_blocks += event.blocks.size();
    if (event.kind == BlockEvent::Kind::other) ++others;
  }
  EXPECT_EQ(others, 1U) << "the header";
  EXPECT_GT(stored_blocks, removed_blocks);
  EXPECT_GT(removed_blocks, 100U);
}

TEST(BlockEventFile, NamesTheLineOfAFault) {
  const test::Folder folder;
  const std::string path = folder / "kv_events.jsonl";
  test::write_text(path, "{\"type\":\"missing\",\"from\":3,\"to\":5}\n{\"type\":\"BlockRemoved\",\"ts\":1}\n");
  BlockEventFile file(path);
  BlockEvent event;
  ASSERT_TRUE(file.next(event));
  EXPECT_EQ(event.count, 3U);
  EXPECT_THROW(
      try { file.next(event); } catch (const TraceError& error) {
        EXPECT_NE(std::string(error.what()).find("block_hashes"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("2"), std::string::npos) << error.what();
        throw;
      },
      TraceError);
  EXPECT_THROW(BlockEventFile(folder / "absent"), TraceError);
  test::write_text(path, "{\"type\":\"missing\",\"from\":5,\"to\":3}\n");
  BlockEventFile turned(path);
  EXPECT_THROW(turned.next(event), TraceError);
}

}  // namespace
}  // namespace kvtwin
