// Closed loops of clients, stages, and the requests that the figures count.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "lab/report/figures.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

const Settings kGroups{"model.name=llama-3.1-8b",
                       "hardware.name=h100-sxm",
                       "workload.generate.kind=groups",
                       "workload.generate.groups=1",
                       "workload.generate.prompts_per_group=400",
                       "workload.generate.prefix_tokens=0",
                       "workload.generate.question_tokens=1024",
                       "workload.generate.output_tokens=64"};
const Settings kClosed = kGroups + Settings{"workload.loop=closed"};
const Settings kClients = kClosed + Settings{"workload.generate.concurrency=16", "workload.generate.requests=160"};

double figure(const Simulated& run, const char* pointer) { return run.report.at_path(pointer).get<double>(); }

// One row of requests.csv.
struct Row {
  double arrival = 0, ttft = 0, end = 0;
  std::uint64_t request = 0, prompt = 0, output = 0;
};

// Returns the rows in the order of the ends.
std::vector<Row> rows_of(const Simulated& run) {
  const Table table(run.requests_csv);
  std::vector<Row> rows;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const double arrival = table.number(i, "arrival_s");
    rows.push_back({arrival, table.number(i, "ttft_s"), arrival + table.number(i, "e2e_s"), table.integer(i, "request"),
                    table.integer(i, "prompt_tokens"), table.integer(i, "output_tokens")});
  }
  std::ranges::stable_sort(rows, {}, &Row::end);
  return rows;
}

double mean_ttft(const std::vector<Row>& rows) {
  double sum = 0;
  for (const Row& row : rows) sum += row.ttft;
  return sum / static_cast<double>(rows.size());
}

// Returns the largest number of requests that arrive within 1 ms, after the first 32.
std::size_t largest_burst(const Simulated& run) {
  std::vector<double> arrivals;
  for (const Row& row : rows_of(run)) {
    if (row.request >= 32) arrivals.push_back(row.arrival);
  }
  std::ranges::sort(arrivals);
  std::size_t largest = 0;
  for (std::size_t first = 0, last = 0; last < arrivals.size(); ++last) {
    while (arrivals[last] - arrivals[first] > 1e-3) ++first;
    largest = std::max(largest, last - first + 1);
  }
  return largest;
}

TEST(Clients, EqualRequestsMarchInStepAndSpreadOnesDoNot) {
  const Settings steady{"workload.warmup_requests=32", "workload.count_drain=false"};
  const Simulated equal = simulate(kClients + steady);
  EXPECT_GE(largest_burst(equal), 8U) << "the requests of one pass end together, and the next ones arrive together";
  // Requests of one length that start apart meet again in passes, but not all of them.
  for (const auto& [spread, most] : std::vector<std::pair<const char*, std::size_t>>{
           {"workload.generate.range_ratio=0.8", 4}, {"workload.generate.start_spread_s=2", 7}}) {
    const Simulated apart = simulate(kClients + steady + Settings{spread});
    EXPECT_LE(largest_burst(apart), most) << spread;
    EXPECT_LT(apart.mean_ttft(), 0.4 * equal.mean_ttft()) << spread;
  }
  const Simulated thinking = simulate(kClients + steady + Settings{"workload.generate.think_s=0.2"});
  EXPECT_LT(thinking.mean_ttft(), 0.7 * equal.mean_ttft());
}

TEST(Clients, DrawsDependOnTheSeedOnly) {
  const Settings drawn = kClients + Settings{"workload.generate.range_ratio=0.5", "workload.generate.think_s=0.02",
                                             "workload.generate.start_spread_s=1"};
  const Simulated one = simulate(drawn), same = simulate(drawn), other = simulate(drawn + Settings{"seed=2"});
  EXPECT_EQ(one.requests_csv, same.requests_csv);
  EXPECT_EQ(without_costs(one.report), without_costs(same.report));
  EXPECT_NE(one.requests_csv, other.requests_csv);
}

