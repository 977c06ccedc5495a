// Launches of passes without a CUDA graph.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "models/operator_cost.hpp"
#include "models/presets.hpp"
#include "models/roofline.hpp"
#include "models/serving_times.hpp"

namespace kvtwin::test {
namespace {

const std::string kHead = "kvtwin-operators 1\ngpu g\nengine sglang\nsource s\ndate 2026-11-25\n";

ForwardShape prefill(Tokens tokens) {
  ForwardShape s;
  s.prefill_tokens = tokens;
  s.prefill_pairs = tokens * (tokens + 1) / 2;
  s.prefill_sequences = 1;
  return s;
}

ForwardShape decode(std::uint32_t sequences) {
  ForwardShape s;
  s.decode_sequences = sequences;
  s.decode_context_tokens = sequences * Tokens{1000};
  return s;
}

ServingTimes of(ServingEngine engine) {
  ServingTimes times;
  times.engine = engine;
  return times;
}

TEST(Launches, CountTheKernelsOfALayer) {
  // Two norms; query, key and value, rotary embedding, the write to the cache, attention and output; two products and
  // the activation.
  const ModelGeometry dense = model_preset("llama-3.1-8b");
  EXPECT_EQ(launched_kernels(dense, of(ServingEngine::sglang), false), 32U * (2 + 5 + 3));
  // DeepSeek-V3 in fp8: 15 kernels of the attention, three layers with five kernels, 58 with experts.
  const ModelGeometry deepseek = model_preset("deepseek-v3");
  EXPECT_EQ(launched_kernels(deepseek, of(ServingEngine::sglang), false),
            61U * (2 + 15) + 3 * 5 + 58 * (2 + 7 + 5 + 1));
  EXPECT_EQ(launched_kernels(deepseek, of(ServingEngine::trtllm), true), 61U * (2 + 15) + 3 * 5 + 58 * (2 + 2 + 5 + 1));
}

TEST(Launches, CountTheKernelsOfStatesAndOfAttentionBesideThem) {
  // 45 layers with a gated delta net, 15 with attention; each has experts and shared ones.
  const ModelGeometry qwen = model_preset("qwen3.5-397b-a17b");
  EXPECT_EQ(launched_kernels(qwen, of(ServingEngine::sglang), false), 45U * 21 + 15 * 5 + 60 * (2 + 7 + 3 + 1));
}

TEST(Launches, VllmReplaysGraphsBetweenTheAttentionOfLayers) {
  const ModelGeometry model = model_preset("llama-3.1-8b");
  ServingTimes times = of(ServingEngine::vllm);
  EXPECT_EQ(launched_kernels(model, times, false), 32U * 2);
  times.graphs = false;
  EXPECT_EQ(launched_kernels(model, times, false), 32U * 10);
}

TEST(Launches, AShortPrefillTakesTheTimeOfTheHost) {
  const ModelGeometry model = model_preset("llama-3.1-8b");
  const HardwareSpec hardware = hardware_preset("h100-sxm");
  const auto pass = [&](std::uint64_t launch_ns, std::uint32_t tp, const ForwardShape& shape) {
    RooflineCost cost(model, hardware, tp);
    ServingTimes times = of(ServingEngine::sglang);
    times.launch_ns = launch_ns;
    cost.serve_with(times, model, hardware, tp);
    return cost.forward_ns(shape, 1);
  };
  constexpr std::uint64_t kLaunch = 100'000;
  EXPECT_EQ(pass(kLaunch, 1, prefill(16)), 320 * 100'000);
  EXPECT_EQ(pass(kLaunch, 2, prefill(16)), (320 + 64) * 100'000);  // two all-reduces per layer
  EXPECT_EQ(pass(kLaunch, 1, prefill(8192)), pass(0, 1, prefill(8192)));
  EXPECT_EQ(pass(kLaunch, 1, decode(8)), pass(0, 1, decode(8)));
}

TEST(Launches, TheTableHasTheTimeOfTheHost) {
  const ModelGeometry model = model_preset("llama-3.1-8b");
  const HardwareSpec hardware = hardware_preset("h100-sxm");
  const auto launch_ns = [&](const std::string& tables) {
    const OperatorTable table = parse_operators(kHead + tables, "ops.txt");
    return OperatorCost(model, hardware, 1, 1, table).launch_ns();
  };
  EXPECT_EQ(launch_ns("table launch\naxis kernels 1\nns 42600\n"), 42'600U);
  EXPECT_EQ(launch_ns("table all_reduce 8\naxis bytes 1 2\nns 1 2\n"), 0U);
}

}  // namespace
}  // namespace kvtwin::test
