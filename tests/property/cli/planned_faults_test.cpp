// Planned failures in whole simulations: every request is served, lost pages are missed, and the report says why.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

class PlannedFaults : public testing::TestWithParam<const char*> {
 protected:
  // Contexts return from the remote tier, which has three nodes.
  Settings base(std::uint64_t seed) {
    return conversations({.requests = 150, .gap_ms = 60}, seed).save(folder_) +
           Settings{"tiers.device.tokens=8192",       "tiers.host.tokens=8192",
                    "tiers.remote.tokens=400000",     "hardware.pool_nodes=3",
                    "cache.prefetch_min_tokens=64",   "cache.prefetch_policy=wait_complete",
                    "tiers.remote.store=mooncake_tcp"};
  }
  Simulated run(const Settings& settings) const { return simulate(settings, GetParam()); }

  Folder folder_;
};

std::vector<const char*> worlds() {
  if (KVTWIN_TEST_SIMGRID) return {"events", "simgrid"};
  return {"events"};
}
INSTANTIATE_TEST_SUITE_P(Both, PlannedFaults, testing::ValuesIn(worlds()),
                         [](const testing::TestParamInfo<const char*>& world) { return std::string(world.param); });

std::uint64_t fell_short(const Simulated& run, const char* cause) {
  return run.report.at("storage").at("fell_short").value(cause, std::uint64_t{0});
}

std::uint64_t answered(const Simulated& run) { return run.requests("completed") + run.requests("rejected"); }

TEST_P(PlannedFaults, EveryRequestIsServedWhileANodeIsDown) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    for (const char* policy : {"best_effort", "wait_complete", "timeout", "cost_stop"}) {
      const Settings settings = base(seed) + Settings{std::string("cache.prefetch_policy=") + policy};
      const Simulated whole = run(settings);
      const Simulated failing = run(settings + Settings{"faults.node_down=1@2+3,0@4+0.5"});
      EXPECT_EQ(answered(failing), 150U) << policy << " " << seed;
      EXPECT_EQ(failing.requests("completed"), whole.requests("completed")) << policy << " " << seed;
      EXPECT_EQ(failing.tokens("prompt"), whole.tokens("prompt"));
      EXPECT_EQ(fell_short(whole, "unreachable"), 0U);
    }
  }
}

TEST_P(PlannedFaults, PagesOfALostNodeAreUnreachableAndMissed) {
  const Settings settings = base(1);
  const Simulated whole = run(settings);
  ASSERT_GT(whole.tokens("hit_remote"), 0U);
  const Simulated failing = run(settings + Settings{"faults.node_down=1@2+3"});
  EXPECT_GT(fell_short(failing, "unreachable"), 0U);
  EXPECT_LT(failing.tokens("hit_remote"), whole.tokens("hit_remote"));
  EXPECT_GT(failing.tokens("miss"), whole.tokens("miss"));
  // The same script gives the same run.
  EXPECT_EQ(without_costs(run(settings + Settings{"faults.node_down=1@2+3"}).report), without_costs(failing.report));
  // A failure after the last request changes nothing but the notes.
  const Simulated later = run(settings + Settings{"faults.node_down=1@1000000+3"});
  EXPECT_EQ(later.digest(), whole.digest());
  EXPECT_EQ(later.requests_csv, whole.requests_csv);
}

TEST_P(PlannedFaults, SlowDrivesAndLinksServeEveryRequestLater) {
  const Settings disk = conversations({.requests = 150, .gap_ms = 60}, 2).save(folder_) +
                        Settings{"tiers.device.tokens=8192", "tiers.host.tokens=8192", "tiers.disk.tokens=400000",
                                 "cache.prefetch_min_tokens=64", "cache.prefetch_policy=wait_complete"};
  const Simulated whole = run(disk), slow = run(disk + Settings{"faults.slow_drives=50@1+1000"});
  EXPECT_EQ(answered(slow), 150U);
  EXPECT_GT(slow.mean_ttft(), whole.mean_ttft());
  const Simulated fast = run(base(2)), half = run(base(2) + Settings{"faults.slow_link=pool:0.001@1+1000"});
  EXPECT_EQ(answered(half), 150U);
  EXPECT_GT(half.mean_ttft(), fast.mean_ttft());
}

}  // namespace
}  // namespace kvtwin::test
