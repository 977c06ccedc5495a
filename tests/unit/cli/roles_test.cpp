// Engines that only prefill or only decode (cluster.prefill, cluster.decode), in the event world.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

Settings roles(const Folder& folder) {
  return conversations({.requests = 60, .gap_ms = 60}, 1).save(folder) +
         Settings{"tiers.device.tokens=20032", "tiers.host.tokens=60032", "cluster.prefill=1", "cluster.decode=2"};
}

class Roles : public testing::Test {
 protected:
  Outcome try_with(const Settings& more, const std::string& out = "", const std::vector<std::string>& options = {}) {
    const std::string experiment = folder_ / "experiment.toml";
    write_text(experiment, "");
    std::vector<std::string> arguments = simulate_arguments(experiment, roles(folder_) + more, out, kAnyWorld);
    arguments.insert(arguments.end(), options.begin(), options.end());
    return run(arguments);
  }
  Json report_with(const Settings& more) {
    const std::string out = folder_ / ("out" + std::to_string(++runs_));
    const Outcome outcome = try_with(more, out);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return Json::parse(text_of(out + "/report.json"));
  }
  void expect_refused(const Settings& more, const std::string& words) {
    const Outcome outcome = try_with(more);
    EXPECT_EQ(outcome.exit_code, 2) << words;
    EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
  }

  Folder folder_;
  int runs_ = 0;
};

TEST_F(Roles, EveryRequestIsHandedOverAndThePartsSumUp) {
  const Json report = report_with({});
  EXPECT_EQ(report.at("requests").at("completed"), 60);
  const Json& hand_overs = report.at("hand_overs");
  EXPECT_EQ(hand_overs.at("requests"), 60);
  EXPECT_EQ(hand_overs.at("prefill_engines"), 1);
  EXPECT_EQ(hand_overs.at("decode_engines"), 2);
  EXPECT_EQ(hand_overs.at("fell_back"), 0);
  EXPECT_GT(hand_overs.at("bytes").get<double>(), 0);
  double sum = 0;
  for (const auto& [part, mean] : report.at("ttft_parts_seconds").items()) sum += mean.get<double>();
  EXPECT_NEAR(sum, report.at("ttft_seconds").at("mean").get<double>(), 1e-6);
  EXPECT_GT(report.at("ttft_parts_seconds").at("hand_over").get<double>(), 0);
  EXPECT_EQ(report.at("engines").size(), 3U);
}

TEST_F(Roles, ShortPromptsStayWhole) {
  const Json report = report_with({"cluster.hand_over_min_tokens=1000000"});
  EXPECT_EQ(report.at("requests").at("completed"), 60);
  EXPECT_EQ(report.at("hand_overs").at("requests"), 0);
}

TEST_F(Roles, WhatTheDecodeEngineHasIsNotWrittenAgain) {
  const Json reuse = report_with({"cluster.decode=1"});
  const Json none = report_with({"cluster.decode=1", "cluster.decode_reuse=false"});
  EXPECT_LT(reuse.at("hand_overs").at("bytes").get<double>(), none.at("hand_overs").at("bytes").get<double>());
}

TEST_F(Roles, ADeadDecodeEnginesRequestsAreSentAgain) {
  const Json report = report_with({"cluster.dead_engine=2", "cluster.dead_at_s=1.5", "cluster.detect_s=0.2"});
  EXPECT_EQ(report.at("requests").at("completed"), 60);
  EXPECT_GT(report.at("hand_overs").at("sent_again").get<int>(), 0);
}

TEST_F(Roles, ADeadPrefillEnginesPromptsAreComputedWhereTheyDecode) {
  const Json report =
      report_with({"cluster.prefill=2", "cluster.dead_engine=0", "cluster.dead_at_s=1.5", "cluster.detect_s=0.2"});
  EXPECT_EQ(report.at("requests").at("completed"), 60);
  EXPECT_GT(report.at("hand_overs").at("fell_back").get<int>(), 0);
}

TEST_F(Roles, EachEnginesJournalIsReplayed) {
  const std::string out = folder_ / "recorded";
  ASSERT_EQ(try_with({}, out, {"--journal", "--timeline"}).exit_code, 0);
  const Outcome replayed = run({"replay", out});
  EXPECT_EQ(replayed.exit_code, 0) << replayed.out << replayed.err;
  std::size_t equal = 0;
  for (std::size_t at = replayed.out.find(": equal"); at != std::string::npos;
       at = replayed.out.find(": equal", at + 1)) {
    ++equal;
  }
  EXPECT_EQ(equal, 3U) << replayed.out;
  const std::string timeline = text_of(out + "/timeline.json");
  EXPECT_NE(timeline.find("lanes of engine 0, prefill"), std::string::npos);
  EXPECT_NE(timeline.find("hand-over"), std::string::npos);
}