TEST(Clients, AllClientsHaveARequestUntilTheLastOneIsSent) {
  const Simulated run = simulate(kClients + Settings{"workload.generate.range_ratio=0.2"});
  const std::vector<Row> rows = rows_of(run);
  for (const Row& at : rows) {
    const auto open = std::ranges::count_if(
        rows, [&](const Row& row) { return row.arrival <= at.arrival && at.arrival < row.end - 1e-9; });
    if (at.request < 15) continue;  // the 16 clients start at the same time
    EXPECT_EQ(open, 16) << at.request;
  }
}

TEST(Window, LeavesOutWarmUpAndDrainInAllFigures) {
  const Settings spread = kClients + Settings{"workload.generate.range_ratio=0.6"};
  const Simulated all = simulate(spread);
  EXPECT_FALSE(all.report.at("requests").contains("left_out"));
  EXPECT_FALSE(all.report.contains("window_seconds"));
  const std::vector<Row> rows = rows_of(all);
  double last_arrival = 0;
  for (const Row& row : rows) last_arrival = std::max(last_arrival, row.arrival);
  for (const bool drain : {true, false}) {
    const Simulated part =
        simulate(spread + Settings{"workload.warmup_requests=20",
                                   std::string("workload.count_drain=") + (drain ? "true" : "false")});
    EXPECT_EQ(part.requests_csv, all.requests_csv) << "the same requests are served";
    EXPECT_EQ(part.digest(), all.digest());
    std::vector<Row> counted;
    for (std::size_t i = 20; i < rows.size(); ++i) {
      if (drain || rows[i].end <= last_arrival + 1e-9) counted.push_back(rows[i]);
    }
    ASSERT_LT(counted.size(), rows.size());
    const std::uint64_t left = rows.size() - 20 - counted.size();
    EXPECT_EQ(left, drain ? 0U : 16U) << "all clients have a request when the last one has arrived";
    EXPECT_EQ(part.requests("completed"), counted.size());
    EXPECT_EQ(part.requests("total"), counted.size());
    EXPECT_EQ(part.report.at("requests").at("left_out"), (Json{{"warmup", 20}, {"drain", left}}));
    std::uint64_t prompt = 0, output = 0;
    for (const Row& row : counted) {
      prompt += row.prompt;
      output += row.output;
    }
    EXPECT_EQ(part.tokens("prompt"), prompt);
    EXPECT_EQ(part.tokens("output"), output);
    EXPECT_NEAR(part.mean_ttft(), mean_ttft(counted), 1e-9);
    const double window = (drain ? counted.back().end : last_arrival) - rows[19].end;
    EXPECT_NEAR(figure(part, "/window_seconds"), window, 1e-6);
    // The rates never count the drain.
    double requests = 0, tokens = 0;
    for (const Row& row : counted) {
      if (row.end > last_arrival + 1e-9) continue;
      requests += 1;
      tokens += static_cast<double>(row.output);
    }
    const double loaded = last_arrival - rows[19].end;
    EXPECT_NEAR(figure(part, "/throughput/window_seconds"), loaded, 1e-6);
    EXPECT_NEAR(figure(part, "/throughput/requests_per_second"), requests / loaded, 1e-3);
    EXPECT_NEAR(figure(part, "/throughput/output_tokens_per_second"), tokens / loaded, 1e-1);
  }
}

