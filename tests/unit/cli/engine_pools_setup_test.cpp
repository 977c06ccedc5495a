// Pools of a model with several kinds of KV, in the report of the program.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "policy/base/types.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

TEST(EnginePoolsSetup, TheReportNamesEachPool) {
  const Folder folder;
  const Simulated run = simulate(conversations({.requests = 20}, 1).save(folder) +
                                 Settings{"model.name=gpt-oss-120b", "tiers.device.gib=4", "tiers.host.ratio=2"});
  const Json& pools = run.report.at("pools");
  ASSERT_EQ(pools.size(), 4U);
  EXPECT_EQ(pools[0].at("name").get<std::string>(), "full");
  EXPECT_EQ(pools[0].at("closure").get<std::string>(), "path");
  EXPECT_EQ(pools[0].at("tier").get<std::string>(), "device");
  EXPECT_EQ(pools[1].at("name").get<std::string>(), "window");
  EXPECT_EQ(pools[1].at("closure").get<std::string>(), "tail(128)");
  EXPECT_EQ(pools[1].at("unit").get<std::string>(), "tokens");
  EXPECT_EQ(pools[3].at("tier").get<std::string>(), "host");
  EXPECT_LE(pools[0].at("bytes_per_rank").get<Bytes>() + pools[1].at("bytes_per_rank").get<Bytes>(), Bytes{4} << 30);
}

TEST(EnginePoolsSetup, TheReportHasVllmsBlocks) {
  const Folder folder;
  const Settings settings =
      conversations({.requests = 20}, 1).save(folder) + Settings{"model.name=gpt-oss-120b", "model.kv_dtype=bf16",
                                                                 "tiers.device.gib=4",      "engine=vllm",
                                                                 "hardware.operators=none", "cache.page_tokens=16"};
  const Simulated run = simulate(settings);
  const Json& pools = run.report.at("pools");
  ASSERT_EQ(pools.size(), 1U);
  EXPECT_EQ(pools[0].dump(), (Json{{"name", "blocks"},
                                   {"tier", "device"},
                                   {"capacity", 7281},
                                   {"unit", "blocks"},
                                   {"bytes_per_rank", 7281 * 589'824ULL},
                                   {"block_bytes", 589'824},
                                   {"block_tokens", 16},
                                   {"groups", {{"full", 1}, {"window", 1}, {"state", 0}}},
                                   {"padding", 0.0},
                                   {"used_max", 2203},
                                   {"evicted", {{"full", 0}, {"window", 0}, {"state", 0}}}})
                                 .dump());
  write_text(folder / "empty.toml", "seed = 1\n");
  std::vector<std::string> words{"simulate", folder / "empty.toml"};
  for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
  const std::string text = test::run(words).out;
  EXPECT_NE(text.find("pool       blocks, device: 7281 blocks of 589824 bytes (16 tokens of full attention), 4.00 GiB "
                      "a GPU; groups of layers: 1 full, 1 window, 0 state; 0.0 % padding; "
                      "2203 blocks used at most; evicted: 0 of full attention, 0 of windows, 0 of states\n"),
            std::string::npos)
      << text;
}

// The columns of requests.csv sum up to the report, and metrics.prom has each pool.
TEST(EnginePoolsSetup, RowsAndMetricsHaveWhatLackedAWindowOrAState) {
  const Folder folder;
  const Settings settings = conversations({.requests = 60}, 1).save(folder) +
                            Settings{"model.name=qwen3-next-80b-a3b", "tiers.device.gib=8", "tiers.device.states=20",
                                     "tiers.host.ratio=2", "tiers.disk.gib=100"};
  write_text(folder / "empty.toml", "seed = 1\n");
  std::vector<std::string> words{"simulate", folder / "empty.toml", "--json", "--out", folder / "run"};
  for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
  const Json report = test::run(words).json();
  const Table table(text_of(folder / "run/requests.csv"));
  ASSERT_EQ(table.size(), 60U);
  std::uint64_t unusable = 0;
  for (std::size_t row = 0; row < table.size(); ++row) {
    const auto of = [&](const char* column) { return static_cast<std::uint64_t>(table.integer(row, column)); };
    unusable += of("unusable");
    EXPECT_LE(of("unusable"), of("miss"));
    EXPECT_EQ(of("without_window"), 0U);
    EXPECT_EQ(of("without_state"), of("unusable"));
  }
  EXPECT_GT(unusable, 0U);
  EXPECT_EQ(report.at("tokens").at("unusable").get<std::uint64_t>(), unusable);
  const std::string metrics = text_of(folder / "run/metrics.prom");
  for (const char* line : {"kvtwin:pool_slots{pool=\"state\",tier=\"device\"} 20\n",
                           "kvtwin:pool_used_slots_max{pool=\"full\",tier=\"host\"} ",
                           "kvtwin:pool_evicted_slots_total{pool=\"state\",tier=\"device\"} "}) {
    EXPECT_NE(metrics.find(line), std::string::npos) << line;
  }
  EXPECT_NE(metrics.find("kvtwin:unusable_tokens_total " + std::to_string(unusable) + "\n"), std::string::npos);
  const Json& pools = report.at("pools");
  const Json& last = pools[pools.size() - 1];
  EXPECT_EQ(last.at("tier").get<std::string>(), "disk");
  EXPECT_GT(last.at("written").get<std::uint64_t>(), 0U);
}

}  // namespace
}  // namespace kvtwin::test
