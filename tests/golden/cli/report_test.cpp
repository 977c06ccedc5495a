// The report of one hour of simulated chat: its numbers equal the golden file, the sums in it agree, and nothing but
// the experiment changes it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/paths.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

const std::string kChatHour = in_source("experiments/chat_hour.toml");
const std::string kGolden = in_source("tests/golden/chat_hour.json");

void expect_golden(const std::string& world) {
  const Json golden = Json::parse(text_of(kGolden)).at(world);
  ASSERT_GE(golden.size(), 10U);
  const Json report = run(simulate_arguments(kChatHour, {}, "", world)).json();
  for (const auto& [pointer, value] : golden.items()) {
    EXPECT_EQ(report.at_path(pointer), value)
        << pointer << " in " << world << "; if that is meant: tests/golden/update";
  }
}

TEST(Golden, EventHeap) { expect_golden("events"); }

#if KVTWIN_TEST_SIMGRID
TEST(Golden, SimGrid) { expect_golden("simgrid"); }
#endif

// One hour under load, used by all tests that only read a finished run. Both tiers evict pages, and both have hits.
const Simulated& busy_hour() {
  static const Simulated run = simulate_file(kChatHour, {"tiers.device.gib=20", "tiers.host.gib=64"});
  return run;
}

TEST(Report, PromptTokensAreHitOrMissedExactly) {
  const Simulated& run = busy_hour();
  EXPECT_GT(run.tokens("hit_device"), 0U);
  EXPECT_GT(run.tokens("hit_host"), 0U);
  EXPECT_EQ(run.tokens("prompt"), run.tokens("hit_device") + run.tokens("hit_host") + run.tokens("hit_disk") +
                                      run.tokens("hit_shared_fs") + run.tokens("hit_remote") +
                                      run.tokens("recomputed_after_stop") + run.tokens("miss"));
  EXPECT_GE(run.tokens("miss"), run.requests("completed"));  // at least one token of each request is computed
}

