#include "traces/passed_over.hpp"

#include <gtest/gtest.h>

#include <string>

namespace kvtwin::test {
namespace {

TEST(PassedOver, NamesUpToItsLimitAndCountsTheRest) {
  PassedOver one;
  EXPECT_TRUE(one.empty());
  one.add("b", 2);
  one.add("a\n");
  one.add("b");
  EXPECT_EQ(one.text(), "b (3), a? (1)");
  EXPECT_EQ(one.names(), "b, a?");
  PassedOver many;
  for (std::size_t i = 0; i < PassedOver::kMaxNames + 5; ++i) many.add("key" + std::to_string(i));
  EXPECT_EQ(many.total(), PassedOver::kMaxNames + 5);
  EXPECT_TRUE(many.text().ends_with("key23 (1), others (5)")) << many.text();
  EXPECT_TRUE(many.names().ends_with("key23, others (5)")) << many.names();
  one.add(many);
  EXPECT_EQ(one.total(), 4 + PassedOver::kMaxNames + 5);
  EXPECT_TRUE(one.text().starts_with("b (3), a? (1), key0 (1), ")) << one.text();
  EXPECT_TRUE(one.text().ends_with("key21 (1), others (7)")) << one.text();
}

// Keys of MessagePack may be any bytes, and a long name is cut anywhere.
TEST(PassedOver, NamesAreUtf8) {
  PassedOver one;
  one.add("gr\u00f6\u00dfe");
  one.add("\x9b[2J\xff");
  one.add(std::string(PassedOver::kMaxNameBytes - 1, 'x') + "\u00f6");
  EXPECT_EQ(one.names(), "gr\u00f6\u00dfe, ?[2J?, " + std::string(PassedOver::kMaxNameBytes - 1, 'x') + "?");
}

TEST(LeftOut, HasASentencePerReason) {
  LeftOut left_out;
  EXPECT_TRUE(left_out.sentences(3, "entries").empty());
  left_out.add("too short", "a");
  left_out.add("no figure", "b");
  left_out.add("too short", "c");
  EXPECT_EQ(left_out.sentences(7, "entries"),
            (std::vector<std::string>{"2 of 7 entries: too short (a, c)", "1 of 7 entries: no figure (b)"}));
}

}  // namespace
}  // namespace kvtwin::test
