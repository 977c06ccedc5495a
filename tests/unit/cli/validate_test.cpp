// kvtwin validate. A simulation takes the place of the measured run, so that the right answers are known and nothing
// depends on the machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/hardware_file.hpp"
#include "tests/paths.hpp"
#include "tests/recorded_run.hpp"

namespace kvtwin::test {
namespace {

class Validate : public testing::Test {
 protected:
  // Every lane except the remote ones is used; loads and backups seldom overlap.
  Validate()
      : settings_(conversations({.requests = 80, .gap_ms = 300}, 1).save(folder_) +
                  Settings{"hardware.name=h100-sxm", "tiers.device.tokens=12032", "tiers.host.tokens=30016",
                           "tiers.disk.tokens=400000", "cache.io=direct", "cache.layout=page_first_direct",
                           "cache.prefetch_policy=wait_complete"}) {}

  void make(const std::string& name, const Settings& more = {}) { simulate_to(folder_, name, settings_ + more, false); }
  Outcome validate(const std::vector<std::string>& more, bool json = true) {
    std::vector<std::string> arguments{"validate"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    if (json) arguments.emplace_back("--json");
    return run(arguments);
  }
  void refused(const std::vector<std::string>& arguments, const std::vector<std::string>& parts) {
    const Outcome outcome = validate(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
    for (const std::string& part : parts) EXPECT_NE(outcome.err.find(part), std::string::npos) << part << outcome.err;
  }
  static Json figure(const Json& cell, const std::string& name) {
    for (const Json& figure : cell.at("figures")) {
      if (figure.at("figure") == name) return figure;
    }
    throw std::runtime_error("no figure " + name);
  }

  Folder folder_;
  Settings settings_;
};

TEST_F(Validate, OfASimulationIsExact) {
  make("one");
  make("two");  // the same run again
  const Json json = validate({folder_ / "one", folder_ / "two"}).json();
  ASSERT_EQ(json.at("cells").size(), 1U);
  const Json cell = json.at("cells")[0];
  EXPECT_EQ(cell.at("runs"), 2);
  EXPECT_EQ(cell.at("cell"), "one");
  EXPECT_GE(cell.at("figures").size(), 15U);
  for (const Json& figure : cell.at("figures")) {
    EXPECT_EQ(figure.at("measured"), figure.at("predicted")) << figure;
    if (figure.at("measured") != 0) {
      EXPECT_EQ(figure.at("error"), 0) << figure;
    }
  }
  EXPECT_GT(figure(cell, "hit_disk").at("measured"), 0);
  EXPECT_EQ(cell.at("requests").at("joined"), 80);
  EXPECT_EQ(cell.at("requests").at("error").at("max"), 0);
  EXPECT_TRUE(cell.at("decisions").at("equal"));
  EXPECT_EQ(cell.at("lanes").size(), 5U) << cell.at("lanes");
  EXPECT_EQ(json.at("lanes_off").size(), 0U);
  EXPECT_TRUE(json.at("kendall_tau").is_null()) << "one configuration has no rank";
  const Outcome words = validate({folder_ / "one"}, false);
  EXPECT_EQ(words.exit_code, 0) << words.err;
  EXPECT_NE(words.out.find("decisions              equal in all 1 runs"), std::string::npos) << words.out;
  EXPECT_EQ(words.err, "");
}

// A lane whose speed is wrong by a factor of 2, in either direction, is found and is listed first.
TEST_F(Validate, NamesTheLinkThatIsWrong) {
  make("truth");
  const std::vector<std::pair<std::string, std::vector<std::string>>> plants = {
      {"h2d", {"host_to_device"}},
      {"d2h", {"device_to_host"}},
      {"disk_read", {"drive_read_bandwidth", "drive_read_iops"}},
      {"disk_write", {"drive_write_bandwidth", "drive_write_iops"}},
      {"compute", {"gemm_fraction", "memory_bandwidth", "attention_fraction"}}};
  for (const auto& [lane, keys] : plants) {
    const std::string setting =
        hardware_setting(folder_, "h100-sxm", lane + ".json", [&, wrong = keys](const std::string& key, const auto&) {
          return std::ranges::find(wrong, key) == wrong.end() ? 1.0 : 0.5;
        });
    const Json json = validate({folder_ / "truth", "--hardware", setting.substr(setting.find('=') + 1)}).json();
    const Json furthest = json.at("cells")[0].at("lanes")[0];
    EXPECT_EQ(furthest.at("lane"), lane) << json.at("cells")[0].at("lanes");
    EXPECT_TRUE(furthest.at("off"));
    const double least = lane == "compute" ? 1.2 : 1.5;  // part of a pass is fixed overhead, which isn't halved
    EXPECT_GT(furthest.at("ratio"), least) << lane;
    EXPECT_LT(furthest.at("ratio"), 2.2) << lane;
    ASSERT_GE(json.at("lanes_off").size(), 1U);
    EXPECT_EQ(json.at("lanes_off")[0].get<std::string>().substr(0, lane.size() + 11), lane + ": predicted");
    // The other way round: the prediction uses the right preset, and the "measured" run was slower.
    make("slow-" + lane, {setting});
    const Json other = validate({folder_ / ("slow-" + lane), "--hardware", "h100-sxm"}).json();
    EXPECT_EQ(other.at("cells")[0].at("lanes")[0].at("lane"), lane);
    EXPECT_LT(other.at("cells")[0].at("lanes")[0].at("ratio"), 1 / least + 0.05) << lane;
  }
}

TEST_F(Validate, TellsWhereDecisionsPartAndHowConfigurationsRank) {
  make("lru");
  make("fifo", {"cache.eviction=fifo"});
  make("small", {"tiers.host.tokens=15040", "tiers.disk.tokens=0"});
  const std::vector<std::string> runs{folder_ / "lru", folder_ / "fifo", folder_ / "small"};
  const Json exact = validate(runs).json();
  ASSERT_EQ(exact.at("cells").size(), 3U);
  EXPECT_EQ(exact.at("kendall_tau"), 1);
  ASSERT_EQ(exact.at("choices").size(), 1U) << "all serve the same work";
  EXPECT_EQ(exact.at("choices")[0].at("regret"), 0);
  EXPECT_EQ(exact.at("choices")[0].at("cells").size(), 3U);
  // A prediction with another policy decides differently from some decision on.
  const Json other = validate({folder_ / "lru", "--set", "cache.eviction=fifo"}).json();
  const Json decisions = other.at("cells")[0].at("decisions");
  EXPECT_FALSE(decisions.at("equal"));
  EXPECT_EQ(decisions.at("alike"), 0);
  EXPECT_GT(decisions.at("equal_decisions"), 0);
  EXPECT_NE(decisions.at("first_difference").at("measured"), decisions.at("first_difference").at("predicted"));
  const Outcome words = validate({folder_ / "lru", "--set", "cache.eviction=fifo"}, false);
  EXPECT_NE(words.out.find("first difference     after"), std::string::npos) << words.out;
}

TEST_F(Validate, EndsWith3WhereTheBoundIsExceeded) {
  make("run");
  EXPECT_EQ(validate({folder_ / "run", "--max-error", "0"}).exit_code, 0);
  const Outcome off = validate({folder_ / "run", "--max-error", "5", "--set", "hardware.set.disk_read_gbps=0.2"});
  EXPECT_EQ(off.exit_code, 3) << off.out;
  EXPECT_NE(off.err.find("mean TTFT is off: run by"), std::string::npos) << off.err;
  EXPECT_FALSE(Json::parse(off.out).at("cells").empty()) << "it is printed all the same";
}

TEST_F(Validate, WritesAFolder) {
  make("run");
  const std::string out = folder_ / "out";
  const Json json = validate({folder_ / "run", "--out", out}).json();
  EXPECT_EQ(Json::parse(text_of(fs::path(out) / "validate.json")), json);
  EXPECT_NE(text_of(fs::path(out) / "validate.csv").find("\nrun,ttft_mean_s,1,"), std::string::npos);
  EXPECT_TRUE(fs::exists(fs::path(out) / "predicted/001-run/report.json"));
  refused({folder_ / "run", "--out", out}, {"is not empty", "--force"});
  EXPECT_EQ(validate({folder_ / "run", "--out", out, "--force"}).exit_code, 0);
  refused({folder_ / "run", "--out", folder_ / "run", "--force"}, {"is not empty", "what validate wrote only"});
  EXPECT_TRUE(fs::exists(folder_ / "run/report.json"));
}

const char* const kTable = R"([{"name": "groups of eight", "source": "made up",
  "model": "llama-3.1-8b", "hardware": "h100-sxm", "parallel": {"tp": 2},
  "cache": {"page_tokens": 64}, "tiers": {"device": {"tokens": 20032}, "host": {"tokens": 60032}},
  "set": {"sim.world": "WORLD"},
  "workload": {"groups": 8, "prompts_per_group": 6, "prefix_tokens": 1024, "question_tokens": 100, "output_tokens": 8,
               LOAD},
  "measured": {"ttft_mean_s": [0.1, 0.12], "ttft_p99_s": 0.5, "hit_ratio": 0.7}}])";

std::string table_of(std::string load) {
  std::string text = kTable;
  text.replace(text.find("LOAD"), 4, load);
  text.replace(text.find("WORLD"), 5, kAnyWorld);
  return text;
}

TEST_F(Validate, JudgesPublishedFigures) {
  for (const std::string load : {R"("rate": 5)", R"("rate": "inf")", R"("concurrency": 3)"}) {
    write_text(folder_ / "table.json", table_of(load));
    const Json cell = validate({"--published", folder_ / "table.json"}).json().at("cells")[0];
    EXPECT_EQ(cell.at("cell"), "groups of eight");
    EXPECT_EQ(cell.at("source"), "made up");
    EXPECT_EQ(cell.at("figures").size(), 3U) << "what isn't measured isn't compared";
    const Json ttft = figure(cell, "ttft_mean_s");
    EXPECT_DOUBLE_EQ(ttft.at("measured"), 0.11);
    EXPECT_GT(ttft.at("spread"), 0.1);
    EXPECT_DOUBLE_EQ(ttft.at("error"), ttft.at("predicted").get<double>() / 0.11 - 1);
    // In each group, at least one prompt finds nothing in the cache (more, if several run at the same time). Of the
    // 1,124 tokens of a prompt, 1,024 are shared.
    EXPECT_LE(figure(cell, "hit_ratio").at("predicted"), 5.0 / 6 * 1024 / 1124);
    if (load == R"("rate": 5)") {
      EXPECT_GT(figure(cell, "hit_ratio").at("predicted"), 0.7);
    }
    EXPECT_TRUE(cell.at("decisions").is_null());
  }
}

TEST_F(Validate, NamesTimesThatLookLikeMilliseconds) {
  std::string text = table_of(R"("concurrency": 3)");
  write_text(folder_ / "table.json", text);
  EXPECT_EQ(validate({"--published", folder_ / "table.json"}).json().at("notes").dump().find("milliseconds"),
            std::string::npos);
  const std::string seconds = "[0.1, 0.12], \"ttft_p99_s\": 0.5";
  text.replace(text.find(seconds), seconds.size(), "[100, 120], \"ttft_p99_s\": 500");
  write_text(folder_ / "table.json", text);
  EXPECT_NE(validate({"--published", folder_ / "table.json"}).json().at("notes").dump().find("look like milliseconds"),
            std::string::npos);
}

TEST_F(Validate, ScoresSeveralTables) {
  std::string other = table_of(R"("concurrency": 3)");
  other.replace(other.find("groups of eight"), 15, "a closed loop");
  write_text(folder_ / "open.json", table_of(R"("rate": 5)"));
  write_text(folder_ / "closed.json", other);
  const Json scores =
      validate({"--published", folder_ / "open.json" + "," + (folder_ / "closed.json")}).json().at("scores");
  ASSERT_EQ(scores.size(), 3U) << "three figures of both tables together; a table has one entry";
  EXPECT_EQ(scores[0].at("figure"), "ttft_mean_s");
  EXPECT_EQ(scores[0].at("cells"), 2);
}

TEST_F(Validate, RefusesTablesThatSaySomethingElse) {
  const std::string good = table_of(R"("rate": 5)");
  const auto altered = [&](const std::string& from, const std::string& to, const std::vector<std::string>& parts) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    write_text(folder_ / "table.json", text);
    refused({"--published", folder_ / "table.json"}, parts);
  };
  altered("\"source\"", "\"sauce\"", {"entry 1", "source", "must be given"});
  altered("\"cache\"", "\"cash\"", {"groups of eight", "cash", "did you mean \"cache\""});
  altered("page_tokens", "page_token", {"groups of eight", "cache.page_tokens"});
  altered("\"rate\": 5", "\"rate\": 5, \"concurrency\": 3", {"either rate", "concurrency"});
  altered("\"rate\": 5", "\"speed\": 5", {"workload", "speed"});
  altered("ttft_p99_s", "ttft_p98_s", {"measured", "ttft_p98_s"});
  altered("0.7}", "70}", {"hit_ratio", "from 0 to 1"});
  altered("0.5,", "\"fast\",", {"ttft_p99_s", "must be a number"});
  altered("llama-3.1-8b", "llama-8", {"groups of eight", "model.name"});
  altered("\"groups\": 8", "\"groups\": 0", {"groups of eight", "workload.generate.groups"});
  altered("\"cache\"", "\"source\": \"another\", \"cache\"", {"table.json", "source", "given twice"});
  write_text(folder_ / "table.json", "{}");
  refused({"--published", folder_ / "table.json"}, {"table.json", "must be a JSON list"});
  write_text(folder_ / "table.json", "[" + good.substr(1, good.size() - 2) + "," + good.substr(1));
  refused({"--published", folder_ / "table.json"}, {"entry 2", "another entry's"});
}

