// No way of ending prefetches is better than the best stop, on the same arrivals.
#include "sim/bounds/prefetch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "policy/termination.hpp"
#include "tests/timeout_text.hpp"
#include "traces/random.hpp"

namespace kvtwin {
namespace {

constexpr TimeNs kPageNs = 1'000'000;  // computing a page
constexpr Pages kHit = 64;
constexpr Tokens kPageTokens = 64;

TimeNs rest(Pages pages) { return static_cast<TimeNs>(kHit - pages) * kPageNs; }

std::vector<PagesArrived> random_arrivals(Random& random) {
  std::vector<PagesArrived> arrivals;
  PagesArrived there;
  while (there.pages < kHit) {
    const std::uint64_t pages = random.integer(1, 8);
    there.pages = std::min(kHit, there.pages + pages);
    there.time += static_cast<TimeNs>(pages * random.integer(1, 2 * kPageNs)) * (random.chance(0.1) ? 10 : 1);
    arrivals.push_back(there);
    if (random.chance(0.02)) break;  // the rest fell short
  }
  return arrivals;
}

// What a request takes that is ready then and asks the policy whenever something comes.
TimeNs taken(const Termination& policy, TimeNs ready, const std::vector<PagesArrived>& arrivals) {
  const Lateness medium;
  PrefetchFacts facts;
  facts.asked_tokens = kHit * kPageTokens;
  facts.medium = &medium;
  facts.first = 0;
  Pages there = 0;
  for (const PagesArrived& next : arrivals) {
    if (next.time > ready) {
      facts.arrived_tokens = there * kPageTokens;
      facts.now = std::max(ready, facts.progress);
      facts.saves_ns = rest(there);
      facts.began = facts.progress;
      facts.unit_ns = kPageNs;
      facts.rest_ns = static_cast<TimeNs>(kHit - there) * kPageNs * 3 / 4;
      const TimeNs stop = std::max(facts.now, policy.stop_at(facts));
      if (stop < next.time) return stop - ready + rest(there);
      facts.progress = next.time;
    }
    there = next.pages;
  }
  return std::max<TimeNs>(0, arrivals.back().time - ready) + rest(there);
}

TEST(BestStop, NoPolicyIsBetter) {
  Random random(1);
  std::vector<std::unique_ptr<Termination>> policies;
  for (const std::string_view which : {"best_effort", "wait_complete", "timeout", "cost_stop"}) {
    EngineConfig config;
    config.prefetch_policy = which == "timeout" ? test::timeout_text(20 * kPageNs, 0) : std::string(which);
    policies.push_back(make_termination(config));
  }
  int reached = 0, better = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::vector<PagesArrived> arrivals = random_arrivals(random);
    const TimeNs ready = random.chance(0.5) ? 0 : static_cast<TimeNs>(random.integer(0, 40 * kPageNs));
    const BestStop best = best_stop(ready, arrivals, rest);
    bool is_reached = false;
    for (const auto& policy : policies) {
      const TimeNs own = taken(*policy, ready, arrivals);
      ASSERT_LE(best.total, own) << i;
      is_reached = is_reached || own == best.total;
    }
    // Nor is any other time.
    const auto stop = static_cast<TimeNs>(random.integer(0, 100 * kPageNs));
    Pages there = 0;
    for (const PagesArrived& arrived : arrivals) there = arrived.time <= ready + stop ? arrived.pages : there;
    ASSERT_LE(best.total, stop + rest(there)) << i;
    reached += is_reached ? 1 : 0;
    better += is_reached ? 0 : 1;
  }
  EXPECT_GT(reached, 2'000);
  EXPECT_GT(better, 2'000);
}

}  // namespace
}  // namespace kvtwin
