#include "policy/base/check.hpp"

#include <gtest/gtest.h>

#include <cstdio>

namespace kvtwin {
namespace {

void print(const char* condition, const char* sentence, const char*, int) {
  std::fprintf(stderr, "%s; %s\n", condition, sentence);
}

TEST(Check, EvaluatesItsConditionOnce) {
  int evaluations = 0;
  KV_CHECK(++evaluations == 1, "it holds");
  EXPECT_EQ(evaluations, 1);
}

TEST(CheckDeathTest, ABrokenPromiseReachesThePrinterAndEndsTheProgram) {
  EXPECT_DEATH(
      {
        set_check_handler(print);
        KV_CHECK(1 + 1 == 3, "numbers add up");
      },
      "1 \\+ 1 == 3; numbers add up");
  EXPECT_DEATH(KV_CHECK(false, "no printer is needed"), "");
}

}  // namespace
}  // namespace kvtwin
