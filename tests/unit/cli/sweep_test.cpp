// Sweeps of the program: rows, folders that go on, failed and killed simulations.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

// ---- the program ---------------------------------------------------------------------------------------

class Sweep : public testing::Test {
 protected:
  Sweep() {
    write_text(folder_ / "x.toml", R"([model]
name = "tiny"
[hardware]
name = "cpu-host"
[workload.generate]
kind = "returning"
prompt_tokens = 512
working_set_tokens = 8192
visits = 3
[tiers]
device.tokens = 4096
host.tokens = 4096
[sweep]
along = "tiers.host.tokens"
warm_up = 0.5
pairs = [["fifo", "lru"]]
[sweep.vary]
tiers.host.tokens = [4096, 8192]
[sweep.case.lru]
[sweep.case.fifo]
cache.eviction = "fifo"
)");
  }
  Outcome sweep(std::vector<std::string> more) const {
    std::vector<std::string> words{"compare", folder_ / "x.toml", "--cells", "--world", kAnyWorld};
    words.insert(words.end(), more.begin(), more.end());
    return test::run(words);
  }
  void refused(const std::vector<std::string>& more, const std::string& part) const {
    const Outcome outcome = sweep(more);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
  }
  std::vector<Json> rows_of(const std::string& name) const {
    std::vector<Json> rows;
    std::istringstream lines(text_of(folder_ / (name + "/sweep.jsonl")));
    for (std::string line; std::getline(lines, line);) rows.push_back(Json::parse(line));
    return rows;
  }
  // Returns settings with a small trace.
  Settings ids_trace() const { return conversations({.requests = 20}, 1).save(folder_); }
  const Folder folder_;
};

