// Runs that complete few requests or none: what has no figure is null, "-" or an empty cell, and nothing calls such a
// setting the best.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

// Answers so long that the device can't hold one request: all are rejected.
const std::string kNobody = "workload.generate.output_tokens=4096";

class Unserved : public testing::Test {
 protected:
  Unserved() { write_text(folder_ / "x.toml", kReturning); }
  Outcome program(const std::string& command, const std::vector<std::string>& more) const {
    std::vector<std::string> words{command, folder_ / "x.toml", "--world", kAnyWorld};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  const Folder folder_;
};

void expect_all_null(const Json& figures, std::size_t count) {
  EXPECT_EQ(figures.size(), count);
  for (const auto& [name, figure] : figures.items()) EXPECT_TRUE(figure.is_null()) << name << ": " << figure;
}

TEST_F(Unserved, ReportHasNoFigureOfLatency) {
  const Simulated nobody = simulate_file(folder_ / "x.toml", {kNobody}, kAnyWorld);
  EXPECT_EQ(nobody.requests("completed"), 0U);
  EXPECT_EQ(nobody.requests("rejected"), 96U);
  EXPECT_EQ(nobody.report.at("requests").at("rejected_share"), 1);
  EXPECT_EQ(nobody.report.at("requests").at("failed_share"), 0);
  for (const char* durations : {"ttft_seconds", "tpot_seconds", "e2e_seconds"}) {
    expect_all_null(nobody.report.at(durations), 6);
  }
  expect_all_null(nobody.report.at("ttft_parts_seconds"), 4);
  expect_all_null(nobody.report.at("throughput"), 4);
  EXPECT_EQ(nobody.prometheus.find("seconds"), std::string::npos) << "metrics.prom has no latency at all";
  const Outcome summary = program("simulate", {"--set", kNobody});
  EXPECT_EQ(summary.exit_code, 0) << summary.err;
  for (const char* line :
       {"requests   0 completed, 96 rejected (100.00 %), 0 failed (0.00 %), 0 retractions; -/s over ",
        "\nprompt     0 tokens: - % hit on the device, - % on the host, - % computed\n",
        "\nTTFT       mean - s   p50 -   p90 -   p99 -   max -\n",
        "\nTPOT       mean - s   p50 -   p90 -   p99 -   max -\n",
        "\nend to end mean - s   p50 -   p90 -   p99 -   max -\n",
        "\nmean TTFT  = queue - + prefetch wait - + load wait - + compute - s\n"}) {
    EXPECT_NE(summary.out.find(line), std::string::npos) << line << "\n" << summary.out;
  }
}

TEST_F(Unserved, ARequestOfOneTokenHasNoTimeBetweenTokens) {
  const Simulated run = simulate_file(folder_ / "x.toml", {"workload.generate.output_tokens=1"}, kAnyWorld);
  EXPECT_EQ(run.requests("completed"), 96U);
  expect_all_null(run.report.at("tpot_seconds"), 6);
  EXPECT_GT(run.mean_ttft(), 0);
  const Table requests(run.requests_csv);
  for (std::size_t row = 0; row < requests.size(); ++row) EXPECT_EQ(requests.text(row, "tpot_s"), "");
}

TEST_F(Unserved, SweepHasNoFigureOfCellsThatServeNobody) {
  const std::vector<std::string> varied{"--vary", "workload.generate.output_tokens=8,4096", "--out", folder_ / "out"};
  const Outcome outcome = program("sweep", varied);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  std::string measured, intervals, heading, served, nobody;
  std::getline(lines, measured);
  std::getline(lines, intervals);
  std::getline(lines, heading);
  std::getline(lines, served);
  std::getline(lines, nobody);
  std::istringstream headings(heading), cells(nobody.substr(nobody.find(' ')));
  std::vector<std::string> words;
  for (std::string word; headings >> word;) words.push_back(word);
  EXPECT_EQ(words, (std::vector<std::string>{"ttft_mean_s", "ttft_p99_s", "rejected_share", "failed_share"}));
  words.clear();
  for (std::string word; cells >> word;) words.push_back(word);
  EXPECT_EQ(words, (std::vector<std::string>{"-", "-", "1.0000", "0.0000"})) << nobody;
  const Table table(text_of(folder_ / "out/sweep.csv"));
  for (const char* figure : {"ttft_mean_s", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "ttft_queue_s",
                             "ttft_prefetch_wait_s", "ttft_load_wait_s", "ttft_compute_s", "tpot_mean_s", "hit_ratio",
                             "prompt_tokens_per_second", "output_tokens_per_second"}) {
    EXPECT_NE(table.text(0, figure), "") << figure;
    EXPECT_EQ(table.text(1, figure), "") << figure;
  }
  EXPECT_EQ(table.number(0, "rejected_share"), 0);
  EXPECT_EQ(table.number(1, "rejected_share"), 1);
  EXPECT_EQ(table.number(1, "failed_share"), 0);
  EXPECT_EQ(table.integer(1, "rejected"), 96U);
}

// Nearly all requests come at once: a queue of one sends most of them away, and is quick with the rest.
TEST_F(Unserved, AQueueOfOneIsNeverTheBest) {
  const std::vector<std::string> varied{"--set",  "workload.generate.prompt_tokens_per_second=1000000",
                                        "--vary", "scheduler.max_waiting=0,1",
                                        "--goal", "ttft_p90_s=1000000",
                                        "--out",  folder_ / "out"};
  const Outcome outcome = program("compare", varied);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Table rows(text_of(folder_ / "out/compare.csv"));
  EXPECT_GT(rows.number(1, "rejected_share"), 0.5);
  EXPECT_LT(rows.number(1, "ttft_mean_s"), rows.number(0, "ttft_mean_s")) << "else this test tells nothing";
  EXPECT_EQ(rows.text(0, "ttft_mean_s_standing"), "best");
  for (const char* figure : {"hit_ratio", "saved_s", "ttft_mean_s", "ttft_p90_s", "ttft_p99_s"}) {
    EXPECT_EQ(rows.text(1, std::string(figure) + "_standing"), "") << figure;
  }
  EXPECT_EQ(rows.text(0, "meets_goal"), "true");
  EXPECT_EQ(rows.text(1, "meets_goal"), "false");
  EXPECT_NE(outcome.out.find("scheduler.max_waiting=1: not met"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("is not marked: 1 of 2."), std::string::npos) << outcome.out;
  // How few are enough is --min-served.
  std::vector<std::string> lenient = varied;
  lenient.insert(lenient.end(), {"--min-served", "1"});
  ASSERT_EQ(program("compare", lenient).exit_code, 0);
  EXPECT_EQ(Table(text_of(folder_ / "out/compare.csv")).text(1, "ttft_mean_s_standing"), "best");
  lenient.back() = "101";
  EXPECT_EQ(program("compare", lenient).exit_code, 2);
}

TEST_F(Unserved, SettingsOfWhichNoneServesAnybodyAreNotCompared) {
  const Outcome outcome = program(
      "compare", {"--set", kNobody, "--vary", "cache.eviction=lru,fifo", "--goal", "ttft_mean_s=1000", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    const Json row = Json::parse(line);
    EXPECT_EQ(row.at("rejected_share"), 1);
    EXPECT_EQ(row.at("meets_goal"), false);
    for (const auto& [name, value] : row.items()) {
      if (name.starts_with("ttft") || name.starts_with("hit_ratio") || name.ends_with("_standing")) {
        EXPECT_TRUE(value.is_null()) << name << ": " << value;
      }
    }
  }
}

TEST_F(Unserved, RunsSideBySideHaveADash) {
  ASSERT_EQ(program("simulate", {"--out", folder_ / "all"}).exit_code, 0);
  ASSERT_EQ(program("simulate", {"--set", kNobody, "--out", folder_ / "none"}).exit_code, 0);
  const Outcome outcome = run({"compare", folder_ / "all", folder_ / "none", "--json"});
  EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
  std::size_t found = 0;
  const Json told = Json::parse(outcome.out);
  for (const Json& figure : told.at("figures")) {
    const std::string name = figure.at("name");
    if (name.starts_with("TTFT") || name.starts_with("TPOT") || name.ends_with("/s")) {
      EXPECT_TRUE(figure.at("a").is_number()) << name;
      EXPECT_TRUE(figure.at("b").is_null()) << name;
      ++found;
    }
    if (name == "share rejected") {
      EXPECT_EQ(figure.at("b"), 1);
    }
  }
  EXPECT_EQ(found, 7U);
}

// A prediction that rejects every request isn't within any bound of what was measured.
TEST_F(Unserved, ValidationFailsWhereOneSideServesNobody) {
  ASSERT_EQ(program("simulate", {"--out", folder_ / "all"}).exit_code, 0);
  const std::vector<std::string> words{"validate", folder_ / "all", "--max-error", "1000000"};
  EXPECT_EQ(run(words).exit_code, 0);
  std::vector<std::string> none = words;
  none.insert(none.end(), {"--set", kNobody});
  const Outcome outcome = run(none);
  EXPECT_EQ(outcome.exit_code, 3) << outcome.out << outcome.err;
  EXPECT_NE(outcome.err.find("all completes no request as predicted, and some as measured"), std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.out.find("rejected, %"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("TTFT mean, s"), std::string::npos) << outcome.out;
  // Neither side serves anybody: there is nothing to be off, and nothing to judge.
  ASSERT_EQ(program("simulate", {"--set", kNobody, "--out", folder_ / "none"}).exit_code, 0);
  EXPECT_EQ(run({"validate", folder_ / "none", "--max-error", "0"}).exit_code, 3);
  const Outcome both = run({"validate", folder_ / "all", folder_ / "none"});
  EXPECT_EQ(both.exit_code, 0) << both.err;
  EXPECT_NE(both.out.find("\nnone                   -        -          -         -"), std::string::npos) << both.out;
}

TEST_F(Unserved, AReplayOfNothingHasNoHitRatio) {
  write_text(folder_ / "empty.jsonl", "");
  const std::vector<std::string> words{"hitrate",    "--trace", folder_ / "empty.jsonl", "--format", "mooncake",
                                       "--capacity", "10"};
  const Outcome table = run(words);
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_NE(table.out.find(" 0         -         -         -         -\n"), std::string::npos) << table.out;
  std::vector<std::string> json = words;
  json.emplace_back("--json");
  const Json row = run(json).json();
  EXPECT_TRUE(row.at("block_hit_ratio").is_null());
  EXPECT_TRUE(row.at("token_hit_ratio").is_null());
  EXPECT_EQ(row.at("total_cost"), 0);
}

TEST_F(Unserved, DrawsOfNobodyHaveNoFigures) {
  const std::vector<std::string> drawn{"--set", kNobody, "--set", "hardware.spread_percent=10", "--draws", "2"};
  const Outcome summary = program("simulate", drawn);
  ASSERT_EQ(summary.exit_code, 0) << summary.err;
  EXPECT_NE(summary.out.find(" have a mean TTFT -, p90 -, p99 -\n"), std::string::npos) << summary.out;
  std::vector<std::string> json = drawn;
  json.emplace_back("--json");
  const Json figures = program("simulate", json).json().at("draws").at("figures");
  expect_all_null(figures.at("ttft_mean_s"), 4);
  EXPECT_EQ(figures.at("saved_s").at("value"), 0);
}

}  // namespace
}  // namespace kvtwin::test
