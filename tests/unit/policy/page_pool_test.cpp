#include "policy/index/page_pool.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tests/policy_test_support.hpp"

namespace kvtwin {
namespace {

using Slots = std::vector<SlotId>;

TEST(PagePool, TakesTheShortestRunThatFits) {
  PagePool pool(20);
  Slots all;
  ASSERT_TRUE(pool.allocate(20, all));
  pool.release(Slots{1, 2, 3, 4, 5});  // 5 free
  pool.release(Slots{8, 9});           // 2
  pool.release(Slots{15, 16, 17});     // 3
  Slots got;
  ASSERT_TRUE(pool.allocate(3, got));
  EXPECT_EQ(got, (Slots{15, 16, 17}));
  ASSERT_TRUE(pool.allocate(1, got));  // appended
  EXPECT_EQ(got, (Slots{15, 16, 17, 8}));
  pool.check_invariants();
}

TEST(PagePool, TakesTheLongestRunsWhenNoneFits) {
  PagePool pool(20);
  Slots all;
  ASSERT_TRUE(pool.allocate(20, all));
  pool.release(Slots{0});
  pool.release(Slots{3, 4, 5});
  pool.release(Slots{8, 9, 10});
  pool.release(Slots{14, 15});
  Slots got;
  ASSERT_TRUE(pool.allocate(7, got));
  EXPECT_EQ(got, (Slots{3, 4, 5, 8, 9, 10, 0}));
  EXPECT_EQ(pool.available(), 2u);
  EXPECT_TRUE(pool.in_use(0));
  EXPECT_FALSE(pool.in_use(14));
}

TEST(PagePool, AllOrNothing) {
  PagePool pool(4);
  Slots got;
  EXPECT_FALSE(pool.allocate(5, got));
  EXPECT_TRUE(got.empty());
  EXPECT_TRUE(pool.allocate(0, got));
  EXPECT_TRUE(pool.allocate(4, got));
  EXPECT_FALSE(pool.allocate(1, got));
  EXPECT_EQ(pool.used(), 4u);
  PagePool none(0);
  EXPECT_FALSE(none.allocate(1, got));
  EXPECT_TRUE(none.allocate(0, got));
  none.check_invariants();
}

TEST(PagePool, JoinsWhatIsReleasedInAnyOrder) {
  PagePool pool(8);
  Slots got;
  ASSERT_TRUE(pool.allocate(8, got));
  pool.release(Slots{6, 2, 4, 3, 5});
  pool.check_invariants();
  got.clear();
  ASSERT_TRUE(pool.allocate(5, got));
  EXPECT_EQ(got, (Slots{2, 3, 4, 5, 6}));
}

TEST(PagePool, RefusesSlotsThatAreNotInUse) {
  const test::ThrowingChecks checks;
  PagePool pool(8);
  Slots got;
  ASSERT_TRUE(pool.allocate(4, got));
  EXPECT_THROW(pool.release(Slots{4}), test::BrokenPromise);
  EXPECT_THROW(pool.release(Slots{8}), test::BrokenPromise);
  EXPECT_THROW(pool.release(Slots{1, 1}), test::BrokenPromise);
}

// Of a tier with states of 64 bytes, say. Memory is taken for the slots that are used, not for all.
TEST(PagePool, ALargePoolTakesMemoryForTheSlotsThatAreUsed) {
  const auto peak_kib = [] {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return used.ru_maxrss;
  };
  const auto before = peak_kib();
  PagePool pool(Pages{500'000'000});
  Slots slots;
  ASSERT_TRUE(pool.allocate(3, slots));
  EXPECT_EQ(slots, (Slots{0, 1, 2}));
  pool.release(slots);
  EXPECT_EQ(pool.available(), Pages{500'000'000});
  EXPECT_LT(peak_kib() - before, 500'000);  // KiB of 2 GB
}

}  // namespace
}  // namespace kvtwin
