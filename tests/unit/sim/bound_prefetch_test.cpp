#include "sim/bounds/prefetch.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kvtwin {
namespace {

// Computing takes 100 ns, minus 7 ns per prefetched page.
TimeNs rest(Pages pages) { return 100 - 7 * static_cast<TimeNs>(pages); }

BestStop stop(TimeNs ready, const std::vector<PagesArrived>& arrivals) { return best_stop(ready, arrivals, rest); }

void expect(const BestStop& best, TimeNs wait, TimeNs total) {
  EXPECT_EQ(best.wait, wait);
  EXPECT_EQ(best.total, total);
}

TEST(BestStop, WaitsForWhatComesSoonEnough) {
  expect(stop(1000, {}), 0, 100);
  expect(stop(1000, {{1010, 1}}), 0, 100);  // waiting 10 ns would save only 7 ns
  expect(stop(1000, {{1005, 1}}), 5, 98);
  expect(stop(1000, {{1005, 1}, {1020, 2}}), 5, 98);               // stops after the first
  expect(stop(1000, {{1008, 1}, {1016, 2}, {1018, 10}}), 18, 48);  // waits for the last arrival
}

TEST(BestStop, HasWhatCameWhileItQueued) {
  expect(stop(1000, {{900, 1}, {1000, 3}, {1030, 4}}), 0, 79);
  expect(stop(1000, {{900, 1}, {1000, 3}, {1001, 4}}), 1, 73);
}

TEST(BestStop, OfEqualOnesIsTheFirst) { expect(stop(1000, {{1007, 1}, {1014, 2}}), 0, 100); }

}  // namespace
}  // namespace kvtwin
