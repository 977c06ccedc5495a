#include "models/names.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kvtwin {
namespace {

const std::vector<std::string> kKnown{"deepseek-v3", "llama-3.1-70b", "llama-3.1-8b", "tiny"};

TEST(Names, EditDistanceCountsInsertionsDeletionsSubstitutionsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("abc", ""), 3U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("LRU", "lru"), 0U);
  EXPECT_EQ(edit_distance("lur", "LRU"), 1U);
  EXPECT_EQ(edit_distance("abcd", "badc"), 2U);
}

TEST(Names, NearestIsNamedOnlyWhenItIsNear) {
  EXPECT_EQ(nearest_name("lama-3.1-8b", kKnown), "llama-3.1-8b");
  EXPECT_EQ(nearest_name("deepseek_v3", kKnown), "deepseek-v3");
  const std::vector<std::string> hardware{"h20", "h100-sxm", "h100-pcie5"};
  EXPECT_EQ(nearest_name("h100", hardware), "h100-sxm") << "although h20 is fewer letters away";
  const std::vector<std::string> evictions{"lfu", "lru", "lruk", "slru"};
  EXPECT_EQ(nearest_name("lur", evictions), "lru");
  EXPECT_EQ(nearest_name("something else", kKnown), "");
  EXPECT_EQ(nearest_name("", kKnown), "");
  EXPECT_EQ(nearest_name("tiny", {}), "");
}

TEST(Names, ALongListGivesWayToTheNearest) {
  std::vector<std::string> many(kKnown.begin(), kKnown.end());
  for (int i = 0; i < 40; ++i) many.push_back("other-" + std::to_string(i));
  EXPECT_EQ(unknown_name("model", "tinny", many), "unknown model \"tinny\": did you mean \"tiny\"?");
  EXPECT_NE(unknown_name("model", "zzzzzz", many).find("other-39."), std::string::npos);
}

TEST(Names, SentenceListsTheKnownOnes) {
  EXPECT_EQ(unknown_name("model", "tinny", kKnown),
            "unknown model \"tinny\": did you mean \"tiny\"? Known: deepseek-v3, llama-3.1-70b, llama-3.1-8b, tiny.");
  EXPECT_EQ(unknown_name("model", "x", kKnown),
            "unknown model \"x\". Known: deepseek-v3, llama-3.1-70b, llama-3.1-8b, tiny.");
}

}  // namespace
}  // namespace kvtwin
