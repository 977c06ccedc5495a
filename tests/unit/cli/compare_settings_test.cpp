// kvtwin compare EXPERIMENT --vary, as a user sees it: its rows equal the reports of simulate, sharded and interrupted
// runs give the same result, and several seeds are used only where the workload is random.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "lab/report/figures.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

const std::string kExperiment = kReturning;

class CompareSettings : public testing::Test {
 protected:
  CompareSettings() { write_text(folder_ / "x.toml", kExperiment); }
  std::vector<std::string> words(const std::vector<std::string>& more) const {
    std::vector<std::string> words{"compare", folder_ / "x.toml", "--world",
                                   kAnyWorld, "--vary",           "cache.eviction=lru,mru,slru"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Outcome compare(const std::vector<std::string>& more) const { return run(words(more)); }
  void refused(const std::vector<std::string>& more, const std::string& part) const {
    const Outcome outcome = compare(more);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
  }
  // Returns the content of all files of a finished folder, without the command that wrote it.
  std::string whole(const std::string& name) const {
    std::string text;
    for (const char* file : {"sweep.csv", "sweep.jsonl", "compare.csv", "compare.jsonl"}) {
      text += text_of(folder_ / (name + "/" + file));
    }
    Json about = Json::parse(text_of(folder_ / (name + "/compare.json")));
    EXPECT_TRUE(about.at("command").is_string());
    EXPECT_EQ(about.at("better").at("ttft_p90_s"), "less");
    EXPECT_EQ(about.at("better").at("hit_ratio"), "more");
    const Json& recommended = about.at("recommendation");
    EXPECT_TRUE(recommended.at("servers").at("sglang").at("command").get<std::string>().starts_with("python -m"));
    EXPECT_TRUE(recommended.at("servers").at("vllm").at("command").get<std::string>().starts_with("vllm serve"));
    about.erase("command");
    return text + about.dump();
  }
  const Folder folder_;
};

std::vector<Json> rows_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  std::vector<Json> rows;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) rows.push_back(Json::parse(line));
  return rows;
}

TEST_F(CompareSettings, RowsAreWhatSimulateReports) {
  const std::vector<Json> rows = rows_of(compare({"--vary", "tiers.host.tokens=4096,8192", "--json"}));
  ASSERT_EQ(rows.size(), 6U);
  const Settings set{"cache.eviction=mru", "tiers.host.tokens=8192", "report.bounds=true"};
  const Simulated alone = simulate_file(folder_ / "x.toml", set, kAnyWorld);
  const Json& row = rows[3];
  EXPECT_EQ(row.at("cache.eviction"), "mru");
  const double prompt = static_cast<double>(alone.tokens("prompt"));
  EXPECT_EQ(row.at("hit_ratio"), static_cast<double>(alone.tokens("hit_device") + alone.tokens("hit_host")) / prompt);
  EXPECT_EQ(row.at("saved_s"), alone.report.at("saved_seconds"));
  EXPECT_NEAR(row.at("ttft_mean_s").get<double>(), alone.mean_ttft(), 1e-8) << "no warm-up";
  const Json all = report_figures(alone.report);
  for (const RunFigure& figure : figures()) EXPECT_TRUE(all.contains(figure.name)) << figure.name;
  const Json& bounds = alone.report.at("bounds");
  EXPECT_EQ(row.at("gap_closed"), bounds.at("gap_closed"));
  EXPECT_EQ(row.at("opt_hit_ratio"), bounds.at("eviction_opt_hit_tokens").get<double>() / prompt);
  EXPECT_EQ(row.at("opt_saved_s"), bounds.at("eviction_opt_saved_seconds"));
  for (const Json& one : rows) {
    EXPECT_GT(one.at("saved_s"), 0);
    EXPECT_LE(one.at("hit_ratio"), one.at("opt_hit_ratio"));
  }
}

