// Writes of a request's pages of which one fails: which later writes fail, and which one closes the gap.
#include "policy/seam/hand_over_gap.hpp"

#include <gtest/gtest.h>

namespace kvtwin {
namespace {

TEST(HandOverGap, FailsLaterWritesUntilOneBeginsAtItsPage) {
  HandOverGap gap;
  EXPECT_FALSE(gap.is_open());
  gap.failed(4, 2);
  EXPECT_TRUE(gap.is_before(8));
  gap.failed(8, 3);  // behind the gap, which stays where it is
  EXPECT_FALSE(gap.is_before(4));
  gap.written(4);
  EXPECT_FALSE(gap.is_open());
  EXPECT_FALSE(gap.is_before(8));
}

TEST(HandOverGap, AnEarlierWriteDoesNotCloseIt) {
  HandOverGap gap;
  gap.failed(4, 2);
  gap.written(1);  // ends late
  EXPECT_TRUE(gap.is_open());
  EXPECT_TRUE(gap.is_before(5));
}

TEST(HandOverGap, GrowsDownwards) {
  HandOverGap gap;
  gap.failed(4, 2);
  gap.failed(0, 3);  // wrote the missing pages again, and failed
  EXPECT_TRUE(gap.is_before(4));
  EXPECT_FALSE(gap.is_before(0));
}

}  // namespace
}  // namespace kvtwin
