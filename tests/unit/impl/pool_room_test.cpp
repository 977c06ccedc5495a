#include "impl/disk/pool_room.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

Bytes total(const PoolRoom& room, const std::vector<Bytes>& sizes) {
  Bytes all = 0;
  for (std::size_t pool = 0; pool < sizes.size(); ++pool) all += room.part(pool) * sizes[pool];
  return all;
}

TEST(PoolRoom, GivesWhatIsNeededWhileThereIsRoom) {
  PoolRoom room(1'000, {10, 100});
  room.make_room(0, 30, std::vector<Pages>{0, 0});
  room.make_room(1, 7, std::vector<Pages>{30, 0});
  EXPECT_EQ(room.part(0), 30U);
  EXPECT_EQ(room.part(1), 7U);
}

TEST(PoolRoom, ShortObjectsDoNotKeepLongOnesOut) {
  PoolRoom room(1'000, {10, 100});
  room.make_room(0, 100, std::vector<Pages>{0, 0});
  EXPECT_EQ(room.part(0), 100U);
  room.make_room(1, 1, std::vector<Pages>{100, 0});
  EXPECT_GE(room.part(1), 1U);
  EXPECT_LE(total(room, {10, 100}), 1'000U);
}

// Nine bytes of ten are put into pool 1: it ends with nine of ten bytes, whoever came first.
TEST(PoolRoom, AFullStoreIsDividedAsItIsPutTo) {
  const std::vector<Bytes> sizes{10, 900};
  PoolRoom room(100'000, sizes);
  std::vector<Pages> used{0, 0};
  const auto put = [&](std::size_t pool, Pages objects) {
    room.make_room(pool, objects, used);
    used[pool] += objects;
    for (std::size_t at = 0; at < used.size(); ++at) used[at] = std::min(used[at], room.part(at));
  };
  put(0, 10'000);
  EXPECT_EQ(used[0], 10'000U);
  for (int round = 0; round < 400; ++round) {
    put(0, 10);
    put(1, 1);
    ASSERT_LE(total(room, sizes), 100'000U);
  }
  EXPECT_NEAR(static_cast<double>(used[1] * 900), 90'000, 6'000);
}

TEST(PoolRoom, WhatWasFoundFitsAfterwards) {
  const std::vector<Bytes> sizes{10, 100, 1'000};
  PoolRoom room(12'000, sizes);
  room.adopt(std::vector<Pages>{1'500, 30, 4});
  EXPECT_LE(total(room, sizes), 12'000U);
  EXPECT_EQ(room.part(0), 500U);
  EXPECT_EQ(room.part(1), 30U) << "a small pool keeps what it has";
  EXPECT_EQ(room.part(2), 4U);
}

TEST(PoolRoom, AFullMediumLowersTheCapacity) {
  PoolRoom room(10'000, {10, 100});
  room.make_room(0, 500, std::vector<Pages>{0, 0});
  room.limit_to(std::vector<Pages>{300, 0});
  EXPECT_EQ(room.capacity(), 3'000U);
  room.make_room(1, 1, std::vector<Pages>{300, 0});
  EXPECT_EQ(room.part(1), 1U) << "pool 0 makes room";
  EXPECT_LE(room.part(0), 290U);
}

// Any sequence of puts and removes: the parts never exceed the capacity, and a put finds room for an object.
TEST(PoolRoom, PartsNeverExceedTheCapacity) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Splitmix random(seed);
    std::vector<Bytes> sizes;
    for (std::uint64_t i = random.between(1, 5); i > 0; --i) sizes.push_back(random.between(1, 5'000));
    const Bytes capacity = random.between(5'000, 60'000);
    PoolRoom room(capacity, sizes);
    std::vector<Pages> used(sizes.size(), 0);
    for (int step = 0; step < 300; ++step) {
      const std::size_t pool = random.below(sizes.size());
      const Pages objects = random.between(1, 40);
      room.make_room(pool, objects, used);
      ASSERT_LE(total(room, sizes), capacity) << "seed " << seed;
      ASSERT_GE(room.part(pool), 1U) << "seed " << seed;
      used[pool] += objects;
      for (std::size_t at = 0; at < used.size(); ++at) used[at] = std::min(used[at], room.part(at));
      if (random.below(4) == 0) used[random.below(sizes.size())] /= 2;
    }
  }
}

}  // namespace
}  // namespace kvtwin::test
