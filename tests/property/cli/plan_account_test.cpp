// The numbers of a plan agree with each other, with the screen, and with the run of the recommendation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lab/formatted.hpp"
#include "tests/price_list.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

using Settings = std::vector<std::string>;

template <class... Values>
std::string text_of_values(const char* format, Values... values) {
  char text[512];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

// A plan with drives, draws, seeds and two goals, its screen, and the run of its recommendation.
class PlanAccount : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new Folder;
    write_text(folder_->path() / "x.toml", kReturning);
    const Settings settings{"plan",     *folder_ / "x.toml",
                            "--prices", price_list(*folder_, "p.toml"),
                            "--set",    std::string("sim.world=") + kAnyWorld,
                            "--set",    "parallel.tp=1",
                            "--set",    "workload.loop=open",
                            "--set",    "workload.generate.prompt_tokens_per_second=20000",
                            "--vary",   "cluster.engines=1..4",
                            "--vary",   "tiers.host.tokens=0,4096,8192",
                            "--vary",   "cluster.route=round_robin,prefix_affinity",
                            "--vary",   "drives=0,1",
                            "--vary",   "cache.eviction=lru,fifo",
                            "--goal",   "ttft_p90_s=0.1",
                            "--goal",   "hit_ratio=0.2",
                            "--seeds",  "2",
                            "--draws",  "6",
                            "--out",    *folder_ / "out"};
    const Outcome outcome = run(settings);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    screen_ = new std::string(outcome.out);
    plan_ = new Json(Json::parse(text_of(*folder_ / "out/plan.json")));
    report_ = new Json(Json::parse(text_of(*folder_ / "out/recommended/report.json")));
  }
  static void TearDownTestSuite() {
    delete folder_;
    delete screen_;
    delete plan_;
    delete report_;
    folder_ = nullptr;
    screen_ = nullptr;
    plan_ = report_ = nullptr;
  }
  void SetUp() override { ASSERT_NE(report_, nullptr); }

  static const Json& best() { return plan_->at("recommendation"); }
  static double number(const Json& at) { return at.get<double>(); }
  // Figure / limit of the goal that is nearest to its limit, or farthest behind.
  static double worst(const Json& trial) {
    const Json& figures = trial.at("figures");
    return std::max(number(figures.at("ttft_p90_s")) / 0.1, 0.2 / std::max(number(figures.at("hit_ratio")), 1e-12));
  }
  static bool on_screen(const std::string& words) { return screen_->find(words) != std::string::npos; }

  static Folder* folder_;
  static std::string* screen_;
  static Json* plan_;
  static Json* report_;
};
Folder* PlanAccount::folder_ = nullptr;
std::string* PlanAccount::screen_ = nullptr;
Json* PlanAccount::plan_ = nullptr;
Json* PlanAccount::report_ = nullptr;

TEST_F(PlanAccount, TheWorkIsThatOfTheTrace) {
  const Json& work = plan_->at("workload");
  EXPECT_EQ(work.at("requests"), 96);
  EXPECT_EQ(work.at("prompt_tokens_mean"), 512);
  EXPECT_NEAR(number(work.at("requests_per_second")) * number(work.at("duration_s")), 96, 2);
  EXPECT_NEAR(number(work.at("requests_per_second")), 20000.0 / 512, 8);
  EXPECT_TRUE(on_screen(text_of_values("%.3g requests per second; 512 prompt and %.0f output tokens on average\n",
                                       number(work.at("requests_per_second")), number(work.at("output_tokens_mean")))))
      << *screen_;
  EXPECT_TRUE(on_screen(text_of_values("; %.1f %% of the prompt tokens hit, and %.1f %% in an infinite cache; ",
                                       100 * number(best().at("figures").at("hit_ratio")),
                                       100 * number(best().at("figures").at("infinite_hit_ratio")))))
      << *screen_;
  EXPECT_EQ(plan_->at("title"),
            text_of_values("tiny, %.3g requests per second", number(work.at("requests_per_second"))));
}