TEST(Window, CountsHitsAndRejectedRequestsOfTheSameRequests) {
  // 12 prompts, each sent four times: only the first time is a miss.
  const Settings cycle = kClosed + Settings{"workload.generate.prompts_per_group=12", "workload.generate.requests=48",
                                            "workload.generate.concurrency=1"};
  const Simulated all = simulate(cycle), warm = simulate(cycle + Settings{"workload.warmup_requests=12"});
  const std::uint64_t hit = all.tokens("hit_device");
  EXPECT_GT(hit, std::uint64_t{36} * 900);
  EXPECT_EQ(warm.tokens("hit_device"), hit) << "no request of the warm-up hits";
  EXPECT_EQ(warm.tokens("prompt"), std::uint64_t{36} * 1024);
  std::vector<Row> hits = rows_of(all);
  hits.erase(hits.begin(), hits.begin() + 12);
  EXPECT_NEAR(warm.mean_ttft(), mean_ttft(hits), 1e-9);
  EXPECT_LT(warm.mean_ttft(), all.mean_ttft());
  const Simulated none = simulate(cycle + Settings{"workload.warmup_requests=12", "tiers.device.tokens=1024"});
  EXPECT_EQ(none.requests("rejected"), 36U);
  EXPECT_EQ(none.requests("total"), 36U);
  EXPECT_TRUE(none.report.at("ttft_seconds").at("mean").is_null());
}

// Both caches serve the requests of the warm-up too.
TEST(Window, BoundsAreOfTheRequestsThatCount) {
  const Settings cycle =
      kClosed + Settings{"workload.generate.prompts_per_group=12", "workload.generate.requests=48",
                         "workload.generate.concurrency=1", "tiers.device.tokens=8192", "report.bounds=true"};
  const Simulated all = simulate(cycle), warm = simulate(cycle + Settings{"workload.warmup_requests=20"});
  const Json &of_all = all.report.at("bounds"), &of_warm = warm.report.at("bounds");
  EXPECT_LT(of_warm.at("eviction_opt_hit_tokens"), of_all.at("eviction_opt_hit_tokens"));
  EXPECT_LT(of_warm.at("net_saved_seconds_max"), of_all.at("net_saved_seconds_max"));
  const Json row = report_figures(warm.report);
  EXPECT_LE(row.at("hit_ratio"), row.at("opt_hit_ratio"));
}

// Checks the figures of the stages against requests.csv, whose requests have their numbers in the order of arrival.
void expect_stages(const Simulated& run, const std::string& csv, const std::vector<std::size_t>& requests) {
  const Table table(csv);
  ASSERT_EQ(table.size(), requests.size());
  ASSERT_EQ(run.report.at("stages").size(), requests.size());
  const std::vector<Row> rows = rows_of(run);
  std::uint64_t first = 0;
  double end_before = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    std::vector<Row> own;
    for (const Row& row : rows) {
      if (row.request >= first && row.request < first + requests[i]) own.push_back(row);
    }
    first += requests[i];
    ASSERT_EQ(own.size(), requests[i]);
    double arrival = own.front().arrival;
    for (const Row& row : own) arrival = std::min(arrival, row.arrival);
    EXPECT_GE(arrival, end_before - 1e-6) << "a stage waits for the end of the one before";
    EXPECT_LE(arrival, end_before + 1e-6);
    end_before = own.back().end;
    const Json& stage = run.report.at("stages")[i];
    EXPECT_EQ(stage.at("requests").at("completed"), requests[i]);
    EXPECT_NEAR(stage.at("ttft_seconds").at("mean").get<double>(), mean_ttft(own), 1e-9);
    EXPECT_NEAR(stage.at("window_seconds").get<double>(), end_before - arrival, 1e-6);
    EXPECT_EQ(table.integer(i, "stage"), i + 1);
    EXPECT_EQ(table.integer(i, "completed"), requests[i]);
    EXPECT_NEAR(table.number(i, "ttft_mean_s"), mean_ttft(own), 1e-8);
    // The answers set the rate of clients, so the rate of their stage does not count the drain.
    double last = arrival;
    for (const Row& row : own) last = std::max(last, row.arrival);
    const double until = stage.contains("clients") ? last : end_before;
    const auto ended = std::ranges::count_if(own, [&](const Row& row) { return row.end <= until + 1e-9; });
    EXPECT_NEAR(table.number(i, "completed_per_second"), static_cast<double>(ended) / (until - arrival), 1e-3);
  }
  EXPECT_EQ(first, rows.size());
}

