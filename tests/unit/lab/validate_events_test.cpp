// Stores and removals of an engine against those of a simulation: what counts as equal, and how a difference is named.
#include "lab/validate/validate_events.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvtwin {
namespace {

PageKey key_of(std::uint64_t page) {
  PageKey key;
  key.words[0] = page;
  return key;
}

std::string name_of_page(const PageKey& key) { return "page " + std::to_string(key.words[0]); }

// "+1 +2 -1": stores of pages 1 and 2, and the removal of page 1. The place in the text is the message and the line.
std::vector<PageEvent> events_of(const std::string& text, bool measured) {
  std::vector<PageEvent> events;
  for (std::size_t at = 0; at < text.size(); at += 3) {
    PageEvent event{text[at] == '+', key_of(static_cast<std::uint64_t>(text[at + 1] - '0'))};
    if (measured) {
      event.seq = event.line = events.size() + 1;
    } else {
      event.time = static_cast<TimeNs>(events.size() + 1) * kNsPerSecond;
    }
    events.push_back(event);
  }
  return events;
}

TierEvents compared(const std::string& measured, const std::string& predicted) {
  return compare_page_events(Tier::device, events_of(measured, true), events_of(predicted, false), name_of_page);
}

TEST(ValidateEvents, TheOrderWithinAGroupDoesNotCount) {
  const TierEvents same = compared("+1 +2 +3 -3 -2 +4", "+2 +1 +3 -2 -3 +4");
  EXPECT_FALSE(same.first);
  EXPECT_EQ(same.equal, 6U);
  EXPECT_EQ(same.common, 6U);
  EXPECT_EQ(same.measured_stored, 4U);
  EXPECT_EQ(same.predicted_removed, 2U);
  EXPECT_FALSE(compared("", "").first);
}

TEST(ValidateEvents, TheFirstPageThatOnlyOneSideMovesIsNamed) {
  const TierEvents other = compared("+1 +2 -1 +3", "+2 +1 -2 +3");
  ASSERT_TRUE(other.first);
  EXPECT_EQ(other.equal, 2U);
  EXPECT_EQ(other.common, 3U);
  EXPECT_EQ(other.first->measured, "removes page 1 (message 3, line 3)");
  EXPECT_EQ(other.first->predicted, "removes page 2, at 3.000000000 s");
}

TEST(ValidateEvents, AGroupThatIsLongerIsADifference) {
  const TierEvents longer = compared("+1 +2 -1", "+1 +2 -1 -2");
  ASSERT_TRUE(longer.first);
  EXPECT_EQ(longer.first->measured, "removes 1 page, which the other side removes too");
  EXPECT_EQ(longer.first->predicted, "removes page 2, one of 2 pages, at 4.000000000 s");
  const TierEvents ended = compared("+1", "+1 -1");
  ASSERT_TRUE(ended.first);
  EXPECT_EQ(ended.first->measured, "has no more events");
  EXPECT_EQ(compared("+1 -1", "-1 +1").first->predicted, "removes page 1, at 1.000000000 s") << "another kind of event";
}

TEST(ValidateEvents, PagesThatComeTwiceAreCounted) {
  EXPECT_EQ(compared("+1 -1 +1 -1", "+1 -1").common, 2U);
  EXPECT_TRUE(compared("+1 -1 +1 -1", "+1 -1").first);
}

}  // namespace
}  // namespace kvtwin
