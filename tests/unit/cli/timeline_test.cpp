// timeline.json is JSON that trace viewers accept, and agrees with the report and requests.csv.
#include "lab/report/timeline.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/recorded_run.hpp"

namespace kvtwin::test {
namespace {

// Converts a time of the file, in microseconds with three decimals, to ns.
std::int64_t ns(const Json& us) { return std::llround(us.get<double>() * 1000); }

struct Span {
  std::int64_t begin = 0, end = 0;
  std::string name, category;
  Json args;
};

struct Drawn {
  explicit Drawn(const std::string& text) {
    const Json file = Json::parse(text);
    for (const Json& event : file.at("traceEvents")) add(event);
    for (const auto& [id, stack] : open) EXPECT_TRUE(stack.empty()) << "request " << id << " is left open";
  }
  void add(const Json& e) {
    const std::string phase = e.at("ph"), name = e.at("name");
    const int process = e.at("pid");
    if (phase == "M") {
      if (name == "thread_name") lane_names[e.at("tid").get<int>()] = e.at("args").at("name");
    } else if (phase == "X") {
      const std::int64_t begin = ns(e.at("ts"));
      lanes[lane_names.at(e.at("tid").get<int>())].push_back(
          {begin, begin + ns(e.at("dur")), name, e.at("cat"), e.at("args")});
    } else if (phase == "C") {
      EXPECT_GE(e.at("args").at("slots").get<std::uint64_t>(), counters[name]);
      counters[name] = e.at("args").at("slots").get<std::uint64_t>();
    } else if (phase == "i") {
      instants.push_back(e);
    } else if (phase == "b") {
      EXPECT_EQ(process, 2);
      open[e.at("id").get<std::uint64_t>()].push_back({ns(e.at("ts")), 0, name, "", e.value("args", Json())});
    } else {
      ASSERT_EQ(phase, "e");
      const auto id = e.at("id").get<std::uint64_t>();
      ASSERT_FALSE(open[id].empty());
      Span span = open[id].back();
      open[id].pop_back();
      EXPECT_EQ(span.name, name);
      span.end = ns(e.at("ts"));
      requests[id].push_back(span);
    }
  }
  std::map<int, std::string> lane_names;
  std::map<std::string, std::vector<Span>> lanes;
  std::map<std::string, std::uint64_t> counters;              // the last values
  std::map<std::uint64_t, std::vector<Span>> open, requests;  // the span of the whole request is the last one
  std::vector<Json> instants;
};

std::int64_t csv_ns(const Table& table, std::size_t row, const char* column) {
  return std::llround(table.number(row, column) * 1e9);
}

TEST(Timeline, TellsWhatTheRunDid) {
  for (const std::string& world : worlds()) {
    SCOPED_TRACE(world);
    const Folder folder;
    const Json report = simulate_to(
        folder, "run", conversations({.requests = 150, .output = 800, .gap_ms = 15}, 3).save(folder) + tight(), false,
        world, {"--timeline"});
    const Drawn drawn(text_of(folder / "run/timeline.json"));

    // A lane is a FIFO, so its spans don't overlap; only a stall lies within its pass.
    std::uint64_t loads = 0, stalls = 0;
    std::map<std::string, std::uint64_t> bytes;
    for (const auto& [lane, spans] : drawn.lanes) {
      std::int64_t free_from = 0;
      const Span* pass = nullptr;
      for (const Span& span : spans) {
        ASSERT_LE(span.begin, span.end);
        if (span.category == "stall") {
          ++stalls;
          ASSERT_NE(pass, nullptr);
          ASSERT_EQ(span.begin, pass->begin);
          ASSERT_LE(span.end, pass->end);
          continue;
        }
        ASSERT_GE(span.begin, free_from) << lane;
        free_from = span.end;
        pass = &span;
        if (span.args.contains("bytes")) bytes[lane] += span.args.at("bytes").get<std::uint64_t>();
        loads += span.name == "load";
      }
    }
    EXPECT_GT(loads, 10U);
    EXPECT_GT(stalls, 0U);
    for (const char* lane : {"h2d", "d2h", "compute"}) {
      EXPECT_TRUE(std::ranges::any_of(drawn.lane_names, [&](const auto& pair) { return pair.second == lane; }));
    }
    for (const Json& lane : report.at("lanes")) {
      const std::string name = lane.at("name");
      if (name.starts_with("gpu0.")) {
        EXPECT_EQ(lane.at("bytes"), bytes[name.substr(5)]) << name;
      }
    }
    const std::vector<Span>& compute = drawn.lanes.at("compute");
    const auto named = [&](const char* name) { return std::ranges::count(compute, name, &Span::name); };
    EXPECT_EQ(named("prefill"), report.at("passes").at("prefill").get<std::int64_t>());
    EXPECT_EQ(named("decode"), report.at("passes").at("decode_bursts").get<std::int64_t>());

    const Table table(text_of(folder / "run/requests.csv"));
    std::uint64_t completed = 0, rejected = 0;
    for (std::size_t row = 0; row < table.size(); ++row) {
      const std::uint64_t id = table.integer(row, "request");
      if (table.text(row, "outcome") != "completed") {
        ++rejected;
        EXPECT_FALSE(drawn.requests.contains(id));
        continue;
      }
      ++completed;
      const std::vector<Span>& spans = drawn.requests.at(id);
      const Span& whole = spans.back();
      EXPECT_EQ(whole.name, "request " + std::to_string(id));
      EXPECT_EQ(whole.begin, csv_ns(table, row, "arrival_s"));
      EXPECT_EQ(whole.end - whole.begin, csv_ns(table, row, "e2e_s"));
      std::map<std::string, std::int64_t> parts;
      std::int64_t at = whole.begin;
      for (std::size_t i = 0; i + 1 < spans.size(); ++i) {
        ASSERT_EQ(spans[i].begin, at) << "end to end";
        at = spans[i].end;
        parts[spans[i].name] += spans[i].end - spans[i].begin;
      }
      ASSERT_EQ(at, whole.end);
      const std::int64_t first = parts["queue"] + parts["prefetch wait"] + parts["load wait"] + parts["compute"];
      EXPECT_EQ(first, csv_ns(table, row, "ttft_s"));
      EXPECT_EQ(parts["queue"], csv_ns(table, row, "queue_s"));
      EXPECT_EQ(parts["load wait"], csv_ns(table, row, "load_wait_s"));
      EXPECT_EQ(parts["compute"], csv_ns(table, row, "compute_s"));
    }
    EXPECT_EQ(completed, drawn.requests.size());
    const auto instants = [&](const char* name) {
      return static_cast<std::uint64_t>(
          std::ranges::count_if(drawn.instants, [&](const Json& e) { return e.at("name") == name; }));
    };
    EXPECT_EQ(instants("rejected"), rejected);
    EXPECT_EQ(instants("retracted"), report.at("requests").at("retractions").get<std::uint64_t>());
    EXPECT_GT(rejected, 0U);
    EXPECT_GT(instants("retracted"), 0U);
  }
}

// Each engine has a process of its own, with the bytes of its lanes in the report, and each request names its engines.
// A model with windows in a device tier for a few prompts.
TEST(Timeline, CountsWhatFurtherPoolsEvict) {
  const Folder folder;
  const Json report = run({"simulate",     std::string(kSourceFolder) + "/experiments/chat_hour.toml",
                           "--set",        "workload.limit=60",
                           "--set",        "model.name=gpt-oss-120b",
                           "--set",        "parallel.tp=1",
                           "--set",        "hardware.name=h200-sxm",
                           "--set",        "tiers.device.tokens=100000",
                           "--set",        "tiers.device.window_ratio=0.1",
                           "--set",        "tiers.host.gib=0",
                           "--timeline",   "--out",
                           folder / "out", "--json"})
                          .json();
  const Drawn drawn(text_of(folder / "out/timeline.json"));
  const Json& pools = report.at("pools");
  const auto window = std::ranges::find_if(pools, [](const Json& pool) { return pool.at("name") == "window"; });
  ASSERT_NE(window, pools.end());
  const std::uint64_t evicted = window->at("evicted");
  EXPECT_GT(evicted, 0U);
  EXPECT_EQ(drawn.counters.at("evicted from pool 1, device") * 64, evicted) << "pages of 64 tokens";
}

TEST(Timeline, EachEngineHasLanesOfItsOwn) {
  for (const Settings& engines : {Settings{"cluster.engines=4"}, Settings{"cluster.prefill=2", "cluster.decode=2"}}) {
    SCOPED_TRACE(engines.front());
    const bool roles = engines.size() == 2;
    const Folder folder;
    const Json report = simulate_to(folder, "run",
                                    conversations({.requests = 80, .gap_ms = 30}, 3).save(folder) + engines +
                                        Settings{"tiers.device.tokens=20032", "tiers.host.tokens=60032"},
                                    false, kAnyWorld, {"--timeline"});
    std::map<int, std::string> processes;
    std::map<std::pair<int, int>, std::string> lane_names;
    std::map<std::string, std::uint64_t> bytes;
    std::map<std::string, std::uint64_t> spans;
    std::uint64_t requests = 0;
    const Json timeline = Json::parse(text_of(folder / "run/timeline.json"));
    for (const Json& event : timeline.at("traceEvents")) {
      const int process = event.at("pid");
      const std::string phase = event.at("ph");
      if (phase == "M" && event.at("name") == "process_name") processes[process] = event.at("args").at("name");
      if (phase == "M" && event.at("name") == "thread_name") {
        lane_names[{process, event.at("tid").get<int>()}] = event.at("args").at("name");
      }
      if (phase == "X") {
        const std::string lane = processes.at(process) + " " + lane_names.at({process, event.at("tid").get<int>()});
        ++spans[lane];
        bytes[lane] += event.at("args").value("bytes", std::uint64_t{0});
      }
      if (phase == "b" && event.at("name").get<std::string>().starts_with("request ")) {
        ++requests;
        const Json& about = event.at("args");
        EXPECT_EQ(about.contains("prefill_engine"), roles);
        EXPECT_GE(about.at("engine").get<int>(), roles ? 2 : 0);
        EXPECT_LT(about.value("prefill_engine", 0), 2);
      }
    }
    EXPECT_EQ(requests, 80U);
    EXPECT_EQ(processes.size(), 5U) << "four engines, and the requests";
    for (int engine = 0; engine < 4; ++engine) {
      const std::string number = std::to_string(engine);
      const std::string process = "lanes of engine " + number +
                                  (!roles       ? ""
                                   : engine < 2 ? ", prefill"
                                                : ", decode") +
                                  " ";
      for (const char* lane : {"compute", "h2d", "d2h"}) {
        EXPECT_TRUE(std::ranges::any_of(
            lane_names,
            [&](const auto& of) { return of.second == lane && processes.at(of.first.first) + " " == process; }))
            << process << lane;
      }
      EXPECT_GT(spans[process + "compute"], 0U) << process;
      std::map<std::string, std::uint64_t> reported;
      for (const Json& lane : report.at("lanes")) {
        const std::string name = lane.at("name");
        if (name.starts_with("engine" + number + ".")) {
          reported[name.substr(name.rfind('.') + 1)] += lane.at("bytes").get<std::uint64_t>();
        }
      }
      for (const char* lane : {"h2d", "d2h", "peer"})
        EXPECT_EQ(bytes[process + lane], reported[lane]) << process << lane;
      EXPECT_EQ(spans[process + "peer"] > 0, roles && engine < 2) << process;
    }
  }
}

TEST(Timeline, ChangesNothingElse) {
  const Folder folder;
  const Settings settings = conversations({.requests = 60}, 4).save(folder) + tight();
  const Json with = simulate_to(folder, "with", settings, false, kAnyWorld, {"--timeline"});
  const Json without = simulate_to(folder, "without", settings, false);
  EXPECT_EQ(without_costs(with), without_costs(without));
  EXPECT_FALSE(fs::exists(folder / "without/timeline.json"));
  EXPECT_EQ(text_of(folder / "with/requests.csv"), text_of(folder / "without/requests.csv"));
  EXPECT_EQ(text_of(folder / "with/lanes.csv"), text_of(folder / "without/lanes.csv"));
}

TEST(Timeline, OfNothingIsJsonToo) {
  const Folder folder;
  {
    Timeline timeline(folder / "timeline.json", {""}, nullptr);
    timeline.finish();
  }
  const Drawn drawn(text_of(folder / "timeline.json"));
  EXPECT_TRUE(drawn.lanes.empty());
  EXPECT_EQ(drawn.lane_names.size(), 3U);
}

TEST(Timeline, KeepsEveryNanosecondAndNamesFurtherLanes) {
  const Folder folder;
  {
    Timeline timeline(folder / "timeline.json", {""}, nullptr);
    timeline.lanes_of(0, nullptr)
        ->on_lane({.lane = Lane::disk_read,
                   .id = OperationId{7},
                   .begin = 1'000'000'000'000'001,
                   .end = 1'000'000'000'000'999,
                   .flowing = 1'000'000'000'000'002,
                   .bytes = 12,
                   .status = Status::cancelled});
    timeline.finish();
  }
  const std::string text = text_of(folder / "timeline.json");
  EXPECT_NE(text.find("\"ts\":1000000000000.001,\"dur\":0.998,"), std::string::npos) << text;
  const Drawn drawn(text);
  EXPECT_EQ(drawn.lanes.at("disk_read").at(0).args.at("status"), "cancelled");
}

TEST(Timeline, NeedsAFolder) {
  const Folder folder;
  write_text(folder / "experiment.toml", "");
  const Outcome outcome = run({"simulate", folder / "experiment.toml", "--timeline"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("--timeline needs --out"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace kvtwin::test
