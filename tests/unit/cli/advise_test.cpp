// kvtwin calibrate --advise: which runs it names, and that they narrow an answer more than other runs do. A simulated
// machine with other figures takes the place of the server.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lab/calibrate/advised_runs.hpp"
#include "tests/recorded_run.hpp"

namespace kvtwin::test {
namespace {

constexpr const char* kAsked = R"(
engine = "none"
sim.world = "events"
model.name = "llama-3.1-8b"
hardware.name = "h100-sxm"
tiers.device.tokens = 40000
tiers.host.tokens = 200000
cache.page_tokens = 32
[workload]
loop = "closed"
[workload.generate]
kind = "groups"
groups = 16
prompts_per_group = 6
prefix_tokens = 8192
question_tokens = 64
output_tokens = 32
concurrency = 4
)";

class Advise : public testing::Test {
 protected:
  Advise() {
    write_text(folder_ / "asked.toml", kAsked);
    // The true machine: each number is off by what its assumed interval allows.
    Json file = Json::parse(text_of(fs::path(kSourceFolder) / "models/presets/hardware/h100-sxm.json"));
    for (const auto& [name, factor] :
         {std::pair("gemm_fraction", 0.85), std::pair("attention_fraction", 1.12), std::pair("memory_fraction", 0.9),
          std::pair("pass_overhead", 1.2), std::pair("host_to_device", 0.86)}) {
      Json& value = file["numbers"][name]["value"];
      value = value.get<double>() * factor;
    }
    write_text(folder_ / "truth.json", file.dump());
  }

  Json advise(std::vector<std::string> more) {
    std::vector<std::string> words{"calibrate", "--advise", folder_ / "asked.toml", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words).json();
  }
  // Serves the experiments of the runs on the true machine, fits the captures together, and returns the advice for the
  // fitted hardware, whose interval is what remains.
  Json after_runs(const std::vector<std::string>& experiments, const std::string& name) {
    std::vector<std::string> words{"calibrate", "--out", folder_ / name, "--simulations", "400", "--json"};
    for (const std::string& experiment : experiments) {
      const std::string out = folder_ / (name + "-" + fs::path(experiment).stem().string());
      run({"simulate", experiment, "--set", "hardware.file=" + (folder_ / "truth.json"), "--out", out, "--json"})
          .json();
      words.insert(words.end(), {"--from", out, "--experiment", experiment});
    }
    run(words).json();
    return advise({"--set", "hardware.file=" + (folder_ / name) + "/hardware.json"});
  }
  static double width(const Json& advice) {
    return advice.at("interval").at("high").get<double>() / advice.at("interval").at("low").get<double>();
  }

  Folder folder_;
};

TEST_F(Advise, NamesThreeRunsThatNarrowTheAnswerMoreThanOthers) {
  const Json now = advise({"--out", folder_ / "advice"});
  EXPECT_EQ(now.at("figure"), "ttft_mean_s");
  ASSERT_EQ(now.at("runs").size(), 3U);
  double before = width(now);
  for (const Json& one : now.at("runs")) {
    const Json& then = one.at("interval_after");
    const double after = then.at("high").get<double>() / then.at("low").get<double>();
    EXPECT_LT(after, before) << one.at("run");
    before = after;
    EXPECT_GE(one.at("minutes"), 1);
    EXPECT_NE(one.at("command").get<std::string>().find("sglang.bench_serving"), std::string::npos);
  }
  const std::string truth =
      run({"simulate", folder_ / "asked.toml", "--set", "hardware.file=" + (folder_ / "truth.json"), "--json"}).out;
  const double true_value = Json::parse(truth).at("ttft_seconds").at("mean");
  const auto holds = [&](const Json& advice) {
    return advice.at("interval").at("low") <= true_value && true_value <= advice.at("interval").at("high");
  };
  std::vector<std::string> advised;
  for (const Json& one : now.at("runs")) {
    advised.push_back(folder_ / ("advice/" + one.at("experiment").get<std::string>()));
  }
  const Json then = after_runs(advised, "advised");
  EXPECT_TRUE(holds(then)) << true_value << then.dump(1);
  EXPECT_LT(width(then), 1 + 0.5 * (width(now) - 1));
  // Three others of the candidates.
  const Experiment asked = Experiment::from_file((folder_ / "asked.toml"));
  std::vector<std::string> others;
  for (const CandidateRun& one : candidate_runs(asked, make_setup(asked))) {
    const bool taken = std::ranges::any_of(now.at("runs"), [&](const Json& it) { return it.at("run") == one.name; });
    if (taken || others.size() == 3) continue;
    others.push_back(folder_ / ("other-" + one.name + ".toml"));
    write_text(others.back(), experiment_of(one, asked).resolved());
  }
  EXPECT_LT(width(then), width(after_runs(others, "others")));
}

// The first goal of a plan whose figure depends on the machine is the answer, in the recommended setting.
TEST_F(Advise, AnswersForTheFirstGoalOfAPlanThatARunCanTell) {
  const std::string plan = folder_ / "plan";
  fs::create_directories(plan);
  write_text(plan + "/recommended.toml", kAsked);
  write_text(plan + "/plan.json", R"({"kind": "plan", "recommendation": {}, "goals": [
      {"figure": "hit_rate", "limit": 0.5, "better": "more"}, {"figure": "tpot_mean_s", "limit": 0.02, "better": "less"},
      {"figure": "ttft_p90_s", "limit": 1, "better": "less"}]})");
  const Outcome outcome = run({"calibrate", "--advise", plan});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(outcome.out.starts_with("answer     tpot_mean_s of " + plan)) << outcome.out;
  EXPECT_NE(outcome.out.find("; the goal is 0.02 or less\n"), std::string::npos) << outcome.out;
  const Outcome vllm = run({"calibrate", "--advise", plan, "--set", "serving.engine=vllm"});
  EXPECT_NE(vllm.out.find("vllm bench serve --dataset-name "), std::string::npos) << vllm.out << vllm.err;
  EXPECT_EQ(vllm.out.find("sglang.bench_serving"), std::string::npos);
}