// Any figure of kvtwin presets may be a goal, and is then a column. Good requests need a limit.
TEST_F(CompareSettings, AnyFigureMayBeAGoal) {
  const std::vector<std::string> sizes{"--vary", "tiers.host.tokens=4096,8192", "--set", "report.bounds=false"};
  const Outcome tpot = compare(sizes + std::vector<std::string>{"--goal", "tpot_p90_s=1000"});
  EXPECT_EQ(tpot.exit_code, 0) << tpot.err;
  EXPECT_NE(tpot.out.find("TPOT p90 s"), std::string::npos) << tpot.out;
  EXPECT_NE(tpot.out.find("goal: tpot_p90_s at most 1000"), std::string::npos) << tpot.out;
  const Outcome none = compare(sizes + std::vector<std::string>{"--goal", "good_share=0.5"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_NE(none.err.find("slo.ttft_s"), std::string::npos) << none.err;
  const Outcome absent = compare(sizes + std::vector<std::string>{"--goal", "disk_writes_per_day=1"});
  EXPECT_EQ(absent.exit_code, 0) << absent.err;
  EXPECT_NE(absent.out.find("no setting has this figure"), std::string::npos) << absent.out;
  const Outcome neither = compare(sizes + std::vector<std::string>{"--goal", "gap_closed=1"});
  EXPECT_EQ(neither.exit_code, 2);
  const std::vector<Json> rows = rows_of(
      compare(sizes + std::vector<std::string>{"--set", "slo.ttft_s=1000", "--goal", "good_share=0.5", "--json"}));
  for (const Json& row : rows) {
    EXPECT_EQ(row.at("good_share"), 1.0);
    EXPECT_EQ(row.at("meets_goal"), true);
    EXPECT_GT(row.at("goodput_per_second"), 0);
    EXPECT_EQ(row.at("gpus"), 1);
  }
}

// If a run of a setting failed, the setting has no numbers and no star; the other settings are compared.
TEST_F(CompareSettings, AFailedSettingIsNotCompared) {
  // 512: the question is as long as the whole prompt, so these runs fail.
  const std::vector<std::string> more{"--vary", "workload.generate.question_tokens=64,512"};
  const Outcome text = compare(more);
  EXPECT_EQ(text.exit_code, 1) << text.err;
  EXPECT_NE(text.err.find("3 of 6 cells failed"), std::string::npos) << text.err;
  EXPECT_NE(text.out.find("failed\n"), std::string::npos) << text.out;
  const Outcome json = compare(more + std::vector<std::string>{"--json"});
  EXPECT_EQ(json.exit_code, 1);
  std::istringstream lines(json.out);
  std::size_t failed = 0, best = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json row = Json::parse(line);
    const bool bad = row.contains("failure");
    failed += bad ? 1 : 0;
    EXPECT_EQ(row.at("hit_ratio").is_null(), bad) << row;
    if (row.at("hit_ratio_standing") == "best") best += bad ? 100 : 1;
  }
  EXPECT_EQ(failed, 3U);
  EXPECT_EQ(best, 1U);
}

TEST_F(CompareSettings, BoundsCanBeLeftOut) {
  const Outcome outcome = compare({"--set", "report.bounds=false", "--json"});
  EXPECT_NE(outcome.err.find("nothing is known of the distance to optimal"), std::string::npos) << outcome.err;
  for (const Json& row : rows_of(outcome)) EXPECT_TRUE(row.at("opt_hit_ratio").is_null());
}

TEST_F(CompareSettings, SeedsGiveIntervals) {
  const Outcome outcome = compare({"--seeds", "3", "--set", "seed=5", "--out", folder_ / "out", "--json"});
  const std::vector<Json> rows = rows_of(outcome);
  ASSERT_EQ(rows.size(), 3U);
  const Table runs(text_of(folder_ / "out/sweep.csv"));
  ASSERT_EQ(runs.size(), 9U);
  double saved = 0;
  for (std::size_t seed = 0; seed < 3; ++seed) {
    EXPECT_EQ(runs.number(3 + seed, "seed"), 5 + static_cast<double>(seed));
    EXPECT_EQ(runs.text(3 + seed, "cache.eviction"), "mru");
    saved += runs.number(3 + seed, "saved_s") / 3;
  }
  EXPECT_NEAR(rows[1].at("saved_s").get<double>(), saved, 1e-12);
  EXPECT_GT(rows[1].at("saved_s_ci95"), 0);
  refused({"--seeds", "2", "--vary", "seed=1,2"}, "seed varies already");
  refused({"--seeds", "0"}, "--seeds");
}

// A trace gives the same result with every seed, so only one seed is run.
TEST_F(CompareSettings, ATraceHasNoNoise) {
  const Settings trace = conversations({.requests = 40, .block_tokens = 16}, 3).save(folder_);
  std::vector<std::string> more{"--json", "--seeds", "4"};
  for (const std::string& set : trace) more.insert(more.end(), {"--set", set});
  const Outcome outcome = compare(more);
  EXPECT_NE(outcome.err.find("nothing is drawn in this work"), std::string::npos) << outcome.err;
  for (const Json& row : rows_of(outcome)) {
    EXPECT_EQ(row.at("seeds"), 1);
    EXPECT_TRUE(row.at("saved_s_ci95").is_null());
  }
  const Simulated one = simulate_file(folder_ / "x.toml", trace + Settings{"seed=1"}, kAnyWorld);
  const Simulated other = simulate_file(folder_ / "x.toml", trace + Settings{"seed=2"}, kAnyWorld);
  EXPECT_EQ(one.requests_csv, other.requests_csv);
}

TEST_F(CompareSettings, ShardsAndWhatWasEndedComeToTheSame) {
  const std::vector<std::string> work{"--vary", "tiers.host.tokens=4096,8192", "--seeds", "2"};
  const auto into = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> all = work;
    all.insert(all.end(), {"--out", folder_ / name});
    all.insert(all.end(), more.begin(), more.end());
    return compare(all);
  };
  const Outcome alone = into("whole", {"--jobs", "1"});
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  // One shard writes to its folder, another one to a different folder, as on another machine.
  ASSERT_EQ(into("parts", {"--shard", "1/3"}).exit_code, 0);
  const Outcome third = into("far", {"--shard", "3/3", "--jobs", "4"});
  EXPECT_EQ(third.out, "shard 3/3: its 4 cells are in " + (folder_ / "far") +
                           ", 4 of 12 in all; without --shard the same command makes one of them\n");
  EXPECT_FALSE(fs::exists(folder_ / "far/compare.json"));
  fs::copy(folder_ / "far/sweep.shard-3-of-3.jsonl", folder_ / "parts");
  const Outcome merged = into("parts", {});
  ASSERT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_NE(merged.err.find("8 of 12 cells are there already"), std::string::npos) << merged.err;
  EXPECT_EQ(merged.out, alone.out);
  EXPECT_EQ(whole("parts"), whole("whole"));
  // The file as if the command was killed while it wrote a row.
  fs::create_directory(folder_ / "cut");
  write_text(folder_ / "cut/sweep.jsonl", text_of(folder_ / "whole/sweep.jsonl").substr(0, 4000));
  ASSERT_EQ(into("cut", {}).exit_code, 0);
  EXPECT_EQ(whole("cut"), whole("whole"));
  // --force of one shard keeps the files of the other shards.
  ASSERT_EQ(into("parts", {"--shard", "1/3", "--force"}).exit_code, 0);
  EXPECT_TRUE(fs::exists(folder_ / "parts/sweep.shard-3-of-3.jsonl"));
  refused({"--out", folder_ / "parts"}, "cells that aren't of this sweep");
  for (const char* shard : {"0/2", "3/2", "1", "1/", "/2", "1/2x", "-1/2"})
    refused({"--out", folder_ / "x", "--shard", shard}, "--shard");
  refused({"--shard", "1/2"}, "--out");
}

// A row depends on the content of the trace, not on its path.
TEST_F(CompareSettings, GoesByTheContentsOfFiles) {
  const TraceText trace = conversations({.requests = 40, .block_tokens = 16}, 3);
  const Settings here = trace.save(folder_, "here.jsonl"), there = trace.save(folder_, "there.jsonl");
  const Settings other = conversations({.requests = 40, .block_tokens = 16}, 4).save(folder_, "other.jsonl");
  const auto with = [&](const Settings& settings) {
    std::vector<std::string> more{"--out", folder_ / "out"};
    for (const std::string& set : settings) more.insert(more.end(), {"--set", set});
    return compare(more);
  };
  ASSERT_EQ(with(here).exit_code, 0);
  EXPECT_NE(with(there).err.find("3 of 3 cells are there already"), std::string::npos);
  EXPECT_EQ(with(other).exit_code, 2);
}

}  // namespace
}  // namespace kvtwin::test