// The result line that sglang.bench_serving would write for a simulated run.
Json bench_line(const Table& requests, const Json& report) {
  Json line{{"backend", "sglang"}, {"request_rate", 4.0}, {"completed", requests.size()}};
  line["mean_ttft_ms"] = report.at("ttft_seconds").at("mean").get<double>() * 1e3;
  line["p99_ttft_ms"] = report.at("ttft_seconds").at("p99").get<double>() * 1e3;
  line["median_tpot_ms"] = report.at("tpot_seconds").at("p50").get<double>() * 1e3;
  line["output_throughput"] = report.at("throughput").at("output_tokens_per_second");
  line["accept_length"] = nullptr;
  for (const char* list : {"input_lens", "output_lens", "ttfts", "itls", "errors"}) line[list] = Json::array();
  for (std::uint64_t number = 0; number < requests.size(); ++number) {
    const std::size_t row = requests.row_of("request", number);
    line["input_lens"].push_back(requests.integer(row, "prompt_tokens"));
    line["output_lens"].push_back(requests.integer(row, "output_tokens"));
    line["ttfts"].push_back(requests.number(row, "ttft_s"));
    line["itls"].push_back(Json::array());
    line["errors"].push_back("");
  }
  return line;
}

TEST_F(Validate, ReadsWhatBenchServingWrote) {
  const Json report = simulate_to(folder_, "run", settings_, false);
  const Json line = bench_line(Table(text_of(folder_ / "run/requests.csv")), report);
  Json failed = line;
  failed["errors"][3] = "Connection reset";
  failed["ttfts"][3] = 0.0;
  write_text(folder_ / "bench.jsonl", line.dump() + "\n\n" + failed.dump() + "\n");
  const std::string experiment = folder_ / "run/experiment.resolved.toml";
  const Json cell =
      validate({"--bench-serving", folder_ / "bench.jsonl", "--experiment", experiment}).json().at("cells")[0];
  EXPECT_EQ(cell.at("runs"), 2);
  EXPECT_EQ(cell.at("requests").at("joined"), 79) << "one failed in one run";
  EXPECT_EQ(cell.at("requests").at("one_side_only"), 1);
  EXPECT_NEAR(cell.at("requests").at("error").at("max").get<double>(), 0, 1e-9);
  for (const char* name : {"ttft_mean_s", "ttft_p99_s", "tpot_p50_s", "output_tokens_per_second"}) {
    EXPECT_NEAR(figure(cell, name).at("error").get<double>(), 0, 1e-9) << name;
  }
  EXPECT_NEAR(figure(cell, "ttft_p90_s").at("error").get<double>(), 0, 0.1) << "from the list";

  write_text(folder_ / "more.jsonl", [&] {
    Json more = line;
    for (int i = 0; i < 5; ++i) {
      more["ttfts"].push_back(1.0);
      more["input_lens"].push_back(7);
      more["errors"].push_back("");
    }
    return more.dump();
  }());
  refused({"--bench-serving", folder_ / "more.jsonl", "--experiment", experiment}, {"85 requests", "80"});
  refused({"--bench-serving", folder_ / "bench.jsonl"}, {"--experiment"});
  write_text(folder_ / "bad.jsonl", "\nno json\n");
  refused({"--bench-serving", folder_ / "bad.jsonl", "--experiment", experiment}, {"bad.jsonl:2", "JSON"});
  write_text(folder_ / "bad.jsonl", "{}");
  refused({"--bench-serving", folder_ / "bad.jsonl", "--experiment", experiment}, {"bad.jsonl:1", "mean_ttft_ms"});
}

