// Tests the options that say the traffic in a planner's words: --users, --turns, --think, --context-max, --workload.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lab/experiment/named_workloads.hpp"
#include "models/json.hpp"
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
  const Json report = Json::parse(outcome.out);
  const double cycle = 10 + report.at("e2e_seconds").at("mean").get<double>();
  EXPECT_GT(report.at("e2e_seconds").at("mean").get<double>(), 0.1);
  EXPECT_NEAR(report.at("requests").at("completed").get<double>() / 1800, 20 / cycle, 0.02);
  EXPECT_LT(report.at("simulated_seconds").get<double>(), 1810) << "no request arrives after the duration";
  const auto hits = report.at("tokens").at("hit_device").get<double>();
  EXPECT_GT(hits / report.at("tokens").at("prompt").get<double>(), 0.9) << "answers are hits of the next turn";
}

TEST_F(WorkloadWords, ContradictionsAreRefused) {
  refused({"--users", "5", "--requests-per-second", "2"}, "--users is given too, and the users set the rate");
  refused({"--set", "workload.generate.users=5", "--set", "workload.loop=closed", "--requests-per-second", "2",
           "--prompt-tokens", "500", "--output-tokens", "20", "--turns", "3", "--think", "9s", "--prefix-tokens", "0"},
          "workload.generate.users (--set) is given too, and the users set the rate");
  const Outcome compared =
      run({"compare", "x.toml", "--vary", "seed=1", "--users", "5", "--requests-per-second", "2"}, around_);
  EXPECT_EQ(compared.exit_code, 2);
  EXPECT_NE(compared.err.find("--users is given too, and the users set the rate"), std::string::npos) << compared.err;
  refused({"--users", "5", "--turns", "30-x"}, "--turns 30-x: must be a number or a range of whole numbers");
  refused({"--users", "5", "--turns", "9-3"},
          "turns_least (--set): is 9, and workload.generate.turns_most (--set) is 3");
  refused({"--users", "5", "--context-max", "3k", "--prefix-tokens", "4k"},
          "workload.generate.prefix_tokens (--set): is 4000, and a conversation may have 3000 tokens");
  refused({"--users", "5", "--new-tokens", "9", "--prompt-tokens", "9"}, "leave one of them out");
  refused({"--users", "5", "--think", "20GiB"}, "GiB is the unit of an amount of bytes");
  refused({"--workload", "chta"}, "did you mean \"chat\"?");
  refused({"--users", "5", "--set", "workload.loop=open"}, "users wait for their answers in a closed loop only");
}

// The requests of users shrink as those of a trace do: a run of the same traffic on a small machine.
TEST_F(WorkloadWords, UsersShrink) {
  const std::vector<std::string> words{"--users",         "5",
                                       "--turns",         "5",
                                       "--think",         "10s",
                                       "--new-tokens",    "800",
                                       "--output-tokens", "64",
                                       "--prefix-tokens", "640",
                                       "--set",           "workload.generate.length_spread=0",
                                       "--set",           "workload.generate.requests=40",
                                       "--json"};
  std::vector<std::string> shrunk = words;
  shrunk.insert(shrunk.end(), {"--set", "workload.shrink=8"});
  const Outcome whole = simulate(words), small = simulate(shrunk);
  ASSERT_EQ(small.exit_code, 0) << small.err;
  const auto prompt = [](const Outcome& outcome) {
    return Json::parse(outcome.out).at("tokens").at("prompt").get<double>();
  };
  EXPECT_NEAR(prompt(small) * 8, prompt(whole), 0.2 * prompt(whole));
  EXPECT_EQ(Json::parse(small.out).at("tokens").at("output"), 40 * 8);
}

// docs/traces.md has each figure of each named workload.
TEST_F(WorkloadWords, NamedFiguresStandInTheDocs) {
  const std::string docs = text_of(in_source("docs/traces.md"));
  for (const NamedWorkload& workload : named_workloads()) {
    const std::size_t at = docs.find("| `" + std::string(workload.name) + "` | `");
    ASSERT_NE(at, std::string::npos) << workload.name;
    const std::string row = docs.substr(at, docs.find('\n', at) - at);
    for (const WorkloadFigure& figure : workload.figures) {
      const std::string text = "`" + std::string(figure.key) + "=" + std::string(figure.value) + "`";
      EXPECT_NE(row.find(text), std::string::npos) << text << " in " << row;
      EXPECT_FALSE(figure.source.empty());
    }
  }
}

// The resolved file lists every key, so also the ones that contradict users where they are given.
TEST_F(WorkloadWords, ARunOfUsersCanBeSimulatedAgainFromItsFolder) {
  ASSERT_EQ(
      simulate({"--users", "5", "--turns", "3-6", "--set", "workload.generate.requests=20", "--out", "out"}).exit_code,
      0);
  const Outcome again = run({"simulate", "out/experiment.resolved.toml", "--json"}, around_);
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.json().at("decisions"), Json::parse(text_of(folder_ / "out/report.json")).at("decisions"));
}