// The parts of the two engines, told together, are the row of the request in requests.csv.
TEST_F(Roles, ExplainTellsBothPartsOfARequest) {
  const std::string out = folder_ / "recorded";
  ASSERT_EQ(try_with({}, out, {"--journal"}).exit_code, 0);
  const Table table(text_of(out + "/requests.csv"));
  for (std::size_t row = 0; row < table.size(); row += 7) {
    const std::string request = table.text(row, "request");
    const Json told = run({"explain", out, "--request", request, "--json"}).json();
    ASSERT_EQ(told.at("engines").size(), 2U) << request;
    EXPECT_EQ(told.at("engines").at(0).at("part"), "prefill");
    EXPECT_EQ(told.at("engines").at(1).at("part"), "decode");
    EXPECT_EQ(told.at("engines").at(1).at("engine"), table.integer(row, "engine"));
    for (const char* column : {"queue_s", "prefetch_wait_s", "load_wait_s", "compute_s", "hand_over_s", "ttft_s"}) {
      EXPECT_NEAR(told.at("together").at(column).get<double>(), table.number(row, column), 1e-9) << column;
    }
  }
  const Outcome words = run({"explain", out, "--request", "0"});
  for (const char* part :
       {"engine      0, prefill", "prompt      computed at", ", decode", " to receive", "engines     together\nTTFT"}) {
    EXPECT_NE(words.out.find(part), std::string::npos) << part << words.out;
  }
}

// Rows have the figures of the report, and empty cells without roles. The parts of the TTFT sum up to the mean.
TEST_F(Roles, RowsHaveTheHandOvers) {
  const std::string experiment = folder_ / "experiment.toml";
  const Json report = report_with({});
  std::vector<std::string> words{"sweep", experiment,        "--world", kAnyWorld,
                                 "--out", folder_ / "sweep", "--vary",  "cluster.prefill=0,1"};
  for (const std::string& setting : roles(folder_) + Settings{"cluster.decode=0", "cluster.engines=3"}) {
    if (!setting.starts_with("cluster.prefill")) words.insert(words.end(), {"--set", setting});
  }
  const Outcome swept = run(words);
  ASSERT_EQ(swept.exit_code, 0) << swept.err;
  const Table table(text_of(folder_ / "sweep/sweep.csv"));
  ASSERT_EQ(table.size(), 2U);
  for (const char* column : {"ttft_hand_over_s", "hand_over_mean_s", "hand_over_p99_s", "hand_over_bytes"}) {
    EXPECT_EQ(table.text(0, column), "") << column;
  }
  const Json& times = report.at("hand_over_seconds");
  EXPECT_NEAR(table.number(1, "hand_over_mean_s"), times.at("mean").get<double>(), 1e-9);
  EXPECT_NEAR(table.number(1, "hand_over_p99_s"), times.at("p99").get<double>(), times.at("p99").get<double>() / 1000);
  EXPECT_EQ(table.number(1, "hand_over_bytes"), report.at("hand_overs").at("bytes").get<double>());
  double parts = 0;
  for (const char* part : {"queue", "prefetch_wait", "load_wait", "compute", "hand_over"}) {
    parts += table.number(1, std::string("ttft_") + part + "_s");
  }
  EXPECT_NEAR(parts, report.at("ttft_seconds").at("mean").get<double>(), 1e-6);
  EXPECT_NEAR(table.number(1, "ttft_mean_s"), parts, 1e-9);

  words.front() = "compare";
  words[5] = folder_ / "compare";
  words[7] = "cluster.prefill=1,2";
  const Outcome compared = run(words);
  ASSERT_EQ(compared.exit_code, 0) << compared.err;
  EXPECT_NE(compared.out.find("hand-over p99 s"), std::string::npos) << compared.out;
}

TEST_F(Roles, AStageHasTheTimeOfItsHandOvers) {
  const std::string experiment = folder_ / "staged.toml", out = folder_ / "staged";
  write_text(experiment, "");
  const Settings set{"model.name=tiny",
                     "hardware.name=cpu-host",
                     "tiers.device.tokens=20032",
                     "cluster.prefill=1",
                     "cluster.decode=1",
                     "workload.loop=closed",
                     "workload.generate.kind=groups",
                     "workload.generate.groups=1",
                     "workload.generate.prompts_per_group=40",
                     "workload.generate.prefix_tokens=0",
                     "workload.generate.question_tokens=1024",
                     "workload.generate.output_tokens=16",
                     "workload.generate.stages=2x20,4x20"};
  const Outcome outcome = run(simulate_arguments(experiment, set, out, kAnyWorld));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json report = Json::parse(text_of(out + "/report.json"));
  ASSERT_EQ(report.at("stages").size(), 2U);
  for (const Json& stage : report.at("stages")) {
    double sum = 0;
    for (const auto& [part, mean] : stage.at("ttft_parts_seconds").items()) sum += mean.get<double>();
    EXPECT_NEAR(sum, stage.at("ttft_seconds").at("mean").get<double>(), 1e-6);
    EXPECT_GT(stage.at("hand_over_seconds").at("p99").get<double>(), 0);
  }
}

