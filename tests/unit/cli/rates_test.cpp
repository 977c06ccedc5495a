// Rates, prices and the wear of drives are of the measured window: in a closed loop from the first arrival to the last
// one, or to the cut of the traffic of users; with report.warm the warm window.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lab/report/metrics.hpp"
#include "tests/price_list.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

// The machine is fast, so a user mostly thinks. Users start evenly over a think time.
const Settings kUsers{"model.name=llama-3.1-8b",
                      "hardware.name=h100-sxm",
                      "workload.loop=closed",
                      "workload.generate.kind=sessions",
                      "workload.generate.users=40",
                      "workload.generate.start_spread_s=10",
                      "workload.generate.prompt_tokens=600",
                      "workload.generate.prefix_tokens=0",
                      "workload.generate.output_tokens=16",
                      "workload.generate.turns=4",
                      "workload.generate.think_s=10",
                      "workload.generate.think_spread=0"};
const Settings kClients{"model.name=llama-3.1-8b",
                        "hardware.name=h100-sxm",
                        "workload.loop=closed",
                        "workload.generate.kind=groups",
                        "workload.generate.groups=1",
                        "workload.generate.prompts_per_group=4000",
                        "workload.generate.prefix_tokens=0",
                        "workload.generate.question_tokens=512",
                        "workload.generate.output_tokens=32",
                        "workload.generate.range_ratio=0.5",
                        "workload.generate.concurrency=16"};

double figure(const Json& report, const char* pointer) { return report.at_path(pointer).get<double>(); }

struct Row {
  double arrival = 0, end = 0, tokens = 0;
};

// Returns the rows of requests.csv in the order of the ends.
std::vector<Row> rows_of(const Simulated& run) {
  const Table table(run.requests_csv);
  std::vector<Row> rows;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const double arrival = table.number(i, "arrival_s");
    rows.push_back({arrival, arrival + table.number(i, "e2e_s"),
                    table.number(i, "prompt_tokens") + table.number(i, "output_tokens")});
  }
  std::ranges::stable_sort(rows, {}, &Row::end);
  return rows;
}

double first_arrival(const std::vector<Row>& rows) { return std::ranges::min(rows, {}, &Row::arrival).arrival; }
double last_arrival(const std::vector<Row>& rows) { return std::ranges::max(rows, {}, &Row::arrival).arrival; }

// Little's law: users = rate * (think time + end-to-end time).
TEST(Rates, OfAClosedLoopObeyLittlesLaw) {
  for (const char* requests : {"workload.generate.requests=600", "workload.generate.requests=6000"}) {
    for (const char* warm : {"report.warm=false", "report.warm=true"}) {
      SCOPED_TRACE(std::string(requests) + " " + warm);
      const Json users = simulate(kUsers + Settings{requests, warm}).report;
      EXPECT_NEAR(figure(users, "/throughput/requests_per_second") * (10 + figure(users, "/e2e_seconds/mean")), 40,
                  0.8);
    }
  }
  for (const char* requests : {"workload.generate.requests=800", "workload.generate.requests=4000"}) {
    SCOPED_TRACE(requests);
    const Json clients = simulate(kClients + Settings{requests}).report;
    EXPECT_NEAR(figure(clients, "/throughput/requests_per_second") * figure(clients, "/e2e_seconds/mean"), 16, 0.32);
  }
}

// A user finds nothing to send when `users` fewer than all requests have ended and the next one ends.
TEST(Rates, OfUsersEndWithTheCut) {
  const Folder folder;
  const Simulated run = simulate(kUsers + Settings{"workload.generate.requests=400", "slo.e2e_s=1000",
                                                   "prices.file=" + price_list(folder, "p.toml")});
  const std::vector<Row> rows = rows_of(run);
  ASSERT_EQ(rows.size(), 400U);
  const std::size_t ends = 400 - 40 + 1;
  const double window = rows[ends - 1].end - first_arrival(rows);
  EXPECT_LT(window, 0.95 * (last_arrival(rows) - first_arrival(rows))) << "users still think at the cut";
  EXPECT_NEAR(figure(run.report, "/throughput/window_seconds"), window, 1e-6);
  EXPECT_NEAR(figure(run.report, "/throughput/requests_per_second"), static_cast<double>(ends) / window, 1e-6);
  EXPECT_NEAR(figure(run.report, "/slo/goodput_per_second"), static_cast<double>(ends) / window, 1e-6);
  double tokens = 0;
  for (std::size_t i = 0; i < ends; ++i) tokens += rows[i].tokens;
  const Json& price = run.report.at("price");
  EXPECT_NEAR(figure(price, "/per_million_tokens"), figure(price, "/per_month") / (tokens / window * 730 * 3600 / 1e6),
              1e-9);
  EXPECT_EQ(run.requests("completed"), 400U) << "the other figures count all requests";
}

TEST(Rates, OfClientsEndWithTheLastArrival) {
  for (const char* drain : {"workload.count_drain=true", "workload.count_drain=false"}) {
    SCOPED_TRACE(drain);
    const Simulated run = simulate(kClients + Settings{"workload.generate.requests=200", drain});
    const std::vector<Row> rows = rows_of(run);
    const double last = last_arrival(rows);
    const auto ends = std::ranges::count_if(rows, [&](const Row& row) { return row.end <= last + 1e-9; });
    EXPECT_EQ(ends, 200 - 16);
    EXPECT_NEAR(figure(run.report, "/throughput/window_seconds"), last - first_arrival(rows), 1e-6);
    EXPECT_NEAR(figure(run.report, "/throughput/requests_per_second"),
                static_cast<double>(ends) / (last - first_arrival(rows)), 1e-6);
  }
}

