// parallel.attention_dp in runs of the program: the report of shared stores, and real runs.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/paths.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

// A store that engines share evicts by itself.
TEST(SharedStores, ReportTheirEvictions) {
  const Folder folder;
  const Settings base = conversations({.requests = 150, .gap_ms = 60}, 1).save(folder) +
                        Settings{"tiers.device.tokens=12032", "tiers.host.tokens=24064", "parallel.tp=2"};
  const auto disk_of = [&](const Settings& more) { return simulate(base + more).report.at("tiers").at(2); };
  for (const Settings& shared : {Settings{"parallel.attention_dp=2", "tiers.disk.tokens="},
                                 Settings{"cluster.engines=2", "tiers.remote.tokens="},
                                 Settings{"cluster.engines=2", "tiers.shared_fs.tokens="}}) {
    SCOPED_TRACE(shared.back());
    for (const char* size : {"32000", "3200000"}) {
      const Json tier = disk_of({shared.front(), shared.back() + size});
      const bool full = tier.at("used_pages_max") == tier.at("capacity_pages");
      EXPECT_EQ(full, std::string_view(size) == "32000") << tier;
      EXPECT_EQ(tier.at("evicted_pages") > 0, full) << tier;
    }
  }
}

#if KVTWIN_TEST_REAL
TEST(AttentionGroupsSetup, RealRunsAreRefused) {
  Surroundings around;
  around.folder = kSourceFolder;
  const Outcome real = run({"run", "experiments/quickstart.toml", "--device", "host", "--set", "parallel.tp=2", "--set",
                            "parallel.attention_dp=2"},
                           around);
  EXPECT_EQ(real.exit_code, 2);
  EXPECT_NE(real.err.find("no data parallelism of attention"), std::string::npos) << real.err;
}
#endif

}  // namespace
}  // namespace kvtwin::test