// The line of a file that has one run, without Python's infinite rate.
Json line_of(const fs::path& file) {
  std::string text = text_of(file);
  const std::size_t at = text.find(": Infinity");
  if (at != std::string::npos) text.replace(at, 10, ": null");
  return Json::parse(text);
}

// The files that SGLang's own client wrote (tests/fixtures/sglang/make_bench_serving.py).
TEST_F(Validate, TakesTheServerAndTheRequestsFromBenchServing) {
  const std::string random = in_source("tests/fixtures/sglang/bench_random.jsonl");
  const Json whole = validate({"--bench-serving", random}).json();
  const Json& cell = whole.at("cells")[0];
  EXPECT_EQ(cell.at("requests").at("joined"), 24);
  EXPECT_EQ(cell.at("request_hits").at("joined"), 24);
  EXPECT_EQ(figure(cell, "hit_ratio").at("measured"), 0);
  const std::string notes = whole.at("notes").dump();
  EXPECT_NE(notes.find("bench_random.jsonl"), std::string::npos) << notes;

  // Two runs with one server and the same requests are repeats; another server is not.
  Json line = line_of(random);
  line["generated_texts"][0] = "NaN \"Infinity\\";  // in a string it stays
  write_text(folder_ / "twice.jsonl", text_of(random) + text_of(random));
  EXPECT_EQ(validate({"--bench-serving", folder_ / "twice.jsonl"}).json().at("cells")[0].at("runs"), 2);
  Json other = line;
  other["server_info"]["page_size"] = 32;
  write_text(folder_ / "other.jsonl", text_of(random) + other.dump() + "\n");
  refused({"--bench-serving", folder_ / "other.jsonl"}, {"run 2 has another server"});
  other = line;
  other["input_lens"][0] = 7;
  write_text(folder_ / "other.jsonl", text_of(random) + other.dump() + "\n");
  refused({"--bench-serving", folder_ / "other.jsonl"}, {"run 2 has other requests"});

  // A rate of its own, and open arrivals.
  other = line;
  other["request_rate"] = 20.0;
  other["max_concurrency"] = nullptr;
  write_text(folder_ / "open.jsonl", other.dump());
  validate({"--bench-serving", folder_ / "open.jsonl", "--out", folder_ / "open", "--force"}).json();
  const std::string trace = text_of(folder_ / "open/workload.jsonl");
  EXPECT_EQ(trace.find("session"), std::string::npos);
  EXPECT_EQ(std::count(trace.begin(), trace.end(), '\n'), 24);

  for (const char* key : {"input_lens", "server_info"}) {
    other = line;
    other.erase(key);
    write_text(folder_ / "less.jsonl", other.dump());
    refused({"--bench-serving", folder_ / "less.jsonl"},
            {std::string(key) == "server_info" ? "has no server_info" : "--output-details"});
  }
  other = line;
  other["server_info"] = {{"prefill", Json::array()}, {"decode", Json::array()}};
  write_text(folder_ / "roles.jsonl", other.dump());
  refused({"--bench-serving", folder_ / "roles.jsonl"}, {"only prefill and decode"});
}

