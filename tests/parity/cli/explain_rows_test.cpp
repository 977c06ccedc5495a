// kvtwin explain tells each request as requests.csv has it: with storage tiers and each prefetch policy, engines with
// roles of which one dies, engines without roles, and real runs.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "tests/real_run.hpp"
#include "tests/recorded_run.hpp"

namespace kvtwin::test {
namespace {

std::string cell_of(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9f", seconds);
  return text;
}

// The cell of an absent column is empty. A request that was no part of a hand-over has no time of one.
void expect_row(const Json& told, const Table& table, std::size_t row, bool with_parts) {
  EXPECT_EQ(told.at("outcome").get<std::string>(), table.text(row, "outcome"));
  for (const char* column : {"prompt_tokens", "output_tokens", "hit_device", "hit_host", "hit_disk", "hit_shared_fs",
                             "hit_remote", "miss", "recomputed_after_stop", "retracted_recompute", "retractions"}) {
    const std::string cell = table.text(row, column);
    EXPECT_EQ(told.contains(column) ? std::to_string(told.at(column).get<std::uint64_t>()) : "", cell) << column;
  }
  for (const char* column :
       {"arrival_s", "queue_s", "prefetch_wait_s", "load_wait_s", "compute_s", "ttft_s", "tpot_s", "e2e_s"}) {
    const std::string cell = table.text(row, column);
    EXPECT_EQ(told.contains(column) ? cell_of(told.at(column).get<double>()) : "", cell) << column;
  }
  if (with_parts && !table.text(row, "hand_over_s").empty()) {
    EXPECT_EQ(cell_of(told.value("hand_over_s", 0.0)), table.text(row, "hand_over_s"));
  }
}

// Compares every request of the run. Returns the table.
Table expect_rows(const std::string& out) {
  const std::string text = text_of(out + "/requests.csv");
  const bool with_parts = text.substr(0, text.find('\n')).find("hand_over_s") != std::string::npos;
  Table table(text);
  EXPECT_GT(table.size(), 20U);
  for (std::size_t row = 0; row < table.size(); ++row) {
    const std::string request = table.text(row, "request");
    SCOPED_TRACE("request " + request);
    const Outcome outcome = run({"explain", out, "--request", request, "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    if (outcome.exit_code != 0) break;
    const Json told = outcome.json();
    expect_row(told.contains("together")  ? told.at("together")
               : told.contains("engines") ? told.at("engines").at(0)
                                          : told,
               table, row, with_parts);
    if (testing::Test::HasFailure()) break;
  }
  return table;
}

// Contexts that return after L1 and L2 have evicted them, while requests wait behind others.
Settings returning() {
  return {"workload.generate.kind=returning",
          "workload.generate.prompt_tokens=2112",
          "workload.generate.question_tokens=64",
          "workload.generate.output_tokens=40",
          "workload.generate.working_set_tokens=16896",
          "workload.generate.requests=60",
          "workload.generate.prompt_tokens_per_second=12000",
          "tiers.device.tokens=6400",
          "tiers.host.tokens=8448",
          "tiers.disk.tokens=1000000",
          "hardware.set.disk_read_gbps=1",
          "cache.storage_batch_pages=4",
          "scheduler.max_running=3"};
}

class ExplainRows : public testing::Test {
 protected:
  Table of_simulation(const Settings& settings, const std::vector<std::string>& more = {}) {
    const std::string name = "run" + std::to_string(++runs_);
    simulate_to(folder_, name, settings, true, kAnyWorld, more);
    return expect_rows(folder_ / name);
  }
  Folder folder_;
  int runs_ = 0;
};

TEST_F(ExplainRows, AreEqualUnderEachPrefetchPolicy) {
  for (const std::string policy : {"best_effort", "wait_complete", "timeout", "cost_stop"}) {
    SCOPED_TRACE(policy);
    const Table table =
        of_simulation(returning() + Settings{"cache.prefetch_policy=" + policy, "cache.prefetch_timeout_base_s=0.02",
                                             "cache.prefetch_timeout_per_ki_token_s=0.01"});
    EXPECT_GT(table.sum("hit_disk"), 0U);
    if (policy == "timeout") {
      EXPECT_GT(table.sum("recomputed_after_stop"), 0U);
    }
  }
}

TEST_F(ExplainRows, AreEqualWithRolesAndDeaths) {
  const Settings work = conversations({.requests = 60, .gap_ms = 60}, 1).save(folder_) +
                        Settings{"tiers.device.tokens=20032", "tiers.host.tokens=60032",
                                 "tiers.shared_fs.tokens=400000", "cluster.prefill=2", "cluster.decode=2"};
  of_simulation(work);
  of_simulation(work + Settings{"serving.engine=sglang"});
  for (const char* engine : {"1", "3"}) {
    SCOPED_TRACE(std::string("engine ") + engine + " dies");
    of_simulation(
        work + Settings{std::string("cluster.dead_engine=") + engine, "cluster.dead_at_s=1.5", "cluster.detect_s=0.2"});
  }
}

TEST_F(ExplainRows, AreEqualWithSeveralEnginesAndADeath) {
  const Settings work = conversations({.requests = 60, .gap_ms = 30}, 1).save(folder_) +
                        Settings{"tiers.device.tokens=20032", "tiers.host.tokens=60032", "cluster.engines=3"};
  of_simulation(work);
  of_simulation(work + Settings{"cluster.dead_engine=1", "cluster.dead_at_s=0.8", "cluster.detect_s=0.2"});
}

#if KVTWIN_TEST_REAL
TEST_F(ExplainRows, AreEqualInRealRuns) {
  const Conversations c{
      .requests = 60, .block_tokens = 16, .first_blocks = 8, .growth_blocks = 3, .live = 8, .output = 20, .gap_ms = 2};
  const Settings work = small_model(folder_) + conversations(c, 5).save(folder_) +
                        Settings{"cache.page_tokens=16", "cache.prefetch_min_tokens=16", "tiers.device.tokens=1600",
                                 "tiers.host.tokens=1600", "scheduler.max_running=4"};
  for (const std::string policy : {"best_effort", "wait_complete", "timeout"}) {
    SCOPED_TRACE(policy);
    run_for_real(folder_,
                 work + Settings{"cache.prefetch_policy=" + policy, "tiers.disk.tokens=64000",
                                 "tiers.disk.path=" + (folder_ / ("disk_" + policy))},
                 policy);
    expect_rows(folder_ / policy);
  }
}
#endif

}  // namespace
}  // namespace kvtwin::test
