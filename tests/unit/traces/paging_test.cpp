#include "traces/paging.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/trace_files.hpp"

namespace kvtwin {
namespace {

std::vector<PageKey> keys_of(const std::vector<std::uint64_t>& blocks, Tokens input, Tokens block, Tokens page,
                             LastPage last = LastPage::full_only, const PageKey* seed = nullptr) {
  Pager pager(block, page, last);
  const auto keys = pager.keys(blocks, input, seed);
  return {keys.begin(), keys.end()};
}

PageKey chained(const PageKey* prior, std::initializer_list<BlockSegment> segments) {
  return block_page_key(prior, std::span(segments.begin(), segments.size()));
}

TEST(Pager, ChainsSlicesOfBlocks) {
  const auto keys = keys_of({7, 8}, 15, 10, 5);
  ASSERT_EQ(keys.size(), 3U);
  EXPECT_EQ(keys[0], chained(nullptr, {{7, 0, 5}}));
  EXPECT_EQ(keys[1], chained(&keys[0], {{7, 5, 5}}));
  EXPECT_EQ(keys[2], chained(&keys[1], {{8, 0, 5}}));
}

TEST(Pager, ChainsStretchesAcrossBlocks) {
  const auto keys = keys_of({7, 8, 9}, 25, 10, 12);
  ASSERT_EQ(keys.size(), 2U);
  EXPECT_EQ(keys[0], chained(nullptr, {{7, 0, 10}, {8, 0, 2}}));
  EXPECT_EQ(keys[1], chained(&keys[0], {{8, 2, 8}, {9, 0, 4}}));
  const auto wide = keys_of({7, 8, 9}, 30, 10, 30);
  ASSERT_EQ(wide.size(), 1U);
  EXPECT_EQ(wide[0], chained(nullptr, {{7, 0, 10}, {8, 0, 10}, {9, 0, 10}}));
}

TEST(Pager, KeysAPartialLastPageOnlyWhenAsked) {
  EXPECT_EQ(keys_of({7, 8}, 19, 10, 10).size(), 1U);
  EXPECT_EQ(keys_of({7}, 9, 10, 10).size(), 0U);
  const auto started = keys_of({7, 8}, 11, 10, 10, LastPage::partial);
  EXPECT_EQ(started, keys_of({7, 8}, 20, 10, 10)) << "a block is its parent and its id, whatever it holds";
  EXPECT_EQ(keys_of({7, 8}, 11, 10, 4, LastPage::partial).size(), 3U);
  EXPECT_EQ(keys_of({7, 8}, 11, 10, 100, LastPage::partial).size(), 1U);
  EXPECT_EQ(keys_of({7, 8}, 11, 10, 100).size(), 0U);
}

TEST(Pager, SeedsNamespaces) {
  const PageKey seed = *namespace_seed(std::nullopt, "5");
  const auto plain = keys_of({7, 8}, 20, 10, 10);
  const auto seeded = keys_of({7, 8}, 20, 10, 10, LastPage::full_only, &seed);
  EXPECT_NE(plain[0], seeded[0]);
  EXPECT_EQ(seeded[0], chained(&seed, {{7, 0, 10}}));
}

TEST(Pager, RefusesSizesOutOfRange) {
  EXPECT_THROW(Pager(0, 1, LastPage::partial), TraceError);
  EXPECT_THROW(Pager(1, 0, LastPage::partial), TraceError);
  EXPECT_THROW(Pager(512, (Tokens{1} << 31) + 1, LastPage::partial), TraceError);
  EXPECT_EQ(keys_of({1, 2}, 600, 512, Tokens{1} << 31, LastPage::partial).size(), 1U);
}

TEST(TimeScale, IsExact) {
  EXPECT_EQ(scaled(1'000'000'007, parse_time_scale("1")), 1'000'000'007);
  EXPECT_EQ(scaled(1'000'000'007, parse_time_scale("2.0")), 2'000'000'014);
  EXPECT_EQ(scaled(1'000'000'007, parse_time_scale("0.5")), 500'000'003);
  EXPECT_EQ(scaled(3'000'000'000'000'000, parse_time_scale("0.333333333")), 999'999'999'000'000);
  EXPECT_EQ(scaled(7, parse_time_scale("999999999.999999999")), 6'999'999'999);
  EXPECT_THROW(scaled(std::numeric_limits<TimeNs>::max(), parse_time_scale("1.1")), TraceError);
  for (const char* text : {"", "0", "0.0", "-1", "1.", ".5", "1e3", "1 ", "1234567890", "1.1234567890", "nan"}) {
    EXPECT_THROW(parse_time_scale(text), TraceError) << text;
  }
  EXPECT_EQ(scaled(1'000, time_scale_of(0.1)), 100);
  EXPECT_EQ(scaled(1'000, time_scale_of(2.0)), 2'000);
  EXPECT_EQ(scaled(1'000'000'000, time_scale_of(1e-9)), 1);
  for (const double value : {0.0, -1.0, 1e-10, 1e10, 1e300, std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(time_scale_of(value), TraceError) << value;
  }
}

TEST(TraceInputSource, TurnsLinesIntoInputs) {
  const std::string text =
      R"({"timestamp":1,"input_length":1100,"output_length":0,"hash_ids":[1,2,3],"session":4,"priority":2})"
      "\n"
      R"({"timestamp":2,"hint":"tool_call_pending","session":4,"value":9})"
      "\n"
      R"({"timestamp":3,"input_length":1024,"output_length":5,"hash_ids":[1,2],"tenant":6})"
      "\n"
      R"({"timestamp":4,"input_length":1024,"output_length":5,"hash_ids":[1,2],"tenant":7})"
      "\n"
      R"({"timestamp":5,"input_length":1024,"output_length":5,"hash_ids":[1,2],"tenant":6})"
      "\n"
      R"({"timestamp":6,"hint":"session_end","session":4})"
      "\n";
  TraceReader reader("t", text);
  TraceInputOptions options;
  options.page_tokens = 256;
  options.time_scale = parse_time_scale("2");
  options.limit = 4;
  TraceInputSource source(reader, options);
  Input input;
  ASSERT_TRUE(source.next(input));
  EXPECT_EQ(input.now, 0) << "times count from the first request";
  const auto first = std::get<Arrival>(input.what);
  EXPECT_EQ(first.request, 0U);
  EXPECT_EQ(first.prompt_tokens, 1'100U);
  EXPECT_EQ(first.output_tokens, 1U);
  EXPECT_EQ(first.session, 4U);
  EXPECT_EQ(first.priority, 2);
  ASSERT_EQ(first.keys.size(), 4U);
  const PageKey untenanted = first.keys[0];
  ASSERT_TRUE(source.next(input));
  EXPECT_EQ(input.now, 2'000'000);
  EXPECT_EQ(std::get<Hint>(input.what).kind, HintKind::tool_call_pending);
  EXPECT_EQ(std::get<Hint>(input.what).subject, 4U);
  EXPECT_EQ(std::get<Hint>(input.what).value, 9);
  std::vector<PageKey> tenants;
  for (RequestId request = 1; request < 4; ++request) {
    ASSERT_TRUE(source.next(input));
    EXPECT_EQ(std::get<Arrival>(input.what).request, request);
    tenants.push_back(std::get<Arrival>(input.what).keys[0]);
  }
  EXPECT_NE(tenants[0], untenanted);
  EXPECT_NE(tenants[0], tenants[1]);
  EXPECT_EQ(tenants[0], tenants[2]);
  EXPECT_FALSE(source.next(input)) << "four requests were asked for";
}

TEST(TraceInputSource, SaltsEveryPageKey) {
  const std::string text = R"({"timestamp":0,"input_length":512,"output_length":1,"hash_ids":[1]})"
                           "\n"
                           R"({"timestamp":0,"input_length":512,"output_length":1,"hash_ids":[1],"tenant":6})"
                           "\n";
  std::vector<PageKey> keys;
  for (const char* salt : {"", "one secret", "another"}) {
    TraceReader reader("t", text);
    TraceInputOptions options;
    options.page_tokens = 256;
    options.salt = salt;
    TraceInputSource source(reader, options);
    Input input;
    while (source.next(input)) {
      for (const PageKey& key : std::get<Arrival>(input.what).keys) keys.push_back(key);
    }
  }
  ASSERT_EQ(keys.size(), 12U);
  EXPECT_EQ(std::set<PageKey>(keys.begin(), keys.end()).size(), 12U);
  // As defined in contract.hpp, so that other programs compute the same: the salt is used in place of extra_key.
  const std::vector<std::uint64_t> block = {1};
  Pager pager(512, 256, LastPage::full_only);
  const PageKey salted = *namespace_seed("one secret", std::nullopt), tenant = *namespace_seed("one secret", "6");
  EXPECT_EQ(keys[4], pager.keys(block, 512, &salted)[0]);
  EXPECT_EQ(keys[6], pager.keys(block, 512, &tenant)[0]);
}

TEST(TraceInputSource, PagesWholeTraces) {
  const auto pages = [](const std::string& path, Tokens page_tokens) {
    TraceReader reader(path);
    TraceInputOptions options;
    options.page_tokens = page_tokens;
    TraceInputSource source(reader, options);
    Input input;
    std::uint64_t n = 0;
    while (source.next(input)) n += std::get<Arrival>(input.what).keys.size();
    return n;
  };
  EXPECT_EQ(pages(test::bundled_trace(), 512), 266'285U);
  EXPECT_EQ(pages(test::bundled_trace(), 64), 2'174'165U);
  if (const auto path = test::conversation_trace()) {
    EXPECT_EQ(pages(*path, 64), 2'256'643U);
  }
}

}  // namespace
}  // namespace kvtwin
