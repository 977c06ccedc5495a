#include "policy/prefetch/lateness.hpp"

#include <gtest/gtest.h>

namespace kvtwin {
namespace {

constexpr TimeNs kUnit = 1'000'000;

// Weighs waiting for a prefetch with no other request ahead: its last batch was started `waited` ago.
Lateness::Outlook alone(const Lateness& medium, TimeNs instead, TimeNs waited = 0) {
  return medium.weigh({kUnit, waited, 1, 0, instead});
}

// A medium with `batches` batches, of which every twentieth takes `late` times as long as expected.
Lateness stalling(int batches, TimeNs late) {
  Lateness medium;
  for (int i = 0; i < batches; ++i) medium.came(kUnit, i % 20 == 19 ? late * kUnit : kUnit);
  return medium;
}

TEST(Lateness, a_medium_that_nobody_has_seen_is_believed_to_be_on_time) {
  const Lateness medium;
  EXPECT_GT(alone(medium, 2 * kUnit).give_up, kUnit);
  EXPECT_LE(alone(medium, kUnit / 2).give_up, 0) << "at once: even on time it would come too late";
}

TEST(Lateness, little_is_known_so_what_has_lasted_may_last_as_long_again) {
  const Lateness medium;
  for (const TimeNs instead : {10 * kUnit, 40 * kUnit, 160 * kUnit}) {
    const TimeNs give_up = alone(medium, instead, 2 * kUnit).give_up;
    EXPECT_GT(give_up, instead * 5 / 4) << "twice what is to be won, to a bin of a quarter octave";
    EXPECT_LT(give_up, instead * 5 / 2);
  }
}

TEST(Lateness, a_dead_medium_is_left_after_a_while_and_sooner_each_time) {
  Lateness medium;
  TimeNs before = 1'000 * kUnit;
  for (int i = 0; i < 4; ++i) {
    const TimeNs give_up = alone(medium, 40 * kUnit, 2 * kUnit).give_up;
    EXPECT_LT(give_up, before);
    medium.given_up(kUnit, give_up);
    before = give_up;
  }
}

TEST(Lateness, it_is_waited_for_what_is_known_to_end_in_time) {
  const Lateness medium = stalling(240, 20);
  EXPECT_GT(alone(medium, 22 * kUnit, 2 * kUnit).give_up, 20 * kUnit) << "18 more, instead of 22";
  EXPECT_LT(alone(medium, 10 * kUnit, 2 * kUnit).give_up, 3 * kUnit) << "18 more, instead of 10";
  EXPECT_GT(alone(medium, 10 * kUnit, 14 * kUnit).give_up, 20 * kUnit) << "6 more, instead of 10";
}

TEST(Lateness, those_behind_wait_too) {
  const Lateness medium = stalling(240, 20);
  EXPECT_LT(medium.weigh({kUnit, 2 * kUnit, 8, 0, 60 * kUnit}).give_up, 3 * kUnit);
  EXPECT_GT(medium.weigh({kUnit, 2 * kUnit, 1, 0, 60 * kUnit}).give_up, 20 * kUnit);
}

TEST(Lateness, what_is_to_come_afterwards_counts) {
  const Lateness medium = stalling(240, 20);
  EXPECT_GT(medium.weigh({kUnit, 2 * kUnit, 1, 0, 30 * kUnit}).give_up, 20 * kUnit);
  EXPECT_LT(medium.weigh({kUnit, 2 * kUnit, 1, 20 * kUnit, 30 * kUnit}).give_up, 3 * kUnit);
}

TEST(Lateness, what_was_given_up_did_not_end_before) {
  Lateness medium;
  for (int i = 0; i < 100; ++i) medium.came(kUnit, kUnit);
  for (int i = 0; i < 10; ++i) medium.given_up(kUnit, 10 * kUnit);
  const Lateness::Outlook outlook = alone(medium, 10 * kUnit, 2 * kUnit);
  EXPECT_LE(outlook.give_up, 2 * kUnit) << "none has ended between 2 and 10";
}

TEST(Lateness, the_old_is_forgotten) {
  Lateness medium = stalling(400, 20);
  EXPECT_LT(alone(medium, 8 * kUnit, 2 * kUnit).give_up, 3 * kUnit);
  for (int i = 0; i < 4'000; ++i) medium.came(kUnit, i % 20 == 19 ? 3 * kUnit : kUnit);
  EXPECT_GT(alone(medium, 8 * kUnit, 2 * kUnit).give_up, 3 * kUnit);
  // Batches that were given up immediately tell nothing about the medium, and these 4,000 replace all older ones.
  for (int i = 0; i < 4'000; ++i) medium.given_up(kUnit, 0);
  EXPECT_GT(alone(medium, 40 * kUnit, 2 * kUnit).give_up, 50 * kUnit);
}

TEST(Lateness, costs_are_means) {
  const Lateness medium = stalling(240, 8);
  const Lateness::Outlook outlook = alone(medium, 1'000 * kUnit);
  const double mean = (19 * 1.0 + 8.0) / 20;
  EXPECT_NEAR(static_cast<double>(outlook.cost) / kUnit, mean, 0.1) << "one of 240 is heavy-tailed";
  EXPECT_NEAR(static_cast<double>(outlook.wait) / kUnit, mean, 0.1);
  EXPECT_EQ(alone(medium, kUnit / 2).cost, kUnit / 2) << "or what giving it up costs";
}

TEST(Lateness, no_time_is_so_long_that_it_wraps) {
  Lateness medium;
  constexpr TimeNs kLong = 100'000 * kNsPerSecond;
  for (const TimeNs unit : {TimeNs{1}, kUnit, kLong}) {
    medium.came(unit, kLong);
    medium.given_up(unit, kLong);
    const Lateness::Outlook outlook = medium.weigh({unit, 0, 9, 9 * kLong, 9 * kLong});
    EXPECT_GE(outlook.cost, 0);
    EXPECT_LE(outlook.cost, 9 * kLong);
    EXPECT_EQ(medium.weigh({unit, 5000 * unit, 9, 0, kLong}).cost, kLong) << "past the last bin nobody waits";
  }
}

}  // namespace
}  // namespace kvtwin