using Notes = std::vector<std::string>;

Notes notes_with(const Simulated& run, const std::string& words) {
  Notes found;
  for (const Json& note : run.report.at("notes")) {
    if (note.get<std::string>().find(words) != std::string::npos) found.push_back(note);
  }
  return found;
}

class Stages : public testing::Test {
 protected:
  Stages() { write_text(folder_ / "x.toml", kNoEngine); }
  Simulated served(const Settings& settings, std::string& csv, std::string* screen = nullptr) {
    const std::string out = folder_ / ("run" + std::to_string(runs_++));
    const Outcome outcome = run(simulate_arguments(folder_ / "x.toml", settings, out, kAnyWorld));
    csv = text_of(fs::path(out) / "stages.csv");
    if (screen != nullptr) {
      std::vector<std::string> words = simulate_arguments(folder_ / "x.toml", settings, "", kAnyWorld);
      std::erase(words, "--json");
      *screen = run(words).out;
    }
    return read_run(outcome, out);
  }
  const Folder folder_;
  int runs_ = 0;
};

TEST_F(Stages, ClientsGrowFromStageToStage) {
  std::string csv, screen;
  const Simulated run = served(kClosed + Settings{"workload.generate.stages=2x20, 4x40,16x80"}, csv, &screen);
  expect_stages(run, csv, {20, 40, 80});
  const Json& stages = run.report.at("stages");
  EXPECT_EQ(stages[0].at("clients"), 2);
  EXPECT_LT(stages[0].at("ttft_seconds").at("mean").get<double>(),
            stages[2].at("ttft_seconds").at("mean").get<double>());
  EXPECT_LT(stages[0].at("throughput").at("requests_per_second").get<double>(),
            stages[2].at("throughput").at("requests_per_second").get<double>());
  EXPECT_NE(screen.find("\nstage        clients completed left out"), std::string::npos) << screen;
  EXPECT_NE(screen.find("\n3                 16        80        0"), std::string::npos) << screen;
  EXPECT_EQ(run.requests("completed"), 140U);
}

TEST_F(Stages, RatesGrowFromStageToStage) {
  std::string csv;
  const Simulated run =
      served(kGroups + Settings{"workload.generate.stages=1,4.5,50", "workload.generate.requests=100"}, csv);
  expect_stages(run, csv, {34, 33, 33});
  EXPECT_EQ(run.report.at("stages")[1].at("requests_per_second"), 4.5);
  // Arrivals of 34 requests at 1/s, 33 at 4.5/s and 33 at 50/s.
  EXPECT_NEAR(Table(csv).number(0, "window_s"), 33, 15);
  EXPECT_NEAR(Table(csv).number(1, "window_s"), 7.3, 4);
  EXPECT_LT(Table(csv).number(2, "window_s"), 2);
  EXPECT_EQ(Table(csv).text(0, "clients"), "");
}

TEST_F(Stages, EachStageHasItsWarmUp) {
  std::string csv;
  const Simulated run = served(kClosed + Settings{"workload.generate.stages=2x20,4x40", "workload.warmup_requests=6",
                                                  "workload.count_drain=false"},
                               csv);
  const Table table(csv);
  EXPECT_EQ(table.integer(0, "warmup"), 6U);
  EXPECT_EQ(table.integer(1, "warmup"), 6U);
  EXPECT_EQ(table.integer(0, "completed") + table.integer(0, "drain"), 14U);
  EXPECT_EQ(table.integer(1, "completed") + table.integer(1, "drain"), 34U);
  EXPECT_EQ(run.requests("completed"), table.sum("completed"));
  EXPECT_EQ(run.report.at("requests").at("left_out").at("drain"), table.sum("drain"));
  EXPECT_NEAR(figure(run, "/window_seconds"), table.number(0, "window_s") + table.number(1, "window_s"), 1e-6);
}