TEST_F(WorkloadWords, AssumedFiguresAreNamed) {
  const std::vector<std::string> few = {"--set", "workload.generate.requests=20"};
  const auto with = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), few.begin(), few.end());
    return simulate(arguments);
  };
  const Outcome all = with({"--users", "5"});
  EXPECT_EQ(all.exit_code, 0) << all.err;
  const std::string assumed =
      "note       assumed for the users, as in --workload coding-agent: turns=38.68, new_tokens";
  EXPECT_NE(all.out.find(assumed), std::string::npos) << all.out;
  EXPECT_EQ(all.err, "") << "each note stands on the screen once";
  const Outcome filled = with({"--users", "5", "--turns", "30-60", "--context-max", "60k", "--prefix-tokens", "4k"});
  EXPECT_NE(filled.out.find("new_tokens=516 (the longest conversation fills --context-max)"), std::string::npos);
  for (const char* name : {"chat", "coding-agent", "rag", "batch"}) {
    const Outcome named = with({"--users", "5", "--workload", name});
    EXPECT_EQ(named.exit_code, 0) << named.err;
    EXPECT_EQ((named.out + named.err).find("assumed for"), std::string::npos) << named.out;
  }
}

// The longest context cuts conversations: what was drawn stands beside what was asked for, and a note says why.
TEST_F(WorkloadWords, WhatWasDrawnStandsBesideWhatWasAskedFor) {
  const std::vector<std::string> words{"--users",         "20",
                                       "--turns",         "40",
                                       "--think",         "10s",
                                       "--new-tokens",    "1000",
                                       "--output-tokens", "100",
                                       "--prefix-tokens", "1k",
                                       "--set",           "workload.generate.duration_s=1h",
                                       "--set",           "workload.generate.length_spread=0"};
  std::vector<std::string> cut = words;
  cut.insert(cut.end(), {"--context-max", "12k"});
  const Outcome short_ones = simulate(cut);
  ASSERT_EQ(short_ones.exit_code, 0) << short_ones.err;
  EXPECT_NE(short_ones.out.find("drawn      turns "), std::string::npos) << short_ones.out;
  EXPECT_NE(short_ones.out.find(" (asked 40), new_tokens 1000 (asked 1000), output_tokens 100 (asked 100)"),
            std::string::npos)
      << short_ones.out;
  EXPECT_NE(short_ones.out.find("conversations that ended did so at the longest context, 12000 tokens"),
            std::string::npos)
      << short_ones.out;
  EXPECT_EQ(short_ones.out.find("so workload.generate.context_max_tokens ="), std::string::npos);
  cut.push_back("--json");
  const Json report = Json::parse(simulate(cut).out);
  const Json& drawn = report.at("conversations");
  EXPECT_LT(drawn.at("turns").at("mean").get<double>(), 11);
  EXPECT_GT(drawn.at("ended_at_longest_context").get<double>(), 0.7 * drawn.at("ended").get<double>());
  EXPECT_LE(drawn.at("context_tokens").at("max").get<double>(), 12000);
  std::vector<std::string> few = words;
  few[3] = "5";
  const Outcome whole = simulate(few);
  EXPECT_EQ(whole.out.find("differ from the figures"), std::string::npos) << whole.out;
  EXPECT_NE(whole.out.find("not given for the conversations, so workload.generate.context_max_tokens = "),
            std::string::npos)
      << whole.out;
}

// trace generate takes the same words, and writes the traffic of them.
TEST_F(WorkloadWords, WriteATrace) {
  const std::string out = folder_ / "t.jsonl";
  const Outcome made =
      run({"trace",        "generate", "--users",         "20",  "--turns",         "5-9", "--think",       "10s",
           "--new-tokens", "100",      "--output-tokens", "100", "--prefix-tokens", "1k",  "--context-max", "8k",
           "--duration",   "3600",     "--out",           out});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_NE(made.err.find("drawn: turns "), std::string::npos) << made.err;
  const Json info = Json::parse(run({"trace", "info", out, "--block-tokens", "64", "--json"}).out);
  EXPECT_NEAR(info.at("output").at("mean").get<double>(), 100, 10);
  EXPECT_LE(info.at("input").at("max").get<double>(), 8000);
  const Outcome named =
      run({"trace", "generate", "--workload", "chat", "--requests-per-second", "1", "--out", folder_ / "chat.jsonl"});
  EXPECT_EQ(named.exit_code, 0) << named.err;
  const Outcome kind = run({"trace", "generate", "--users", "5", "--kind", "chat", "--out", folder_ / "x.jsonl"});
  EXPECT_EQ(kind.exit_code, 2);
  EXPECT_NE(kind.err.find("--users: is of conversations, and --kind is chat"), std::string::npos) << kind.err;
  const Outcome few = run({"trace", "generate", "--turns", "4", "--out", folder_ / "x.jsonl"});
  EXPECT_NE(few.err.find("--requests-per-second: is not given"), std::string::npos) << few.err;
}

}  // namespace
}  // namespace kvtwin::test
