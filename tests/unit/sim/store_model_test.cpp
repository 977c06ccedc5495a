#include "sim/store_model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>

#include "tests/splitmix.hpp"

namespace kvtwin {
namespace {

StoreKey key(std::uint64_t number) { return {test::mix(number), number}; }

TEST(StoreModel, ALeasedPageIsNotEvicted) {
  StoreModel store(2, StoreRules{.evicts_itself = true, .lease_ns = 100});
  store.advance_to(0);
  ASSERT_TRUE(store.add(key(1)));
  ASSERT_TRUE(store.add(key(2)));
  store.renew_leases(std::vector{key(1), key(2)});
  EXPECT_FALSE(store.add(key(3)));  // both pages have a lease
  store.advance_to(50);
  ASSERT_TRUE(store.touch(key(1)));
  store.advance_to(100);  // the lease of page 2 has ended, that of page 1 has not
  EXPECT_TRUE(store.add(key(3)));
  EXPECT_TRUE(store.contains(key(1)));
  EXPECT_FALSE(store.contains(key(2)));
  EXPECT_TRUE(store.add(key(4)));  // a page that was only set has no lease
  EXPECT_FALSE(store.contains(key(3)));
}

TEST(StoreModel, ANodeThatGoesDownLosesItsPages) {
  StoreModel store(1000, StoreRules{.evicts_itself = true, .nodes = 4, .downs = {{2, {100, 200}}}});
  std::vector<StoreKey> keys;
  for (std::uint64_t i = 1; i <= 400; ++i) {
    keys.push_back(key(i));
    ASSERT_TRUE(store.add(keys.back()));
  }
  const auto on_node_2 =
      static_cast<Pages>(std::ranges::count_if(keys, [&](auto& k) { return store.node_of(k) == 2; }));
  EXPECT_GT(on_node_2, 60U);
  EXPECT_LT(on_node_2, 140U);
  const auto first = std::ranges::find_if(keys, [&](auto& k) { return store.node_of(k) == 2; });
  store.advance_to(99);
  EXPECT_EQ(store.leading(keys), 400U);
  store.advance_to(100);
  EXPECT_EQ(store.size(), 400 - on_node_2);
  EXPECT_TRUE(store.is_down(*first));
  EXPECT_EQ(store.leading(keys), static_cast<Pages>(first - keys.begin()));
  store.advance_to(200);
  EXPECT_FALSE(store.is_down(*first));
  EXPECT_FALSE(store.contains(*first));
  EXPECT_TRUE(store.add(*first));
  EXPECT_TRUE(store.contains(*first));
}

// Pages of 10 ns to write: the first one that a full memory evicts is the first one that is on the drives.
TEST(StoreModel, DrivesKeepWhatTheMemoryEvicts) {
  StoreModel store(2, StoreRules{.evicts_itself = true, .drive_pages = 2, .drive_write_ps = 10'000});
  store.advance_to(0);
  ASSERT_TRUE(store.add(key(1)));
  ASSERT_TRUE(store.add(key(2)));
  EXPECT_FALSE(store.add(key(3))) << "neither page is on the drives";
  EXPECT_EQ(store.drive_share(std::vector{key(1), key(2)}), 0.0);
  store.advance_to(10);
  EXPECT_TRUE(store.touch(key(1)));
  ASSERT_TRUE(store.add(key(3))) << "page 1 is, though it was used last";
  EXPECT_EQ(store.drive_share(std::vector{key(1), key(2)}), 0.5);
  EXPECT_TRUE(store.touch(key(1))) << "and stays there";
  EXPECT_EQ(store.drive_share(std::vector{key(1)}), 1.0);
  for (const std::uint64_t more : {4U, 5U, 6U}) {
    store.advance_to(static_cast<TimeNs>(1000 * more));
    ASSERT_TRUE(store.add(key(more))) << more;
  }
  EXPECT_EQ(store.evicted(), 2U) << "of full drives, those that came first";
  EXPECT_FALSE(store.contains(key(1)));
  EXPECT_FALSE(store.contains(key(2)));
  EXPECT_EQ(store.size(), 4U);
  EXPECT_EQ(store.drive_share(std::vector{key(3), key(4), key(5), key(6)}), 0.5);
  EXPECT_TRUE(store.remove(key(3)));
  EXPECT_EQ(store.size(), 3U);
}

// Against a list in the order of use.
TEST(StoreModel, AgreesWithASlowModel) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    test::Splitmix rng(seed);
    const Pages capacity = 1 + rng.below(12);
    const TimeNs lease = rng.below(2) == 0 ? 0 : 1 + static_cast<TimeNs>(rng.below(30));
    const std::uint32_t nodes = 1 + static_cast<std::uint32_t>(rng.below(4));
    StoreRules rules{.evicts_itself = rng.below(4) != 0, .lease_ns = lease, .nodes = nodes};
    for (std::uint64_t i = rng.below(4); i > 0; --i) {
      const auto begin = static_cast<TimeNs>(rng.below(600));
      rules.downs.push_back(
          {static_cast<std::uint32_t>(rng.below(nodes)), {begin, begin + static_cast<TimeNs>(1 + rng.below(100))}});
    }
    StoreModel store(capacity, rules);
    struct Page {
      StoreKey key;
      TimeNs leased_until;
    };
    std::deque<Page> pages;  // the least recently used one first
    std::vector<bool> lost(rules.downs.size(), false);
    TimeNs now = 0;
    Pages evicted = 0;
    const auto at = [&](const StoreKey& k) { return std::ranges::find(pages, k, &Page::key); };
    const auto use = [&](const StoreKey& k, TimeNs until) {
      pages.erase(at(k));
      pages.push_back({k, until});
    };
    for (int step = 0; step < 800; ++step) {
      now += static_cast<TimeNs>(rng.below(2));
      store.advance_to(now);
      for (std::size_t i = 0; i < rules.downs.size(); ++i) {
        if (lost[i] || rules.downs[i].span.begin > now) continue;
        lost[i] = true;
        std::erase_if(pages, [&](const Page& p) { return store.node_of(p.key) == rules.downs[i].node; });
      }
      const StoreKey k = key(1 + rng.below(20));
      const bool there = at(k) != pages.end();
      ASSERT_EQ(store.contains(k), there) << seed << " " << step;
      switch (rng.below(3)) {
        case 0:
          ASSERT_EQ(store.touch(k), there);
          if (there) use(k, now + lease);
          break;
        case 1: {
          bool fits = true;
          if (there) {
            use(k, now + lease);
          } else {
            if (pages.size() == capacity) {
              const auto victim =
                  std::ranges::find_if(pages, [&](const Page& p) { return lease == 0 || p.leased_until <= now; });
              fits = rules.evicts_itself && victim != pages.end();
              if (fits) pages.erase(victim);
              evicted += fits;
            }
            if (fits) pages.push_back({k, now});
          }
          ASSERT_EQ(store.add(k), fits) << seed << " " << step;
          break;
        }
        default:
          ASSERT_EQ(store.remove(k), there);
          if (there) pages.erase(at(k));
      }
      ASSERT_EQ(store.size(), pages.size());
      ASSERT_EQ(store.evicted(), evicted);
    }
  }
}

}  // namespace
}  // namespace kvtwin