TEST_F(Sweep, RowsAreWhatSimulateReports) {
  const Outcome outcome = sweep({"--out", folder_ / "out"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("slower than lru"), std::string::npos) << outcome.out;
  const Table table(text_of(folder_ / "out/sweep.csv"));
  ASSERT_EQ(table.size(), 4U);
  EXPECT_EQ(table.text(3, "case"), "fifo");
  EXPECT_EQ(table.text(3, "tiers.host.tokens"), "8192.0");
  const Simulated alone =
      simulate_file(folder_ / "x.toml", {"cache.eviction=fifo", "tiers.host.tokens=8192"}, kAnyWorld);
  EXPECT_EQ(table.text(3, "decisions_digest"), alone.digest());
  const Table requests(alone.requests_csv);
  double sum = 0;
  for (std::size_t row = 0; row < requests.size(); ++row) {
    if (requests.integer(row, "request") >= 24) sum += requests.number(row, "ttft_s");
  }
  EXPECT_NEAR(table.number(3, "ttft_mean_s"), sum / 24, 1e-8) << "the warm-up is left out";
  EXPECT_NEAR(table.number(3, "ttft_queue_s") + table.number(3, "ttft_prefetch_wait_s") +
                  table.number(3, "ttft_load_wait_s") + table.number(3, "ttft_compute_s"),
              sum / 24, 1e-8);
  EXPECT_EQ(table.text(3, "hit_opt"), "") << "the report has no bounds unless asked for";
}

TEST_F(Sweep, RowsHaveTheBoundsThatWereAskedFor) {
  const Settings set{"report.bounds=true", "tiers.device.tokens=2048"};
  const Outcome outcome = sweep({"--out", folder_ / "out", "--set", set[0], "--set", set[1]});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Table table(text_of(folder_ / "out/sweep.csv"));
  const Simulated alone = simulate_file(folder_ / "x.toml", set, kAnyWorld);
  const Json& bounds = alone.report.at("bounds");
  EXPECT_EQ(table.integer(0, "hit_opt"), bounds.at("eviction_opt_hit_tokens").get<std::uint64_t>());
  EXPECT_EQ(table.integer(0, "hit_lru"), bounds.at("lru_hit_tokens").get<std::uint64_t>());
  EXPECT_EQ(table.number(0, "gap_closed"), bounds.at("gap_closed").get<double>());
}

// A spreadsheet would run the name of the case.
TEST_F(Sweep, NoCellOfTheTableIsAFormula) {
  std::string text = text_of(folder_ / "x.toml");
  text.replace(text.find("[sweep.case.fifo]"), 17, "[sweep.case.\"=cmd|' /C x'!A0\"]");
  text.replace(text.find("[\"fifo\""), 7, "[\"=cmd|' /C x'!A0\"");
  write_text(folder_ / "x.toml", text);
  const Outcome outcome = sweep({"--out", folder_ / "out", "--vary", "cache.prefetch_timeout_base_s=1"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string csv = text_of(folder_ / "out/sweep.csv");
  EXPECT_NE(csv.find("'=cmd|' /C x'!A0,"), std::string::npos) << csv;
  EXPECT_EQ(csv.find("\n=cmd"), std::string::npos) << csv;
  EXPECT_EQ(csv.find(",=cmd"), std::string::npos) << csv;
  EXPECT_EQ(rows_of("out").at(3).at("case"), "=cmd|' /C x'!A0") << "sweep.jsonl has the name as it is";
}

TEST_F(Sweep, GoesOnWhereItWas) {
  ASSERT_EQ(sweep({"--out", folder_ / "whole", "--jobs", "1"}).exit_code, 0);
  const std::string csv = text_of(folder_ / "whole/sweep.csv"), lines = text_of(folder_ / "whole/sweep.jsonl");
  // Two rows and half of a third row, in another order.
  const std::size_t second = lines.find('\n') + 1, third = lines.find('\n', second) + 1;
  fs::create_directory(folder_ / "part");
  write_text(folder_ / "part/sweep.jsonl",
             lines.substr(second, third - second) + lines.substr(0, second) + lines.substr(third, 40));
  const Outcome rest = sweep({"--out", folder_ / "part"});
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_NE(rest.err.find("2 of 4 cells are there already"), std::string::npos) << rest.err;
  EXPECT_EQ(text_of(folder_ / "part/sweep.csv"), csv);
  EXPECT_EQ(text_of(folder_ / "part/sweep.jsonl"), lines);
  // A larger grid uses the existing rows.
  const Outcome larger = sweep({"--out", folder_ / "part", "--vary", "tiers.host.tokens=4096,6144,8192"});
  ASSERT_EQ(larger.exit_code, 0) << larger.err;
  EXPECT_NE(larger.err.find("4 of 6 cells are there already"), std::string::npos) << larger.err;
  // A smaller grid would lose rows.
  refused({"--out", folder_ / "part"}, "holds 2 cells that aren't of this sweep");
  EXPECT_EQ(sweep({"--out", folder_ / "part", "--force"}).exit_code, 0);
  EXPECT_EQ(text_of(folder_ / "part/sweep.csv"), csv);
  const Outcome json = sweep({"--out", folder_ / "part", "--json"});
  EXPECT_TRUE(json.out.starts_with(lines)) << json.out;
  EXPECT_EQ(Json::parse(json.out.substr(lines.size())).at("cells"), 4);
}

// The other cells have their rows, the failed cell has the reason, and the same command runs the failed cell again.
TEST_F(Sweep, AFailedCellIsMarkedAndRunAgain) {
  const Settings good = ids_trace();
  const std::string absent = folder_ / "later.jsonl", there = folder_ / "trace.jsonl";
  const std::vector<std::string> words{"--out", folder_ / "out", "--vary", "workload.trace=" + there + "," + absent,
                                       "--set", good[1]};
  const Outcome outcome = sweep(words);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_NE(outcome.err.find("4 of 8 cells failed, the first of them case lru"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("cannot be opened"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("runs the failed simulations again"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.out.find("failed"), std::string::npos) << outcome.out;
  const std::vector<Json> rows = rows_of("out");
  ASSERT_EQ(rows.size(), 8U);
  std::size_t failed = 0;
  for (const Json& row : rows) {
    const bool bad = row.at("workload.trace") == absent;
    EXPECT_EQ(row.contains("failure"), bad) << row;
    EXPECT_EQ(row.contains("ttft_mean_s"), !bad) << row;
    failed += bad ? 1 : 0;
  }
  EXPECT_EQ(failed, 4U);
  EXPECT_NE(text_of(folder_ / "out/sweep.csv").find("cannot be opened"), std::string::npos);
  write_text(absent, conversations({.requests = 20}, 2).text());
  const Outcome again = sweep(words);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NE(again.err.find("4 of 8 cells are there already"), std::string::npos) << again.err;
  for (const Json& row : rows_of("out")) EXPECT_FALSE(row.contains("failure")) << row;
}

// The CPU limit ends the one cell that has a million visits per context.
TEST_F(Sweep, ACellThatIsKilledEndsNoOther) {
  Surroundings around;
  around.wrapper = {"sh", "-c", "ulimit -t 5; exec \"$@\"", "sh"};
  const Outcome outcome =
      test::run({"compare", folder_ / "x.toml", "--cells", "--world", "events", "--case", "lru", "--vary",
                 "tiers.host.tokens=4096", "--vary", "workload.generate.visits=3,1000000"},
                around);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_NE(outcome.err.find("1 of 2 cells failed"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("was ended by signal"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.out.find("failed"), std::string::npos) << outcome.out;
}

TEST_F(Sweep, RefusesBeforeAnythingRuns) {
  refused({"--vary", "cache.layout=page_first,page_frist"}, "unknown name \"page_frist\"");
  refused({"--set", "tiers.host.tokens=1"}, "the sweep varies tiers.host.tokens; give --vary");
  refused({"--case", "mru"}, "--case mru");
  refused({"--jobs", "0"}, "--jobs");
  write_text(folder_ / "notes.txt", "mine");
  refused({"--out", folder_.path().string(), "--force"}, "is not empty, and no sweep's");
  EXPECT_EQ(text_of(folder_ / "notes.txt"), "mine");
  const Outcome absent = test::run({"compare", folder_ / "y.toml"});
  EXPECT_EQ(absent.exit_code, 2);
  // The section [sweep] of the file is not an experiment key, and `simulate` ignores it.
  EXPECT_EQ(test::run({"simulate", folder_ / "x.toml", "--world", kAnyWorld}).exit_code, 0);
  refused({"--set", "workload.generate.question_tokens=512"}, "a prompt has 512 tokens");
}

TEST_F(Sweep, IsAFormOfCompare) {
  const std::vector<std::string> more{"--set", "workload.limit=20", "--json"};
  std::vector<std::string> words{"compare", folder_ / "x.toml", "--world", kAnyWorld};
  words.insert(words.end(), more.begin(), more.end());
  const Outcome section = test::run(words);  // the file's [sweep] section
  EXPECT_EQ(section.exit_code, 0) << section.err;
  EXPECT_EQ(section.out, sweep(more).out);
  words.front() = "sweep";
  const Outcome earlier = test::run(words);
  EXPECT_EQ(earlier.out, section.out);
  EXPECT_EQ(earlier.err.find("kvtwin: note: sweep is `kvtwin compare --cells` now"), 0U) << earlier.err;
  refused({"--seeds", "2"}, "--seeds: --cells has a line per simulation");
  EXPECT_EQ(sweep({"--list"}).out.find("[\"case lru"), 0U) << sweep({"--list"}).out;
}

}  // namespace
}  // namespace kvtwin::test
