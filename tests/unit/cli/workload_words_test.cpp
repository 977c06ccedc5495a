// Tests the options that say the traffic in a planner's words: --users, --turns, --think, --context-max, --workload.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/paths.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

class WorkloadWords : public testing::Test {
 protected:
  WorkloadWords() {
    around_.folder = folder_.path();
    write_text(folder_ / "x.toml", "engine = \"none\"\nworkload.trace = \"absent.jsonl\"\n");
  }
  Outcome simulate(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"simulate", "x.toml", "--world", kAnyWorld});
    return run(arguments, around_);
  }
  void refused(const std::vector<std::string>& arguments, const std::string& why) {
    const Outcome outcome = simulate(arguments);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_NE(outcome.err.find(why), std::string::npos) << outcome.err;
  }

  Folder folder_;
  Surroundings around_;
};

TEST_F(WorkloadWords, UsersSetTheRateByTheirThinkTimesAndTheAnswers) {
  const Outcome outcome =
      simulate({"--users", "20", "--turns", "5-9", "--think", "10s", "--new-tokens", "100", "--output-tokens", "100",
                "--prefix-tokens", "1k", "--context-max", "8k", "--set", "workload.generate.duration_s=30min", "--set",
                "workload.generate.think_spread=0", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json report = nlohmann::json::parse(outcome.out);
  const double cycle = 10 + report.at("e2e_seconds").at("mean").get<double>();
  EXPECT_GT(report.at("e2e_seconds").at("mean").get<double>(), 0.1);
  EXPECT_NEAR(report.at("requests").at("completed").get<double>() / 1800, 20 / cycle, 0.02);
  EXPECT_LT(report.at("simulated_seconds").get<double>(), 1810) << "no request arrives after the duration";
  const auto hits = report.at("tokens").at("hit_device").get<double>();
  EXPECT_GT(hits / report.at("tokens").at("prompt").get<double>(), 0.9) << "answers are hits of the next turn";
}

TEST_F(WorkloadWords, ContradictionsAreRefused) {
  refused({"--users", "5", "--requests-per-second", "2"}, "--users is given too, and the users set the rate");
  refused({"--users", "5", "--turns", "30-x"}, "--turns 30-x: must be a number or a range of whole numbers");
  refused({"--users", "5", "--turns", "9-3"},
          "turns_least (--set): is 9, and workload.generate.turns_most (--set) is 3");
  refused({"--users", "5", "--context-max", "3k", "--prefix-tokens", "4k"},
          "workload.generate.prefix_tokens (--set): is 4000, and a conversation may have 3000 tokens");
  refused({"--users", "5", "--new-tokens", "9", "--prompt-tokens", "9"}, "leave one of them out");
  refused({"--users", "5", "--think", "20GiB"}, "GiB is the unit of an amount of bytes");
  refused({"--workload", "chta"}, "did you mean \"chat\"?");
  refused({"--users", "5", "--set", "workload.loop=open"}, "users wait for their answers in a closed loop only");
  refused({"--users", "5", "--set", "workload.shrink=4"}, "set it to 1");
}

TEST_F(WorkloadWords, AssumedFiguresAreNamed) {
  const std::vector<std::string> few = {"--set", "workload.generate.requests=20"};
  const auto with = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), few.begin(), few.end());
    return simulate(arguments);
  };
  const Outcome all = with({"--users", "5"});
  EXPECT_EQ(all.exit_code, 0) << all.err;
  EXPECT_NE(all.err.find("assumed for the users, as in --workload coding-agent: turns=38.68, new_tokens=1638"),
            std::string::npos)
      << all.err;
  const Outcome filled = with({"--users", "5", "--turns", "30-60", "--context-max", "60k", "--prefix-tokens", "4k"});
  EXPECT_NE(filled.err.find("new_tokens=516 (the longest conversation fills --context-max)"), std::string::npos);
  for (const char* name : {"chat", "coding-agent", "rag", "batch"}) {
    const Outcome named = with({"--users", "5", "--workload", name});
    EXPECT_EQ(named.exit_code, 0) << named.err;
    EXPECT_EQ(named.err.find("assumed"), std::string::npos) << named.err;
  }
}

}  // namespace
}  // namespace kvtwin::test