// A run that is measured already says how far off the base is, which the intervals of the numbers do not.
TEST_F(Advise, ComparesAMeasuredRunWithTheBase) {
  Json slow = Json::parse(text_of(folder_ / "truth.json"));
  for (const char* name : {"gemm_fraction", "attention_fraction", "memory_fraction", "host_to_device"}) {
    Json& value = slow["numbers"][name]["value"];
    value = value.get<double>() / 12;
  }
  write_text(folder_ / "slow.json", slow.dump());
  const auto measured_on = [&](const std::string& hardware) {
    const std::string out = folder_ / fs::path(hardware).stem().string();
    run({"simulate", folder_ / "asked.toml", "--set", "hardware.file=" + hardware, "--out", out, "--json"}).json();
    return advise({"--from", out, "--experiment", folder_ / "asked.toml"});
  };
  const Json alone = advise({});
  EXPECT_EQ(alone.at("wider"), 1);
  EXPECT_LT(alone.at("interval_by_others").at("low"), alone.at("interval").at("low"));
  const Json near = measured_on(folder_ / "truth.json");
  EXPECT_EQ(near.at("wider"), 1) << near.at("measured");
  EXPECT_EQ(near.at("interval"), alone.at("interval"));
  const Json far = measured_on(folder_ / "slow.json");
  EXPECT_GT(far.at("wider"), 5) << far.at("measured");
  EXPECT_NEAR(far.at("measured")[0].at("ttft").get<double>(), 13, 4);
  const std::string truth =
      run({"simulate", folder_ / "asked.toml", "--set", "hardware.file=" + (folder_ / "slow.json"), "--json"}).out;
  const double true_value = Json::parse(truth).at("ttft_seconds").at("mean");
  EXPECT_LT(alone.at("interval").at("high"), true_value);
  EXPECT_LT(far.at("interval").at("low"), true_value);
  EXPECT_GT(far.at("interval").at("high"), true_value);
  for (const Json& one : far.at("runs")) EXPECT_GT(one.at("interval_after").at("high"), true_value) << one;
}

TEST_F(Advise, RefusesWhatHasNoAnswer) {
  const auto refused = [&](const std::vector<std::string>& words, const std::string& sentence) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_NE(outcome.err.find(sentence), std::string::npos) << outcome.err;
  };
  refused({"calibrate", "--advise", folder_.path().string()}, "holds no plan with a recommendation");
  refused({"calibrate", "--advise", folder_ / "asked.toml", "--quick"}, "excludes");
  refused({"calibrate", "--advise", folder_ / "asked.toml", "--from", "x"}, "--from x: is not there");
  refused({"calibrate", "--advise", folder_ / "asked.toml", "--from", folder_ / "asked.toml"}, "is no run of a server");
  refused({"calibrate", "--advise", folder_ / "asked.toml", "--experiment", folder_ / "asked.toml"}, "with --from");
  refused({"calibrate", "--advise", folder_ / "asked.toml", "--set", "hardware.set.gemm_fraction=0.5"},
          "hides a number that is fitted");
  Json slow = Json::parse(text_of(folder_ / "truth.json"));
  slow["numbers"]["peak_bf16"]["value"] = 1e-3;
  write_text(folder_ / "slow.json", slow.dump());
  refused({"calibrate", "--advise", folder_ / "asked.toml", "--set", "hardware.file=" + (folder_ / "slow.json")},
          "no run is cheap: long-prompts takes about ");
}

}  // namespace
}  // namespace kvtwin::test
