// `mpirun kvtwin run` with several engines whose remote tier is the memory that they lend to each other, by NIXL.
#include <gtest/gtest.h>

#include <string>

#include "tests/engines_run.hpp"
#include "tests/remote/environment.hpp"

#if KVTWIN_HAVE_MPI
namespace kvtwin::test {
namespace {

std::string pool_url(const std::string& more = "") {
  return "tiers.remote.url=nixl+ucx://engines?library=" + remote_packages().string() + more;
}

Settings pooled(const Folder& folder, std::size_t ranks) {
  return model_of_ranks(folder) + one_after_another(folder, 6, 40, 40) + small_engines(2, ranks) +
         Settings{"cluster.route=round_robin",           "cache.prefetch_min_tokens=4",
                  "cache.prefetch_policy=wait_complete", "cache.rules.prefetch_host_share=1",
                  "tiers.remote.tokens=100000",          "tiers.remote.timeout_s=60"};
}

// The kernel's copies, and TCP.
TEST(EnginePool, BringsPagesOfAnotherEngine) {
  for (const char* more : {"", "&transports=tcp,self"}) {
    for (const std::size_t ranks : {1U, 2U}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks" + more);
      const Folder folder;
      const Settings settings = pooled(folder, ranks);
      const Outcome outcome = run_ranks(folder, settings + Settings{pool_url(more)}, 2 * ranks);
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
      const Simulated real = read_run(outcome, folder.path() / "run");
      EXPECT_GT(real.tokens("hit_remote"), 0U);
      EXPECT_EQ(real.requests("completed"), 40U);
      EXPECT_EQ(real.report.at("real").at("verified").at("wrong_reads"), 0);
      EXPECT_EQ(real.report.at("real").at("storage").at("remote").at("corrupt_pages"), 0);
      expect_equal_journals(folder, real.report, 2, ranks);
    }
  }
}

// Engines under load, and a pool that evicts.
TEST(EnginePool, MayBeSmall) {
  const Folder folder;
  const Settings settings = busy_ranks(folder, 3, 200) + small_engines(3) +
                            Settings{"cache.prefetch_min_tokens=4", "tiers.remote.tokens=4000", pool_url()};
  const Outcome outcome = run_ranks(folder, settings, 3);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json report = outcome.json();
  EXPECT_EQ(report.at("real").at("verified").at("wrong_reads"), 0);
  EXPECT_EQ(report.at("requests").at("completed").get<int>() + report.at("requests").at("rejected").get<int>(), 200);
  const Json& pool = report.at("real").at("storage").at("remote");
  EXPECT_GT(pool.at("objects_stored").get<int>(), 1200) << "more than the pool has places for";
}

TEST(EnginePool, NeedsSeveralProcessesAndALibrary) {
  const Folder folder;
  const Settings settings = busy_ranks(folder, 3, 10) + Settings{"tiers.remote.tokens=4000"};
  const Outcome alone = run(run_arguments(folder, settings + Settings{"parallel.tp=1", pool_url()}));
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_NE(alone.err.find("cluster.engines"), std::string::npos) << alone.err;
  const Outcome without =
      run_ranks(folder, settings + small_engines(2) + Settings{"tiers.remote.url=nixl+ucx://engines?library=/nowhere"});
  EXPECT_EQ(without.exit_code, 2) << without.err;
  EXPECT_NE(without.err.find("/nowhere"), std::string::npos) << without.err;
}

}  // namespace
}  // namespace kvtwin::test
#endif
