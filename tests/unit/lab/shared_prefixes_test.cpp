// Prompts that share fewer tokens than a page: which count, and how many tokens of each.
#include "lab/report/shared_prefixes.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kvtwin {
namespace {

constexpr Tokens kBlock = 4;

struct Prompts final : TraceSource {
  bool next(TraceRequest& request) override {
    if (at == list.size()) return false;
    request = list[at++];
    return true;
  }
  Tokens block_tokens() const override { return kBlock; }
  double fraction_read() const override { return 0.25; }
  std::vector<std::string> notes() const override { return {"a note"}; }
  void add(Tokens input, std::vector<std::uint64_t> blocks, std::uint64_t tenant = 0) {
    TraceRequest request;
    request.input = input;
    request.output = 1;
    request.blocks = std::move(blocks);
    request.tenant = tenant;
    list.push_back(request);
  }
  std::vector<TraceRequest> list;
  std::size_t at = 0;
};

SharedPrefixes::Below below(Prompts& prompts, Tokens page_tokens) {
  SharedPrefixes counted(prompts, page_tokens);
  std::size_t passed_on = 0;
  for (TraceRequest request; counted.next(request);) ++passed_on;
  EXPECT_EQ(passed_on, prompts.list.size());
  return counted.below_a_page();
}

TEST(SharedPrefixes, CountWhatIsSharedBelowAPage) {
  Prompts prompts;
  prompts.add(12, {1, 2, 3});
  prompts.add(12, {1, 2, 4});  // shares 8 tokens
  prompts.add(12, {1, 5, 6});  // shares 4
  prompts.add(12, {7, 2, 3});  // shares none: the first block differs
  const SharedPrefixes::Below counted = below(prompts, 16);
  EXPECT_EQ(counted.requests, 2U);
  EXPECT_EQ(counted.tokens, 12U);
  EXPECT_EQ(counted.shortest, 4U);
  EXPECT_EQ(counted.longest, 8U);
  EXPECT_EQ(counted.prompt, 48U);
}

TEST(SharedPrefixes, AWholePageHits) {
  Prompts prompts;
  prompts.add(12, {1, 2, 3});
  prompts.add(12, {1, 2, 4});
  EXPECT_EQ(below(prompts, 9).requests, 1U);
  prompts.at = 0;
  EXPECT_EQ(below(prompts, 8).requests, 0U) << "8 tokens are a page";
  prompts.at = 0;
  EXPECT_EQ(below(prompts, 4).requests, 0U);
}

TEST(SharedPrefixes, TheLastTokenIsAlwaysComputed) {
  Prompts prompts;
  prompts.add(6, {1, 2});
  prompts.add(6, {1, 2});
  EXPECT_EQ(below(prompts, 16).tokens, 5U);
  Prompts one;
  one.add(1, {1});
  one.add(1, {1});
  EXPECT_EQ(below(one, 16).requests, 0U) << "nothing is left to share";
}

TEST(SharedPrefixes, TenantsShareNothing) {
  Prompts prompts;
  prompts.add(8, {1, 2}, 1);
  prompts.add(8, {1, 2}, 2);
  EXPECT_EQ(below(prompts, 16).requests, 0U);
}

TEST(SharedPrefixes, HintsPassAndCountNowhere) {
  Prompts prompts;
  prompts.add(8, {1, 2});
  prompts.add(8, {1, 3});
  prompts.list[0].is_hint = true;
  EXPECT_EQ(below(prompts, 16).requests, 0U);
  EXPECT_EQ(prompts.at, 2U);
}

TEST(SharedPrefixes, IsTheSourceThatItReads) {
  Prompts prompts;
  const SharedPrefixes counted(prompts, 16);
  EXPECT_EQ(counted.block_tokens(), kBlock);
  EXPECT_EQ(counted.fraction_read(), 0.25);
  EXPECT_EQ(counted.notes(), std::vector<std::string>{"a note"});
}

}  // namespace
}  // namespace kvtwin