TEST_F(Validate, ComparesTheCacheReportOfBenchServing) {
  const std::string shared = in_source("tests/fixtures/sglang/bench_shared.jsonl");
  refused({"--bench-serving", shared}, {"generated-shared-prefix", "--set workload."});
  const std::string trace = in_source("tests/fixtures/sglang/bench_shared_trace.jsonl");
  const Json cell =
      validate({"--bench-serving", shared, "--set", "workload.trace=" + trace, "--set", "workload.block_tokens=16"})
          .json()
          .at("cells")[0];
  for (const char* name : {"hit_device", "hit_host", "hit_ratio"}) {
    EXPECT_GT(figure(cell, name).at("measured").get<double>(), 0.2) << name;
    EXPECT_EQ(figure(cell, name).at("error"), 0) << name;
  }
  EXPECT_EQ(cell.at("request_hits").at("joined"), 48);
  EXPECT_EQ(cell.at("request_hits").at("equal"), 48);

  // With an experiment, server_info is not read.
  Json line = line_of(shared);
  line["server_info"] = nullptr;
  line["cache_report"]["device_cached_tokens"] = nullptr;
  write_text(folder_ / "total.jsonl", line.dump());
  write_text(folder_ / "served.toml",
             "[cache]\npage_tokens = 16\n[tiers.device]\ntokens = 4096\n[workload]\ntrace = \"" + trace +
                 "\"\nblock_tokens = 16\n");
  const Json alone = validate({"--bench-serving", folder_ / "total.jsonl", "--experiment", folder_ / "served.toml"})
                         .json()
                         .at("cells")[0];
  EXPECT_GT(figure(alone, "hit_ratio").at("measured").get<double>(), 0.7);
  EXPECT_THROW(figure(alone, "hit_host"), std::runtime_error) << "not measured by tier";
}

// A ladder of clients that small machines serve quickly.
const Settings kLadder{"model.name=llama-3.1-8b",
                       "hardware.name=h100-sxm",
                       "workload.loop=closed",
                       "workload.generate.kind=groups",
                       "workload.generate.groups=4",
                       "workload.generate.prompts_per_group=15",
                       "workload.generate.output_tokens=8",
                       "workload.generate.range_ratio=0.5",
                       "workload.generate.stages=2x20,6x40"};

