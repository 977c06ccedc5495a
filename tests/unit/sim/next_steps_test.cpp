// The seat whose next step comes first, against a scan of all seats.
#include "sim/next_steps.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

TEST(NextSteps, Without_a_time_no_seat_steps) {
  for (const std::size_t seats : {1U, 2U, 5U}) {
    NextSteps steps(seats);
    EXPECT_EQ(steps.seats(), seats);
    EXPECT_EQ(steps.due(), kNever);
    EXPECT_EQ(steps.seat(), 0U);
  }
}

TEST(NextSteps, Only_marked_seats_are_computed_again_and_each_once) {
  NextSteps steps(3);
  std::vector<std::size_t> computed;
  const auto time_of = [&](std::size_t seat) {
    computed.push_back(seat);
    return static_cast<TimeNs>(10 - seat);
  };
  steps.mark(2);
  steps.mark(1);
  steps.mark(2);
  steps.refresh(time_of);
  EXPECT_EQ(computed, (std::vector<std::size_t>{2, 1}));
  EXPECT_EQ(steps.seat(), 2U);
  EXPECT_EQ(steps.due(), 8);
  steps.refresh(time_of);
  EXPECT_EQ(computed.size(), 2U);
}

TEST(NextSteps, Finds_what_a_scan_finds_and_breaks_ties_by_the_first_seat) {
  for (const std::size_t seats : {1U, 2U, 3U, 7U, 8U, 9U, 64U, 100U}) {
    Splitmix random(seats);
    NextSteps steps(seats);
    std::vector<TimeNs> dues(seats, kNever);
    for (int round = 0; round < 2000; ++round) {
      for (std::uint64_t changes = random.below(4); changes > 0; --changes) {
        const std::size_t seat = random.below(seats);
        dues[seat] = random.chance(10) ? kNever : static_cast<TimeNs>(random.below(50));
        steps.mark(seat);
      }
      steps.refresh([&](std::size_t seat) { return dues[seat]; });
      const auto first = std::ranges::min_element(dues);
      ASSERT_EQ(steps.due(), *first);
      ASSERT_EQ(steps.seat(), static_cast<std::size_t>(first - dues.begin()));
    }
  }
}

}  // namespace
}  // namespace kvtwin::test
