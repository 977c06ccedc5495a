// report.warm: the figures of the warm part of a run, in the report, on the screen and in comparisons.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lab/report/figures.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

// Conversations that all begin at the start, without a cache.
const Settings kSessions{"workload.generate.kind=sessions",
                         "workload.generate.requests=3000",
                         "workload.generate.requests_per_second=2",
                         "workload.generate.prompt_tokens=512",
                         "workload.generate.prefix_tokens=0",
                         "workload.generate.output_tokens=16",
                         "workload.generate.turns=8",
                         "workload.generate.think_s=30",
                         "tiers.device.tokens=200000",
                         "report.warm=true"};

TEST(WarmReport, CountsTheRequestsThatArriveInItsWindow) {
  const Simulated run = simulate(kSessions);
  const Json& warm = run.report.at("warm");
  ASSERT_EQ(warm.at("flat"), true) << warm;
  EXPECT_EQ(warm.at("not_flat"), nullptr);
  const double from = warm.at("from_s"), to = warm.at("to_s");
  EXPECT_GT(from, 0);
  EXPECT_GE(to - from, 150) << "five think times";
  const Table rows(run.requests_csv);
  std::uint64_t requests = 0, prompt = 0, hit = 0;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (rows.number(row, "arrival_s") < from || rows.number(row, "arrival_s") > to) continue;
    ++requests;
    prompt += rows.integer(row, "prompt_tokens");
    hit += rows.integer(row, "hit_device");
  }
  EXPECT_EQ(warm.at("requests").at("total"), requests);
  EXPECT_EQ(warm.at("tokens").at("prompt"), prompt);
  EXPECT_EQ(warm.at("tokens").at("hit_device"), hit);
  EXPECT_GT(hit * run.tokens("prompt"), run.tokens("hit_device") * prompt) << "a cold cache hits less";
  const Json figures = report_figures(run.report);
  EXPECT_EQ(figures.at("requests"), requests);
  EXPECT_EQ(figures.at("ttft_p90_s"), warm.at("ttft_seconds").at("p90"));
}

TEST(WarmReport, SaysWhyItIsNotFlat) {
  const Simulated run = simulate(kSessions + Settings{"workload.generate.think_s=3600"});
  EXPECT_EQ(run.report.at("warm").at("flat"), false);
  EXPECT_NE(run.report.at("warm").at("not_flat").get<std::string>().find("and 18000 s are needed"), std::string::npos)
      << run.report.at("warm");
}

TEST(WarmReport, IsOnlyThereWhereItIsAskedFor) {
  const Simulated run = simulate(kSessions + Settings{"report.warm=false"});
  EXPECT_FALSE(run.report.contains("warm"));
}

}  // namespace
}  // namespace kvtwin::test
