// Tests kvtwin compare --cells, and [sweep] sections: the cells, the results, and that a sweep continues after an
// interruption.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "lab/error.hpp"
#include "lab/sweep/sweep_cell.hpp"
#include "lab/sweep/sweep_plan.hpp"
#include "lab/sweep/sweep_words.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

constexpr const char* kPlan = R"([sweep]
along = "hardware.set.disk_read_gbps"
pairs = [["waits", "none"]]
[sweep.vary]
seed = [1, 2]
hardware.set.disk_read_gbps = [1, 10, 100.5]
[sweep.case.waits]
cache.prefetch_policy = "wait_complete"
[sweep.case.none]
tiers.disk.tokens = 0
hardware.set.disk_read_gbps = 0
)";

std::vector<std::string> names(const SweepPlan& plan) {
  std::vector<std::string> list;
  for (const SweepCell& cell : plan.cells()) list.push_back(plan.name_of(cell));
  return list;
}

TEST(SweepPlan, CellsAreTheProductAndWhatACaseSetsDoesNotVary) {
  const SweepPlan plan = SweepPlan::from_text(kPlan, "x.toml");
  plan.check();
  EXPECT_EQ(
      names(plan),
      (std::vector<std::string>{
          "case waits, seed=1, hardware.set.disk_read_gbps=1", "case waits, seed=1, hardware.set.disk_read_gbps=10",
          "case waits, seed=1, hardware.set.disk_read_gbps=100.5", "case waits, seed=2, hardware.set.disk_read_gbps=1",
          "case waits, seed=2, hardware.set.disk_read_gbps=10", "case waits, seed=2, hardware.set.disk_read_gbps=100.5",
          "case none, seed=1", "case none, seed=2"}));
  Experiment base = Experiment::from_text("[tiers]\ndisk.tokens = 1000\nhost.tokens = 1000\n", "x.toml");
  const Experiment third = plan.experiment(base, plan.cells()[2]);
  EXPECT_EQ(third.number("hardware.set.disk_read_gbps"), 100.5);
  EXPECT_EQ(third.text("cache.prefetch_policy"), "wait_complete");
  EXPECT_EQ(plan.experiment(base, plan.cells()[7]).integer("tiers.disk.tokens"), 0);
  EXPECT_EQ(plan.experiment(base, plan.cells()[7]).integer("seed"), 2);
}

// An error may quote bytes of a file that are not UTF-8; a row is JSON all the same.
TEST(SweepPlan, AFailureOfAnyBytesIsARow) {
  const SweepPlan plan = SweepPlan::from_text("[vary]\nseed = [1, 2]\n", "x.toml");
  const std::vector<CellRun> cells = cell_runs(plan, Experiment::from_text("", "x.toml"));
  const Json row = row_of(plan, cells[0], 0, {0, "", {2, "line 1: \xff"}});
  EXPECT_EQ(row.at("exit"), 2);
  EXPECT_NE(row.dump().find("line 1: \xEF\xBF\xBD"), std::string::npos);
}

TEST(SweepPlan, ListsOfTheCommandLineReplaceTheFiles) {
  SweepPlan plan = SweepPlan::from_text(kPlan, "x.toml");
  plan.vary("hardware.set.disk_read_gbps=5,7.5");
  plan.vary("cache.eviction+cache.layout=lru");
  plan.only_cases({"none"});
  EXPECT_TRUE(plan.pairs.empty());
  EXPECT_EQ(names(plan), (std::vector<std::string>{"case none, seed=1, cache.eviction+cache.layout=lru",
                                                   "case none, seed=2, cache.eviction+cache.layout=lru"}));
  EXPECT_EQ(plan.settings(plan.cells()[0]).size(), 5U);
}

TEST(SweepPlan, RefusesWhatMakesNoSense) {
  const auto refused = [](const std::string& text, const std::vector<std::string>& lists, const std::string& part) {
    try {
      SweepPlan plan = SweepPlan::from_text(text, "x.toml");
      for (const std::string& list : lists) plan.vary(list);
      plan.check();
      for (const SweepCell& cell : plan.cells()) plan.experiment(Experiment::from_text("", "x.toml"), cell);
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      return;
    }
    ADD_FAILURE() << "not refused: " << part;
  };
  refused("", {}, "nothing varies; give --vary key=a,b,c");
  refused("", {"seed"}, "--vary seed: must be key=a,b,c");
  refused("", {"seed="}, "seed has no values");
  refused("", {"seed=1,,2"}, "empty value");
  refused("", {"seed=1,2,"}, "empty value");
  refused("", {"seed=1,2,1"}, "seed lists 1 twice");
  refused("", {"seed=1,2", "seed=3"}, "--vary seed=3: seed varies already; give all its values in one list");
  refused("", {"seed=1,x"}, "it must be an integer");
  refused("", {"sead=1,2"}, "did you mean \"seed\"?");
  refused("", {"seed+=1"}, "names no key");
  refused("", {"seed=1,2", "seed+cache.page_tokens=1"}, "seed varies twice");
  refused("[sweep]\nallong = \"seed\"", {}, "x.toml:2: sweep.allong");
  refused("[sweep]\nwarm_up = 1.0", {}, "from 0 to below 1");
  refused("[sweep.vary]\nseed = 3", {}, "x.toml:2: seed must be a list of values");
  refused("[sweep.vary]\nseed = [[1]]", {}, "must be a string, a number or true/false");
  refused("[sweep]\nalong = \"sed\"\n[sweep.vary]\nseed = [1]", {}, "did you mean \"seed\"?");
  refused("[sweep]\nalong = \"seed\"\n[sweep.vary]\nseed = [2, 1]", {}, "ascending order");
  refused("[sweep]\npairs = [[\"a\"]]\n[sweep.vary]\nseed = [1]", {}, "list of pairs of cases");
  refused("[sweep]\nalong = \"seed\"\npairs = [[\"a\", \"b\"]]\n[sweep.vary]\nseed = [1]\n[sweep.case.a]\nseed = 1", {},
          "\"b\"");
  refused("[sweep.vary]\n\"seed+cache.page_tokens\" = [1]\n[sweep.case.a]\nseed = 1", {}, "let it set all of them");
  refused("[sweep.case]\na = 1", {}, "must be a table of settings");
}