TEST_F(PlanAccount, TheRecommendationIsTheRunOfItsFolder) {
  const Json &figures = best().at("figures"), &tokens = report_->at("tokens"), &price = report_->at("price");
  const double prompt = number(tokens.at("prompt"));
  double hits = 0;
  for (const char* tier : {"device", "host", "disk", "shared_fs", "remote"}) {
    const double hit = number(tokens.at(std::string("hit_") + tier));
    hits += hit;
    EXPECT_DOUBLE_EQ(number(figures.at(std::string("hit_") + tier + "_share")), hit / prompt) << tier;
  }
  EXPECT_DOUBLE_EQ(number(figures.at("hit_ratio")), hits / prompt);
  for (const char* kind : {"ttft", "tpot", "e2e"}) {
    for (const char* which : {"mean", "p50", "p90", "p95", "p99"}) {
      const Json& value = report_->at(std::string(kind) + "_seconds").at(which);
      const std::string name = std::string(kind) + "_" + which + "_s";
      if (!value.is_null()) {
        EXPECT_EQ(figures.at(name), value) << name;
      }
    }
  }
  for (const char* name : {"requests_per_second", "prompt_tokens_per_second", "output_tokens_per_second"}) {
    EXPECT_EQ(figures.at(name), report_->at("throughput").at(name)) << name;
  }
  for (const Json& tier : report_->at("tiers")) {
    const std::string name = tier.at("name");
    if (name != "device") {
      EXPECT_EQ(figures.at("written_" + name + "_bytes"), tier.at("written_bytes")) << name;
    }
  }
  EXPECT_EQ(figures.at("gpus"), report_->at("gpus"));
  EXPECT_EQ(figures.at("rejected_share"), 0);
  EXPECT_EQ(figures.at("power_kw"), price.at("power_kw"));
  EXPECT_EQ(figures.at("price_per_month"), price.at("per_month"));
  EXPECT_EQ(best().at("price_month"), price.at("per_month"));
  EXPECT_EQ(best().at("price_per_million_tokens"), price.at("per_million_tokens"));
  EXPECT_TRUE(on_screen(text_of_values("; %.1f %% of the prompt tokens hit", 100 * hits / prompt))) << *screen_;
  EXPECT_TRUE(on_screen(text_of_values(", %.3g kW", number(price.at("power_kw"))))) << *screen_;
  EXPECT_TRUE(on_screen(text_of_values("ttft_p90_s %.4g (at most 0.1), hit_ratio %.4g (at least 0.2)",
                                       number(figures.at("ttft_p90_s")), number(figures.at("hit_ratio")))))
      << *screen_;
  EXPECT_EQ(report_->at("gpus"), best().at("settings").at("cluster.engines"));
}

TEST_F(PlanAccount, PartsSumToThePriceAndThePower) {
  double price = 0, watts = 0;
  std::string parts;
  for (const Json& part : best().at("parts")) {
    price += number(part.at("price_month"));
    watts += number(part.at("power_w"));
    parts += (parts.empty() ? "" : ", ") + text_of_values("%.0f ", number(part.at("count"))) +
             part.at("name").get<std::string>();
  }
  EXPECT_NEAR(price, number(best().at("price_month")), 1e-6 * price);
  EXPECT_GT(watts, 0);
  EXPECT_TRUE(on_screen("buy         " + parts)) << parts << *screen_;
  EXPECT_EQ(plan_->at("prices").at("currency"), "EUR");
  EXPECT_FALSE(plan_->at("prices").at("used").empty());
  for (const Json& used : plan_->at("prices").at("used")) EXPECT_EQ(used.at("source"), "a test");
  EXPECT_TRUE(on_screen("assumed     none of the prices")) << *screen_;
}

