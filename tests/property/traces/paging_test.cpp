// Compares re-paging with a slow model: a request is a list of tokens, each of them (parent chain, block, offset), and
// a page is a run of P tokens. Two pages must have equal keys if and only if all tokens up to their ends are equal.
#include "traces/paging.hpp"

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "traces/random.hpp"

namespace kvtwin {
namespace {

using Token = std::pair<std::uint64_t, Tokens>;  // block id, offset

struct SlowRequest {
  std::vector<std::uint64_t> blocks;
  Tokens input = 0;
};

// Returns requests with few different block ids, so that prefixes are shared and two requests may differ from any block
// on.
std::vector<SlowRequest> random_requests(Random& random, Tokens block_tokens) {
  std::vector<SlowRequest> requests(static_cast<std::size_t>(random.integer(2, 8)));
  for (SlowRequest& request : requests) {
    request.blocks.resize(static_cast<std::size_t>(random.integer(1, 6)));
    for (std::uint64_t& id : request.blocks) id = random.integer(0, 2);
    request.input = (request.blocks.size() - 1) * block_tokens + random.integer(1, block_tokens);
  }
  return requests;
}

std::vector<Token> tokens_of(const SlowRequest& request, Tokens block_tokens) {
  std::vector<Token> tokens;
  for (Tokens t = 0; t < request.input; ++t) {
    tokens.emplace_back(request.blocks[static_cast<std::size_t>(t / block_tokens)], t % block_tokens);
  }
  return tokens;
}

TEST(PagingProperty, EqualPrefixesHaveEqualKeysAndOthersDont) {
  for (std::uint64_t seed = 1; seed <= 3'000; ++seed) {
    Random random(seed);
    const Tokens block_tokens = random.integer(1, 12);
    const Tokens page_tokens = random.integer(1, 30);
    Pager pager(block_tokens, page_tokens, LastPage::full_only);
    std::map<std::vector<Token>, PageKey> key_of;
    std::map<PageKey, std::vector<Token>> prefix_of;
    for (const SlowRequest& request : random_requests(random, block_tokens)) {
      const std::vector<Token> tokens = tokens_of(request, block_tokens);
      const auto keys = pager.keys(request.blocks, request.input, nullptr);
      ASSERT_EQ(keys.size(), tokens.size() / page_tokens) << "seed " << seed;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const std::vector<Token> prefix(tokens.begin(),
                                        tokens.begin() + static_cast<std::ptrdiff_t>((i + 1) * page_tokens));
        ASSERT_EQ(key_of.emplace(prefix, keys[i]).first->second, keys[i]) << "seed " << seed << ", page " << i;
        ASSERT_EQ(prefix_of.emplace(keys[i], prefix).first->second, prefix) << "seed " << seed << ", page " << i;
      }
    }
  }
}

// If partly filled pages count, a page is identified by its number and by all blocks up to its end.
TEST(PagingProperty, StartedPagesAreTheirBlocks) {
  for (std::uint64_t seed = 1; seed <= 3'000; ++seed) {
    Random random(seed + 1'000'000);
    const Tokens block_tokens = random.integer(1, 12);
    const Tokens page_tokens = random.integer(1, 30);
    Pager pager(block_tokens, page_tokens, LastPage::partial);
    Pager full(block_tokens, page_tokens, LastPage::full_only);
    std::map<std::pair<std::size_t, std::vector<std::uint64_t>>, PageKey> key_of;  // by page number and blocks
    std::map<PageKey, std::pair<std::size_t, std::vector<std::uint64_t>>> page_of;
    for (const SlowRequest& request : random_requests(random, block_tokens)) {
      const auto keys = pager.keys(request.blocks, request.input, nullptr);
      const auto full_keys = full.keys(request.blocks, request.input, nullptr);
      ASSERT_EQ(keys.size(), (request.input + page_tokens - 1) / page_tokens);
      ASSERT_TRUE(std::equal(full_keys.begin(), full_keys.end(), keys.begin())) << "seed " << seed;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const std::size_t touched = std::min<std::size_t>(
            request.blocks.size(), static_cast<std::size_t>(((i + 1) * page_tokens - 1) / block_tokens + 1));
        const std::pair page{i,
                             std::vector<std::uint64_t>(request.blocks.begin(),
                                                        request.blocks.begin() + static_cast<std::ptrdiff_t>(touched))};
        ASSERT_EQ(key_of.emplace(page, keys[i]).first->second, keys[i]) << "seed " << seed << ", page " << i;
        ASSERT_EQ(page_of.emplace(keys[i], page).first->second, page) << "seed " << seed << ", page " << i;
      }
    }
  }
}

TEST(PagingProperty, PagesOfAnySizeHitTheSamePrefix) {
  for (std::uint64_t seed = 1; seed <= 1'000; ++seed) {
    Random random(seed + 2'000'000);
    const Tokens block_tokens = random.integer(1, 12);
    const auto requests = random_requests(random, block_tokens);
    const auto shared_tokens = [&](Tokens page_tokens) {
      Pager pager(block_tokens, page_tokens, LastPage::full_only);
      const auto a = pager.keys(requests[0].blocks, requests[0].input, nullptr);
      const std::vector<PageKey> first(a.begin(), a.end());
      const auto second = pager.keys(requests[1].blocks, requests[1].input, nullptr);
      std::size_t n = 0;
      while (n < first.size() && n < second.size() && first[n] == second[n]) ++n;
      return n * page_tokens;
    };
    const Tokens exact = shared_tokens(1);
    for (Tokens page_tokens = 2; page_tokens < 40; ++page_tokens) {
      ASSERT_EQ(shared_tokens(page_tokens), exact / page_tokens * page_tokens) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace kvtwin
