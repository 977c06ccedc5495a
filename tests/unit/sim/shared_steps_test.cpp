// Groups of attention on one machine: they step together, and share its links and its disk tier.
#include "sim/shared_steps.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "seat_script.hpp"

namespace kvtwin::test {
namespace {

// A test of its own for each world, as with SeatsOf.
class GroupsOf : public SeatsOf {};
INSTANTIATE_TEST_SUITE_P(Both, GroupsOf, testing::ValuesIn(worlds_here()), name_of_world);

WorldConfig groups_of(std::uint32_t groups, std::uint32_t machines = 1) {
  WorldConfig config = plain_config();
  config.disk_read_bytes_per_second = config.disk_write_bytes_per_second = 10'000'000'000;
  config.storage = {{Tier::disk, 1'000, true}};
  config.groups = groups;
  config.engines = groups * machines;
  return config;
}

// Both passes begin together and last as long as the longer one. A pass that comes meanwhile waits for the next step,
// which has it alone.
TEST_P(GroupsOf, PassesOfAllGroupsAreOneStep) {
  on_world(groups_of(3), [](World& world) {
    const SeatLog log = run_seats(world, 3, {arrival(0, 0), arrival(0, 1), arrival(500, 2)},
                                  [](std::size_t seat, Substrate& s, const Input& i) {
                                    if (is_arrival(i)) s.submit(pass(1'000 * (static_cast<TimeNs>(seat) + 1), 0, 1));
                                  });
    ASSERT_EQ(log.size(), 6U);
    EXPECT_EQ(log[3], (SeatSeen{0, pass_end(2'000, 1, 1, 0)}));
    EXPECT_EQ(log[4], (SeatSeen{1, pass_end(2'000, 1, 1, 0)}));
    EXPECT_EQ(log[5], (SeatSeen{2, pass_end(5'000, 1, 1, 0)}));
  });
}

TEST_P(GroupsOf, EachMachineHasStepsOfItsOwn) {
  on_world(groups_of(2, 2), [](World& world) {
    const SeatLog log = run_seats(world, 4, {arrival(0, 0), arrival(0, 1), arrival(0, 2), arrival(0, 3)},
                                  [](std::size_t seat, Substrate& s, const Input& i) {
                                    if (is_arrival(i)) s.submit(pass(1'000 * (static_cast<TimeNs>(seat) + 1), 0, 1));
                                  });
    ASSERT_EQ(log.size(), 8U);
    for (std::size_t seat = 0; seat < 4; ++seat) {
      EXPECT_EQ(log[4 + seat], (SeatSeen{seat, pass_end(seat < 2 ? 2'000 : 4'000, 1, 1, 0)}));
    }
  });
}

// The passes that groups submit when a step ends are the next step, all of them.
TEST_P(GroupsOf, GroupsThatGoOnStepTogetherAgain) {
  on_world(groups_of(2), [](World& world) {
    std::vector<int> left{3, 3};
    const SeatLog log =
        run_seats(world, 2, {arrival(0, 0), arrival(0, 1)}, [&](std::size_t seat, Substrate& s, const Input&) {
          if (left[seat]-- > 0) s.submit(pass(seat == 0 ? 100 : 300, 0, 1));
        });
    ASSERT_EQ(log.size(), 8U);
    for (std::size_t step = 0; step < 3; ++step) {
      for (std::size_t seat = 0; seat < 2; ++seat) {
        const TimeNs end = 300 * (static_cast<TimeNs>(step) + 1);
        EXPECT_EQ(log[2 + 2 * step + seat], (SeatSeen{seat, pass_end(end, step + 1, 1, 0)}));
      }
    }
  });
}

// 1,000,000 bytes at 50 bytes per ns, on the link of the group. All groups wait for the load of one.
TEST_P(GroupsOf, AllWaitForTheGatesOfOne) {
  on_world(groups_of(2), [](World& world) {
    const SeatLog log =
        run_seats(world, 2, {arrival(0, 0), arrival(0, 1)}, [](std::size_t seat, Substrate& s, const Input& i) {
          if (!is_arrival(i)) return;
          if (seat == 1) {
            s.submit(pass(1'000, 0, 1));
            return;
          }
          const OperationId gate = s.submit(transfer(Lane::h2d, 1'000'000, 0));
          s.submit(pass(1'000, 0, 1, std::span(&gate, 1)));
        });
    ASSERT_EQ(log.size(), 5U);
    EXPECT_EQ(log[3], (SeatSeen{0, pass_end(21'000, 2, 1, 20'000)}));
    EXPECT_EQ(log[4], (SeatSeen{1, pass_end(21'000, 1, 1, 20'000)}));
  });
}

TEST_P(GroupsOf, AGateThatFailsEndsItsOwnPassOnly) {
  on_world(groups_of(2), [](World& world) {
    const SeatLog log =
        run_seats(world, 2, {arrival(0, 0), arrival(0, 1)}, [](std::size_t seat, Substrate& s, const Input& i) {
          if (!is_arrival(i)) return;
          if (seat == 1) {
            s.submit(pass(100'000, 0, 1));
            return;
          }
          const OperationId gate = s.submit(transfer(Lane::h2d, 1'000'000, 0));
          s.submit(pass(1'000, 0, 1, std::span(&gate, 1)));
          s.cancel(gate);
        });
    ASSERT_EQ(log.size(), 5U);
    const auto failed = static_cast<std::uint64_t>(Status::gate_failed);
    EXPECT_EQ(std::ranges::count_if(log, [&](const SeatSeen& s) { return s.seat == 0 && s.seen.status == failed; }), 1);
    EXPECT_EQ(log.back(), (SeatSeen{1, pass_end(100'000, 1, 1, 0)}));
  });
}

// What one group has stored on the disk, the other one finds there; the groups of another machine do not.
TEST_P(GroupsOf, TheDiskIsThatOfTheMachine) {
  on_world(groups_of(2, 2), [](World& world) {
    const SeatLog log =
        run_seats(world, 4, {arrival(0, 0), arrival(kNsPerSecond, 1), arrival(2 * kNsPerSecond, 2)},
                  [](std::size_t seat, Substrate& s, const Input& i) {
                    if (is_arrival(i))
                      StorageCall(seat == 0 ? StorageVerb::set : StorageVerb::get, Tier::disk, 0, 4).submit(s);
                  });
    ASSERT_EQ(log.size(), 6U);
    EXPECT_EQ(log[3].seen.pages, 4U) << log[3];
    EXPECT_EQ(log[5].seen.cause, static_cast<std::uint64_t>(Cause::missing)) << log[5];
  });
}

// Each group has a GPU link of its own, and all share the drives: 800,000 bytes at 10 bytes per ns.
TEST_P(GroupsOf, TheDrivesAreThoseOfTheMachine) {
  on_world(groups_of(2), [](World& world) {
    const SeatLog log =
        run_seats(world, 2, {arrival(0, 0), arrival(0, 1)}, [](std::size_t seat, Substrate& s, const Input& i) {
          if (!is_arrival(i)) return;
          s.submit(transfer(Lane::h2d, 1'000'000, 0));
          StorageCall(StorageVerb::set, Tier::disk, 100 * seat, 4).submit(s);
        });
    ASSERT_EQ(log.size(), 6U);
    EXPECT_EQ(log[2].seen.now, 20'000);
    EXPECT_EQ(log[3].seen.now, 20'000);
    const TimeNs shared = GetParam() == Which::simgrid ? 80'001 : 40'001;
    EXPECT_NEAR(static_cast<double>(log[4].seen.now), static_cast<double>(shared), 1.0);
    EXPECT_NEAR(static_cast<double>(log[5].seen.now), static_cast<double>(shared), 1.0);
  });
}

}  // namespace
}  // namespace kvtwin::test