TEST_F(PlanAccount, EveryTrialIsJudgedByTheGoals) {
  std::size_t met = 0;
  std::set<std::string> settings;
  for (const Json& trial : plan_->at("tried")) {
    if (trial.at("stage") == "full") {
      EXPECT_TRUE(settings.insert(trial.at("settings").dump()).second) << "simulated twice: " << trial.at("settings");
    }
    EXPECT_EQ(trial.at("meets").get<bool>(), !trial.contains("why_not")) << trial;
    if (trial.at("meets").get<bool>()) {
      ++met;
      EXPECT_LE(worst(trial), 1) << trial;
    } else if (trial.at("why_not").get<std::string>().starts_with("ttft_p90_s is")) {
      const std::string wanted =
          text_of_values("ttft_p90_s is %.4g, not at most 0.1", number(trial.at("figures").at("ttft_p90_s")));
      EXPECT_EQ(trial.at("why_not"), wanted);
      EXPECT_GT(number(trial.at("figures").at("ttft_p90_s")), 0.1);
    }
    if (trial.at("stage") == "full" && trial.at("meets").get<bool>()) {
      EXPECT_GE(number(trial.at("price_month")), number(best().at("price_month"))) << trial.at("settings");
    }
  }
  EXPECT_GE(met, 2U);
  EXPECT_LT(met, plan_->at("tried").size());
}

TEST_F(PlanAccount, NoTrialBeatsTheFrontInPriceAndDistance) {
  const Json &tried = plan_->at("tried"), &front = plan_->at("front");
  ASSERT_FALSE(front.empty());
  for (std::size_t i = 0; i < front.size(); ++i) {
    const Json& one = tried.at(front[i].get<std::size_t>());
    if (i == 0) continue;
    const Json& before = tried.at(front[i - 1].get<std::size_t>());
    EXPECT_GT(number(one.at("price_month")), number(before.at("price_month")));
    EXPECT_LT(worst(one), worst(before));
  }
  for (const Json& trial : tried) {
    if (trial.at("stage") != "full" || !trial.at("meets").get<bool>()) continue;  // those that starve are left out
    const bool held = std::ranges::any_of(front, [&](const Json& at) {
      const Json& one = tried.at(at.get<std::size_t>());
      return number(one.at("price_month")) <= number(trial.at("price_month")) && worst(one) <= worst(trial);
    });
    EXPECT_TRUE(held) << trial.at("settings");
  }
}

TEST_F(PlanAccount, AMarginIsOneStepFromTheRecommendation) {
  const Json& margins = plan_->at("margins");
  ASSERT_GE(margins.size(), 2U);
  for (const Json& margin : margins) {
    const std::string change = margin.at("change");
    std::vector<std::string> changed;
    for (const auto& [name, value] : margin.at("settings").items()) {
      if (best().at("settings").at(name) != value) changed.push_back(name);
    }
    ASSERT_EQ(changed.size(), 1U) << margin;
    const Json &now = margin.at("settings").at(changed[0]), &was = best().at("settings").at(changed[0]);
    if (changed[0] == "cluster.engines") {
      const int more = now.get<int>() - was.get<int>();
      EXPECT_EQ(std::abs(more), 1);
      EXPECT_EQ(change, more < 0 ? "1 engine less" : "1 engine more");
    } else {
      EXPECT_EQ(change, changed[0] + " " + now.dump() + " instead of " + was.dump());
    }
    const double difference = number(margin.at("price_month")) - number(best().at("price_month"));
    EXPECT_TRUE(on_screen("step        " + change + ": " + (difference < 0 ? "" : "+") + "EUR ")) << change << *screen_;
    if (!margin.at("meets").get<bool>()) {
      EXPECT_TRUE(on_screen("; out: " + margin.at("why_not").get<std::string>()));
    }
  }
}

