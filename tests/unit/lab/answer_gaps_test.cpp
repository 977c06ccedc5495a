// Tokens of answers that a trace does not place in the next prompt.
#include "lab/report/answer_gaps.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace kvtwin {
namespace {

TraceRequest request(Tokens input, Tokens output, std::vector<std::uint64_t> blocks, std::uint64_t session = 0) {
  TraceRequest made;
  made.input = input;
  made.output = output;
  made.blocks = std::move(blocks);
  made.session = session;
  return made;
}

TEST(AnswerGaps, AnAnswerCostsNoMoreThanItsLength) {
  AnswerGaps gaps;
  gaps.add(request(20, 5, {1, 2}), 10);
  gaps.add(request(40, 5, {1, 2, 3, 4}), 10);
  EXPECT_EQ(gaps.requests(), 1U);
  EXPECT_EQ(gaps.tokens(), 5U);
  gaps.add(request(43, 5, {1, 2, 3, 4, 5}), 10);
  EXPECT_EQ(gaps.tokens(), 5U + 3U) << "the prompt grows by less than the answer";
  EXPECT_EQ(gaps.prompt(), 103U);
}

TEST(AnswerGaps, OtherConversationsAndKnownAnswersCostNothing) {
  AnswerGaps gaps;
  gaps.add(request(20, 5, {1, 2}, 1), 10);
  gaps.add(request(40, 5, {1, 2, 3, 4}, 2), 10);  // of another session
  gaps.add(request(40, 5, {7, 8, 9, 10}), 10);
  EXPECT_EQ(gaps.requests(), 0U);
  TraceRequest known = request(20, 5, {11, 12}, 3);
  known.answer_blocks = {13};
  gaps.add(known, 10);
  gaps.add(request(40, 5, {11, 12, 13, 14}, 3), 10);
  EXPECT_EQ(gaps.requests(), 0U);
}

TEST(AnswerGaps, AnAnswerCountsOnce) {
  AnswerGaps gaps;
  gaps.add(request(20, 5, {1, 2}), 10);
  gaps.add(request(30, 5, {1, 2, 3}), 10);
  gaps.add(request(30, 5, {1, 2, 4}), 10);
  EXPECT_EQ(gaps.requests(), 1U);
}

}  // namespace
}  // namespace kvtwin
