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

// A small cache, so that the bounds differ from the run.
TEST(WarmReport, BoundsCountTheRequestsOfItsWindow) {
  const Settings small = kSessions + Settings{"tiers.device.tokens=20000", "report.bounds=true"};
  const Json warm = simulate(small).report, all = simulate(small + Settings{"report.warm=false"}).report;
  const auto number = [](const Json& report, const char* pointer) { return report.at_path(pointer).get<double>(); };
  const double hits = number(warm, "/warm/tokens/hit_device"), lru = number(warm, "/bounds/lru_hit_tokens"),
               opt = number(warm, "/bounds/eviction_opt_hit_tokens");
  EXPECT_LE(hits, opt);
  EXPECT_LT(lru, opt);
  EXPECT_LT(opt, number(warm, "/warm/tokens/prompt"));
  EXPECT_EQ(number(warm, "/bounds/gap_closed"), (hits - lru) / (opt - lru));
  EXPECT_LT(opt, number(all, "/bounds/eviction_opt_hit_tokens")) << "the start is left out";
  const Json figures = report_figures(warm);
  EXPECT_EQ(figures.at("opt_hit_ratio"), opt / number(warm, "/warm/tokens/prompt"));
  EXPECT_LE(figures.at("hit_ratio").get<double>(), figures.at("opt_hit_ratio").get<double>());
  EXPECT_LE(number(warm, "/bounds/net_saved_seconds"), number(warm, "/bounds/net_saved_seconds_max"));
}

std::uint64_t hits_of(const Json& figures) {
  std::uint64_t hits = 0;
  for (const auto& [name, tokens] : figures.at("tokens").items()) {
    if (name.starts_with("hit_")) hits += tokens.get<std::uint64_t>();
  }
  return hits;
}

// A device that never evicts hits as an infinite and as the optimal cache do, request by request: also in a part of the
// run.
TEST(WarmReport, AnInfiniteAndAnOptimalCacheServeTheSameRequests) {
  const Settings roomy{"tiers.device.tokens=20000000", "report.bounds=true"};
  const Simulated warm = simulate(kSessions + roomy);
  const Simulated late = simulate(kSessions + roomy + Settings{"report.warm=false", "workload.warmup_requests=700"});
  for (const Json* part : {&warm.report, &warm.report.at("warm"), &late.report}) {
    EXPECT_EQ(part->at("tokens").at("infinite_cache_hit"), hits_of(*part));
  }
  for (const auto& [bounds, part] :
       {std::pair(&warm.report.at("bounds"), &warm.report.at("warm")), {&late.report.at("bounds"), &late.report}}) {
    EXPECT_EQ(bounds->at("eviction_opt_hit_tokens"), hits_of(*part));
    EXPECT_EQ(bounds->at("eviction_opt_saved_seconds"), part->at("saved_seconds"));
  }
  for (const Json* report : {&warm.report, &late.report}) {
    const Json row = report_figures(*report);
    EXPECT_EQ(row.at("infinite_hit_ratio"), row.at("hit_ratio"));
    EXPECT_EQ(row.at("opt_hit_ratio"), row.at("hit_ratio"));
  }
  EXPECT_GT(hits_of(warm.report), hits_of(warm.report.at("warm")));
  const Simulated small = simulate(kSessions + Settings{"tiers.device.tokens=20000"});
  EXPECT_LT(hits_of(small.report.at("warm")),
            small.report.at("warm").at("tokens").at("infinite_cache_hit").get<std::uint64_t>());
}

TEST(WarmReport, SaysWhyItIsNotFlat) {
  const Simulated run = simulate(kSessions + Settings{"workload.generate.think_s=3600", "workload.limit=3000"});
  EXPECT_EQ(run.report.at("warm").at("flat"), false);
  EXPECT_NE(run.report.at("warm").at("not_flat").get<std::string>().find("and 18000 s are needed"), std::string::npos)
      << run.report.at("warm");
}

// The same number of requests is enough for one think time, and not for the other.
TEST(WarmReport, GoesOnUntilItIsFlat) {
  const auto served = [](const char* think) {
    return simulate(kSessions + Settings{"workload.generate.requests=800", think}).report;
  };
  const Json soon = served("workload.generate.think_s=20"), late = served("workload.generate.think_s=3600");
  for (const Json* report : {&soon, &late}) {
    EXPECT_EQ(report->at("warm").at("flat"), true) << report->at("warm");
    EXPECT_EQ(report->at("requests").at("total"), 800 * report->at("warm").at("times_as_long").get<std::uint64_t>());
  }
  EXPECT_GT(late.at("requests").at("total"), soon.at("requests").at("total"));
  const double from = late.at("warm").at("from_s"), to = late.at("warm").at("to_s");
  EXPECT_GE(to - from, 5 * 3600);
}

// The longer run begins with the requests of the shorter one.
TEST(WarmReport, ALongerRunBeginsLikeAShorterOne) {
  const Simulated shorter = simulate(kSessions + Settings{"workload.generate.requests=300", "report.warm=false"});
  const Simulated longer = simulate(kSessions + Settings{"workload.generate.requests=300"});
  const Table few(shorter.requests_csv), many(longer.requests_csv);
  ASSERT_GT(many.size(), few.size());
  for (std::size_t row = 0; row < few.size(); ++row) {
    ASSERT_EQ(few.text(row, "arrival_s"), many.text(row, "arrival_s")) << row;
    ASSERT_EQ(few.text(row, "prompt_tokens"), many.text(row, "prompt_tokens")) << row;
  }
}

TEST(WarmReport, AQueueThatGrowsIsOverload) {
  const Simulated run =
      simulate(kSessions + Settings{"workload.generate.requests=1000", "workload.generate.requests_per_second=2000",
                                    "workload.generate.prompt_tokens=4000"});
  EXPECT_EQ(run.report.at("warm").at("overloaded"), true) << run.report.at("warm");
  EXPECT_NE(run.report.at("warm").at("not_flat").get<std::string>().find("the wait goes from"), std::string::npos);
}

TEST(WarmReport, IsOnlyThereWhereItIsAskedFor) {
  const Simulated run = simulate(kSessions + Settings{"report.warm=false"});
  EXPECT_FALSE(run.report.contains("warm"));
}

}  // namespace
}  // namespace kvtwin::test