nlohmann::ordered_json served_row(double ttft, int completed = 100) {
  return {{"requests", 100},
          {"completed", completed},
          {"rejected_share", 1 - completed / 100.0},
          {"failed_share", 0.0},
          {"ttft_mean_s", completed == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(ttft)}};
}

// Mean TTFTs that cross at 10: on logarithmic axes, the ratio falls from 4 at 1 over 1.01 at 10 to less at 100.
TEST(SweepWords, CrossoversAreInterpolated) {
  SweepPlan plan = SweepPlan::from_text(kPlan, "x.toml");
  plan.vary("hardware.set.disk_read_gbps=1,100");
  SweepRows rows;
  for (const double ttft : {1.01 * 4, 1.01 / 4, 0.5, 0.4, 1.0, 1.0}) rows.push_back(served_row(ttft));
  const std::vector<Crossover> found = crossovers_of(plan, rows, kMinServedShare);
  ASSERT_EQ(found.size(), 2U);  // one per seed
  EXPECT_EQ(found[0].slower, Slower::below);
  EXPECT_NEAR(found[0].at, 10, 1e-6);
  EXPECT_EQ(found[1].slower, Slower::nowhere);
  EXPECT_EQ(sweep_sentence(plan, found, kMinServedShare),
            "below about 10 GB/s or nowhere waits is slower than none (seed 1: below about 10 GB/s, 2: nowhere)");
  std::swap(rows[0], rows[1]);
  rows[2]["ttft_mean_s"] = rows[3]["ttft_mean_s"] = 2.0;
  EXPECT_EQ(sweep_sentence(plan, crossovers_of(plan, rows, kMinServedShare), kMinServedShare),
            "above about 10 GB/s or everywhere waits is slower than none (seed 1: above about 10 GB/s, 2: everywhere)");
  plan.vary("seed=1");
  rows = {served_row(0.5), served_row(0.25), served_row(1.0)};
  EXPECT_EQ(sweep_sentence(plan, crossovers_of(plan, rows, kMinServedShare), kMinServedShare),
            "waits is nowhere slower than none (its mean TTFT is 0.25 to 0.5 times the other's)");
  EXPECT_NE(sweep_tables(plan, rows).find("ttft_mean_s, seed=1"), std::string::npos);
  EXPECT_NE(sweep_tables(plan, rows).find("No cell rejects or fails a request.\n"), std::string::npos);
  // 1.0123 counts as slower (above 1.01), so it must be printed with enough decimals.
  rows = {served_row(1.0123), served_row(1.0123), served_row(1.0)};
  EXPECT_EQ(sweep_sentence(plan, crossovers_of(plan, rows, kMinServedShare), kMinServedShare),
            "waits is everywhere slower than none (its mean TTFT is 1.012 to 1.012 times the other's)");
}

// A case that rejects most requests has short TTFTs for the others.
TEST(SweepWords, CellsThatServeFewAreNotCompared) {
  SweepPlan plan = SweepPlan::from_text(kPlan, "x.toml");
  plan.vary("hardware.set.disk_read_gbps=1,100");
  plan.vary("seed=1");
  // At 1, `waits` is slower. At 100, `waits` rejects 2 % of the requests, so the sweep does not call it faster.
  SweepRows rows{served_row(2), served_row(0.1, 98), served_row(1)};
  std::vector<Crossover> found = crossovers_of(plan, rows, kMinServedShare);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].slower, Slower::everywhere);
  EXPECT_EQ(found[0].left_out, 1U);
  EXPECT_EQ(
      sweep_sentence(plan, found, kMinServedShare),
      "waits is everywhere slower than none (its mean TTFT is 2 to 2 times the other's) (1 of 2 pairs of cells are "
      "not compared: one completes less than 99 % of what the other completes, or neither completes a request)");
  EXPECT_EQ(crossovers_of(plan, rows, 0.98)[0].slower, Slower::below);
  const std::string table = sweep_tables(plan, rows);
  EXPECT_NE(table.find("     100  0.1000 (2 % rejected)      1.0000\n"), std::string::npos) << table;
  EXPECT_EQ(table.find("No cell rejects"), std::string::npos) << table;
  // One of the cases, or both, complete no request.
  for (const int others : {100, 0}) {
    rows = {served_row(0, 0), served_row(0, 0), served_row(1, others)};
    found = crossovers_of(plan, rows, kMinServedShare);
    EXPECT_EQ(found[0].slower, Slower::not_compared);
    EXPECT_EQ(sweep_sentence(plan, found, kMinServedShare),
              "waits and none are not compared: in each cell one completes less than 99 % of what the other completes, "
              "or neither completes a request");
    EXPECT_NE(sweep_tables(plan, rows).find("- (100 % rejected)"), std::string::npos) << sweep_tables(plan, rows);
  }
}

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
