// Compares PagePool with a bitmap that is scanned.
#include "policy/index/page_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/policy_test_support.hpp"

namespace kvtwin {
namespace {

class NaivePool {
 public:
  explicit NaivePool(std::size_t capacity) : used_(capacity, false) {}

  std::vector<SlotId> allocate(std::size_t pages) {
    std::vector<SlotId> slots;
    while (slots.size() < pages) {
      const std::size_t rest = pages - slots.size();
      std::size_t best = 0, best_length = 0;
      for (std::size_t first = 0; first < used_.size(); ++first) {
        if (used_[first] || (first > 0 && !used_[first - 1])) continue;
        std::size_t length = 0;
        while (first + length < used_.size() && !used_[first + length]) ++length;
        const bool fits = length >= rest, best_fits = best_length >= rest;
        if (fits ? (!best_fits || length < best_length) : (!best_fits && length > best_length)) {
          best = first;
          best_length = length;
        }
      }
      for (std::size_t i = 0; i < std::min(rest, best_length); ++i) {
        used_[best + i] = true;
        slots.push_back(static_cast<SlotId>(best + i));
      }
    }
    return slots;
  }

  void release(const std::vector<SlotId>& slots) {
    for (const SlotId slot : slots) used_[slot] = false;
  }

  bool in_use(SlotId slot) const { return used_[slot]; }
  std::size_t available() const { return static_cast<std::size_t>(std::count(used_.begin(), used_.end(), false)); }

 private:
  std::vector<bool> used_;
};

void run(std::uint64_t seed) {
  test::Splitmix random(seed);
  const std::size_t capacity = random.between(1, 120);
  PagePool pool(capacity);
  NaivePool naive(capacity);
  std::vector<SlotId> held;
  for (int step = 0; step < 300; ++step) {
    if (random.chance(50)) {
      const std::size_t pages = random.below(capacity / 3 + 2);
      std::vector<SlotId> got;
      const bool enough = pages <= naive.available();
      ASSERT_EQ(pool.allocate(pages, got), enough);
      if (enough) {
        ASSERT_EQ(got, naive.allocate(pages));
      }
      held.insert(held.end(), got.begin(), got.end());
    } else {
      // Releases some of the held slots: a range in the order of allocation, or the range shuffled.
      const std::size_t first = random.below(held.size() + 1);
      const std::size_t count = random.below(held.size() - first + 1);
      const auto begin = held.begin() + static_cast<std::ptrdiff_t>(first);
      std::vector<SlotId> back(begin, begin + static_cast<std::ptrdiff_t>(count));
      held.erase(begin, begin + static_cast<std::ptrdiff_t>(count));
      if (random.chance(50)) {
        for (std::size_t i = back.size(); i > 1; --i) std::swap(back[i - 1], back[random.below(i)]);
      }
      pool.release(back);
      naive.release(back);
    }
    pool.check_invariants();
    ASSERT_EQ(pool.available(), naive.available());
    for (SlotId slot = 0; slot < capacity; ++slot) ASSERT_EQ(pool.in_use(slot), naive.in_use(slot));
  }
}

TEST(PagePoolProperty, AgreesWithABitmapAndAScan) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    run(seed);
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace kvtwin