TEST_F(PlanAccount, AlternativesAreWhatTheySay) {
  const double price = number(best().at("price_month"));
  for (const Json& other : plan_->at("alternatives")) {
    const std::string because = other.at("because");
    if (because.starts_with("cheaper, misses: ")) {
      EXPECT_FALSE(other.at("meets").get<bool>());
      EXPECT_LT(number(other.at("price_month")), price);
      EXPECT_EQ(because, "cheaper, misses: " + other.at("why_not").get<std::string>());
    } else {
      EXPECT_TRUE(other.at("meets").get<bool>()) << because;
      EXPECT_GE(number(other.at("price_month")), price) << because;
      if (because.starts_with("most reserve")) {
        EXPECT_LE(number(other.at("price_month")), 1.25 * price);
        EXPECT_LT(worst(other), worst(best()));
      } else {
        EXPECT_NE(other.at("settings").at("cluster.route"), best().at("settings").at("cluster.route"));
      }
    }
    EXPECT_TRUE(on_screen(because)) << because << *screen_;
    const double probability = number(other.at("probability"));
    if (other.at("meets").get<bool>()) {
      EXPECT_TRUE(on_screen(formatted(", %.0f %%; ", 100 * probability))) << *screen_;
    }
  }
  EXPECT_FALSE(plan_->at("alternatives").empty());
  EXPECT_FALSE(plan_->at("stopped").get<bool>());
}

TEST_F(PlanAccount, TheBusiestLanesAreMeansOfTheirKind) {
  std::map<std::string, std::pair<double, double>> busy;
  std::map<std::string, double> lanes;
  for (const Json& lane : report_->at("lanes")) {
    std::string name = lane.at("name");
    name.erase(0, name.rfind('.') + 1);
    busy[name].first += number(lane.at("busy_fraction"));
    busy[name].second += number(lane.at("busy_fraction_p99"));
    ++lanes[name];
  }
  const Json& binds = plan_->at("binds");
  double before = INFINITY;
  for (const Json& lane : binds.at("lanes")) {
    const std::string name = lane.at("name");
    EXPECT_NEAR(number(lane.at("busy_fraction")), busy.at(name).first / lanes.at(name), 1e-12);
    EXPECT_NEAR(number(lane.at("busy_fraction_p99")), busy.at(name).second / lanes.at(name), 1e-12);
    EXPECT_LE(number(lane.at("busy_fraction")), before) << "busiest first";
    before = number(lane.at("busy_fraction"));
  }
  EXPECT_EQ(binds.at("lanes").size(), std::min<std::size_t>(8, busy.size()));
  const Json &first = binds.at("lanes").at(0), &second = binds.at("lanes").at(1);
  std::string largest;
  double most = 0, sum = 0;
  for (const auto& [name, seconds] : report_->at("ttft_parts_seconds").items()) {
    sum += number(seconds);
    if (number(seconds) > most) most = number(seconds), largest = name;
  }
  std::ranges::replace(largest, '_', ' ');
  EXPECT_EQ(binds.at("sentence"),
            first.at("name").get<std::string>() +
                text_of_values(" is busy %.0f %% of the time (%.0f %% in its busiest moments); next: %s, %.0f %%; "
                               "%.0f %% of the mean TTFT is %s",
                               100 * number(first.at("busy_fraction")), 100 * number(first.at("busy_fraction_p99")),
                               second.at("name").get<std::string>().c_str(), 100 * number(second.at("busy_fraction")),
                               100 * most / sum, largest.c_str()));
  EXPECT_TRUE(on_screen(binds.at("sentence").get<std::string>()));
}

TEST_F(PlanAccount, HitsGrowWithTheCapacityUpToTheIdeal) {
  const Json& hits = plan_->at("hits_by_capacity");
  ASSERT_GE(hits.size(), 4U);
  ASSERT_LE(hits.size(), 8U);
  for (std::size_t i = 0; i < hits.size(); ++i) {
    EXPECT_GE(number(hits[i].at("hit_opt")), number(hits[i].at("hit_ratio")));
    EXPECT_EQ(hits[i].at("eviction"), best().at("settings").at("cache.eviction"));
    if (i == 0) continue;
    const double tokens = number(hits[i].at("capacity_tokens")), half = number(hits[i - 1].at("capacity_tokens"));
    EXPECT_LT(half, tokens);
    EXPECT_GE(2 * half, tokens);
    EXPECT_GE(number(hits[i].at("hit_opt")), number(hits[i - 1].at("hit_opt")));
  }
  EXPECT_NEAR(number(hits.back().at("hit_opt")), number(plan_->at("workload").at("ideal_hit_ratio")), 0.02);
  EXPECT_EQ(hits.back().at("hit_ratio"), hits.back().at("hit_opt")) << "all blocks fit";
}