TEST_F(Stages, SeveralEnginesShareThem) {
  std::string csv;
  for (const char* loop : {"workload.loop=closed", "workload.loop=open"}) {
    const Simulated run =
        served(kGroups + Settings{loop, "cluster.engines=3", "workload.generate.stages=3x20,9x30"}, csv);
    expect_stages(run, csv, {20, 30});
  }
}

TEST_F(Stages, ALimitCutsTheLastOnes) {
  std::string csv, screen;
  const Settings ladder = kClosed + Settings{"workload.generate.stages=2x20,4x40,8x40,8x40"};
  const Simulated run = served(ladder + Settings{"workload.limit=30"}, csv, &screen);
  EXPECT_EQ(run.requests("completed"), 30U);
  const Table table(csv);
  ASSERT_EQ(table.size(), 4U);
  EXPECT_EQ(table.integer(1, "completed"), 10U);
  EXPECT_EQ(table.text(2, "ttft_mean_s"), "");
  const std::string note =
      "workload.limit cuts the ladder: stage 2 has 10 of its 40 requests, and stages 3 to 4 have none; all stages need "
      "140 requests";
  EXPECT_EQ(notes_with(run, "cuts the ladder"), Notes{note});
  EXPECT_NE(screen.find("note       " + note + "\n"), std::string::npos) << screen;
  EXPECT_EQ(notes_with(served(ladder + Settings{"workload.limit=140"}, csv), "cuts the ladder"), Notes{});
}

TEST_F(Stages, SendThePromptsAgainFromTheFirst) {
  for (const Settings& loop : {kClosed, kGroups}) {
    const Settings ladder = loop + Settings{"workload.generate.stages=2x20,4x40,8x40", "workload.generate.groups=1",
                                            "workload.generate.output_tokens=4"};
    const auto computed = [&](int prompts) {
      std::string csv;
      const Simulated run =
          served(ladder + Settings{"workload.generate.prompts_per_group=" + std::to_string(prompts)}, csv);
      expect_stages(run, csv, {20, 40, 40});
      return run.report.at("tokens").at("miss").get<std::uint64_t>();
    };
    EXPECT_GT(computed(100), computed(60)) << "40 prompts are sent twice";
  }
}

TEST_F(Stages, NonsenseIsRefusedInOneSentence) {
  const std::vector<std::pair<Settings, std::string>> cases = {
      {kClosed + Settings{"workload.generate.stages=4,x"}, "\"x\" must be a number of clients from 1 to 1000000"},
      {kClosed + Settings{"workload.generate.stages=0"}, "must be a number of clients"},
      {kClosed + Settings{"workload.generate.stages=2.5"}, "must be a number of clients"},
      {kClosed + Settings{"workload.generate.stages=4x0"}, "with x a number of requests"},
      {kClosed + Settings{"workload.generate.stages=4,"}, "\"\" must be"},
      {kGroups + Settings{"workload.generate.stages=0"}, "must be a rate from 0.001"},
      {kClosed + Settings{"workload.generate.stages=4x40,8"}, "give all stages one"},
      {kClosed + Settings{"workload.generate.stages=4x40", "workload.generate.requests=9"}, "leave one of them out"},
      {kClosed + Settings{"workload.generate.stages=4,8", "workload.generate.concurrency=9"}, "leave one of them out"},
      {kClosed + Settings{"workload.generate.stages=4,8", "workload.generate.requests=1"}, "2 stages for 1 requests"},
      {kGroups + Settings{"workload.generate.concurrency=9"}, "clients wait for their answers in a closed loop only"},
      {kGroups + Settings{"workload.count_drain=false"}, "workload.count_drain (--set): is false"},
      {kClients + Settings{"workload.limit=10", "workload.warmup_requests=10"}, "make it smaller than that"},
      {kClosed + Settings{"workload.generate.stages=4x40,8x9", "workload.warmup_requests=9"}, "make it smaller"},
  };
  for (const auto& [settings, sentence] : cases) {
    const Outcome outcome = run(simulate_arguments(folder_ / "x.toml", settings, "", kAnyWorld));
    EXPECT_EQ(outcome.exit_code, 2) << settings.back();
    EXPECT_NE(outcome.err.find(sentence), std::string::npos) << outcome.err;
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
  }
}

