// kvtwin plan, as a user sees it: it finds what a sweep of all settings finds, in the same bytes on any number of
// processes, recommends nothing that misses a goal, and loses nothing when it is killed.
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "tests/price_list.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

using Settings = std::vector<std::string>;

// What would vary by default.
const Settings kFixed{"--set", std::string("sim.world=") + kAnyWorld, "--set", "parallel.tp=1",
                      "--set", "cluster.route=round_robin",           "--set", "tiers.disk.gib=0"};

class PlanCommand : public testing::Test {
 protected:
  PlanCommand() {
    write_text(folder_.path() / "x.toml", kReturning);
    prices_ = price_list(folder_, "p.toml");
  }
  Settings words(const Settings& more) const {
    const Settings words =
        Settings{"plan", folder_ / "x.toml", "--prices", prices_, "--draws", "0", "--seeds", "1"} + kFixed;
    return words + more;
  }
  Json plan(const Settings& more) const {
    Settings all = words(more);
    all.emplace_back("--json");
    return run(all).json();
  }
  void refused(const Settings& more, const Settings& parts) const {
    const Outcome outcome = run(words(more));
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out << outcome.err;
    for (const std::string& part : parts) EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  }
  const Folder folder_;
  std::string prices_;
};

// Engines and host sizes; the rate is high enough that one engine is not enough for the goal.
const Settings kGrid{"--vary", "cluster.engines=1..6", "--vary", "tiers.host.tokens=0,4096,8192,16384"};
const Settings kFast{"--set", "workload.generate.prompt_tokens_per_second=50000", "--set", "workload.loop=open"};

TEST_F(PlanCommand, FindsWhatASweepOfAllSettingsFinds) {
  const Settings sweep{"sweep",   folder_ / "x.toml",
                       "--world", kAnyWorld,
                       "--set",   "prices.file=" + prices_,
                       "--vary",  "cluster.engines=1,2,3,4,5,6",
                       "--vary",  "tiers.host.tokens=0,4096,8192,16384",
                       "--json"};
  const Outcome all = run(sweep + kFast);
  ASSERT_EQ(all.exit_code, 0) << all.err;
  std::vector<Json> rows;
  std::istringstream lines(all.out);
  for (std::string line; std::getline(lines, line);) {
    Json row = Json::parse(line);
    if (row.contains("ttft_p90_s")) rows.push_back(std::move(row));
  }
  ASSERT_EQ(rows.size(), 24U);
  std::vector<double> times;
  for (const Json& row : rows) times.push_back(row.at("ttft_p90_s"));
  std::ranges::sort(times);
  std::size_t met = 0;
  for (const std::size_t rank : {3U, 7U, 10U, 13U, 20U}) {
    const double goal = times[rank];
    double cheapest = INFINITY;
    for (const Json& row : rows) {
      const std::string warnings = " " + row.at("warnings").get<std::string>() + " ";
      const bool starves = std::ranges::any_of(
          Settings{"host_not_larger", "backups_dropped", "saturated"},
          [&](const std::string& name) { return warnings.find(" " + name + " ") != std::string::npos; });
      if (row.at("ttft_p90_s") <= goal && !starves && row.at("completed") == row.at("requests")) {
        cheapest = std::min(cheapest, row.at("price_per_month").get<double>());
      }
    }
    char text[64];
    std::snprintf(text, sizeof text, "ttft_p90_s=%.17g", goal);
    const Outcome outcome = run(words(kGrid + kFast + Settings{"--goal", text, "--json"}));
    ASSERT_EQ(outcome.exit_code, std::isfinite(cheapest) ? 0 : 3) << outcome.err;
    const Json plan = Json::parse(outcome.out);
    if (!std::isfinite(cheapest)) {
      EXPECT_TRUE(plan.at("recommendation").is_null());
      continue;
    }
    ++met;
    EXPECT_LE(plan.at("recommendation").at("price_month").get<double>(), 1.03 * cheapest) << "regret, goal " << goal;
    EXPECT_LE(plan.at("recommendation").at("figures").at("ttft_p90_s").get<double>(), goal);
  }
  EXPECT_GE(met, 4U);
}

TEST_F(PlanCommand, EqualBytesOnAnyNumberOfProcesses) {
  const Settings goal{"--goal", "ttft_p90_s=0.2", "--vary", "cache.eviction=lru,fifo,mru,slru,lfu"};
  const Outcome one = run(words(kGrid + kFast + goal + Settings{"--json", "--jobs", "1"}));
  const Outcome three = run(words(kGrid + kFast + goal + Settings{"--json", "--jobs", "3"}));
  EXPECT_EQ(one.exit_code, three.exit_code) << one.err;
  Json a = Json::parse(one.out), b = Json::parse(three.out);
  a.erase("command");
  b.erase("command");
  EXPECT_EQ(a.dump(), b.dump());
}