TEST(Report, EveryRequestEnds) {
  const Simulated& run = busy_hour();
  EXPECT_EQ(run.requests("total"), 11'849U);
  EXPECT_EQ(run.requests("total"), run.requests("completed") + run.requests("rejected") + run.requests("failed"));
  EXPECT_EQ(run.requests("completed"), run.requests("total"));

  const Simulated rejecting = simulate_file(kChatHour, {"workload.limit=2000", "scheduler.max_waiting=4",
                                                        "workload.time_scale=0.25", "tiers.device.tokens=60032"});
  EXPECT_GT(rejecting.requests("rejected"), 0U);
  EXPECT_EQ(rejecting.requests("total"), rejecting.requests("completed") + rejecting.requests("rejected"));
  std::uint64_t reasons = 0;
  for (const Json& count : rejecting.report.at("requests").at("rejected_reasons"))
    reasons += count.get<std::uint64_t>();
  EXPECT_EQ(reasons, rejecting.requests("rejected"));
}

TEST(Report, TellsWhyPagesOnTheHostWereComputedAgain) {
  const Json& loads = busy_hour().report.at("loads");
  EXPECT_GT(loads.at("pages"), 0U);
  EXPECT_FALSE(loads.at("declined_pages").contains("below_threshold"));
  const Simulated computing =
      simulate_file(kChatHour, {"tiers.device.gib=20", "tiers.host.gib=64", "cache.load_back_min_tokens=1000000"});
  EXPECT_EQ(computing.tokens("hit_host"), 0U);
  EXPECT_EQ(computing.report.at("loads").at("pages"), 0U);
  EXPECT_EQ(computing.report.at("loads").at("failed_pages"), 0U);
  EXPECT_GT(computing.report.at("loads").at("declined_pages").at("below_threshold"), 0U);
}

TEST(Report, PartsSumToTheMeanTimeToFirstToken) {
  const Simulated& run = busy_hour();
  double sum = 0;
  for (const Json& part : run.report.at("ttft_parts_seconds")) sum += part.get<double>();
  EXPECT_NEAR(sum, run.mean_ttft(), 1e-9 * run.mean_ttft());
}

TEST(Report, RequestsSumToTheReport) {
  const Simulated& run = busy_hour();
  const Table requests(run.requests_csv);
  EXPECT_EQ(requests.size(), run.requests("total"));
  EXPECT_EQ(requests.sum("prompt_tokens"), run.tokens("prompt"));
  EXPECT_EQ(requests.sum("output_tokens"), run.tokens("output"));
  EXPECT_EQ(requests.sum("retractions"), run.requests("retractions"));
  for (const char* key : {"hit_device", "hit_host", "hit_disk", "hit_shared_fs", "hit_remote", "miss",
                          "recomputed_after_stop", "retracted_recompute"}) {
    EXPECT_EQ(requests.sum(key), run.tokens(key)) << key;
  }
  for (std::size_t row = 0; row < requests.size(); ++row) {
    const auto cell = [&](const char* column) { return requests.number(row, column); };
    ASSERT_NEAR(cell("ttft_s"), cell("queue_s") + cell("prefetch_wait_s") + cell("load_wait_s") + cell("compute_s"),
                5e-9)
        << "request " << requests.text(row, "request");
    ASSERT_GE(cell("queue_s"), 0.0);
    ASSERT_GE(cell("load_wait_s"), 0.0);
    ASSERT_LE(cell("ttft_s"), cell("e2e_s"));
  }
}

// The report computes quantiles from histogram buckets with a relative width of 1/1024. The exact quantile is the
// smallest value that at least the given share of the values does not exceed.
TEST(Report, QuantilesAreThoseOfTheRequests) {
  const Simulated& run = busy_hour();
  const Table requests(run.requests_csv);
  const std::pair<const char*, const char*> durations[] = {
      {"ttft_s", "ttft_seconds"}, {"tpot_s", "tpot_seconds"}, {"e2e_s", "e2e_seconds"}};
  for (const auto& [column, key] : durations) {
    std::vector<double> values;
    double sum = 0;
    for (std::size_t row = 0; row < requests.size(); ++row) {
      // A request with one output token has no time between tokens.
      if (std::string_view(column) == "tpot_s" && requests.integer(row, "output_tokens") < 2) continue;
      values.push_back(requests.number(row, column));
      sum += values.back();
    }
    std::ranges::sort(values);
    const Json& reported = run.report.at(key);
    const auto quantile = [&](std::size_t per_mille) { return values[(values.size() * per_mille + 999) / 1000 - 1]; };
    const auto expect = [&](const char* name, double value) {
      EXPECT_NEAR(reported.at(name).get<double>(), value, 0.002 * value) << key << " " << name;
    };
    expect("mean", sum / static_cast<double>(values.size()));
    expect("p50", quantile(500));
    expect("p90", quantile(900));
    expect("p95", quantile(950));
    expect("p99", quantile(990));
    expect("max", values.back());
  }
}

TEST(Report, LaneWindowsSumToTheLanes) {
  const Simulated& run = busy_hour();
  const Table windows(run.lanes_csv);
  for (const Json& lane : run.report.at("lanes")) {
    std::uint64_t bytes = 0;
    double busy = 0;
    for (std::size_t row = 0; row < windows.size(); ++row) {
      if (windows.text(row, "lane") != lane.at("name").get<std::string>()) continue;
      bytes += windows.integer(row, "bytes");
      busy += windows.number(row, "busy_fraction") * windows.number(row, "window_s");
      ASSERT_LE(windows.number(row, "busy_fraction"), 1.0 + 1e-6);
    }
    EXPECT_EQ(bytes, lane.at("bytes").get<std::uint64_t>()) << lane;
    const double total = lane.at("busy_fraction").get<double>() * run.report.at("simulated_seconds").get<double>();
    EXPECT_NEAR(busy, total, 1e-3 * total) << lane;
  }
}

TEST(Report, ResolvedExperimentGivesTheSameRun) {
  const Simulated& run = busy_hour();
  const Folder folder;
  const std::string experiment = folder / "resolved.toml";
  write_text(experiment, run.resolved);
  const Simulated again = simulate_file(experiment, {});
  EXPECT_EQ(again.digest(), run.digest());
  EXPECT_EQ(without_costs(again.report), without_costs(run.report));
  EXPECT_EQ(again.requests_csv, run.requests_csv);
}

// The result must not depend on the machine: not on its clock, the scheduling, the chosen CPU instructions or the
// environment.
TEST(Report, MachineDoesNotMoveIt) {
  const std::string text = without_costs(busy_hour().report).dump();
  const Settings same{"tiers.device.gib=20", "tiers.host.gib=64"};
  const Folder folder;
  Surroundings slow, plain;
  slow.wrapper = {"nice", "-n", "19"};
  plain.environment = {"GLIBC_TUNABLES=glibc.cpu.hwcaps=-FMA,-AVX2", "LC_ALL=de_DE.UTF-8", "TZ=Asia/Tokyo"};
  plain.folder = folder.path();
  // Both run at the same time, so that they disturb each other.
  Process first(simulate_arguments(kChatHour, same, folder / "first", kAnyWorld), slow);
  Process second(simulate_arguments(kChatHour, same, folder / "second", kAnyWorld), plain);
  const Outcome one = first.wait(), two = second.wait();
  EXPECT_EQ(without_costs(one.json()).dump(), text);
  EXPECT_EQ(without_costs(two.json()).dump(), text);
  for (const char* run : {"first", "second"}) {
    EXPECT_EQ(text_of(folder.path() / run / "requests.csv"), busy_hour().requests_csv) << run;
    EXPECT_EQ(text_of(folder.path() / run / "lanes.csv"), busy_hour().lanes_csv) << run;
    EXPECT_EQ(text_of(folder.path() / run / "metrics.prom"), busy_hour().prometheus) << run;
    EXPECT_EQ(text_of(folder.path() / run / "experiment.resolved.toml"), busy_hour().resolved) << run;
  }
}

}  // namespace
}  // namespace kvtwin::test