TEST_F(Validate, ComparesEachStage) {
  simulate_to(folder_, "ladder", kLadder + Settings{"workload.warmup_requests=5"}, false);
  const Json json = validate({folder_ / "ladder"}).json();
  ASSERT_EQ(json.at("cells").size(), 3U) << "the run and its two stages";
  EXPECT_EQ(json.at("cells")[1].at("cell"), "ladder, stage 1");
  EXPECT_EQ(json.at("cells")[2].at("cell"), "ladder, stage 2");
  EXPECT_EQ(json.at("cells")[1].at("requests").at("joined"), 20);
  EXPECT_EQ(json.at("cells")[2].at("requests").at("joined"), 40);
  for (const Json& cell : json.at("cells")) {
    EXPECT_GE(cell.at("figures").size(), 15U);
    for (const Json& one : cell.at("figures")) EXPECT_EQ(one.at("measured"), one.at("predicted")) << one;
    EXPECT_EQ(cell.at("requests").at("error").at("max"), 0);
  }
  EXPECT_NE(figure(json.at("cells")[1], "ttft_mean_s").at("measured"),
            figure(json.at("cells")[2], "ttft_mean_s").at("measured"));
}

TEST_F(Validate, TakesALineOfBenchServingForEachStage) {
  const Json report = simulate_to(folder_, "ladder", kLadder, false);
  std::string lines;
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const Json& stage : report.at("stages")) {
      lines += Json{{"mean_ttft_ms", stage.at("ttft_seconds").at("mean").get<double>() * 1e3}}.dump() + "\n";
    }
  }
  write_text(folder_ / "bench.jsonl", lines);
  const std::string experiment = folder_ / "ladder/experiment.resolved.toml";
  const Json cells =
      validate({"--bench-serving", folder_ / "bench.jsonl", "--experiment", experiment}).json().at("cells");
  ASSERT_EQ(cells.size(), 2U) << "no line is of the whole ladder";
  for (const Json& cell : cells) {
    EXPECT_EQ(cell.at("runs"), 2);
    EXPECT_NEAR(figure(cell, "ttft_mean_s").at("error").get<double>(), 0, 1e-9);
  }
  write_text(folder_ / "bench.jsonl", lines + lines.substr(0, lines.find('\n') + 1));
  refused({"--bench-serving", folder_ / "bench.jsonl", "--experiment", experiment},
          {"has 5 runs", "2 stages", "one run for each stage"});
}

// A benchmark divides by its whole duration. The throughput of the report does not count the drain of a closed loop.
TEST_F(Validate, ComparesTheThroughputOfClientsAsBenchmarksCountIt) {
  const Settings clients{"model.name=llama-3.1-8b",
                         "hardware.name=h100-sxm",
                         "workload.loop=closed",
                         "workload.generate.kind=groups",
                         "workload.generate.output_tokens=8",
                         "workload.generate.concurrency=8",
                         "workload.generate.requests=40",
                         "workload.generate.range_ratio=0.5"};
  const Json report = simulate_to(folder_, "clients", clients, false);
  const double duration = report.at("simulated_seconds");
  const Json line{{"mean_ttft_ms", 1},
                  {"request_throughput", 40 / duration},
                  {"output_throughput", report.at("tokens").at("output").get<double>() / duration}};
  write_text(folder_ / "bench.jsonl", line.dump() + "\n");
  const Json cell = validate({"--bench-serving", folder_ / "bench.jsonl", "--experiment",
                              folder_ / "clients/experiment.resolved.toml"})
                        .json()
                        .at("cells")[0];
  for (const char* name : {"requests_per_second", "output_tokens_per_second"}) {
    EXPECT_NEAR(figure(cell, name).at("error").get<double>(), 0, 1e-9) << name;
  }
  const double rate = report.at("throughput").at("requests_per_second");
  EXPECT_GT(std::abs(rate * duration / 40 - 1), 0.02);
}

TEST_F(Validate, ReadsPublishedLadders) {
  std::string text = table_of(R"("concurrency": "2x20,6x28", "range_ratio": 0.5, "think_s": 0.001,
    "start_spread_s": 0.1, "warmup_requests": 2, "count_drain": false)");
  const std::string measured = R"({"ttft_mean_s": [0.1, 0.12], "ttft_p99_s": 0.5, "hit_ratio": 0.7})";
  text.replace(text.find(measured), measured.size(), R"([{"ttft_mean_s": 0.1}, {"ttft_mean_s": [0.2, 0.3]}])");
  write_text(folder_ / "table.json", text);
  const Json cells = validate({"--published", folder_ / "table.json"}).json().at("cells");
  ASSERT_EQ(cells.size(), 2U);
  EXPECT_EQ(cells[1].at("cell"), "groups of eight, stage 2");
  EXPECT_DOUBLE_EQ(figure(cells[1], "ttft_mean_s").at("measured"), 0.25);
  EXPECT_EQ(cells[1].at("source"), "made up");
  text.replace(text.find("2x20,6x28"), 9, "2x48");
  write_text(folder_ / "table.json", text);
  const Outcome outcome = validate({"--published", folder_ / "table.json"});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find("2 stages were measured, and 1 are predicted"), std::string::npos) << outcome.err;
}