TEST_F(Roles, EnginesThatDoNotPrefillDecode) {
  const Json rest = report_with({"cluster.decode=0", "cluster.engines=3"});
  EXPECT_EQ(rest.at("hand_overs").at("decode_engines"), 2);
  EXPECT_EQ(rest.at("decisions"), report_with({}).at("decisions"));
}

// Each byte crosses the host memory of both sides twice, and no lane but `peer` has other bytes here.
TEST_F(Roles, StagedHandOversUseTheHostMemoryOfBothSides) {
  const Json report = report_with({"cluster.hand_over_staged=true", "tiers.host.tokens=0"});
  double peer = 0, prefill = 0, decode = 0;
  for (const Json& lane : report.at("lanes")) {
    const auto name = lane.at("name").get<std::string>();
    const double bytes = lane.at("bytes").get<double>();
    if (name.ends_with(".peer")) peer += bytes;
    if (name == "engine0.dram") prefill += bytes;
    if (name.ends_with(".dram") && name != "engine0.dram") decode += bytes;
  }
  EXPECT_GT(peer, 0);
  EXPECT_EQ(prefill, 2 * peer);
  EXPECT_EQ(decode, 2 * peer);
}

// The draft model is the target once more, so its KV doubles the bytes of a page, wherever it lies.
TEST_F(Roles, ADraftModelsKvIsHandedOverWithThePages) {
  const auto page_bytes = [](const Json& report) {
    return report.at("hand_overs").at("bytes").get<double>() / report.at("hand_overs").at("pages").get<double>();
  };
  const double target = page_bytes(report_with({"model.name=tiny"}));
  for (const char* kind : {"packed", "side_pool"}) {
    SCOPED_TRACE(kind);
    const Json report = report_with({"model.name=tiny", std::string("model.draft.kind=") + kind,
                                     "model.draft.config=tiny", "model.draft.accept_length=2.5"});
    EXPECT_EQ(page_bytes(report), 2 * target);
    double moved = 0, parts = 0;
    for (const auto& lane : report.at("lanes")) {
      if (!lane.at("name").get<std::string>().ends_with("dram")) moved += lane.at("bytes").get<double>();
    }
    for (const auto& part : report.at("components")) parts += part.at("bytes").get<double>();
    EXPECT_EQ(parts, moved);
  }
  const Json alone = report_with({"model.name=tiny",
                                  "cluster.decode_set=model.draft.kind=side_pool, "
                                  "model.draft.config=tiny, model.draft.accept_length=2.5"});
  EXPECT_EQ(page_bytes(alone), target) << "no page of a prefill engine has it";
}

TEST_F(Roles, TheReportHasTheNotesOfTheDecodeEngines) {
  const Json report = report_with({"cluster.decode_set=hardware.set.host_link_gbps=10"});
  std::string notes;
  for (const Json& note : report.at("notes")) notes += note.get<std::string>() + "\n";
  EXPECT_NE(notes.find("decode engines: hardware.set.host_link_gbps: "), std::string::npos) << notes;
}

TEST_F(Roles, AreRefusedInOneSentence) {
  expect_refused({"cluster.decode=0", "cluster.engines=1"}, "let cluster.engines be more than cluster.prefill");
  expect_refused({"cluster.decode=0"}, "cluster.decode is 0; give each role at least one engine");
  expect_refused({"cluster.engines=2"}, "give 3 engines; leave it out");
  expect_refused({"parallel.tp=2", "parallel.rank_model=instances"}, "move their ranks in lockstep");
  for (const char* kind : {"packed", "side_pool"}) {
    expect_refused({std::string("model.draft.kind=") + kind, "model.draft.config=tiny", "model.draft.accept_length=2.5",
                    "model.draft.restore=false"},
                   "hand the draft model's KV of all pages over");
  }
  expect_refused({"model.draft.kind=side_pool", "model.draft.config=tiny", "model.draft.accept_length=2.5",
                  "cluster.decode_set=model.draft.kind=none"},
                 "do not have the draft model of the prefill engines");
  expect_refused({"cluster.decode_set=cache.page_tokens=32"}, "decode engines' pages are not the prefill engines'");
  expect_refused({"cluster.decode_set=cluster.route=score"}, "the same for all engines");
  expect_refused({"cluster.dead_engine=0"}, "the only engine that could serve its requests");
  expect_refused({"cluster.dead_engine=3"}, "the engines are 0 to 2");
}

}  // namespace
}  // namespace kvtwin::test