TEST(Rates, OfAnOpenLoopAreOfTheWholeRun) {
  const Simulated run = simulate({"workload.generate.kind=tools", "workload.generate.requests=200"});
  const double all = figure(run.report, "/simulated_seconds");
  EXPECT_EQ(figure(run.report, "/throughput/window_seconds"), all);
  EXPECT_NEAR(figure(run.report, "/throughput/requests_per_second"), 200 / all, 1e-9);
}

TEST(Rates, AreUnknownIfNoRequestCompletesInTheWindow) {
  const Simulated run = simulate(kClients + Settings{"workload.generate.requests=16"});
  EXPECT_EQ(run.requests("completed"), 16U);
  for (const auto& [name, value] : run.report.at("throughput").items()) EXPECT_TRUE(value.is_null()) << name;
  EXPECT_NE(run.report.at("notes").dump().find("no request completes in the measured window"), std::string::npos)
      << run.report.at("notes");
}

// Written pages count by the end of the write, as requests do.
TEST(Rates, CountThePagesThatAreWrittenInTheWindow) {
  for (const bool closed : {false, true}) {
    CountingTerms terms;
    terms.warmup_requests = 1;
    terms.closed = closed;
    TimeNs cut = 10'000;
    terms.cut_at = [&cut] { return cut; };
    Metrics metrics(nullptr, nullptr, terms);
    RequestRecord record;
    const auto send = [&](EventKind kind, TimeNs time, Pages pages = 0) {
      Event event;
      event.kind = kind;
      event.time = time;
      event.tier = Tier::disk;
      event.pages = pages;
      if (kind == EventKind::arrived) record.arrival = time;
      if (kind != EventKind::store_done) event.record = &record;
      metrics.on_event(event);
    };
    send(EventKind::arrived, 100);
    send(EventKind::store_done, 150, 1);
    send(EventKind::finished, 200);  // the warm-up
    send(EventKind::store_done, 250, 2);
    send(EventKind::arrived, 300);
    send(EventKind::store_done, 350, 4);
    send(EventKind::finished, 360);
    cut = 400;
    send(EventKind::store_done, 450, 8);
    send(EventKind::finished, 460);
    send(EventKind::arrived, 500);
    send(EventKind::store_done, 550, 16);
    send(EventKind::finished, 600);
    metrics.finish();
    const Rates rates = metrics.rates(1000);
    EXPECT_EQ(rates.span, closed ? 200 : 400);
    EXPECT_EQ(rates.completed, closed ? 1U : 3U);
    EXPECT_EQ(rates.written[Tier::disk], closed ? 6U : 30U);
    EXPECT_EQ(metrics.tier(Tier::disk).written, 31U);
  }
}

// Bytes that the lane of the disk wrote between two times.
double written_between(const Simulated& run, double from, double to) {
  const Table lanes(run.lanes_csv);
  double bytes = 0;
  for (std::size_t row = 0; row < lanes.size(); ++row) {
    if (lanes.text(row, "lane") != "disk_write") continue;
    const double start = lanes.number(row, "window_start_s"), length = lanes.number(row, "window_s");
    const double inside = std::max(0.0, std::min(to, start + length) - std::max(from, start));
    bytes += lanes.number(row, "bytes") * inside / length;
  }
  return bytes;
}

TEST(Rates, DrivesWearAsInTheWindow) {
  const Folder folder;
  const Settings disk =
      kUsers + Settings{"workload.generate.requests=600", "tiers.device.tokens=100000", "tiers.host.tokens=100000",
                        "tiers.disk.gib=100", "prices.file=" + price_list(folder, "p.toml")};
  for (const bool warm : {false, true}) {
    SCOPED_TRACE(warm);
    const Simulated run = simulate(disk + Settings{warm ? "report.warm=true" : "report.warm=false"});
    const std::vector<Row> rows = rows_of(run);
    const double from = warm ? figure(run.report, "/warm/from_s") : first_arrival(rows);
    const double to = warm ? figure(run.report, "/warm/to_s") : from + figure(run.report, "/throughput/window_seconds");
    const double a_day = written_between(run, from, to) / (to - from) * 86400;
    const double of_run = written_between(run, 0, 1e9) / figure(run.report, "/simulated_seconds") * 86400;
    EXPECT_GT(std::abs(a_day - of_run), 0.02 * of_run) << "the window is a part of the run";
    EXPECT_NEAR(figure(run.report, "/price/drives/written_bytes_per_day"), a_day, 0.01 * a_day);
    const Json& tier = run.tier("disk");
    EXPECT_NEAR(figure(tier, "/writes_per_day"), a_day / (100 * 1073741824.0), 0.01 * a_day / (100 * 1073741824.0));
    if (!warm) continue;
    EXPECT_EQ(run.report.at("warm").at("price"), run.report.at("price"));
    EXPECT_EQ(run.report.at("warm").at("throughput"), run.report.at("throughput"));
  }
}

}  // namespace
}  // namespace kvtwin::test