TEST_F(Validate, ShowsTheStagesOfALadderAndItsKnee) {
  std::string text = table_of(R"("concurrency": "1x8,4x16,16x64")");
  const std::string measured = R"({"ttft_mean_s": [0.1, 0.12], "ttft_p99_s": 0.5, "hit_ratio": 0.7})";
  text.replace(text.find(measured), measured.size(),
               R"([{"ttft_mean_s": 0.01, "output_tokens_per_second": 10}, {"ttft_mean_s": 5}, {"ttft_mean_s": 6}],
               "knee": {"ttft_mean_s": 4})");
  write_text(folder_ / "table.json", text);
  const std::vector<std::string> words{"--published", folder_ / "table.json",      "--knee", "ttft_mean_s=7s",
                                       "--knee",      "output_tokens_per_second=4"};
  EXPECT_NE(validate(words).err.find("more of it is better"), std::string::npos);
  const std::vector<std::string> good(words.begin(), words.begin() + 4);
  const Json whole = validate(good).json();
  const Json& ladder = whole.at("ladders")[0];
  EXPECT_EQ(ladder.at("stages")[2].at("load"), "16 clients");
  // The entry's own limit comes first.
  EXPECT_EQ(ladder.at("knees")[0].at("limit"), 4);
  EXPECT_EQ(ladder.at("knees")[0].at("measured_stage"), 2);
  EXPECT_EQ(ladder.at("knees")[0].at("predicted_stage"), Json()) << "the simulated machine is faster";
  EXPECT_EQ(ladder.at("knees")[0].at("error_stages"), 2) << "behind the last stage is stage 4";
  EXPECT_EQ(whole.at("knees")[0].at("mean_abs_error_stages"), 2);
  const std::string screen = validate(good, false).out;
  EXPECT_NE(screen.find("ladder     groups of eight"), std::string::npos) << screen;
  EXPECT_NE(screen.find("measured first in stage 2 (4 clients), predicted in no stage: +2 stages"), std::string::npos)
      << screen;
  EXPECT_NE(screen.find("knee       ttft_mean_s over 4: 0 of 1 equal, mean error 2.00 stages"), std::string::npos)
      << screen;
}

// workload.limit is below the requests of the ladder: the stages without requests, and with some of them, are named.
TEST_F(Validate, NamesStagesPastTheLimit) {
  std::string text = table_of(R"("concurrency": "2x20,6x28,8x40,8x40", "limit": 60)");
  const std::string measured = R"({"ttft_mean_s": [0.1, 0.12], "ttft_p99_s": 0.5, "hit_ratio": 0.7})";
  text.replace(text.find(measured), measured.size(),
               R"([{"ttft_mean_s": 0.1}, {"ttft_mean_s": 0.2}, {"ttft_mean_s": 0.3}, {"ttft_mean_s": 0.4}])");
  text.replace(text.find("\"prompts_per_group\": 6"), 22, "\"prompts_per_group\": 9");
  write_text(folder_ / "table.json", text);
  const Outcome outcome = validate({"--published", folder_ / "table.json", "--max-error", "100000"});
  EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
  EXPECT_NE(outcome.err.find("stage 4 completes no request as predicted"), std::string::npos) << outcome.err;
  const Json whole = Json::parse(outcome.out);
  EXPECT_EQ(whole.at("cells").size(), 4U);
  const std::string notes = whole.at("notes").dump();
  EXPECT_NE(notes.find("1 of 4 configurations: workload.limit ends before this stage, which should have 40 requests "
                       "(groups of eight, stage 4)"),
            std::string::npos)
      << notes;
  EXPECT_NE(notes.find("1 of 4 configurations: workload.limit ends in this stage: the prediction has 12 of its 40 "
                       "requests (groups of eight, stage 3)"),
            std::string::npos)
      << notes;
  EXPECT_EQ(whole.at("scores")[0].at("left_out"), 1) << whole.at("scores");
  EXPECT_EQ(whole.at("cells")[3].at("not_compared").at("figures"), Json::array({"ttft_mean_s"}));
  EXPECT_NE(notes.find("--max-error judges the mean TTFT, which 1 of 4"), std::string::npos) << notes;
}

TEST_F(Validate, MaxErrorJudgesSomething) {
  std::string text = table_of(R"("rate": 5)");
  text.replace(text.find("\"ttft_mean_s\": [0.1, 0.12], "), 28, "");
  write_text(folder_ / "table.json", text);
  const Outcome outcome = validate({"--published", folder_ / "table.json", "--max-error", "5"});
  EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
  EXPECT_NE(outcome.err.find("--max-error judges nothing"), std::string::npos) << outcome.err;
}

// Keys of bench_serving and of vLLM's bench serve: read, known, or named.
TEST_F(Validate, NamesWhatItDoesNotReadOfABenchmark) {
  const Json report = simulate_to(folder_, "run", settings_, false);
  const std::string experiment = folder_ / "run/experiment.resolved.toml";
  Json line = bench_line(Table(text_of(folder_ / "run/requests.csv")), report);
  line.erase("request_rate");
  line["mean_e2el_ms"] = report.at("e2e_seconds").at("mean").get<double>() * 1e3;  // vLLM's name
  for (const char* known : {"burstiness", "accept_length"}) line[known] = 1.0;
  for (const char* known : {"std_ttft_ms", "p99.9_itl_ms", "mean_queue_ms", "num_prompts"}) line[known] = 80;
  const auto notes_of = [&](const Json& one) {
    write_text(folder_ / "bench.jsonl", one.dump());
    return validate({"--bench-serving", folder_ / "bench.jsonl", "--experiment", experiment}).json();
  };
  const Json quiet = notes_of(line);
  EXPECT_EQ(quiet.at("notes").dump().find("passed over"), std::string::npos) << quiet.at("notes");
  EXPECT_EQ(quiet.at("notes").dump().find("measured with"), std::string::npos) << quiet.at("notes");
  EXPECT_NEAR(figure(quiet.at("cells")[0], "e2e_mean_s").at("error").get<double>(), 0, 1e-9);
  line["burstiness"] = 0.5;
  line["accept_length"] = 2.5;
  line["ramp_up_strategy"] = "linear";
  line["turbo_mode"] = true;
  line["errors"][3] = "Connection reset";
  const std::string notes = notes_of(line).at("notes").dump();
  for (const char* part : {"turbo_mode (1)", "speculative decoding (accept_length 2.5)", "(burstiness 0.5)",
                           "a rate that rises (ramp_up_strategy linear)", "1 of 80 requests failed"}) {
    EXPECT_NE(notes.find(part), std::string::npos) << part << ": " << notes;
  }
  const auto refused_line = [&](const std::string& text, const std::vector<std::string>& parts) {
    write_text(folder_ / "bench.jsonl", text);
    refused({"--bench-serving", folder_ / "bench.jsonl", "--experiment", experiment}, parts);
  };
  refused_line(R"({"mean_ttft_ms": 1, "mean_ttft_ms": 2})", {"mean_ttft_ms", "given twice"});
  refused_line(R"({"mean_ttft_ms": -1})", {"mean_ttft_ms", "at least 0"});
  refused_line(R"({"mean_ttft": 0.2, "mean_tpot": 0.01})", {"mean_ttft_ms: is missing", "in seconds", "--published"});
  refused_line(R"({"completed": 0, "mean_ttft_ms": NaN})", {"completed: is 0"});
  line["errors"].erase(0);
  refused_line(line.dump(), {"errors: has 79 entries", "80"});
}

