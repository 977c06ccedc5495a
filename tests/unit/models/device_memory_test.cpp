#include "models/device_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "models/json.hpp"
#include "models/presets.hpp"
#include "models/text_file.hpp"
#include "policy/base/names.hpp"
#include "tests/paths.hpp"

namespace kvtwin {
namespace {

constexpr double kGib = 1073741824;

MemoryTerms terms_of(ServingEngine engine, std::uint32_t tp = 1) {
  MemoryTerms terms;
  terms.engine = engine;
  terms.tp = tp;
  return terms;
}

TEST(DeviceMemory, WithoutAnEngineKvIsWhatWeightsAndActivationsLeave) {
  const HardwareSpec spec = hardware_preset("h200-sxm");
  const ModelGeometry m = model_preset("llama-3.1-8b");
  const double activations = 8192.0 * (6 * 4096 + 3 * 14336) * 2;
  MemoryTerms terms = terms_of(ServingEngine::none);
  const auto kv = static_cast<double>(device_kv_bytes(spec, m, terms));
  EXPECT_NEAR(kv, 139.8 * kGib * 0.9 - static_cast<double>(m.weight_bytes) - activations, 2);
  EXPECT_GT(device_kv_bytes(spec, m, terms_of(ServingEngine::none, 2)), kv);
  terms.fraction = 0.8;
  EXPECT_LT(device_kv_bytes(spec, m, terms), kv);
  terms.fraction = 0.9;
  EXPECT_NEAR(static_cast<double>(device_kv_bytes(spec, m, terms)), kv, 2);
  terms.holds_activations = false;
  EXPECT_NEAR(static_cast<double>(device_kv_bytes(spec, m, terms)), kv + activations, 2);
}

TEST(DeviceMemory, ModelsThatDoNotFitNameASufficientTp) {
  const ModelGeometry m = model_preset("llama-3.1-70b");
  for (const auto& [engine, sufficient] : {std::pair{ServingEngine::none, "2."},
                                           {ServingEngine::sglang, "4."},
                                           {ServingEngine::vllm, "2."},
                                           {ServingEngine::trtllm, "2."}}) {
    try {
      device_kv_bytes(hardware_preset("h100-sxm"), m, terms_of(engine));
      FAIL();
    } catch (const ModelError& error) {
      EXPECT_EQ(std::string(error.what()),
                "llama-3.1-70b's weights (131.4 GiB over parallel.tp = 1) leave no room for KV in the 79.2 GiB of "
                "h100-sxm; parallel.tp must be at least " +
                    std::string(sufficient));
    }
  }
  EXPECT_THROW(device_kv_bytes(hardware_preset("h100-sxm"), m, terms_of(ServingEngine::none, 0)), ModelError);
}

// A row of tests/fixtures/sglang/memory_fraction.tsv: the fraction that SGLang's own function computes.
TEST(DeviceMemory, SglangsDefaultFractionIsItsOwn) {
  std::ifstream file(in_source("tests/fixtures/sglang/memory_fraction.tsv"));
  const std::vector<std::string> presets = hardware_preset_names();
  std::size_t rows = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#") || line.starts_with("gpu\t")) continue;
    std::istringstream cells(line);
    std::string gpu, mode;
    std::uint32_t dp = 1, chunk = 0, running = 0, mla = 0, graphs = 0, default_chunk = 0;
    MemoryTerms terms = terms_of(ServingEngine::sglang);
    double mib = 0, fraction = 0;
    cells >> gpu >> terms.tp >> dp >> chunk >> running >> mla >> graphs >> mode >> mib >> default_chunk >> fraction;
    ASSERT_FALSE(cells.fail()) << line;
    terms.attention_dp = dp;
    terms.chunk_tokens = default_chunk / dp;
    terms.limit = running;
    terms.graphs = graphs != 0;
    terms.prefills = mode != "decode";
    terms.decodes = mode != "prefill";
    const ModelGeometry model = model_preset(mla != 0 ? "deepseek-v3" : "llama-3.1-70b");
    const bool has_preset = std::ranges::find(presets, gpu) != presets.end();
    HardwareSpec hardware = hardware_preset(has_preset ? gpu : "h100-sxm");
    if (has_preset) {
      EXPECT_NEAR(hardware.memory_bytes / kGib, mib / 1024, 1.1) << gpu;
      EXPECT_NEAR(divide_device_memory(hardware, model, terms).fraction, fraction, 0.006) << line;
    }
    hardware.memory_bytes = mib * 1048576;  // what SGLang takes: of nvidia-smi
    EXPECT_DOUBLE_EQ(divide_device_memory(hardware, model, terms).fraction, fraction) << line;
    ++rows;
  }
  EXPECT_GT(rows, 70U);
}

ModelGeometry model_of(const Json& row) {
  const auto dtype = kv_dtype_from_name(row.at("kv_dtype").get<std::string>());
  const auto weights = value_named<WeightChoice>(row.at("weights").get<std::string>());
  if (row.contains("config")) return parse_model(row.at("config").dump(), "config.json", dtype, weights.value());
  return model_preset(row.at("model").get<std::string>(), dtype, weights.value());
}

// What servers printed at their start: docs/results/tools/device_memory.json, compared in docs/results/memory.md.
TEST(DeviceMemory, ServersPrintedAsMuch) {
  const Json rows = Json::parse(read_text_file(in_source("docs/results/tools/device_memory.json"), "")).at("rows");
  std::size_t compared = 0, near = 0, nearer = 0;
  for (const Json& row : rows) {
    const Json& printed = row.at("printed");
    const std::string name = row.at("model").get<std::string>();
    const bool known = row.contains("config") || name.find('/') == std::string::npos;
    if (!known || !printed.contains("kv_gib_per_rank") || printed.at("kv_gib_per_rank").get<double>() <= 0) continue;
    const std::string gpu = row.at("hardware").get<std::string>();
    MemoryTerms terms =
        terms_of(*value_named<ServingEngine>(row.at("engine").get<std::string>()), row.at("tp").get<std::uint32_t>());
    terms.release = row.value("version", "");
    if (row.at("memory_fraction").is_number()) terms.fraction = row.at("memory_fraction").get<double>();
    const bool large = gpu.starts_with("b") || gpu.starts_with("gb") || gpu.starts_with("mi");
    const bool a100 = gpu == "a100-sxm" && terms.engine == ServingEngine::vllm;
    terms.chunk_tokens = row.value("chunk_tokens", Tokens{large ? 16384U : a100 ? 2048U : 8192U});
    terms.max_running = row.value("max_seqs", a100 ? 256U : 1024U);
    terms.limit = row.value("max_seqs", 0U);
    terms.graphs = row.value("graphs", true);
    const double kv = divide_device_memory(hardware_preset(gpu), model_of(row), terms).kv / kGib;
    const double ratio = kv / printed.at("kv_gib_per_rank").get<double>();
    EXPECT_GT(ratio, 0.75) << row.at("name").get<std::string>();
    EXPECT_LT(ratio, 1.2) << row.at("name").get<std::string>();
    ++compared;
    near += ratio > 0.9 && ratio < 1.1 ? 1 : 0;
    nearer += ratio > 0.95 && ratio < 1.05 ? 1 : 0;
  }
  EXPECT_EQ(compared, 34U);
  EXPECT_GE(near, 30U) << near << " of " << compared;
  EXPECT_GE(nearer, 23U) << nearer << " of " << compared;
}

// vLLM pads gpt-oss' experts; the figures are of its logs (docs/results/tools/device_memory.json), in GiB of a GPU.
TEST(DeviceMemory, VllmPadsExpertsInMxfp4) {
  const auto weights = [](const char* model, const char* gpu, ServingEngine engine, std::uint32_t tp) {
    return divide_device_memory(hardware_preset(gpu), model_preset(model), terms_of(engine, tp)).weights / kGib;
  };
  EXPECT_NEAR(weights("gpt-oss-20b", "a100-sxm", ServingEngine::vllm, 1), 13.7, 0.1);
  EXPECT_NEAR(weights("gpt-oss-120b", "a100-sxm", ServingEngine::vllm, 4), 17.22, 0.2);
  EXPECT_NEAR(weights("gpt-oss-120b", "h100-sxm", ServingEngine::vllm, 1), 64.38, 0.2);
  EXPECT_NEAR(weights("gpt-oss-120b", "h100-sxm", ServingEngine::sglang, 1), 60.7, 0.1);
  EXPECT_EQ(weights("deepseek-v4-flash", "h200-sxm", ServingEngine::vllm, 8),
            weights("deepseek-v4-flash", "h200-sxm", ServingEngine::sglang, 8))
      << "whole blocks";
}

// srt/arg_groups/attention_hook.py: the fraction times 0.85, given or not, if the kernels are aiter's.
TEST(DeviceMemory, SglangTakesLessOfAnAmdGpu) {
  const auto factor = [](const char* gpu, const char* model, std::uint32_t tp, double fraction = 0) {
    MemoryTerms terms = terms_of(ServingEngine::sglang, tp);
    terms.fraction = fraction;
    const HardwareSpec hardware = hardware_preset(gpu);
    const DeviceMemory memory = divide_device_memory(hardware, model_preset(model), terms);
    EXPECT_NEAR(memory.kv, (memory.total - memory.taken) * memory.fraction * memory.factor - memory.weights, 1);
    return memory.factor;
  };
  EXPECT_DOUBLE_EQ(factor("mi300x", "llama-3.1-70b", 2), 0.85);
  EXPECT_DOUBLE_EQ(factor("mi355x", "llama-3.1-70b", 2, 0.9), 0.85);
  EXPECT_DOUBLE_EQ(factor("h100-sxm", "llama-3.1-70b", 4), 1);
  EXPECT_DOUBLE_EQ(factor("mi325x", "deepseek-v3", 8), 0.85) << "16 heads a rank";
  EXPECT_DOUBLE_EQ(factor("mi325x", "deepseek-v3", 4), 1) << "aiter has no kernel for 32 heads a rank";
  EXPECT_DOUBLE_EQ(factor("mi325x", "deepseek-v3.2", 8), 1) << "kernels of its own";
  ModelGeometry of_short_context = model_preset("llama-3.1-8b");
  of_short_context.context_tokens = 8192;
  const MemoryTerms terms = terms_of(ServingEngine::sglang);
  EXPECT_DOUBLE_EQ(divide_device_memory(hardware_preset("mi300x"), of_short_context, terms).factor, 1);
  const std::string text =
      device_memory_text(divide_device_memory(hardware_preset("mi300x"), model_preset("llama-3.1-8b"), terms));
  EXPECT_NE(text.find("* 0.85 for aiter, the default of sglang)"), std::string::npos) << text;
}

TEST(DeviceMemory, EachEngineHasARuleOfItsOwn) {
  const HardwareSpec h100 = hardware_preset("h100-sxm");
  const ModelGeometry m = model_preset("qwen3-32b");
  const auto of = [&](ServingEngine engine, std::string release = {}) {
    MemoryTerms terms = terms_of(engine, 2);
    terms.release = std::move(release);
    terms.max_running = 1024;
    return divide_device_memory(h100, m, terms);
  };
  const DeviceMemory vllm = of(ServingEngine::vllm), earlier = of(ServingEngine::vllm, "v0.20.1");
  EXPECT_NEAR(vllm.total * 0.92 - vllm.weights - vllm.activations - vllm.graphs - vllm.taken, vllm.kv, 1);
  EXPECT_NEAR(vllm.activations, 1024.0 * m.vocab * 16, 1) << "sampling needs more than a prefill";
  EXPECT_DOUBLE_EQ(earlier.fraction, 0.9);
  EXPECT_DOUBLE_EQ(earlier.graphs, 0);
  EXPECT_GT(earlier.activations, vllm.activations);
  EXPECT_DOUBLE_EQ(of(ServingEngine::vllm, "0.21.0").kv, vllm.kv);
  EXPECT_DOUBLE_EQ(of(ServingEngine::vllm, "1.0").kv, vllm.kv);
  const DeviceMemory sglang = of(ServingEngine::sglang);
  EXPECT_NEAR((sglang.total - sglang.taken) * sglang.fraction - sglang.weights, sglang.kv, 1);
  EXPECT_GT(sglang.left(), 10 * kGib) << "for activations and graphs";
  const DeviceMemory trtllm = of(ServingEngine::trtllm);
  const double used = trtllm.weights + trtllm.activations + trtllm.graphs + trtllm.taken;
  EXPECT_NEAR((trtllm.total - used) * 0.9, trtllm.kv, 1);
  MemoryTerms terms = terms_of(ServingEngine::trtllm, 2);
  terms.fraction = 0.45;
  EXPECT_NEAR(divide_device_memory(h100, m, terms).kv * 2, trtllm.kv, 1);
  EXPECT_EQ(device_memory_text(vllm),
            "79.2 GiB a GPU: KV 38.4, weights 30.5, activations 2.3, graphs 1.0, engine 0.6, left free 6.3 (fraction "
            "0.92, the default of vllm)");
  HardwareSpec small = h100;
  small.memory_bytes = 8 * kGib;
  EXPECT_EQ(divide_device_memory(small, model_preset("tiny"), terms_of(ServingEngine::sglang)).engine,
            ServingEngine::none)
      << "the machine is no GPU";
  terms = terms_of(ServingEngine::sglang);
  terms.fraction = 0.5;
  const std::string text = device_memory_text(divide_device_memory(small, model_preset("tiny"), terms));
  EXPECT_NE(text.find("(fraction 0.5, without an engine)"), std::string::npos) << text;
}

}  // namespace
}  // namespace kvtwin
