// kvtwin simulate --draws and compare --draws --goal, as a user sees them.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/hardware_file.hpp"
#include "tests/paths.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

class DrawsCommand : public testing::Test {
 protected:
  DrawsCommand() { write_text(folder_ / "x.toml", kReturning); }
  Outcome simulate(const std::vector<std::string>& more) const {
    std::vector<std::string> words{"simulate", folder_ / "x.toml", "--world", kAnyWorld};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  Json report(const std::vector<std::string>& more) const {
    std::vector<std::string> words = more;
    words.emplace_back("--json");
    const Outcome outcome = simulate(words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return Json::parse(outcome.out);
  }
  // Returns the setting for a cpu-host file in which one number has the interval [value / times, value * times].
  std::string calibrated(const std::string& key, double times) const {
    Json machine = Json::parse(text_of(fs::path(kSourceFolder) / "models/presets/hardware/cpu-host.json"));
    Json& number = machine["numbers"][key];
    number["low"] = number.at("value").get<double>() / times;
    number["high"] = number.at("value").get<double>() * times;
    write_text(folder_ / (key + ".json"), machine.dump());
    return "hardware.file=" + (folder_ / (key + ".json"));
  }
  const Folder folder_;
};

TEST_F(DrawsCommand, TellWhatTheAnswerHangsOn) {
  const std::string slow_products = calibrated("gemm_fraction", 1.2);
  const Json with = report({"--set", slow_products, "--draws", "40", "--jobs", "1"});
  const Json& draws = with.at("draws");
  EXPECT_EQ(draws.at("count"), 40);
  EXPECT_EQ(draws.at("numbers"), 1);
  ASSERT_EQ(draws.at("hangs_on").size(), 1U);
  const Json& cause = draws.at("hangs_on")[0];
  EXPECT_EQ(cause.at("number"), "gemm_fraction");
  EXPECT_NEAR(cause.at("low").get<double>(), 1 / 1.2, 1e-9);
  EXPECT_GT(cause.at("ttft_mean_s").at("at_low"), cause.at("ttft_mean_s").at("at_high"));
  const Json& ttft = draws.at("figures").at("ttft_mean_s");
  EXPECT_LT(ttft.at("low"), ttft.at("median"));
  EXPECT_LT(ttft.at("median"), ttft.at("high"));
  EXPECT_NEAR(ttft.at("value").get<double>(), with.at("ttft_seconds").at("mean").get<double>(),
              0.002 * ttft.at("value").get<double>());
  EXPECT_LT(ttft.at("low"), ttft.at("value"));
  EXPECT_GT(ttft.at("high"), ttft.at("value"));
  // The run itself is the same as without draws, and the draws are the same whatever the number of parallel jobs.
  Json same = without_costs(report({"--set", slow_products, "--draws", "40", "--jobs", "3"}));
  EXPECT_EQ(same, without_costs(with));
  same.erase("draws");
  EXPECT_EQ(same, without_costs(report({"--set", slow_products})));
}

TEST_F(DrawsCommand, WhatNothingAsksMovesNothing) {
  const Json draws = report({"--set", calibrated("nic_bandwidth", 2), "--draws", "3"}).at("draws");
  EXPECT_TRUE(draws.at("hangs_on").empty());
  const Json& ttft = draws.at("figures").at("ttft_mean_s");
  EXPECT_EQ(ttft.at("low"), ttft.at("high"));
  const Outcome outcome = simulate({"--set", calibrated("nic_bandwidth", 2), "--draws", "3"});
  EXPECT_NE(outcome.out.find("hangs on   no figure"), std::string::npos) << outcome.out;
}

// A mean TTFT that no variant has is no evidence that no number moves it.
TEST_F(DrawsCommand, WithoutACompletedRequestNothingIsKnown) {
  const Outcome outcome =
      simulate({"--set", calibrated("gemm_fraction", 1.2), "--draws", "3", "--set", "tiers.device.tokens=64"});
  EXPECT_NE(outcome.out.find("hangs on   not known: no request has a first token"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("none of them changes"), std::string::npos) << outcome.out;
}

TEST_F(DrawsCommand, ASpreadIsForPresets) {
  const Json draws = report({"--set", "hardware.spread_percent=10", "--draws", "3"}).at("draws");
  EXPECT_EQ(draws.at("spread_percent"), 10);
  EXPECT_GT(draws.at("numbers"), 20);
  EXPECT_GT(draws.at("hangs_on").size(), 1U);
  const Outcome outcome = simulate({"--set", "hardware.spread_percent=10", "--draws", "3"});
  EXPECT_NE(outcome.out.find("draws      95 % of 3 hardware variants"), std::string::npos) << outcome.out;
}

// A link speed that is set in the experiment is uncertain, too, and so are the copy kernels that use the link: at the
// low end of the interval, copies take longer.
TEST_F(DrawsCommand, WhatIsSetMovesTheSameWay) {
  const std::vector<std::string> link{
      "--set", "hardware.set.host_link_gbps=0.5", "--set", "hardware.spread_percent=50", "--set", "cache.io=kernel"};
  const auto busy = [&](const char* end) {
    std::vector<std::string> words = link;
    words.insert(words.end(), {"--set", std::string("hardware.end=") + end});
    double seconds = 0;
    const Json told = report(words);
    for (const Json& lane : told.at("lanes")) {
      if (lane.at("name").get<std::string>().ends_with("h2d")) seconds += lane.at("busy_fraction").get<double>();
    }
    return seconds;
  };
  EXPECT_GT(busy("kernel_read:low"), busy("kernel_read:high"));
  EXPECT_GE(busy("host_to_device:low"), busy("host_to_device:high"));
}

TEST_F(DrawsCommand, AreRefusedClearly) {
  const auto refused = [&](const std::vector<std::string>& words, const std::vector<std::string>& parts) {
    const Outcome outcome = simulate(words);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    for (const std::string& part : parts) EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
  };
  refused({"--draws", "5"}, {"--draws 5", "cpu-host", "no figure", "hardware.spread_percent"});
  refused({"--draws", "1"}, {"--draws"});
  refused({"--jobs", "2"}, {"--jobs"});
  refused({"--draws", "5", "--set", "hardware.draw=3", "--set", "hardware.spread_percent=10"},
          {"hardware.draw", "leave it out"});
  refused({"--set", "hardware.draw=3"}, {"hardware.draw", "cpu-host", "interval"});
  refused({"--set", "hardware.end=gemm_fraction"}, {"hardware.end", "NUMBER:low"});
  refused({"--set", "hardware.end=gemm_fraction:low"}, {"hardware.end", "cpu-host has an interval"});
  fs::create_directory(folder_ / "full");
  write_text(folder_ / "full/mine.txt", "");
  refused({"--draws", "5", "--set", "hardware.spread_percent=10", "--out", folder_ / "full"},
          {"--out", "is not empty"});
  refused({"--set", "hardware.spread_percent=10", "--set", "hardware.end=gem_fraction:low"},
          {"hardware.end", "gem_fraction", "gemm_fraction"});
  EXPECT_EQ(simulate({"--set", "model.kv_bytes_per_token=512"}).exit_code, 0);
}

TEST_F(DrawsCommand, AResolvedExperimentIsDrawnAgain) {
  const std::string draws = "--draws";
  const auto first = simulate({draws, "2", "--set", "hardware.spread_percent=10", "--out", folder_ / "first"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const auto again =
      run({"simulate", folder_ / "first/experiment.resolved.toml", draws, "2", "--out", folder_ / "again"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(Json::parse(text_of(folder_ / "again/report.json")).at("draws"),
            Json::parse(text_of(folder_ / "first/report.json")).at("draws"));
  const auto compared = run({"compare", folder_ / "first/experiment.resolved.toml", "--vary", "cache.eviction=lru,tide",
                             draws, "2", "--out", folder_ / "compared"});
  EXPECT_EQ(compared.exit_code, 0) << compared.err;
}

TEST_F(DrawsCommand, CompareTellsFromWhichSizeOnAGoalIsMet) {
  std::vector<std::string> words{"compare", folder_ / "x.toml",
                                 "--world", kAnyWorld,
                                 "--vary",  "tiers.host.tokens=2048,8192,32768",
                                 "--set",   "hardware.spread_percent=5",
                                 "--draws", "5",
                                 "--goal",  "hit_ratio=0.3",
                                 "--out",   folder_ / "out"};
  const Outcome outcome = run(words);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("goal: hit_ratio at least 0.3, by tiers.host.tokens"), std::string::npos) << outcome.out;
  const Json told = Json::parse(text_of(folder_ / "out/compare.json"));
  EXPECT_EQ(told.at("draws"), 5);
  EXPECT_EQ(told.at("goal").at("along"), "tiers.host.tokens");
  ASSERT_EQ(told.at("goal").at("lines").size(), 1U);
  EXPECT_EQ(told.at("goal").at("lines")[0].at("from"), 32768) << told.dump() << outcome.out;
  words.insert(words.end(), {"--seeds", "2"});
  EXPECT_NE(run(words).err.find("--seeds"), std::string::npos);
  words.resize(words.size() - 2);
  words.insert(words.end(), {"--set", "hardware.draw=2"});
  const Outcome twice = run(words);
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_NE(twice.err.find("hardware.draw"), std::string::npos) << twice.err;
}

}  // namespace
}  // namespace kvtwin::test
