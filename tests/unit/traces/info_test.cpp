#include "traces/info.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/trace_files.hpp"

namespace kvtwin {
namespace {

TraceInfo info_of(const std::string& text, Tokens block_tokens, std::uint64_t limit = 0) {
  TraceOptions options;
  options.block_tokens = block_tokens;
  TraceReader reader("t", text, options);
  return trace_info(reader, limit);
}

const std::string kSmall = R"({"timestamp":0,"input_length":25,"output_length":1,"hash_ids":[1,2,3],"session":5})"
                           "\n"
                           R"({"timestamp":0,"hint":"pin","session":5})"
                           "\n"
                           R"({"timestamp":500,"input_length":30,"output_length":3,"hash_ids":[1,2,4],"session":5})"
                           "\n"
                           R"({"timestamp":1000,"input_length":25,"output_length":9,"hash_ids":[1,2,3],"session":6})"
                           "\n"
                           R"({"timestamp":2000,"input_length":20,"output_length":7,"hash_ids":[2,1]})"
                           "\n"
                           R"({"timestamp":4000,"input_length":20,"output_length":7,"hash_ids":[1,2],"tenant":3})"
                           "\n";

TEST(TraceInfo, CountsByHand) {
  const TraceInfo info = info_of(kSmall, 10);
  EXPECT_EQ(info.requests, 5U);
  EXPECT_EQ(info.hints, 1U);
  EXPECT_EQ(info.duration_seconds, 4.0);
  EXPECT_EQ(info.requests_per_second, 1.25);
  EXPECT_EQ(info.blocks, 13U);
  EXPECT_EQ(info.unique_blocks, 8U) << "1 12 123 124, 2 21, and the tenant's 1 12";
  EXPECT_EQ(info.blocks_used_once, 5U) << "124, 2, 21, the tenant's";
  EXPECT_EQ(info.ideal_hit_blocks, 2U + 3U);
  EXPECT_EQ(info.ideal_hit_tokens, 20U + 25U) << "the partial last block counts what it holds";
  EXPECT_EQ(info.ideal_block_hit_ratio, 5.0 / 13.0);
  EXPECT_EQ(info.ideal_token_hit_ratio, 45.0 / 120.0);
  EXPECT_DOUBLE_EQ(info.mean_request_hit_fraction, (2.0 / 3.0 + 1.0) / 5.0);
  EXPECT_EQ(info.zero_hit_requests, 3U);
  EXPECT_EQ(info.sessions, 2U);
  EXPECT_EQ(info.requests_with_session, 3U);
  EXPECT_EQ(info.tenants, 2U);
  EXPECT_EQ(info.input.mean, 24.0);
  EXPECT_EQ(info.input.min, 20U);
  EXPECT_EQ(info.input.p25, 20U);
  EXPECT_EQ(info.input.p50, 25U);
  EXPECT_EQ(info.input.p90, 30U);
  EXPECT_EQ(info.output.max, 9U);
  EXPECT_EQ(info.output.total, 27U);
  EXPECT_EQ(info_of(kSmall, 10, 2).requests, 2U);
}

TEST(TraceInfo, OfNothing) {
  const TraceInfo info = info_of("", 512);
  EXPECT_EQ(info.requests, 0U);
  EXPECT_EQ(info.requests_per_second, 0.0);
  EXPECT_EQ(info.ideal_block_hit_ratio, 0.0);
  EXPECT_NE(trace_info_text(info).find("not named"), std::string::npos);
}

// Two sessions: the second one begins with a hit of two blocks, and the first one goes on after 0.5 and 2.5 s.
TEST(TraceInfo, AveragesByHand) {
  const std::string text =
      R"({"timestamp":0,"input_length":25,"output_length":1,"hash_ids":[1,2,3],"session":5})"
      "\n"
      R"({"timestamp":500,"input_length":30,"output_length":3,"hash_ids":[1,2,4],"session":5})"
      "\n"
      R"({"timestamp":1000,"input_length":35,"output_length":8,"hash_ids":[1,2,5,6],"session":6})"
      "\n"
      R"({"timestamp":3000,"input_length":42,"output_length":4,"hash_ids":[1,2,4,7,8],"session":5})"
      "\n";
  const TraceAverages named = info_of(text, 10).averages;
  EXPECT_DOUBLE_EQ(named.requests_per_second, 4.0 / 3.0);
  EXPECT_EQ(named.prompt_tokens, 33);
  EXPECT_EQ(named.output_tokens, 4);
  EXPECT_EQ(named.turns, 2);
  EXPECT_EQ(named.prefix_tokens, (0 + 20) / 2.0);
  EXPECT_DOUBLE_EQ(named.think_s + named.service_s, 1.5);
  EXPECT_EQ(named.length_spread > 0, true) << "25 and 15 new tokens";
  EXPECT_EQ(info_of("", 10).averages.turns, 0);
}

// Without names, a request that hits more than the common blocks continues a conversation.
TEST(TraceInfo, InfersConversationsWithoutNames) {
  std::string text;
  constexpr int kConversations = 60;
  for (int turn = 0; turn < 3; ++turn) {
    for (int i = 0; i < kConversations; ++i) {
      text += R"({"timestamp":)" + std::to_string(turn * 100'000 + i * 1'000) + R"(,"input_length":)" +
              std::to_string(20 + 10 * turn) + R"(,"output_length":5,"hash_ids":[0)";
      for (int block = 0; block <= turn; ++block) text += "," + std::to_string(1 + i * 10 + block);
      text += "]}\n";
    }
  }
  const TraceAverages found = info_of(text, 10).averages;
  EXPECT_EQ(found.turns, 3);
  EXPECT_DOUBLE_EQ(found.prefix_tokens, 10 * 59.0 / 60.0) << "the first request hits nothing";
  EXPECT_EQ(found.think_s + found.service_s, 100);
  EXPECT_EQ(found.think_spread, 0);
}

TEST(TraceInfo, PrintsTextAndJson) {
  const TraceInfo info = info_of(kSmall, 10);
  const std::string text = trace_info_text(info), json = trace_info_json(info);
  EXPECT_NE(text.find("5 in 4.0 s (1.25 requests/s), hints 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("max 20 / 20 / 20 / 25"), std::string::npos) << text;
  EXPECT_NE(text.find("0.3846 of blocks, 0.3750 of tokens"), std::string::npos) << text;
  EXPECT_NE(json.find(R"("requests_per_second":1.25,"input":{"mean":24,"min":20,)"), std::string::npos) << json;
  EXPECT_TRUE(json.starts_with('{') && json.ends_with("\"service_s\":0}}")) << json;
}

TEST(TraceInfo, BundledTrace) {
  TraceReader reader(test::bundled_trace());
  const TraceInfo info = trace_info(reader);
  EXPECT_EQ(info.requests, 11'849U);
  EXPECT_EQ(info.blocks, 278'111U);
  EXPECT_EQ(info.unique_blocks, 176'438U);
  EXPECT_EQ(std::round(info.ideal_block_hit_ratio * 1e4), 3656.0);
  EXPECT_EQ(info.zero_hit_requests, 1U);
  EXPECT_EQ(info.sessions, 7'250U);
}

TEST(TraceInfo, ConversationTraceAsPublished) {
  const auto path = test::conversation_trace();
  if (!path) GTEST_SKIP() << "the public trace is not here; BundledTrace checked the bundled one";
  TraceReader reader(*path);
  const TraceInfo info = trace_info(reader);
  EXPECT_EQ(info.requests, 12'031U);
  EXPECT_EQ(std::round(info.duration_seconds), 3537.0);
  EXPECT_EQ(std::round(info.requests_per_second * 100), 340.0);
  EXPECT_EQ(std::round(info.input.mean), 12'035.0);
  EXPECT_EQ(info.input.p1, 894U);
  EXPECT_EQ(info.input.p10, 964U);
  EXPECT_EQ(info.input.p25, 2'306U);
  EXPECT_EQ(info.input.p50, 6'909U);
  EXPECT_EQ(std::round(info.output.mean), 343.0);
  EXPECT_EQ(info.output.p10, 24U);
  EXPECT_EQ(info.output.p50, 350U);
  EXPECT_EQ(info.output.p90, 597U);
  EXPECT_EQ(info.output.p99, 1'120U);
  EXPECT_EQ(info.output.max, 2'000U);
  EXPECT_EQ(info.blocks, 288'500U);
  EXPECT_EQ(info.unique_blocks, 182'790U);
  EXPECT_EQ(info.ideal_hit_blocks, 288'500U - 182'790U);
  EXPECT_EQ(std::round(info.ideal_block_hit_ratio * 1e4), 3664.0);
  EXPECT_EQ(std::round(info.ideal_token_hit_ratio * 1e4), 3736.0);
  EXPECT_EQ(std::round(info.mean_request_hit_fraction * 1e3), 384.0);
  EXPECT_EQ(info.zero_hit_requests, 1U);
  EXPECT_EQ(std::round(1e3 * static_cast<double>(info.blocks_used_once) / static_cast<double>(info.unique_blocks)),
            758.0);
  EXPECT_EQ(std::round(info.averages.turns * 100), 163.0);
  EXPECT_EQ(std::round(info.averages.prefix_tokens), 512.0);
  EXPECT_EQ(std::round(info.averages.think_s + info.averages.service_s), 215.0);
}

}  // namespace
}  // namespace kvtwin