// A file of vLLM has no requests, and says only how many there were and their load.
TEST_F(Validate, ComparesABenchmarkWithItsOwnRequestsOnly) {
  write_text(folder_ / "served.toml",
             "engine = \"vllm\"\nmodel.name = \"llama-3.1-8b\"\nhardware.name = \"h100-sxm\"\n");
  Json line{{"backend", "vllm"},         {"completed", 40},       {"num_prompts", 40},
            {"request_rate", "inf"},     {"max_concurrency", 8},  {"total_input_tokens", 40 * 1024},
            {"mean_ttft_ms", 100.0},     {"median_tpot_ms", 8.0}, {"total_output_tokens", 40 * 32},
            {"request_throughput", 20.0}};
  write_text(folder_ / "bench.json", line.dump());
  const std::vector<std::string> read{"--bench-serving", folder_ / "bench.json", "--experiment",
                                      folder_ / "served.toml"};
  refused(read, {"bench.json", "does not say which prefixes", "in the experiment"});
  const auto notes_of = [&](const std::vector<std::string>& sets) {
    std::vector<std::string> words = read;
    for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
    return validate(words).json().at("notes").dump();
  };
  const std::string all = "workload.generate.";
  const std::vector<std::string> same{
      "workload.loop=closed",  all + "kind=groups",          all + "groups=40",        all + "prompts_per_group=1",
      all + "prefix_tokens=0", all + "question_tokens=1024", all + "output_tokens=32", all + "concurrency=8"};
  EXPECT_EQ(notes_of(same).find("not those of the file"), std::string::npos) << notes_of(same);
  const auto but = [&](std::size_t at, const std::string& set) {
    std::vector<std::string> sets = same;
    sets[at] = set;
    return notes_of(sets);
  };
  for (const auto& [notes, part] :
       {std::pair(but(5, all + "question_tokens=4096"), "1024 prompt tokens a request, 4096 simulated"),
        std::pair(but(6, all + "output_tokens=128"), "32 answer tokens a request, 128 simulated"),
        std::pair(but(2, all + "groups=100"), "40 requests, 100 simulated"),
        std::pair(but(7, all + "concurrency=16"), "8 clients, 16 simulated")}) {
    EXPECT_NE(notes.find(part), std::string::npos) << part << ": " << notes;
  }
  std::vector<std::string> open(same.begin() + 1, same.end() - 1);
  EXPECT_NE(notes_of(open).find("8 clients that wait for their answers, arrivals"), std::string::npos);
  line["max_concurrency"] = nullptr;  // all at once
  write_text(folder_ / "bench.json", line.dump());
  EXPECT_NE(notes_of(same).find("all requests at once, clients that wait"), std::string::npos) << notes_of(same);

  line["mean_ttft_ms"] = 0.0;  // without streaming
  line["mean_e2el_ms"] = 400.0;
  write_text(folder_ / "bench.json", line.dump());
  EXPECT_NE(notes_of(same).find("no streaming"), std::string::npos) << notes_of(same);
}

// The requests of the file are taken with --experiment too, unless that names others.
TEST(ValidateServer, TakesTheRequestsOfTheFileForAnExperimentWithout) {
  Folder folder;
  const fs::path random = fs::path(kSourceFolder) / "tests/fixtures/sglang/bench_random.jsonl";
  const Json by_file = run({"validate", "--bench-serving", random, "--json"}).json();
  const Json report = run({"validate", "--bench-serving", random, "--from-sglang-flags",
                           "--model-path Qwen/Qwen3-8B --page-size 16", "--json"})
                          .json();
  EXPECT_EQ(report.at("cells")[0].at("requests").at("joined"), by_file.at("cells")[0].at("requests").at("joined"));
}

