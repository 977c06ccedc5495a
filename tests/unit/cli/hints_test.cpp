// What hints change, in the report and in a comparison.
#include <gtest/gtest.h>

#include <string>

#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

// A pinned session comes back after others that fill the device.
std::string pinned_trace(const Folder& folder) {
  std::string text;
  for (std::uint64_t i = 0; i < 60; ++i) {
    const std::uint64_t session = i % 10 == 0 ? 1 : i + 2;
    text += R"({"timestamp":)" + std::to_string(500 * i) + R"(,"input_length":256,"output_length":4,"hash_ids":[)";
    for (std::uint64_t block = 0; block < 4; ++block) {
      text += (block == 0 ? "" : ",") + std::to_string(4 * session + block);
    }
    text += R"(],"session":)" + std::to_string(session) + "}\n";
    if (i == 0)
      text += R"({"timestamp":1,"hint":"pin","session":1})"
              "\n";
  }
  write_text(folder / "pinned.jsonl", text);
  return "workload.trace=" + folder / "pinned.jsonl";
}

Settings small(const Folder& folder) {
  return {pinned_trace(folder),   "workload.block_tokens=64", "model.name=tiny",    "hardware.name=cpu-host",
          "cache.page_tokens=64", "tiers.device.tokens=1024", "tiers.host.tokens=0"};
}

TEST(HintsInReports, ShowWhatTheyAreWorthAndWhatTheyCost) {
  const Folder folder;
  const Json obeyed = simulate(small(folder) + Settings{"cache.hints=obey"}).report;
  const Json ignored = simulate(small(folder) + Settings{"cache.hints=ignore"}).report;
  for (const Json* report : {&obeyed, &ignored}) {
    EXPECT_EQ(report->at("hinted").at("requests"), 5) << "the first request came before the hint";
    EXPECT_EQ(report->at("not_hinted").at("requests"), 55);
    EXPECT_EQ(report->at("hinted").at("prompt_tokens"), 5 * 256);
  }
  EXPECT_EQ(obeyed.at("hinted").at("hit_tokens"), 5 * 192);
  EXPECT_EQ(ignored.at("hinted").at("hit_tokens"), 0);
  EXPECT_LT(obeyed.at("hinted").at("ttft_seconds").at("mean").get<double>(),
            ignored.at("hinted").at("ttft_seconds").at("mean").get<double>());
  EXPECT_EQ(obeyed.at("holds").at("begun"), 1);
  EXPECT_EQ(obeyed.at("holds").at("refused"), 0);
  EXPECT_EQ(obeyed.at("holds").at("pages_max").at("device"), 4);
  EXPECT_FALSE(ignored.contains("holds"));
}

TEST(HintsInReports, WithoutHintsNothingIsShown) {
  const Json plain = simulate(Settings{"workload.limit=5"}).report;
  for (const char* key : {"hinted", "not_hinted", "holds"}) EXPECT_FALSE(plain.contains(key)) << key;
}

}  // namespace
}  // namespace kvtwin::test