TEST_F(PlanAccount, DrivesWearUnderEachWritePolicy) {
  const Json& drives = plan_->at("drives");
  ASSERT_EQ(drives.size(), 3U);
  std::set<std::string> policies;
  for (const Json& life : drives) {
    policies.insert(life.at("write_policy"));
    const int count =
        life.at("settings").at("cluster.engines").get<int>() * life.at("settings").at("drives").get<int>();
    EXPECT_TRUE(on_screen((best().at("settings").at("drives") == 0 ? "if bought, " : "drives      ") +
                          life.at("write_policy").get<std::string>() + ": " + std::to_string(count) + " drives take " +
                          text_of_values("%.3g TB a day, %.3g writes a day each", number(life.at("written_tb_per_day")),
                                         number(life.at("dwpd")))))
        << life << *screen_;
    EXPECT_NEAR(number(life.at("dwpd")) * count, number(life.at("written_tb_per_day")), 1e-9) << "a drive has 1 TB";
    if (!life.at("years").is_null()) {
      EXPECT_NEAR(number(life.at("years")), 5 / number(life.at("dwpd")), 1e-6);
    }
  }
  EXPECT_EQ(policies.size(), 3U);
}

TEST_F(PlanAccount, ConfidenceIsOfSeedsAndDraws) {
  const Json& sure = plan_->at("confidence");
  EXPECT_EQ(sure.at("seeds"), 2);
  EXPECT_EQ(sure.at("draws"), 6);
  EXPECT_EQ(sure.at("seeds_meeting"), 2);
  EXPECT_GT(number(sure.at("probability")), 0);
  EXPECT_LT(number(sure.at("probability")), 1);
  EXPECT_TRUE(
      on_screen(text_of_values("confidence  the goals hold with %.0f %%", 100 * number(sure.at("probability")))))
      << *screen_;
  const Json& by_errors = sure.at("ranges").at("ttft_p90_s");
  EXPECT_LT(number(by_errors[0]), number(by_errors[1]));
  EXPECT_FALSE(sure.at("ranges").contains("hit_ratio")) << "a hit ratio has no published error";
  EXPECT_TRUE(on_screen(text_of_values("meets the goals with 2 of 2 seeds; on %.0f of 6 drawn machines",
                                       number(sure.at("draws_meeting")))))
      << *screen_;
  for (const char* goal : {"ttft_p90_s", "hit_ratio"}) {
    const Json& range = sure.at("ranges_of_draws").at(goal);
    EXPECT_LE(number(range[0]), number(range[1])) << goal;
    EXPECT_TRUE(on_screen(text_of_values(", %s %.3g to %.3g", goal, number(range[0]), number(range[1])))) << *screen_;
  }
  EXPECT_LT(number(sure.at("ranges_of_draws").at("ttft_p90_s")[0]),
            number(sure.at("ranges_of_draws").at("ttft_p90_s")[1]))
      << "the hardware varies";
  const Json& causes = sure.at("hangs_on");
  ASSERT_FALSE(causes.empty());
  EXPECT_LE(causes.size(), 8U);
  double before = INFINITY;
  for (const Json& cause : causes) {
    const double effect = std::abs(number(cause.at("at_high")) - number(cause.at("at_low")));
    EXPECT_GT(effect, 0);
    EXPECT_LE(effect, before) << "the largest effect first";
    EXPECT_EQ(cause.at("figure"), "ttft_p90_s");
    EXPECT_EQ(cause.at("as_given"), causes[0].at("as_given"));
    before = effect;
  }
  EXPECT_TRUE(
      on_screen("hangs on    " + causes[0].at("number").get<std::string>() +
                text_of_values(" (%.3g to %.3g)", number(causes[0].at("at_low")), number(causes[0].at("at_high")))))
      << *screen_;
  EXPECT_TRUE(on_screen(text_of_values("as given %.3g", number(causes[0].at("as_given"))))) << *screen_;
}

