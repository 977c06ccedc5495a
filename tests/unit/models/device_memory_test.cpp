#include "models/device_memory.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "models/presets.hpp"
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
  for (const ServingEngine engine :
       {ServingEngine::none, ServingEngine::sglang, ServingEngine::vllm, ServingEngine::trtllm}) {
    try {
      device_kv_bytes(hardware_preset("h100-sxm"), m, terms_of(engine));
      FAIL();
    } catch (const ModelError& error) {
      const std::string sentence = error.what();
      EXPECT_NE(sentence.find("llama-3.1-70b's weights (131.4 GiB over parallel.tp = 1) leave no room for KV in the "
                              "79.2 GiB of h100-sxm; parallel.tp must be at least "),
                std::string::npos)
          << sentence;
    }
  }
  EXPECT_THROW(device_kv_bytes(hardware_preset("h100-sxm"), m, terms_of(ServingEngine::none, 0)), ModelError);
}

// A row of tests/fixtures/sglang/memory_fraction.tsv: the fraction that SGLang's own function computes.
TEST(DeviceMemory, SglangsDefaultFractionIsItsOwn) {
  std::ifstream file(in_source("tests/fixtures/sglang/memory_fraction.tsv"));
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
    HardwareSpec hardware = hardware_preset(gpu);
    EXPECT_NEAR(hardware.memory_bytes / kGib, mib / 1024, 1.1) << gpu;
    const ModelGeometry model = model_preset(mla != 0 ? "deepseek-v3" : "llama-3.1-70b");
    EXPECT_NEAR(divide_device_memory(hardware, model, terms).fraction, fraction, 0.006) << line;
    hardware.memory_bytes = mib * 1048576;  // what SGLang takes: of nvidia-smi
    EXPECT_DOUBLE_EQ(divide_device_memory(hardware, model, terms).fraction, fraction) << line;
    ++rows;
  }
  EXPECT_GT(rows, 50U);
}

}  // namespace
}  // namespace kvtwin