// The exports of AIPerf and genai-perf have one object over many lines, and a unit with each metric.
TEST_F(Validate, ReadsTheExportOfAiperf) {
  write_text(folder_ / "served.toml",
             "engine = \"vllm\"\nmodel.name = \"llama-3.1-8b\"\nhardware.name = \"h100-sxm\"\n");
  const auto metric = [](const char* unit, double mean) {
    return Json{{"unit", unit}, {"avg", mean}, {"p50", mean}, {"p90", mean}, {"p95", mean}, {"p99", mean}, {"std", 1}};
  };
  Json exported{{"request_throughput", {{"unit", "requests/sec"}, {"avg", 12.5}}},
                {"request_latency", metric("ms", 400)},
                {"request_count", {{"unit", "requests"}, {"avg", 40}}},
                {"time_to_first_token", metric("ms", 120)},
                {"inter_token_latency", metric("ns", 9e6)},
                {"output_token_throughput", {{"unit", "tokens/sec"}, {"avg", 400}}},
                {"output_sequence_length", metric("tokens", 32)},
                {"input_sequence_length", metric("tokens", 1024)},
                {"input_config", {{"loadgen", {{"concurrency", 8}}}}}};
  const std::vector<std::string> words{"--bench-serving", folder_ / "profile_export_aiperf.json",
                                       "--experiment",    folder_ / "served.toml",
                                       "--set",           "workload.loop=closed",
                                       "--set",           "workload.generate.kind=groups",
                                       "--set",           "workload.generate.groups=40",
                                       "--set",           "workload.generate.prompts_per_group=1",
                                       "--set",           "workload.generate.prefix_tokens=0",
                                       "--set",           "workload.generate.question_tokens=1024",
                                       "--set",           "workload.generate.output_tokens=32",
                                       "--set",           "workload.generate.concurrency=8"};
  write_text(folder_ / "profile_export_aiperf.json", exported.dump(2));
  const Json report = validate(words).json();
  const Json cell = report.at("cells")[0];
  EXPECT_NEAR(figure(cell, "ttft_p95_s").at("measured").get<double>(), 0.12, 1e-9);
  EXPECT_NEAR(figure(cell, "tpot_mean_s").at("measured").get<double>(), 0.009, 1e-9);
  EXPECT_NEAR(figure(cell, "e2e_p99_s").at("measured").get<double>(), 0.4, 1e-9);
  EXPECT_NEAR(figure(cell, "requests_per_second").at("measured").get<double>(), 12.5, 1e-9);
  EXPECT_EQ(report.at("notes").dump().find("not those of the file"), std::string::npos) << report.at("notes");
  const auto refused_export = [&](const Json& other, const std::vector<std::string>& parts) {
    write_text(folder_ / "profile_export_aiperf.json", other.dump(2));
    refused(words, parts);
  };
  Json other = exported;
  other["time_to_first_token"]["unit"] = "fortnights";
  refused_export(other, {"time_to_first_token", "fortnights", "ns, us, ms and s"});
  other = exported;
  other.erase("time_to_first_token");
  refused_export(other, {"AIPerf", "--streaming"});
  other = exported;
  other["was_cancelled"] = true;
  refused_export(other, {"was_cancelled"});
}

// The build target `validation` runs these experiments for more than half an hour. This test only checks that each of
// them can be served.
TEST_F(Validate, HeldOutExperimentsAreServed) {
  std::size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(kSourceFolder) / "tests/validation")) {
    if (entry.path().extension() != ".toml") continue;
    const Simulated run = simulate_file(entry.path(), {"workload.limit=20"});
    EXPECT_GE(run.requests("completed"), 20U) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 22U);
}

TEST_F(Validate, RefusesWhatIsNoRun) {
  make("run");
  refused({}, {"needs what was measured"});
  refused({folder_ / "nothing"}, {"nothing", "no folder"});
  refused({folder_.path().string()}, {"holds no report.json"});
  refused({folder_ / "run", folder_ / "run"}, {"given twice"});
  refused({folder_ / "run", "--vary", "seed=1,2"}, {"--vary"});
  refused({folder_ / "run", "--published", "x.json"}, {"one of them"});
  refused({folder_ / "run", "--hardware", "h100"}, {"h100-sxm"});
  refused({folder_ / "run", "--hardware", folder_ / "none.json"}, {"none.json", "is not there"});
  const std::string csv = text_of(folder_ / "run/requests.csv");
  write_text(folder_ / "run/requests.csv", csv + "9,junk\n");
  refused({folder_ / "run"}, {"requests.csv:82", "columns"});
  write_text(folder_ / "run/report.json", "{}");
  refused({folder_ / "run"}, {"report.json", "isn't one that kvtwin wrote"});
}

// The server of tests/fixtures/vllm: its log has no hits, its benchmark has times.
TEST(ValidateServer, TakesTheFlagsOfAServer) {
  const fs::path files = fs::path(kSourceFolder) / "tests/fixtures/vllm";
  const std::vector<std::string> server{"--from-vllm-flags",
                                        "vllm serve m --block-size 32 --num-gpu-blocks-override 101 "
                                        "--max-num-batched-tokens 512 --max-num-seqs 16",
                                        "--set",
                                        "model.config=" + (files / "llama_config.json").string(),
                                        "--set",
                                        "hardware.name=cpu-host"};
  const auto with = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "validate");
    arguments.insert(arguments.end(), server.begin(), server.end());
    return run(arguments);
  };
  const Outcome bench =
      with({"--bench-serving", files / "bench.json", "--set", "workload.trace=" + (files / "chat.jsonl").string(),
            "--set", "workload.block_tokens=32"});
  EXPECT_EQ(bench.exit_code, 0) << bench.err;
  EXPECT_NE(bench.out.find("TTFT, each request     of 64"), std::string::npos) << bench.out;
  const Outcome log = with({"--request-log", files / "requests.log"});
  EXPECT_EQ(log.exit_code, 2);
  EXPECT_NE(log.err.find("has no hits of its requests"), std::string::npos) << log.err;
  const Outcome neither = with({"--published", files / "bench.json"});
  EXPECT_EQ(neither.exit_code, 2);
  EXPECT_NE(neither.err.find("are of --bench-serving and --request-log; leave them out"), std::string::npos)
      << neither.err;
}

}  // namespace
}  // namespace kvtwin::test