TEST_F(PlanAccount, SimulationsAreCounted) {
  const Json& search = plan_->at("search");
  // Beside the settings: a seed, six draws, and the causes: one run as given, and two for each figure.
  EXPECT_GE(number(search.at("simulations")), static_cast<double>(plan_->at("tried").size() + 1 + 6 + 1 + 2));
  EXPECT_TRUE(on_screen(text_of_values("search      %.0f simulations; %.0f settings left out",
                                       number(search.at("simulations")), number(search.at("bounded")))))
      << *screen_;
  for (const Json& warning : plan_->at("warnings")) {
    EXPECT_TRUE(on_screen("warning     " + warning.get<std::string>())) << warning;
  }
  const std::string file = folder_->path().string() + "/out/recommended.toml";
  EXPECT_EQ(plan_->at("reproduce").at(0), "kvtwin simulate " + file);
  EXPECT_EQ(plan_->at("reproduce").at(1), "kvtwin simulate " + file + " --to-sglang-flags");
}

TEST_F(PlanAccount, OtherPartsAreOutWithTheirNearestSetting) {
  for (const Json& index : plan_->at("out")) {
    const Json& out = plan_->at("tried").at(index.get<std::size_t>());
    EXPECT_FALSE(out.at("meets").get<bool>());
    EXPECT_TRUE(on_screen("nearest with these parts: " + out.at("why_not").get<std::string>())) << *screen_;
    for (const Json& trial : plan_->at("tried")) {
      if (trial.at("stage") != "full" || !trial.at("meets").get<bool>()) continue;
      EXPECT_NE(trial.at("settings").at("cluster.route"), out.at("settings").at("cluster.route"));
    }
  }
}

// The highest load, a spare engine, twice and four times the traffic, no tiers, and a pool.
TEST_F(PlanAccount, QuestionsThatFollowAreAnswered) {
  std::map<std::string, Json> answers;
  for (const Json& one : plan_->at("follow_ups")) {
    answers[one.at("name")] = one;
    EXPECT_TRUE(on_screen("then        " + one.at("answer").get<std::string>())) << one;
  }
  const Json& load = answers.at("load");
  EXPECT_GE(number(load.at("load_meets")), 1);
  if (load.contains("load_misses")) {
    EXPECT_GT(number(load.at("load_misses")), number(load.at("load_meets")));
    EXPECT_LT(number(load.at("load_misses")), 1.2 * number(load.at("load_meets"))) << "near enough to be of use";
  }
  const double engines = number(best().at("settings").at("cluster.engines")), price = number(best().at("price_month"));
  for (const char* more : {"load x 2", "load x 4"}) {
    if (!answers.at(more).contains("settings")) continue;
    EXPECT_TRUE(answers.at(more).at("meets"));
    EXPECT_GE(number(answers.at(more).at("settings").at("cluster.engines")), engines) << more;
    EXPECT_NEAR(number(answers.at(more).at("more_a_month")), number(answers.at(more).at("price_month")) - price, 1e-6);
  }
  EXPECT_EQ(answers.at("spare").at("settings").at("cluster.engines"), engines + 1);
  ASSERT_TRUE(answers.contains("no tiers"));
  if (answers.at("no tiers").contains("settings")) {
    EXPECT_EQ(answers.at("no tiers").at("settings").at("tiers.host.tokens"), 0);
    EXPECT_EQ(answers.at("no tiers").at("settings").at("drives"), 0);
    EXPECT_GE(number(answers.at("no tiers").at("more_a_month")), 0) << "the recommendation is the cheapest";
  }
  EXPECT_TRUE(answers.contains("pool"));
}

TEST_F(PlanAccount, TiesDifferByLittle) {
  for (const Json& tie : plan_->at("ties")) {
    const bool cheaper = number(tie.at("price_month")) < number(best().at("price_month"));
    EXPECT_LE(worst(tie), cheaper ? 1.08 : 1.0) << tie;
    EXPECT_LE(number(tie.at("price_month")), number(best().at("price_month")));
  }
}

}  // namespace
}  // namespace kvtwin::test
