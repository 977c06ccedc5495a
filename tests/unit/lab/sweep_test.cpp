// Tests kvtwin compare --cells, and [sweep] sections: the cells, the results, and that a sweep continues after an
// interruption.
#include <gtest/gtest.h>

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

Json served_row(double ttft, int completed = 100) {
  return {{"requests", 100},
          {"completed", completed},
          {"rejected_share", 1 - completed / 100.0},
          {"failed_share", 0.0},
          {"ttft_mean_s", completed == 0 ? Json() : Json(ttft)}};
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

}  // namespace
}  // namespace kvtwin::test
