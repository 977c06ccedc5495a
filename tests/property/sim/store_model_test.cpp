// Compares the store model with a list in the order of last use.
#include "sim/store_model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <vector>

#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

class SlowStore {
 public:
  SlowStore(Pages capacity, bool evicts) : capacity_(capacity), evicts_(evicts) {}
  bool contains(const StoreKey& key) const { return std::ranges::find(newest_first_, key) != newest_first_.end(); }
  Pages leading(const std::vector<StoreKey>& keys) const {
    return static_cast<Pages>(std::ranges::find_if_not(keys, [&](const StoreKey& k) { return contains(k); }) -
                              keys.begin());
  }
  bool remove(const StoreKey& key) { return std::erase(newest_first_, key) != 0; }
  bool touch(const StoreKey& key) {
    if (!remove(key)) return false;
    newest_first_.push_front(key);
    return true;
  }
  bool add(const StoreKey& key) {
    if (touch(key)) return true;
    if (newest_first_.size() == capacity_) {
      if (!evicts_) return false;
      newest_first_.pop_back();
    }
    newest_first_.push_front(key);
    return true;
  }
  Pages size() const { return newest_first_.size(); }

 private:
  Pages capacity_;
  bool evicts_;
  std::list<StoreKey> newest_first_;
};

// Only few low bits differ, so that keys collide in the table and runs wrap around its end.
StoreKey key_of(std::uint64_t i) { return {mix(i) & 0x3F, i}; }

TEST(StoreModel, DoesWhatAListDoes) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Splitmix rng(mix(seed));
    const Pages capacity = 1 + rng.below(200);
    const bool evicts = rng.below(2) == 0;
    const std::uint64_t keys = 1 + rng.below(300);
    StoreModel fast(capacity, evicts);
    SlowStore slow(capacity, evicts);
    for (int i = 0; i < 4'000; ++i) {
      const StoreKey key = key_of(rng.below(keys));
      switch (rng.below(5)) {
        case 0:
        case 1: ASSERT_EQ(fast.add(key), slow.add(key)) << "seed " << seed << ", act " << i; break;
        case 2: ASSERT_EQ(fast.touch(key), slow.touch(key)) << "seed " << seed << ", act " << i; break;
        case 3: ASSERT_EQ(fast.remove(key), slow.remove(key)) << "seed " << seed << ", act " << i; break;
        case 4: {
          std::vector<StoreKey> run;
          for (std::uint64_t first = rng.below(keys), k = 0; k < 8; ++k) run.push_back(key_of(first + k));
          ASSERT_EQ(fast.leading(run), slow.leading(run)) << "seed " << seed << ", act " << i;
          break;
        }
      }
      ASSERT_EQ(fast.size(), slow.size());
      ASSERT_EQ(fast.room(), evicts ? ~Pages{0} : capacity - slow.size());
    }
    for (std::uint64_t k = 0; k < keys; ++k) ASSERT_EQ(fast.contains(key_of(k)), slow.contains(key_of(k)));
  }
}

}  // namespace
}  // namespace kvtwin::test
