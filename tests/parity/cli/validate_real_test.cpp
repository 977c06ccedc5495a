// kvtwin validate that runs the experiment itself. The test checks the results, but no times.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/real_run.hpp"

#if KVTWIN_TEST_REAL

namespace kvtwin::test {
namespace {

TEST(ValidateReal, RunsExperimentsItselfAndPredictsThem) {
  const Folder folder;
  const Settings settings =
      small_model(folder) + conversations({.requests = 30, .output = 4, .gap_ms = 2}, 1).save(folder) +
      Settings{"hardware.name=cpu-host",  "cache.page_tokens=16",     "tiers.device.tokens=12032",
               "tiers.host.tokens=20032", "tiers.disk.tokens=100000", std::string("sim.world=") + kAnyWorld};
  write_text(folder / "work.toml", kNoEngine);
  const std::string out = folder / "out";
  std::vector<std::string> arguments{"validate",
                                     "--experiments",
                                     folder / "work.toml",
                                     "--repeats",
                                     "2",
                                     "--vary",
                                     "cache.eviction=lru,fifo",
                                     "--device",
                                     "host",
                                     "--out",
                                     out,
                                     "--json"};
  for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
  const Outcome outcome = run(arguments);
  const Json json = outcome.json();
  ASSERT_EQ(json.at("cells").size(), 2U);
  for (const Json& cell : json.at("cells")) {
    EXPECT_EQ(cell.at("runs"), 2) << cell.at("cell");
    EXPECT_EQ(cell.at("requests").at("joined"), 30);
    EXPECT_FALSE(cell.at("requests").at("spread").is_null());
    EXPECT_FALSE(cell.at("decisions").is_null());
    for (const Json& figure : cell.at("figures")) {
      if (figure.at("figure") == "ttft_mean_s") {
        EXPECT_GT(figure.at("measured"), 0);
      }
    }
    // Each repeat had its own disk folder, so none found pages of another repeat.
    for (const Json& figure : cell.at("figures")) {
      if (figure.at("figure") == "hit_ratio") {
        EXPECT_LT(figure.at("measured"), 0.95);
      }
    }
  }
  EXPECT_EQ(json.at("cells")[1].at("cell"), "work cache.eviction=fifo");
  EXPECT_EQ(json.at("choices").size(), 1U);
  EXPECT_TRUE(fs::exists(fs::path(out) / "measured/002-work-cache.eviction-fifo.2/journal.kvj"));
  for (const auto& entry : fs::directory_iterator(out)) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("disk-")) << "left behind: " << entry.path();
  }
  // The folders that it wrote are normal run folders.
  const Outcome again = run({"validate", out + "/measured/001-work-cache.eviction-lru.1",
                             out + "/measured/001-work-cache.eviction-lru.2", "--json"});
  EXPECT_EQ(again.json().at("cells").size(), 1U) << "repeats are known by what they ran";
}

TEST(ValidateReal, PassesOnWhatARunComplainsOf) {
  const Folder folder;
  write_text(folder / "bad.toml", "[cache]\npage_tokens = 16\neviction = \"lruu\"\n");
  const Outcome outcome = run({"validate", "--experiments", folder / "bad.toml", "--repeats", "1"});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find("bad.toml:3"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace kvtwin::test

#endif
