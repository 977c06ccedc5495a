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
  EXPECT_EQ(plan.at("confidence").at("figures").at("ttft_p90_s").size(), 2U);
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

TEST_F(PlanCommand, AKilledWorkerEndsThePlanWithASentence) {
  for (const char* jobs : {"1", "2"}) {
    Process plan(words(kGrid + kFast + Settings{"--goal", "ttft_p90_s=0.2", "--jobs", jobs}));
    kill(stopped_worker(plan), SIGKILL);
    const Outcome outcome = plan.wait();
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

}  // namespace
}  // namespace kvtwin::test
