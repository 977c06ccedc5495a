#include "models/engine_pools.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/paths.hpp"

namespace kvtwin {
namespace {

// A row of tests/fixtures/sglang/pools.tsv: the sizes that SGLang's own configurators and host pools compute.
struct Row {
  std::string model, strategy;
  std::uint32_t tp = 1, dp = 1, page = 1, draft_tokens = 0;
  std::uint64_t bytes = 0, states_given = 0, running = 0, host_gb = 0;
  double window_ratio = 0, state_ratio = 0, host_ratio = 0;
  std::uint64_t full = 0, window = 0, states = 0, max_running = 0, host_full = 0, host_window = 0, host_states = 0;
  friend void PrintTo(const Row& row, std::ostream* out) { *out << row.model; }
};

std::vector<Row> rows() {
  std::ifstream file(in_source("tests/fixtures/sglang/pools.tsv"));
  std::vector<Row> all;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#") || line.starts_with("model\t")) continue;
    std::istringstream cells(line);
    Row r;
    cells >> r.model >> r.tp >> r.dp >> r.page >> r.bytes >> r.window_ratio >> r.state_ratio >> r.states_given >>
        r.running >> r.strategy >> r.draft_tokens >> r.host_ratio >> r.host_gb >> r.full >> r.window >> r.states >>
        r.max_running >> r.host_full >> r.host_window >> r.host_states;
    if (!cells.fail()) all.push_back(r);
  }
  return all;
}

class SglangPools : public testing::TestWithParam<Row> {};
INSTANTIATE_TEST_SUITE_P(Fixture, SglangPools, testing::ValuesIn(rows()), [](const auto& row) {
  std::string name = row.param.model + "_" + std::to_string(row.index);
  std::ranges::replace_if(
      name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
});

// The model as SGLang serves it: with the KV of all tokens in window layers, where SGLang keeps it.
ModelGeometry model_of(const Row& row) {
  ModelGeometry model = model_preset(row.model, KvDtype::bf16);
  const bool with_host = row.host_ratio != 0 || row.host_gb != 0;
  if (model.window != 0 && sglang_keeps_whole_windows(model, with_host)) model.page_windows();
  return model;
}

SglangPoolOptions options_of(const Row& row, const ModelGeometry& model) {
  SglangPoolOptions options;
  options.tp = row.tp / row.dp;
  options.page_tokens = row.page;
  options.window_ratio = row.window_ratio;
  options.state_ratio = row.state_ratio;
  options.states = row.states_given;
  options.states_per_request = row.strategy == "no_buffer" ? 3 : row.strategy == "extra_buffer_lazy" ? 4 : 5;
  options.max_running = static_cast<std::uint32_t>(row.running / row.dp);
  options.draft_tokens = row.draft_tokens;
  if (row.draft_tokens != 0 && model.model_type != "deepseek_v4") {  // one more layer with full attention
    const auto full = std::ranges::find_if(
        model.layers, [](const LayerGeometry& layer) { return !layer.rows.empty() && layer.rows.front().window == 0; });
    options.draft_token_bytes = model.rank_token_bytes(*full, full->rows.front(), options.tp);
  }
  return options;
}

void expect_near(std::uint64_t ours, std::uint64_t theirs, const char* what) {
  constexpr double kMostDifference = 0.02;
  EXPECT_NEAR(static_cast<double>(ours), static_cast<double>(theirs), kMostDifference * static_cast<double>(theirs))
      << what;
}

std::uint64_t slots_of(const std::vector<PoolSize>& pools, PoolKind kind) {
  const auto found = std::ranges::find(pools, kind, &PoolSize::kind);
  return found == pools.end() ? 0 : found->slots;
}

TEST_P(SglangPools, HaveTheSizesOfSglang) {
  const Row& row = GetParam();
  const ModelGeometry model = model_of(row);
  const SglangPoolOptions options = options_of(row, model);
  ASSERT_EQ(has_several_pools(model), row.window != 0 || row.states != 0);
  const DevicePools device = sglang_pools(model, row.bytes, options);
  expect_near(device.pools.front().slots, row.full, "full");
  expect_near(slots_of(device.pools, PoolKind::window), row.window, "window");
  expect_near(slots_of(device.pools, PoolKind::state), row.states, "states");
  if (row.states != 0) {
    const std::uint64_t wanted = row.running == 0 ? device.max_running : row.running / row.dp;
    EXPECT_EQ(std::min(device.max_running, wanted), row.max_running);
  }
  Bytes used = device.reserved;
  for (const PoolSize& pool : device.pools) used += pool.bytes();
  EXPECT_LE(used, row.bytes);
  if (row.host_ratio == 0 && row.host_gb == 0) return;
  const std::vector<PoolSize> host = row.host_gb == 0 ? sglang_host_pools(device, row.host_ratio)
                                                      : sglang_host_pools(device, Bytes{row.host_gb} * 1'000'000'000);
  expect_near(slots_of(host, PoolKind::full), row.host_full, "host full");
  expect_near(slots_of(host, PoolKind::window), row.host_window, "host window");
  expect_near(slots_of(host, PoolKind::state), row.host_states, "host states");
}

TEST(SglangPoolTable, HasThirteenModelsDeviceAndHost) {
  const std::vector<Row> all = rows();
  std::vector<std::string> names;
  for (const Row& row : all) names.push_back(row.model);
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  EXPECT_EQ(names.size(), 13U);
  EXPECT_TRUE(std::ranges::any_of(all, [](const Row& row) { return row.host_window != 0; }));
  EXPECT_TRUE(std::ranges::any_of(all, [](const Row& row) { return row.host_states != 0; }));
}

TEST(EnginePools, PlainModelsHaveOnePool) {
  for (const char* name : {"llama-3.1-8b", "deepseek-v3", "deepseek-v3.2", "minimax-m3", "tiny"}) {
    EXPECT_FALSE(has_several_pools(model_preset(name))) << name;
  }
  ModelGeometry whole = model_preset("gpt-oss-120b");
  EXPECT_TRUE(has_several_pools(whole));
  ASSERT_TRUE(whole.page_windows());
  EXPECT_FALSE(has_several_pools(whole));
}

TEST(EnginePools, FewModelsHaveAPoolForWindows) {
  EXPECT_FALSE(sglang_keeps_whole_windows(model_preset("gpt-oss-20b"), true));
  EXPECT_FALSE(sglang_keeps_whole_windows(model_preset("llama-4-scout"), true));
  EXPECT_TRUE(sglang_keeps_whole_windows(model_preset("gemma-3-27b"), false));
  EXPECT_FALSE(sglang_keeps_whole_windows(model_preset("step-3.7-flash"), false));
  EXPECT_TRUE(sglang_keeps_whole_windows(model_preset("step-3.7-flash"), true));
}

TEST(EnginePools, AFullPoolOfGivenTokensHasWindowsAndStatesBesideIt) {
  SglangPoolOptions options;
  options.page_tokens = 64;
  options.full_tokens = 64'000;
  const DevicePools windows = sglang_pools(model_preset("gpt-oss-120b"), 0, options);
  EXPECT_EQ(windows.pools.front().slots, 64'000U);
  EXPECT_EQ(windows.find(PoolKind::window)->slots, 51'200U);
  EXPECT_EQ(windows.find(PoolKind::state), nullptr);
  const DevicePools states = sglang_pools(model_preset("qwen3-next-80b-a3b"), 40'000'000'000, options);
  EXPECT_EQ(states.pools.front().slots, 64'000U);
  EXPECT_EQ(states.find(PoolKind::state)->slots, 244U) << "as without the limit on tokens";
  EXPECT_EQ(states.max_running, 48U);
}

TEST(EnginePools, APoolThatHoldsNoRequestIsAnError) {
  SglangPoolOptions options;
  options.page_tokens = 64;
  const auto error_of = [&](const char* name, Bytes room) {
    try {
      sglang_pools(model_preset(name), room, options);
    } catch (const ModelError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(error_of("gpt-oss-120b", 10'000'000).find("one request needs more than a window of 128"),
            std::string::npos);
  EXPECT_NE(error_of("qwen3-next-80b-a3b", 500'000'000).find("a running request needs 5"), std::string::npos);
  EXPECT_NE(error_of("deepseek-v4-flash", 1'000'000'000).find("less than a page"), std::string::npos);
}

// A row of tests/fixtures/vllm/pools.tsv: the blocks by vLLM's own planning of groups.
struct BlockRow {
  std::string model;
  std::uint32_t tp = 1;
  std::uint64_t block = 0, bytes = 0, blocks = 0, block_bytes = 0, block_tokens = 0, full = 0, window = 0, state = 0;
};

TEST(VllmBlockPool, HasTheBlocksOfVllm) {
  std::ifstream file(in_source("tests/fixtures/vllm/pools.tsv"));
  std::size_t compared = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#") || line.starts_with("model\t")) continue;
    SCOPED_TRACE(line);
    std::istringstream cells(line);
    BlockRow r;
    cells >> r.model >> r.tp >> r.block >> r.bytes >> r.blocks >> r.block_bytes >> r.block_tokens >> r.full >>
        r.window >> r.state;
    ASSERT_FALSE(cells.fail());
    const ModelGeometry model = model_preset(r.model, KvDtype::bf16);
    ASSERT_TRUE(has_block_pool(model));
    const BlockPool pool = vllm_block_pool(model, r.bytes, r.tp, r.block);
    EXPECT_EQ(pool.blocks, r.blocks);
    EXPECT_EQ(pool.block_bytes, r.block_bytes);
    EXPECT_EQ(pool.block_tokens, r.block_tokens);
    EXPECT_EQ(pool.full_groups, r.full);
    EXPECT_EQ(pool.window_groups, r.window);
    EXPECT_EQ(pool.state_groups, r.state);
    ++compared;
  }
  EXPECT_EQ(compared, 30U);
}

TEST(VllmBlockPool, APrefixTakesBlocksOfWindowsAndStates) {
  const BlockPool windows = vllm_block_pool(model_preset("gpt-oss-120b"), 40'000'000'000, 1, 16);
  EXPECT_EQ(windows.tokens(), 1'085'056U);
  EXPECT_EQ(windows.blocks_of_prefix(), 8U) << "127 tokens in blocks of 16";
  const BlockPool states = vllm_block_pool(model_preset("qwen3-next-80b-a3b"), 40'000'000'000, 1, 16);
  EXPECT_EQ(states.blocks_of_prefix(), 3U);
  EXPECT_EQ(windows.padding, 0) << "18 layers of each kind, with equal rows";
  EXPECT_NEAR(states.padding, 0.0057, 0.0001) << "2,146,304 bytes of a state in 1,056 rows of 2,048 bytes";
  // 6 full layers and 23 with states in groups of 6: one block of 30 has no layer, the states fill the rest nearly.
  EXPECT_NEAR(vllm_block_pool(model_preset("nemotron-3-nano-30b-a3b"), 40'000'000'000, 1, 16).padding, 1.0 / 30, 0.01);
  EXPECT_FALSE(has_block_pool(model_preset("llama-3.1-8b")));
  EXPECT_FALSE(has_block_pool(model_preset("deepseek-v4-flash")));
}

}  // namespace
}  // namespace kvtwin