TEST_F(PlanCommand, TheFolderRepeatsTheRecommendation) {
  const std::string out = folder_ / "out";
  const Outcome outcome =
      run(words(kGrid + Settings{"--goal", "ttft_p90_s=1", "--out", out, "--vary", "cache.eviction=lru,fifo"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* head : {"work ", "buy ", "price ", "gets ", "binds ", "confidence ", "assumed ", "search "}) {
    EXPECT_NE(outcome.out.find(head), std::string::npos) << head << outcome.out;
  }
  const Json plan = Json::parse(text_of(folder_ / "out/plan.json"));
  const Json report = Json::parse(text_of(folder_ / "out/recommended/report.json"));
  const Json again = run({"simulate", out + "/recommended.toml", "--json"}).json();
  EXPECT_EQ(again.at("decisions"), report.at("decisions"));
  const Json& best = plan.at("recommendation");
  EXPECT_EQ(again.at("ttft_seconds").at("p90"), best.at("figures").at("ttft_p90_s"));
  EXPECT_EQ(again.at("price").at("per_month"), best.at("price_month"));
  EXPECT_TRUE(best.at("meets").get<bool>());
  for (const Json& index : plan.at("front")) EXPECT_LT(index.get<std::size_t>(), plan.at("tried").size());
  EXPECT_FALSE(plan.at("margins").empty());
  EXPECT_EQ(plan.at("prices").at("currency"), "EUR");
  refused(kGrid + Settings{"--goal", "ttft_p90_s=1", "--out", out}, {"is not empty", "--force"});
  EXPECT_EQ(run(words(kGrid + Settings{"--goal", "ttft_p90_s=1", "--out", out, "--force"})).exit_code, 0);
  write_text(folder_.path() / "mine.txt", "x");
  refused(Settings{"--goal", "ttft_p90_s=1", "--out", folder_.path().string(), "--force"}, {"which no plan writes"});
  EXPECT_EQ(text_of(folder_ / "mine.txt"), "x");
}

TEST_F(PlanCommand, NoSettingThatRejectsIsRecommended) {
  // Answers so long that no device holds a request: all are rejected, whatever is bought.
  const Outcome outcome = run(
      words(kGrid + Settings{"--goal", "ttft_p90_s=100", "--set", "workload.generate.output_tokens=4096", "--json"}));
  EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
  const Json plan = Json::parse(outcome.out);
  EXPECT_TRUE(plan.at("recommendation").is_null());
  EXPECT_NE(plan.at("reason").get<std::string>().find("none of"), std::string::npos) << plan.at("reason");
  for (const Json& tried : plan.at("tried")) {
    EXPECT_FALSE(tried.at("meets").get<bool>());
    EXPECT_NE(tried.at("why_not"), "");
  }
}

TEST_F(PlanCommand, WritePoliciesHaveTheirWear) {
  const Json plan = this->plan({"--vary", "cluster.engines=1,2", "--vary", "drives=0,1", "--goal", "ttft_p90_s=10"});
  ASSERT_EQ(plan.at("drives").size(), 3U);
  for (const Json& policy : plan.at("drives")) {
    EXPECT_EQ(policy.at("settings").at("drives"), 1) << "the recommendation has no drives; the fewest are measured";
    EXPECT_GT(policy.at("written_tb_per_day").get<double>(), 0);
  }
  EXPECT_EQ(plan.at("recommendation").at("settings").at("drives"), 0);
}

TEST_F(PlanCommand, SeedsThatMissAGoalAreReported) {
  const Outcome outcome = run(Settings{"plan", folder_ / "x.toml", "--prices", prices_, "--seeds", "4", "--draws", "4",
                                       "--goal", "ttft_p90_s=1", "--vary", "cluster.engines=1..3", "--json"} +
                              kFixed);
  const Json plan = outcome.json();
  EXPECT_EQ(plan.at("confidence").at("seeds"), 4);
  EXPECT_EQ(plan.at("confidence").at("draws"), 4);
  EXPECT_EQ(plan.at("confidence").at("ranges_of_draws").at("ttft_p90_s").size(), 2U);
  EXPECT_GE(plan.at("confidence").at("seeds_meeting"), 1);
}

TEST_F(PlanCommand, BadInput) {
  refused({}, {"plan needs a goal", "--goal ttft_p90_s=2"});
  refused({"--goal", "ttft_p90=2"}, {"--goal", "ttft_p90", "did you mean"});
  refused({"--goal", "good_share=0.9"}, {"needs a limit of slo.*"});
  refused({"--goal", "ttft_p90_s=0"}, {"--goal ttft_p90_s=0", "no system has a ttft_p90_s of 0"});
  refused({"--goal", "price_per_month=-0.0"}, {"give a number above 0"});
  refused({"--goal", "ttft_p90_s=nan"}, {"must be a number"});
  const Settings goal{"--goal", "ttft_p90_s=1"};
  refused(goal + Settings{"--vary", "cluster.engines=0,1"}, {"--vary cluster.engines=0,1", "at least one engine"});
  refused(goal + Settings{"--vary", "cluster.engines=4..1"}, {"--vary cluster.engines=4..1", "1..64"});
  refused(goal + Settings{"--vary", "drives=a"}, {"--vary drives=a", "whole numbers"});
  refused(goal + Settings{"--vary", "tiers.hst.gib=1"}, {"tiers.hst.gib", "tiers.host.gib"});
  refused(goal + Settings{"--set", "hardware.name=h200-sxm"}, {"has no price for h200-sxm"});
  refused(goal + Settings{"--out", folder_ / "x.toml"}, {"is a file"});
  refused(goal + Settings{"--requests-per-second", "0"}, {"--requests-per-second"});
  refused(goal + Settings{"--requests-per-second", "5"}, {"workload.generate.kind", "returning", "rate of its own"});
  const Settings clients{"--set",
                         "workload.generate.kind=groups",
                         "--set",
                         "workload.generate.concurrency=4",
                         "--set",
                         "workload.loop=closed",
                         "--requests-per-second",
                         "5"};
  refused(goal + clients, {"--requests-per-second: workload.generate.concurrency (--set) is given too"});
  const Settings stages{
      "--set", "workload.generate.kind=groups", "--set", "workload.generate.stages=1,2", "--requests-per-second", "5"};
  refused(goal + stages, {"--requests-per-second: workload.generate.stages (--set) is given too"});
  refused(goal + Settings{"--vary", "workload.limit=10,20"}, {"workload.limit is part of the question"});
  refused(goal + Settings{"--vary", "tiers.disk.gib=1", "--vary", "drives=0,1"},
          {"drives=... sets tiers.disk.gib too"});
  refused(goal + Settings{"--vary", "drives=0", "--vary", "drives=1"}, {"drives varies already"});
  refused(goal + Settings{"--vary", "prefill_share=1"}, {"--vary prefill_share=1", "from 0 to below 1"});
  refused(goal + Settings{"--vary", "prefill_share=half"}, {"from 0 to below 1"});
  refused(goal + Settings{"--vary", "cluster.prefill=1,2"}, {"prefill_share=0,0.25,0.5"});
  const Settings roles{"--set", "cluster.prefill=1", "--set", "cluster.decode=1"};
  refused(goal + roles + Settings{"--vary", "prefill_share=0.5"}, {"cluster.prefill", "give one of the two"});
  refused(goal + roles + Settings{"--vary", "cluster.engines=1..4"}, {"fixes the number of engines"});
  const Outcome absent =
      run({"plan", folder_ / "x.toml", "--goal", "ttft_p90_s=1", "--prices", folder_ / "absent.toml"});
  EXPECT_EQ(absent.exit_code, 2);
  EXPECT_NE(absent.err.find("absent.toml"), std::string::npos) << absent.err;
  const Outcome none = run({"plan", folder_ / "x.toml", "--goal", "ttft_p90_s=1"});
  EXPECT_EQ(none.exit_code, 2) << none.err;
  EXPECT_NE(none.err.find("no price for cpu-host"), std::string::npos) << none.err;
}

Settings chat(double rate) {
  return {"plan",
          "--model",
          "llama-3.1-8b",
          "--hardware",
          "h100-sxm",
          "--requests-per-second",
          std::to_string(rate),
          "--prompt-tokens",
          "2000",
          "--output-tokens",
          "100",
          "--turns",
          "3",
          "--think-s",
          "10",
          "--prefix-tokens",
          "200",
          "--draws",
          "0",
          "--set",
          "model.weights=bf16",
          "--set",
          std::string("sim.world=") + kAnyWorld,
          "--json"};
}

TEST_F(PlanCommand, AverageTrafficNeedsNoFile) {
  const Json plan =
      run(chat(1) + Settings{"--set", "workload.generate.duration_s=120", "--goal", "ttft_p90_s=2", "--seeds", "2",
                             "--vary", "parallel.tp=1,2", "--vary", "tiers.host.gib=0,64", "--vary", "drives=0"})
          .json();
  EXPECT_EQ(plan.at("recommendation").at("gpus"), 1);
  EXPECT_NEAR(plan.at("workload").at("requests_per_second").get<double>(), 1, 0.3);
  EXPECT_NE(plan.at("warnings").dump().find("generated from averages"), std::string::npos);
}

// 800 requests, each for one of `contexts` prompts: first for each of them in turn, then for any of them.
Settings trace_of_contexts(const Folder& folder, std::uint64_t contexts) {
  Splitmix random(3);
  TraceText trace(64);
  for (std::uint64_t i = 0; i < 800; ++i) {
    const std::uint64_t context = i < contexts ? i : random.below(contexts);
    trace.request(i * 100, 8, ids(context * 100, 16));
  }
  Settings words;
  for (const std::string& setting : trace.save(folder, "contexts" + std::to_string(contexts) + ".jsonl")) {
    words.insert(words.end(), {"--set", setting});
  }
  return words;
}

// The caches have room for all prompts. A prompt misses the first time only: 100 of 800 requests, or 4 of them.
TEST_F(PlanCommand, WarnsOfTheEmptyCachesAtTheStartOfATrace) {
  const auto warnings = [&](std::uint64_t contexts, const Settings& more = {}) {
    const Settings small{"--set",  "tiers.device.tokens=400000", "--set",  "tiers.host.tokens=0",
                         "--vary", "cluster.engines=1",          "--goal", "ttft_p90_s=1000"};
    return plan(trace_of_contexts(folder_, contexts) + small + more).at("warnings").dump();
  };
  const std::string cold = "The caches are empty at the start of the trace: from ";
  EXPECT_NE(warnings(100).find(cold), std::string::npos) << warnings(100);
  EXPECT_NE(warnings(100).find("--set report.warm=true counts that part only"), std::string::npos);
  EXPECT_EQ(warnings(4).find(cold), std::string::npos) << warnings(4) << "few prompts miss";
  for (const char* given : {"report.warm=true", "report.warm=false"}) {
    EXPECT_EQ(warnings(100, {"--set", given}).find(cold), std::string::npos) << "the user has decided";
  }
  const std::string brief = "The trace is too short to tell whether hits and waits are steady: ";
  EXPECT_NE(warnings(4, {"--set", "workload.limit=255"}).find(brief + "255 requests are too few"), std::string::npos);
  EXPECT_EQ(warnings(4, {"--set", "workload.limit=256"}).find(brief), std::string::npos);
}

TEST_F(PlanCommand, ChoicesThatAreNotNamedVaryToo) {
  const Json plan = run(chat(2) + Settings{"--set", "workload.generate.duration_s=60", "--goal", "ttft_p90_s=1",
                                           "--seeds", "1", "--vary", "cluster.engines=1,2", "--set", "parallel.tp=2"})
                        .json();
  const Json& settings = plan.at("recommendation").at("settings");
  for (const char* name : {"tiers.host.gib", "drives", "cluster.route"}) EXPECT_TRUE(settings.contains(name)) << name;
  EXPECT_FALSE(settings.contains("parallel.tp")) << "the user has set it";
}

// With a route that spreads conversations, more engines have fewer hits and a longer time to first token.
TEST_F(PlanCommand, FewerEnginesMayMeetWhatMoreMiss) {
  const Json plan = run(chat(2) + kFixed +
                        Settings{"--set", "workload.generate.duration_s=60", "--goal", "ttft_p90_s=0.05", "--seeds",
                                 "1", "--vary", "cluster.engines=1..6", "--set", "tiers.host.gib=0"})
                        .json();
  EXPECT_EQ(plan.at("recommendation").at("settings").at("cluster.engines"), 1);
}

// write_through, the first value, drops copies with a host tier that is smaller than the device tier.
TEST_F(PlanCommand, APolicyThatDoesNotComeFirstMayBeTheOnlyOne) {
  const Json plan = run(chat(3) + kFixed +
                        Settings{"--set", "workload.generate.duration_s=60", "--set", "tiers.host.gib=5", "--goal",
                                 "ttft_p90_s=2", "--seeds", "1", "--vary", "cluster.engines=1..3", "--vary",
                                 "cache.write_policy=write_through,write_back"})
                        .json();
  const Json& best = plan.at("recommendation");
  EXPECT_EQ(best.at("settings").at("cache.write_policy"), "write_back") << best;
  EXPECT_EQ(best.at("settings").at("cluster.engines"), 1) << "the search goes on with this policy";
}

TEST_F(PlanCommand, OfEqualPricesThePolicyWithTheBetterFigures) {
  const Json plan = this->plan({"--vary", "cluster.engines=1,2", "--vary", "cache.eviction=mru,lru,fifo", "--goal",
                                "ttft_mean_s=10", "--set", "tiers.host.tokens=8192"});
  double least = INFINITY;
  for (const Json& tried : plan.at("tried")) {
    if (tried.at("stage") != "full" || tried.at("settings").at("cluster.engines") != 1) continue;
    least = std::min(least, tried.at("figures").at("ttft_mean_s").get<double>());
  }
  EXPECT_EQ(plan.at("recommendation").at("settings").at("cluster.engines"), 1);
  EXPECT_EQ(plan.at("recommendation").at("figures").at("ttft_mean_s").get<double>(), least);
}

TEST_F(PlanCommand, GoalsOnPartsLeaveOutSettingsBeforeTheyAreSimulated) {
  const Json plan = this->plan({"--vary", "cluster.engines=1..8", "--goal", "ttft_p90_s=10", "--goal", "gpus=2"});
  EXPECT_EQ(plan.at("search").at("bounded"), 6);
  const Outcome none = run(words({"--vary", "cluster.engines=1..8", "--goal", "price_per_month=1"}));
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_NE(none.out.find("leave no setting"), std::string::npos) << none.out;
}

// The plan is as cheap as the cheapest of all shares and numbers of engines that meet the goals.
TEST_F(PlanCommand, TheShareOfPrefillEnginesVaries) {
  const Settings choices = chat(12) + kFixed + Settings{"--set",   "workload.generate.duration_s=60",
                                                        "--set",   "tiers.host.gib=0",
                                                        "--seeds", "1",
                                                        "--goal",  "tpot_p99_s=0.012",
                                                        "--goal",  "ttft_p90_s=0.5"};
  const auto plan_of = [&](const std::string& shares, const std::string& engines) {
    const Outcome outcome =
        run(choices + Settings{"--vary", "prefill_share=" + shares, "--vary", "cluster.engines=" + engines});
    EXPECT_TRUE(outcome.exit_code == 0 || outcome.exit_code == 3) << outcome.err;
    return Json::parse(outcome.out);
  };
  const Json all = plan_of("0,0.25,0.5,0.75", "1..8");
  const Json& best = all.at("recommendation");
  ASSERT_FALSE(best.is_null()) << all.at("reason");
  double cheapest = INFINITY;
  for (const char* share : {"0", "0.25", "0.5", "0.75"}) {
    const Json one = plan_of(share, "1..8").at("recommendation");
    if (!one.is_null()) cheapest = std::min(cheapest, one.at("price_month").get<double>());
  }
  EXPECT_EQ(best.at("price_month").get<double>(), cheapest);

  const Json halves = plan_of("0.5", "6");
  const Json& tried = halves.at("tried").at(0);
  EXPECT_EQ(tried.at("settings").at("cluster.prefill"), 3);
  EXPECT_EQ(tried.at("settings").at("cluster.decode"), 3);
  EXPECT_EQ(tried.at("gpus"), 6);
  EXPECT_EQ(plan_of("0.01,0.99", "2").at("tried").at(0).at("settings").at("cluster.prefill"), 1)
      << "each role has an engine";
}

TEST_F(PlanCommand, RolesOfTheExperimentFixTheNumberOfEngines) {
  const Json plan =
      run(chat(1) + kFixed +
          Settings{"--set", "workload.generate.duration_s=60", "--set", "tiers.host.gib=0", "--seeds", "1", "--goal",
                   "ttft_p90_s=2", "--set", "cluster.prefill=1", "--set", "cluster.decode=2"})
          .json();
  EXPECT_EQ(plan.at("recommendation").at("settings").at("cluster.engines"), 3);
  EXPECT_EQ(plan.at("recommendation").at("gpus"), 3);
}

// No number of engines meets such a goal; the search ends nevertheless.
TEST_F(PlanCommand, AGoalNearZeroEnds) {
  for (const char* goal : {"ttft_p90_s=1e-300", "tpot_p90_s=1e-9"}) {
    const Outcome outcome = run(words(kFast + Settings{"--vary", "tiers.host.tokens=4096", "--goal", goal}));
    EXPECT_EQ(outcome.exit_code, 3) << goal << outcome.err;
    EXPECT_NE(outcome.out.find("none"), std::string::npos) << goal << outcome.out;
  }
}

// ---- GPU types and formats of weights

// One engine of one GPU, without lower tiers.
const Settings kOneGpu{"--set",   "parallel.tp=1",
                       "--set",   "cluster.route=round_robin",
                       "--set",   "tiers.host.gib=0",
                       "--set",   "tiers.disk.gib=0",
                       "--set",   "workload.generate.duration_s=40",
                       "--set",   "sim.world=events",
                       "--set",   "report.warm=false",
                       "--seeds", "1",
                       "--vary",  "cluster.engines=1..3",
                       "--draws", "0",
                       "--json"};

Settings small_chat(const std::string& model) {
  return Settings{"plan", "--model",         model,  "--requests-per-second",
                  "2",    "--prompt-tokens", "2000", "--output-tokens",
                  "100",  "--turns",         "3",    "--think-s",
                  "10",   "--prefix-tokens", "200"} +
         kOneGpu;
}

// A faster GPU at a higher price wins if the cheaper one misses the goal.
TEST_F(PlanCommand, TheGpuTypeVariesByDefault) {
  const Settings question =
      small_chat("llama-3.1-8b") + Settings{"--set", "model.weights=bf16", "--goal", "ttft_p90_s=1"};
  const auto best_of = [&](const Settings& more) { return run(question + more).json().at("recommendation"); };
  const Json relaxed = best_of({"--goal", "tpot_p90_s=0.05"});
  EXPECT_EQ(relaxed.at("settings").at("hardware.name"), "h100-sxm") << "the cheapest";
  const Json h100 = best_of({"--set", "hardware.name=h100-sxm", "--goal", "tpot_p90_s=0.05"});
  EXPECT_FALSE(h100.at("settings").contains("hardware.name")) << "the user has set it";
  EXPECT_EQ(h100.at("price_month"), relaxed.at("price_month"));

  const double reached = h100.at("figures").at("tpot_p90_s");
  const std::string strict = "tpot_p90_s=" + std::to_string(0.8 * reached);
  const Json plan = run(question + Settings{"--goal", strict}).json();
  const Json& best = plan.at("recommendation");
  EXPECT_NE(best.at("settings").at("hardware.name"), "h100-sxm");
  EXPECT_GT(best.at("price_month").get<double>(), h100.at("price_month").get<double>());
  double cheapest = INFINITY;
  for (const char* gpu : {"h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm"}) {
    const Outcome one = run(question + Settings{"--goal", strict, "--set", std::string("hardware.name=") + gpu});
    if (one.exit_code == 0)
      cheapest = std::min(cheapest, one.json().at("recommendation").at("price_month").get<double>());
  }
  EXPECT_EQ(best.at("price_month").get<double>(), cheapest);
}

TEST_F(PlanCommand, APublishedFormatOfTheWeightsMayWin) {
  const Settings question =
      small_chat("qwen3-coder-30b-a3b") + Settings{"--hardware", "h100-sxm", "--goal", "ttft_p90_s=1"};
  const Json bf16 =
      run(question + Settings{"--set", "model.weights=bf16", "--goal", "tpot_p90_s=1"}).json().at("recommendation");
  const std::string strict = "tpot_p90_s=" + std::to_string(0.9 * bf16.at("figures").at("tpot_p90_s").get<double>());
  const Json plan = run(question + Settings{"--goal", strict}).json();
  const Json& best = plan.at("recommendation");
  EXPECT_EQ(best.at("settings").at("model.weights"), "fp8_block");
  EXPECT_EQ(best.at("price_month"), bf16.at("price_month"));
  const Json relaxed = run(question + Settings{"--goal", "tpot_p90_s=1"}).json().at("recommendation");
  EXPECT_EQ(relaxed.at("settings").at("model.weights"), "bf16") << "of equal prices the model's own format";
  EXPECT_NE(best.at("servers").at("sglang").at("command").dump().find("Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8"),
            std::string::npos);
  EXPECT_NE(plan.at("assumed").dump().find("quality"), std::string::npos) << plan.at("assumed");
}

// Formats cost nothing, so the step from one to the next is shown, past those that the GPU has no units for.
TEST_F(PlanCommand, TheNextFormatIsAStep) {
  const Json plan = run(small_chat("llama-3.1-8b") +
                        Settings{"--hardware", "h100-sxm", "--goal", "ttft_p90_s=1", "--goal", "tpot_p90_s=1"})
                        .json();
  EXPECT_EQ(plan.at("recommendation").at("settings").at("model.weights"), "bf16");
  const std::string margins = plan.at("margins").dump();
  EXPECT_NE(margins.find("model.weights fp8 instead of bf16"), std::string::npos) << margins;
  const Json best = run(small_chat("llama-3.1-8b") + Settings{"--hardware", "h100-sxm", "--vary",
                                                              "model.weights=bf16,fp8", "--goal", "ttft_p90_s=1"})
                        .json();
  EXPECT_EQ(best.at("margins").dump().find("model.weights fp8 instead"), std::string::npos)
      << "the user has named the formats";
}

TEST_F(PlanCommand, AFormatWithoutACheckpointDoesNotVary) {
  Settings question = small_chat("gpt-oss-20b") + Settings{"--hardware", "h100-sxm", "--goal", "ttft_p90_s=1"};
  const Json plan = run(question).json();
  for (const Json& tried : plan.at("tried")) EXPECT_FALSE(tried.at("settings").contains("model.weights"));
  EXPECT_NE(plan.at("assumed").dump().find("weights mxfp4: no published checkpoint"), std::string::npos)
      << plan.at("assumed");
  std::erase(question, "--json");
  const Outcome screen = run(question);
  EXPECT_NE(screen.out.find("assumed     weights mxfp4: no published checkpoint"), std::string::npos) << screen.out;
  EXPECT_NE(screen.out.find("assumed     GPU h100-sxm: given"), std::string::npos) << screen.out;
}

TEST_F(PlanCommand, APlanThatFindsNothingTellsWhatVaried) {
  Settings question = small_chat("llama-3.1-8b") + Settings{"--hardware", "h100-sxm", "--goal", "price_per_month=1"};
  std::erase(question, "--json");
  const Outcome screen = run(question);
  EXPECT_EQ(screen.exit_code, 3) << screen.err;
  EXPECT_NE(screen.out.find("assumed     GPU h100-sxm: given"), std::string::npos) << screen.out;
  const Json plan = Json::parse(run(question + Settings{"--json"}).out);
  EXPECT_TRUE(plan.at("recommendation").is_null());
  EXPECT_EQ(plan.contains("nearest"), screen.out.find("nearest     ") != std::string::npos) << plan.at("reason");
}

// Chunks and the pools of hybrid models cost nothing, and are said by SGLang's flags.
TEST_F(PlanCommand, ChunksAndPoolRatiosArePolicies) {
  struct Policy {
    const char *model, *key, *values, *flag;
  };
  for (const Policy& policy :
       {Policy{"gpt-oss-20b", "scheduler.chunk_tokens", "1024,8192", "--chunked-prefill-size "},
        Policy{"gpt-oss-20b", "tiers.device.window_ratio", "0.2,0.8", "--swa-full-tokens-ratio "},
        Policy{"qwen3-next-80b-a3b", "tiers.device.state_ratio", "0.3,0.9", "--mamba-full-memory-ratio "}}) {
    const Json plan = run(small_chat(policy.model) + Settings{"--hardware", "b200-sxm", "--set", "model.weights=auto",
                                                              "--goal", "ttft_p90_s=2", "--vary",
                                                              policy.key + std::string("=") + policy.values})
                          .json();
    const Json& best = plan.at("recommendation");
    const std::string value = best.at("settings").at(policy.key).dump();
    const std::string command = best.at("servers").at("sglang").at("command");
    EXPECT_NE(command.find(policy.flag + value), std::string::npos) << policy.key << ": " << command;
    std::vector<Json> values;
    for (const Json& tried : plan.at("tried")) {
      const Json &settings = tried.at("settings"), &tried_value = settings.at(policy.key);
      if (tried.contains("with")) continue;  // a question that follows
      if (settings.at("cluster.engines") != best.at("settings").at("cluster.engines")) continue;
      EXPECT_EQ(tried.at("price_month"), best.at("price_month")) << policy.key;
      if (std::ranges::find(values, tried_value) == values.end()) values.push_back(tried_value);
    }
    EXPECT_EQ(values.size(), 2U) << policy.key << ": both are tried at the recommendation";
  }
}

// Returns the ids of the processes that the plan has started.
std::vector<pid_t> workers_of(const Process& plan) {
  std::vector<pid_t> workers;
  std::error_code error;
  for (const auto& thread : fs::directory_iterator("/proc/" + std::to_string(plan.id()) + "/task", error)) {
    std::ifstream children(thread.path() / "children");
    for (pid_t worker = 0; children >> worker;) workers.push_back(worker);
  }
  return workers;
}

// Returns the state of a process, as ps shows it; Z if there is none.
char state_of(pid_t process) {
  std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
  std::string name;
  std::getline(stat, name, ')');
  char blank = 0, state = 0;
  return stat.get(blank) && stat.get(state) ? state : 'Z';
}

// Returns the id of a worker of the plan that has been stopped, so that it cannot end by itself. `later`: for so many
// turns, a worker goes on first.
pid_t stopped_worker(const Process& plan, int later = 0) {
  while (state_of(plan.id()) != 'Z') {
    for (const pid_t worker : workers_of(plan)) {
      for (int turn = 0; turn < later; ++turn) static_cast<void>(state_of(worker));
      kill(worker, SIGSTOP);
      char state = 0;
      while ((state = state_of(worker)) != 'Z' && state != 'X') {
        if (state == 'T') return worker;
        sched_yield();
      }
    }
    sched_yield();
  }
  throw std::runtime_error("the plan has ended");
}

// A worker that is stopped as soon as it is there may not have asked yet to be killed with its plan; it ends by itself
// when it goes on. So later and later moments are tried, until a stopped worker has been killed.
TEST_F(PlanCommand, AKilledPlanLeavesNoWorker) {
  bool killed = false;
  for (int moment = 0; moment < 200 && !killed; ++moment) {
    Process plan(words(kGrid + kFast + Settings{"--goal", "ttft_p90_s=0.2", "--jobs", "1"}));
    const pid_t worker = stopped_worker(plan, moment);
    const int handle = static_cast<int>(syscall(SYS_pidfd_open, worker, 0));
    ASSERT_GE(handle, 0);
    plan.kill();
    EXPECT_EQ(plan.wait().signal, SIGKILL);
    killed = state_of(worker) != 'T';  // the end of the plan has sent the signal, which a stopped process takes
    if (!killed) kill(worker, SIGCONT);
    pollfd ended{handle, POLLIN, 0};
    while (poll(&ended, 1, -1) < 0 && errno == EINTR) continue;  // a worker that stays fails the test by its time limit
    EXPECT_NE(ended.revents & POLLIN, 0);
    close(handle);
  }
  EXPECT_TRUE(killed);
}

// A worker may be stopped after its last answer, and the plan then ends as it would have. So several are tried.
TEST_F(PlanCommand, AKilledWorkerEndsThePlanWithASentence) {
  for (const char* jobs : {"1", "2"}) {
    Outcome outcome;
    outcome.exit_code = 0;
    for (int attempt = 0; attempt < 20 && outcome.exit_code == 0; ++attempt) {
      Process plan(words(kGrid + kFast + Settings{"--goal", "ttft_p90_s=0.2", "--jobs", jobs}));
      kill(stopped_worker(plan), SIGKILL);
      outcome = plan.wait();
    }
    EXPECT_EQ(outcome.exit_code, 1) << outcome.out << outcome.err;
    EXPECT_NE(outcome.err.find("ended by signal 9"), std::string::npos) << outcome.err;
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
  }
}

TEST_F(PlanCommand, AKilledPlanLeavesNoPlan) {
  const std::string out = folder_ / "out";
  {
    const Process process(words(kGrid + kFast + Settings{"--goal", "ttft_p90_s=0.2", "--out", out}));
    while (!fs::exists(out) && kill(process.id(), 0) == 0) sched_yield();
  }                                      // kills it
  if (fs::exists(out + "/plan.json")) {  // it was faster
    EXPECT_TRUE(Json::parse(text_of(out + "/plan.json")).contains("recommendation"));
  }
  const Outcome again = run(words(kGrid + Settings{"--goal", "ttft_p90_s=1", "--out", out, "--force"}));
  EXPECT_EQ(again.exit_code, 0) << "a folder without plan.json does not stop a second try: " << again.err;
  EXPECT_TRUE(fs::exists(out + "/plan.json"));
}

std::size_t lines_in(const std::string& path) {
  const std::string text = text_of(path);
  return static_cast<std::size_t>(std::ranges::count(text, '\n'));
}

// Leaves in `to` what a plan that was killed in its fourth simulation leaves of `from`.
void cut_rows(const std::string& from, const std::string& to) {
  fs::create_directory(to);
  std::ifstream rows(from + "/simulations.jsonl");
  std::ofstream first(to + "/simulations.jsonl");
  std::string line;
  for (int i = 0; i < 3 && std::getline(rows, line); ++i) first << line << "\n";
  std::getline(rows, line);
  first << line.substr(0, line.size() / 2);
}

// A plan that was killed goes on in its folder: what was simulated is not simulated again, and the answer is the same.
TEST_F(PlanCommand, AnInterruptedPlanGoesOn) {
  const Settings goal{"--goal", "ttft_p90_s=0.2", "--jobs", "1"};  // more processes simulate ahead
  const std::string whole = folder_ / "whole", cut = folder_ / "cut";
  run(words(kGrid + kFast + goal + Settings{"--out", whole}));
  const std::size_t all = lines_in(whole + "/simulations.jsonl");
  ASSERT_GT(all, 4U);
  cut_rows(whole, cut);
  const Outcome again = run(words(kGrid + kFast + goal + Settings{"--out", cut}));
  // The simulation that the signal met may have ended.
  const bool goes_on = again.err.find("3 simulations are there already") != std::string::npos ||
                       again.err.find("4 simulations are there already") != std::string::npos;
  EXPECT_TRUE(goes_on) << again.err;
  EXPECT_EQ(lines_in(cut + "/simulations.jsonl"), all + 1) << "three were not repeated; one line was cut short";
  Json a = Json::parse(text_of(whole + "/plan.json")), b = Json::parse(text_of(cut + "/plan.json"));
  for (Json* plan : {&a, &b}) {
    plan->erase("command");
    plan->erase("reproduce");
  }
  EXPECT_EQ(a, b);
  const Outcome complete = run(words(kGrid + kFast + goal + Settings{"--out", whole}));
  EXPECT_EQ(complete.exit_code, 2);
  EXPECT_NE(complete.err.find("--force"), std::string::npos) << complete.err;
}

// Ctrl-C prints the best setting so far, keeps what was simulated, and leaves no plan.json and no worker.
TEST_F(PlanCommand, AnInterruptPrintsTheBestSoFar) {
  const Settings question = kGrid + kFast + Settings{"--goal", "ttft_p90_s=0.2", "--jobs", "1"};
  const std::string whole = folder_ / "whole";
  run(words(question + Settings{"--out", whole}));
  std::string out;
  Outcome outcome;
  outcome.exit_code = 0;
  pid_t worker = 0;
  // A worker that is stopped after its last answer does not keep the plan from its end.
  for (int attempt = 0; attempt < 20 && outcome.exit_code == 0; ++attempt) {
    out = folder_ / ("out" + std::to_string(attempt));
    cut_rows(whole, out);
    Process plan(words(question + Settings{"--out", out}));
    worker = stopped_worker(plan);
    kill(plan.id(), SIGINT);
    outcome = plan.wait();
  }
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_NE(outcome.out.find("stopped     "), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("gets        ttft_p90_s "), std::string::npos) << outcome.out;
  EXPECT_NE(kill(worker, 0), 0) << "the worker is gone";
  EXPECT_FALSE(fs::exists(out + "/plan.json"));
  const Outcome again = run(words(question + Settings{"--out", out}));
  EXPECT_NE(again.err.find("3 simulations are there already"), std::string::npos) << again.err;
  EXPECT_TRUE(fs::exists(out + "/plan.json"));
}

// Three engines meet the goal in the short runs of the search. In three conversations of each user their queue grows.
TEST_F(PlanCommand, LongerRunsDecide) {
  const Json plan = run({"plan",
                         "--model",
                         "llama-3.1-8b",
                         "--hardware",
                         "h100-sxm",
                         "--users",
                         "200",
                         "--turns",
                         "20",
                         "--think",
                         "10s",
                         "--new-tokens",
                         "300",
                         "--output-tokens",
                         "200",
                         "--prefix-tokens",
                         "1k",
                         "--goal",
                         "ttft_p90_s=0.18",
                         "--set",
                         "model.weights=bf16",
                         "--set",
                         "engine=none",
                         "--set",
                         std::string("sim.world=") + kAnyWorld,
                         "--vary",
                         "tiers.host.gib=0",
                         "--vary",
                         "drives=0",
                         "--vary",
                         "cluster.engines=2..5",
                         "--vary",
                         "parallel.tp=1",
                         "--vary",
                         "cluster.route=session_affinity",
                         "--seeds",
                         "1",
                         "--no-questions",
                         "--json"})
                        .json();
  EXPECT_EQ(plan.at("recommendation").at("settings").at("cluster.engines"), 4);
  EXPECT_EQ(plan.at("confidence").at("duration_s"), 960);
  bool tried = false;
  for (const Json& trial : plan.at("tried")) {
    if (trial.at("stage") != "full" || trial.at("settings").at("cluster.engines") != 3) continue;
    tried = true;
    EXPECT_FALSE(trial.at("meets").get<bool>());
    EXPECT_TRUE(trial.at("why_not").get<std::string>().starts_with("misses with seed=1 in a run of 960 s: "));
    EXPECT_GT(trial.at("figures").at("ttft_p90_s"), 0.18) << "the figures are of the longer run";
  }
  EXPECT_TRUE(tried);
  for (const char* list : {"ties", "alternatives"}) {
    for (const Json& other : plan.at(list)) {
      EXPECT_TRUE(other.at("settings").at("cluster.engines") != 3 || !other.at("meets").get<bool>()) << list;
    }
  }
  EXPECT_EQ(plan.at("ties").size(), 0U) << plan.at("ties");
}

TEST_F(PlanCommand, WhatIfComparesAChangeWithTheRecommendation) {
  const std::string out = folder_ / "out";
  ASSERT_EQ(run(words(kGrid + kFast + Settings{"--goal", "ttft_p90_s=0.2", "--out", out})).exit_code, 0);
  const Json best = Json::parse(text_of(out + "/plan.json")).at("recommendation");
  const Outcome same = run({"plan", out, "--what-if", "cache.eviction=lru", "--json"});
  const Json unchanged = same.json();
  EXPECT_TRUE(unchanged.at("meets"));
  const Json& figure = unchanged.at("figures").at("ttft_p90_s");
  EXPECT_EQ(figure.at("what_if"), figure.at("recommended")) << "lru is what the recommendation has";
  EXPECT_EQ(unchanged.at("figures").at("price_per_month").at("what_if"), best.at("price_month"));
  const Outcome half = run({"plan", out, "--what-if", "workload.generate.prompt_tokens_per_second=500000"});
  EXPECT_EQ(half.exit_code, 3) << half.out << half.err;
  EXPECT_NE(half.out.find("misses: ttft_p90_s is"), std::string::npos) << half.out;
  const Outcome wrong = run({"plan", out, "--what-if", "tiers.hst.gib=1"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.err.find("tiers.host.gib"), std::string::npos) << wrong.err;
  const Outcome both = run({"plan", out, "--what-if", "cache.eviction=lru", "--goal", "ttft_p90_s=1"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_NE(both.err.find("leave out --goal"), std::string::npos) << both.err;
  const Outcome nothing = run({"plan", folder_ / "x.toml", "--what-if", "tiers.host.gib=1"});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_NE(nothing.err.find("the folder of a finished plan"), std::string::npos) << nothing.err;
}

}  // namespace
}  // namespace kvtwin::test
