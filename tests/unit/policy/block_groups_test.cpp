// vLLM's groups of blocks: what a later request hits, and which requests fit. tests/golden/hybrid has whole sequences
// of vLLM itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "policy/index/block_groups.hpp"
#include "tests/policy_test_support.hpp"

namespace kvtwin::test {
namespace {

constexpr Tokens kPage = 4;

std::vector<PageKey> keys_of_pages(std::initializer_list<std::pair<std::uint64_t, Pages>> parts) {
  std::vector<PageKey> keys;
  PageKey key;
  for (const auto& [word, pages] : parts) {
    for (Pages page = 0; page < pages; ++page) keys.push_back(key = chain_key(key, 1000 * word + page));
  }
  return keys;
}

// Serves a prompt of whole pages and one token more, in one pass. Returns the pages that it hits.
Pages serve(BlockGroups& groups, const std::vector<PageKey>& keys) {
  const Tokens prompt = keys.size() * kPage + 1;
  const BlockGroups::Hit hit = groups.find(keys, prompt - 1);
  BlockTables request;
  groups.enter(request, hit, prompt);
  EXPECT_TRUE(groups.allocate(request, hit.tokens, prompt));
  groups.publish(request, keys, prompt);
  groups.leave(request);
  groups.check_invariants({});
  return hit.tokens / kPage;
}

BlockGroupsConfig windows(std::optional<Tokens> retention) {
  return {200, {{Closure::path, 0, 1}, {Closure::tail, 8, 1}}, retention};
}

// A prefix that two prompts share lacks its window until the second one, which finds the junction, has kept it.
TEST(BlockGroups, ASharedPrefixHitsOnTheThirdRequest) {
  BlockGroups groups(windows(0), kPage);
  EXPECT_EQ(serve(groups, keys_of_pages({{1, 10}, {2, 5}})), 0U);
  EXPECT_EQ(serve(groups, keys_of_pages({{1, 10}, {3, 5}})), 0U);
  EXPECT_EQ(serve(groups, keys_of_pages({{1, 10}, {4, 5}})), 10U);
  EXPECT_EQ(serve(groups, keys_of_pages({{1, 10}, {4, 5}, {5, 2}})), 15U) << "behind the end of a prompt";
}

TEST(BlockGroups, RetentionKeepsFurtherWindows) {
  BlockGroups everywhere(windows({}), kPage), every_16(windows(16), kPage);
  for (BlockGroups* groups : {&everywhere, &every_16}) serve(*groups, keys_of_pages({{1, 10}, {2, 5}}));
  EXPECT_EQ(serve(everywhere, keys_of_pages({{1, 10}, {3, 5}})), 10U);
  EXPECT_EQ(serve(every_16, keys_of_pages({{1, 10}, {3, 5}})), 8U) << "32 tokens, the last multiple of 16";
}

// As vLLM counts it: the state that the hit continues from, although the load brings a later one.
TEST(BlockGroups, ALoadWantsTheStateOfTheHitToo) {
  BlockGroups groups({200, {{Closure::path, 0, 1}, {Closure::point, 0, 1}}, {}}, kPage);
  const std::vector<PageKey> keys = keys_of_pages({{1, 5}});
  BlockTables request;
  groups.enter(request, {.blocks = {{}, {}}}, 5 * kPage + 1);
  EXPECT_TRUE(groups.allocate(request, 0, 5 * kPage));  // a pass ends where a state is kept
  groups.publish(request, keys, 5 * kPage);
  groups.leave(request);
  const BlockGroups::Hit hit = groups.find(keys, 5 * kPage);
  ASSERT_EQ(hit.tokens, 5 * kPage);
  EXPECT_EQ(groups.wanted_to_load(hit, 9 * kPage), (5U + 4U) + (1U + 1U)) << "of the path, and states";
}

// What a request took first was used least recently, whatever its kind.
TEST(BlockGroups, AllKindsShareOneQueue) {
  BlockGroups groups({1 + 2 * 8 + 4, {{Closure::path, 0, 1}, {Closure::tail, 8, 1}}, Tokens{0}}, kPage);
  serve(groups, keys_of_pages({{1, 7}}));
  EXPECT_EQ(groups.known_keys(), 7U + 2);
  EXPECT_EQ(groups.evicted_blocks(), 0U);
  serve(groups, keys_of_pages({{2, 7}}));
  EXPECT_EQ(groups.evicted_blocks(), 5U) << "16 blocks, of which 11 had no key";
  const BlockGroups::Changes changes = groups.take_changes();
  EXPECT_EQ(changes.evicted.size(), 5U);
  EXPECT_EQ(changes.came.size(), 14U);
  EXPECT_EQ(serve(groups, keys_of_pages({{1, 7}})), 0U) << "the end of the path has gone";
}

// Blocks that a transfer holds are not given to others. When it has ended, they are where vLLM has had them all the
// time.
TEST(BlockGroups, HeldBlocksKeepTheirPlaceInTheQueue) {
  BlockGroups groups({1 + 9, {{Closure::path, 0, 1}}, Tokens{0}}, kPage);
  const auto run = [&](std::uint64_t prompt, BlockTables& request, bool holds) {
    const std::vector<PageKey> keys = keys_of_pages({{prompt, 3}});
    groups.enter(request, groups.find({}, 0), 12);
    EXPECT_TRUE(groups.allocate(request, 0, 12));
    groups.publish(request, keys, 12);
    std::vector<BlockId> blocks = request.tables.front().blocks;
    if (holds) groups.hold(blocks);
    groups.leave(request);
    return blocks;
  };
  BlockTables request;
  const std::vector<BlockId> first = run(1, request, true), second = run(2, request, false);
  EXPECT_EQ(groups.free_blocks(), 6U);
  groups.check_invariants({}, first);
  groups.release_held(first);  // first in the queue
  run(3, request, false);
  const std::vector<BlockId> fourth = run(4, request, false);
  EXPECT_EQ(std::vector<BlockId>(fourth.rbegin(), fourth.rend()), first);
  groups.check_invariants({});

  const std::vector<BlockId> held = run(5, request, true);
  EXPECT_EQ(std::vector<BlockId>(held.rbegin(), held.rend()), second);
  for (int i = 0; i < 3; ++i) run(6 + static_cast<std::uint64_t>(i), request, false);
  groups.check_invariants({}, held);  // the queue had come to them
  EXPECT_EQ(groups.find(keys_of_pages({{5, 3}}), 12).tokens, 12U) << "they can be hit meanwhile";
  EXPECT_EQ(groups.find(keys_of_pages({{5, 3}}), 12).free_blocks, 0U);
  groups.release_held(held);
  groups.check_invariants({});
  std::vector<BlockId> next = run(9, request, false);
  std::ranges::sort(next);
  EXPECT_EQ(next, (std::vector<BlockId>{held[2], held[1], held[0]})) << "they leave first";
}

// Whatever is cached, the longest request that is promised can be served alone, chunk by chunk.
TEST(BlockGroups, TheLongestRequestFits) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Splitmix random{seed};
    const auto parts = [&] { return random.below(3) == 0 ? 2U : 1U; };
    BlockGroupsConfig config{0, {{Closure::path, 0, parts()}}, Tokens{random.below(3) * 8}};
    config.groups.insert(config.groups.end(), random.below(4), {Closure::tail, 1 + random.below(40), parts()});
    config.groups.insert(config.groups.end(), random.below(3), {Closure::point, 0, parts()});
    config.blocks = static_cast<std::uint32_t>(20 + random.below(400));
    const Tokens chunk = 1 + random.below(64);
    BlockGroups groups(config, kPage);
    const Pages most = groups.longest_request(config.blocks - 1, chunk);
    if (most < 2) continue;
    std::vector<PageKey> keys;
    for (Pages length = 2; length <= most; length += 1 + random.below(most)) {
      keys = keys_of_pages({{seed, length - 1}});
      const Tokens prompt = keys.size() * kPage + 1;
      const BlockGroups::Hit hit = groups.find(keys, prompt - 1);
      BlockTables request;
      ASSERT_LE(hit.free_blocks + groups.blocks_of(length - hit.tokens / kPage, chunk), groups.free_blocks()) << seed;
      groups.enter(request, hit, prompt);
      for (Tokens from = hit.tokens; from < prompt;) {
        const Tokens to = std::min(prompt, from + chunk);
        ASSERT_TRUE(groups.allocate(request, from, to)) << seed;
        groups.publish(request, keys, to);
        groups.release(request, to);
        const BlockTables* const all[] = {&request};
        groups.check_invariants(all);
        from = to;
      }
      groups.leave(request);
    }
  }
}

TEST(BlockGroups, PagesOfSeveralRequestsHaveTheirBlocks) {
  BlockGroups groups({500, {{Closure::path, 0, 1}, {Closure::tail, 20, 2}, {Closure::point, 0, 1}}, Tokens{0}}, kPage);
  for (Pages pages = 0; pages < 60; ++pages) {
    const Pages alone = groups.apart(pages, false, 16), beside = groups.apart(pages, true, 16);
    EXPECT_GE(groups.blocks_of(alone, 16), 4 * pages);
    EXPECT_GE(beside, 4 * pages) << "in any sum";
    EXPECT_TRUE(alone == 0 || groups.blocks_of(alone - 1, 16) < 4 * pages) << "no more than needed";
  }
}

}  // namespace
}  // namespace kvtwin::test