// A row counts the requests that a report of the same experiment counts.
TEST_F(Stages, CompareAndSweepCountTheSameRequests) {
  const Settings ladder = kClosed + Settings{"workload.generate.stages=2x20,8x40", "workload.generate.range_ratio=0.5",
                                             "workload.count_drain=false"};
  const std::vector<std::string> warm_ups{"0", "5"};
  std::string vary = "workload.warmup_requests=";
  std::vector<Simulated> alone;
  for (const std::string& requests : warm_ups) {
    vary += (vary.ends_with('=') ? "" : ",") + requests;
    alone.push_back(simulate(ladder + Settings{"workload.warmup_requests=" + requests}));
  }
  EXPECT_EQ(alone[0].requests("total"), alone[1].requests("total") + 10);
  for (const char* command : {"compare", "sweep"}) {
    std::vector<std::string> words{
        command, folder_ / "x.toml", "--json", "--vary", vary, "--set", std::string("sim.world=") + kAnyWorld};
    for (const std::string& setting : ladder) words.insert(words.end(), {"--set", setting});
    const Outcome outcome = run(words);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    std::vector<Json> rows;
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) {
      if (Json row = Json::parse(line); row.contains("ttft_mean_s")) rows.push_back(std::move(row));
    }
    ASSERT_EQ(rows.size(), 2U) << outcome.out;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_NEAR(rows[i].at("ttft_mean_s").get<double>(), alone[i].mean_ttft(), 1e-9) << command;
      if (std::string_view(command) == "compare") continue;  // its rows are means over seeds, of fewer figures
      EXPECT_EQ(rows[i].at("requests"), alone[i].requests("total"));
      EXPECT_NEAR(rows[i].at("output_tokens_per_second").get<double>(),
                  figure(alone[i], "/throughput/output_tokens_per_second"), 1e-6);
    }
    words.insert(words.end(), {"--set", "workload.loop=open"});
    EXPECT_EQ(run(words).exit_code, 2) << "an open loop has no drain";
  }
}

#if KVTWIN_TEST_REAL
TEST_F(Stages, ARealRunHasThem) {
  const std::string out = folder_ / "real";
  std::vector<std::string> words{"run", folder_ / "x.toml", "--device", "host", "--json", "--out", out};
  for (const char* setting :
       {"model.name=tiny", "hardware.name=cpu-host", "tiers.device.tokens=4096", "workload.loop=closed",
        "workload.generate.kind=groups", "workload.generate.groups=2", "workload.generate.prompts_per_group=20",
        "workload.generate.prefix_tokens=128", "workload.generate.question_tokens=64",
        "workload.generate.output_tokens=4", "workload.generate.range_ratio=0.5", "workload.generate.think_s=0.001",
        "workload.generate.start_spread_s=0.001", "workload.generate.stages=1x10,4x30", "workload.warmup_requests=4"}) {
    words.insert(words.end(), {"--set", setting});
  }
  const Outcome outcome = run(words);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json report = outcome.json();
  EXPECT_EQ(report.at("stages")[0].at("requests").at("completed"), 6);
  EXPECT_EQ(report.at("stages")[1].at("requests").at("completed"), 26);
  EXPECT_EQ(report.at("requests").at("left_out").at("warmup"), 8);
  EXPECT_EQ(report.at("real").at("verified").at("wrong_reads"), 0);
  EXPECT_EQ(Table(text_of(fs::path(out) / "stages.csv")).size(), 2U);
  EXPECT_EQ(Table(text_of(fs::path(out) / "requests.csv")).size(), 40U);
  EXPECT_EQ(run({"replay", out}).exit_code, 0);
}
#endif

}  // namespace
}  // namespace kvtwin::test
