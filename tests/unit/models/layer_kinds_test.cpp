#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "models/geometry.hpp"
#include "tests/small_config.hpp"

namespace kvtwin {
namespace {

using nlohmann::json;
using test::llama;

json with(const json& more) {
  json config = llama();
  config.update(more);
  return config;
}

ModelGeometry parse(const json& config, KvDtype kv = KvDtype::automatic, const GivenFigures& given = {}) {
  return parse_model(config.dump(), "config.json", kv, WeightChoice::automatic, given);
}

std::string error_of(const json& config) {
  try {
    parse(config);
  } catch (const ModelError& error) {
    return error.what();
  }
  return "no error";
}

TEST(LayerKinds, WindowAndFullLayersHaveHeadsOfTheirOwn) {
  const ModelGeometry m = parse(with({{"model_type", "mimo_v2_flash"},
                                      {"hybrid_layer_pattern", {0, 1, 1, 0}},
                                      {"sliding_window", 32},
                                      {"head_dim", 24},
                                      {"v_head_dim", 16},
                                      {"swa_num_key_value_heads", 4},
                                      {"swa_head_dim", 12},
                                      {"swa_v_head_dim", 8}}));
  EXPECT_EQ(m.kv_bytes_per_token, 2U * 2 * (24 + 16) * 2);
  EXPECT_EQ(m.window_bytes_per_token, 2U * 4 * (12 + 8) * 2);
  EXPECT_EQ(m.kv_bytes(100), 100 * m.kv_bytes_per_token + 32 * m.window_bytes_per_token);
  EXPECT_EQ(m.shape(2, 16).page_bytes(), 16 * m.kv_bytes_per_token / 2);

  const ModelGeometry gemma =
      parse(with({{"model_type", "gemma4_text"},
                  {"layer_types", {"sliding_attention", "full_attention", "sliding_attention", "full_attention"}},
                  {"sliding_window", 32},
                  {"head_dim", 16},
                  {"global_head_dim", 32},
                  {"num_global_key_value_heads", 1},
                  {"attention_k_eq_v", true},
                  {"num_kv_shared_layers", 1}}));
  EXPECT_EQ(gemma.kv_bytes_per_token, 2U * 1 * 32 * 2) << "the pools have keys and values, and one layer shares";
  EXPECT_EQ(gemma.window_bytes_per_token, 2U * 2 * 2 * 16 * 2);
}

TEST(LayerKinds, CompressedLayersKeepRowsOfGroups) {
  const ModelGeometry m = parse(with({{"model_type", "deepseek_v4"},
                                      {"num_key_value_heads", 1},
                                      {"num_nextn_predict_layers", 1},
                                      {"compress_ratios", {0, 4, 128, 4, 0}},
                                      {"sliding_window", 128},
                                      {"head_dim", 512},
                                      {"qk_rope_head_dim", 64},
                                      {"q_lora_rank", 32},
                                      {"o_lora_rank", 32},
                                      {"o_groups", 2},
                                      {"index_head_dim", 128},
                                      {"index_n_heads", 4},
                                      {"index_topk", 512}}));
  EXPECT_EQ(m.kv_bytes(1280) - m.state_bytes, 1280U / 4 * 2 * (584 + 132) + 1280 / 128 * 584 + 128 * 4 * 584);
  EXPECT_EQ(m.kv_bytes_per_token, 363U) << "2 * 716 / 4 + 584 / 128, rounded up";
  EXPECT_EQ(m.state_bytes, 2U * 8 * 4 * (512 + 128) * 4 + 128 * 2 * 512 * 4);
  EXPECT_EQ(m.shape(4, 256).planes, 1U);
}

TEST(LayerKinds, OnlySomeLayersKeepAnIndexersRow) {
  json config = with({{"model_type", "glm_moe_dsa"},
                      {"kv_lora_rank", 512},
                      {"qk_rope_head_dim", 64},
                      {"qk_nope_head_dim", 128},
                      {"v_head_dim", 128},
                      {"index_topk", 2048},
                      {"index_n_heads", 4},
                      {"index_head_dim", 128}});
  config["indexer_types"] = {"full", "shared", "shared", "full"};
  EXPECT_EQ(parse(config).kv_bytes_per_token, 4U * 1152 + 2 * 132);
  EXPECT_EQ(parse(config).shape(2, 64).page_bytes(), 64U * (4 * 1152 + 2 * 132));
  config.erase("indexer_types");
  config["index_topk_freq"] = 2;
  EXPECT_EQ(parse(config).kv_bytes_per_token, 4U * 1152 + 3 * 132) << "layers 0, 1 and 3";
  config["indexer_types"] = {"full", "odd", "shared", "full"};
  EXPECT_NE(error_of(config).find("indexer_types"), std::string::npos);

  const json sparse{{"use_sparse_attention", true},
                    {"sparse_index_dim", 16},
                    {"sparse_num_index_heads", 2},
                    {"sparse_topk_blocks", 2},
                    {"sparse_block_size", 8},
                    {"sparse_disable_index_value", {0, 1, 1, 1}},
                    {"sparse_attention_freq", {0, 1, 1, 1}}};
  const ModelGeometry m = parse(with({{"model_type", "minimax_m3"}, {"sparse_attention_config", sparse}}));
  EXPECT_EQ(m.kv_bytes_per_token, 4U * 2 * 2 * 8 * 2 + 3 * 16 * 2);
}

TEST(LayerKinds, StatesOfEachKind) {
  const json kda{{"full_attn_layers", {4}},
                 {"kda_layers", {1, 2, 3}},
                 {"num_heads", 4},
                 {"head_dim", 16},
                 {"short_conv_kernel_size", 4}};
  const ModelGeometry kimi = parse(with({{"model_type", "kimi_linear"},
                                         {"kv_lora_rank", 512},
                                         {"qk_rope_head_dim", 64},
                                         {"qk_nope_head_dim", 128},
                                         {"v_head_dim", 128},
                                         {"linear_attn_config", kda}}));
  EXPECT_EQ(kimi.kv_bytes_per_token, 1152U);
  EXPECT_EQ(kimi.state_bytes, 3U * (64 * 16 * 4 + 3 * 3 * 64 * 2));

  const json mamba{{"mamba_d_state", 16}, {"mamba_n_heads", 4}, {"mamba_d_head", 16}, {"mamba_n_groups", 1}};
  json falcon = with(mamba);
  falcon["model_type"] = "falcon_h1";
  EXPECT_EQ(parse(falcon).kv_bytes_per_token, 4U * 2 * 2 * 8 * 2) << "each layer has both";
  EXPECT_EQ(parse(falcon).state_bytes, 4U * (64 * 16 * 4 + 3 * (64 + 32) * 2));
  falcon["mamba_ssm_dtype"] = "bfloat16";
  EXPECT_EQ(parse(falcon).state_bytes, 4U * (64 * 16 * 2 + 3 * (64 + 32) * 2));

  const ModelGeometry lfm = parse(
      with({{"model_type", "lfm2"}, {"conv_L_cache", 3}, {"layer_types", {"conv", "conv", "full_attention", "conv"}}}));
  EXPECT_EQ(lfm.state_bytes, 3U * 64 * 2 * 2);

  const ModelGeometry lightning = parse(with({{"model_type", "minimax_m1"}, {"attn_type_list", {0, 0, 0, 1}}}));
  EXPECT_EQ(lightning.kv_bytes_per_token, 2U * 2 * 8 * 2);
  EXPECT_EQ(lightning.state_bytes, 3U * 8 * 8 * 8 * 4);
}

TEST(LayerKinds, LayersWithoutAttention) {
  const auto block = [](bool attends, double multiple) {
    return json{{"attention", {{"no_op", !attends}, {"n_heads_in_group", attends ? json(4) : json(nullptr)}}},
                {"ffn", {{"no_op", multiple == 0}, {"ffn_mult", multiple}}}};
  };
  const ModelGeometry nas =
      parse(with({{"model_type", "nemotron-nas"},
                  {"num_key_value_heads", nullptr},
                  {"intermediate_size", nullptr},
                  {"block_configs", {block(true, 2), block(false, 1), block(false, 0), block(true, 4)}}}));
  EXPECT_EQ(nas.kv_bytes_per_token, 2U * 2 * 2 * 8 * 2);
  EXPECT_EQ(nas.layers[2].feed_forward, FeedForwardKind::none);

  json nemotron = with({{"model_type", "nemotron_h"},
                        {"layers_block_type", {"mamba", "moe", "attention", "mlp"}},
                        {"ssm_state_size", 16},
                        {"mamba_num_heads", 4},
                        {"mamba_head_dim", 16},
                        {"n_routed_experts", 4},
                        {"num_experts_per_tok", 2},
                        {"moe_latent_size", 32}});
  nemotron.erase("num_hidden_layers");
  std::string text = nemotron.dump();
  text.insert(1, "\"time_step_limit\": [0.0, Infinity], \"a\\\"NaN\": NaN, ");
  const ModelGeometry m = parse_model(text, "config.json");
  EXPECT_EQ(m.layers.size(), 4U);
  EXPECT_EQ(m.kv_bytes_per_token, 2U * 2 * 8 * 2);
  EXPECT_EQ(m.expert_parameters, 2U * 32 * 128) << "two matrices, on the latent";
}

TEST(LayerKinds, AWindowAsLongAsEverySequenceIsNone) {
  json phi = with({{"model_type", "phi3"}, {"sliding_window", 4096}, {"max_position_embeddings", 4096}});
  EXPECT_TRUE(parse(phi).inexact.empty());
  json exaone = with({{"model_type", "exaone4"}, {"sliding_window", 8}, {"sliding_window_pattern", "LLLG"}});
  EXPECT_EQ(parse(exaone).paged_layers(), 1U);
}

TEST(LayerKinds, LanguageModelsInsideOthers) {
  const json inner = with({{"num_experts", 8}, {"num_experts_per_token", 2}, {"moe_intermediate_size", 32}});
  const Bytes bytes = parse(inner).kv_bytes_per_token;
  EXPECT_EQ(parse({{"hidden_size", 7}, {"llm_config", inner}}).kv_bytes_per_token, bytes);
  EXPECT_EQ(parse({{"thinker_config", {{"text_config", inner}}}}).kv_bytes_per_token, bytes);
  json typeless = inner;
  typeless.erase("model_type");
  EXPECT_EQ(parse({{"model_type", "llama"}, {"text_config", typeless}}).kv_bytes_per_token, bytes);
}

TEST(LayerKinds, UnknownTypesAndKeysAreRefusedWithAWayOut) {
  EXPECT_NE(error_of(with({{"model_type", "rwkv7"}})).find("\"model_type\" is \"rwkv7\""), std::string::npos);
  for (const char* key : {"kv_share_pattern", "new_window", "cache_groups", "index_kpool", "use_cla", "mla_rank"}) {
    const std::string error = error_of(with({{key, 2}}));
    EXPECT_NE(error.find(std::string("key \"") + key), std::string::npos) << error;
    EXPECT_NE(error.find("model.kv_bytes_per_token"), std::string::npos) << error;
  }
  EXPECT_EQ(error_of(with({{"use_cla", false}, {"index_kpool", nullptr}, {"note", 3}})), "no error");

  const GivenFigures given{1000, 5000};
  const ModelGeometry m = parse(with({{"model_type", "rwkv7"}, {"kv_share_pattern", 2}}), KvDtype::automatic, given);
  EXPECT_EQ(m.kv_bytes_per_token, 1000U);
  EXPECT_EQ(m.state_bytes, 5000U);
  EXPECT_EQ(m.kv_bytes(10), 15'000U);
  EXPECT_EQ(m.shape(1, 16).token_bytes(), 1000U);
  EXPECT_EQ(m.shape(2, 16).token_bytes(), 500U);
  ASSERT_EQ(m.inexact.size(), 2U);
  EXPECT_NE(m.inexact[0].find("the user's figure"), std::string::npos);
  EXPECT_TRUE(parse(llama(), KvDtype::automatic, {4U * 2 * 2 * 8 * 2, 0}).inexact.empty()) << "as computed";
}

// Bytes of bf16 caches over all ranks, from the pool classes of SGLang 0.5.23. The configs are those of the PyPI
// package aiconfigurator-core 0.12.0; KVTWIN_MODEL_CONFIGS names the folder.
struct Expected {
  const char* config;
  Bytes token, window, state;
};
constexpr Expected kExpected[] = {
    {"MiniMaxAI--MiniMax-M3", 137'472, 0, 0},           // MiniMaxSparseKVPool: 57 index rows of 128 bf16 elements
    {"XiaomiMiMo--MiMo-V2-Flash", 23'040, 199'680, 0},  // SWAKVPool: 9 full, 39 window layers
    {"deepseek-ai--DeepSeek-V3.2", 78'324, 0, 0},       // DSATokenToKVPool: 61 index rows of 132 bytes
    {"deepseek-ai--DeepSeek-V4-Flash", 3'851, 25'112, 12'206'080},  // DeepSeekV4TokenToKVPool
    {"deepseek-ai--DeepSeek-V4-Pro", 5'512, 35'624, 18'710'528},
    {"google--gemma-4-26B-A4B", 20'480, 204'800, 0},       // SWAKVPool
    {"nvidia--Gemma-4-31B-IT-NVFP4", 81'920, 819'200, 0},  // SWAKVPool
    {"meta-llama--Llama-4-Scout-17B-16E-Instruct", 49'152, 147'456, 0},
    {"moonshotai--Kimi-K3", 27'648, 0, 449'372'160},      // KimiLinearCacheParams
    {"Qwen--Qwen3.5-397B-A17B", 30'720, 0, 192'061'440},  // Mamba2CacheParams
    {"nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 12'288, 0, 407'961'600},
    {"nvidia--Llama-3_3-Nemotron-Super-49B-v1", 200'704, 0, 0},  // 49 of 80 layers attend
    {"openai--gpt-oss-120b", 36'864, 36'864, 0},                 // SWAKVPool
    {"stepfun-ai--Step-3.7-Flash", 49'152, 135'168, 0},          // SWAKVPool
    {"zai-org--GLM-5", 100'152, 0, 0},
    {"zai-org--GLM-5.3", 92'628, 0, 0},  // DSATokenToKVPool: 21 index rows
};

// Returns the paths of all configs in the folder, and of those that must be there. Empty without the folder: tools/test
// runs these tests with it, or counts them as not run.
std::vector<std::string> published_configs() {
  const char* const folder = std::getenv("KVTWIN_MODEL_CONFIGS");
  if (folder == nullptr) return {};
  std::set<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with("_config.json") && !name.ends_with("_hf_quant_config.json")) paths.insert(entry.path().string());
  }
  for (const Expected& expected : kExpected) {
    paths.insert((std::filesystem::path(folder) / (std::string(expected.config) + "_config.json")).string());
  }
  return {paths.begin(), paths.end()};
}

class PublishedConfigs : public testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PublishedConfigs);
INSTANTIATE_TEST_SUITE_P(Package, PublishedConfigs, testing::ValuesIn(published_configs()));

TEST_P(PublishedConfigs, AreRead) {
  const ModelGeometry m = model_from_file(GetParam());
  const std::string name = std::filesystem::path(GetParam()).filename().string();
  for (const Expected& expected : kExpected) {
    if (name != std::string(expected.config) + "_config.json") continue;
    EXPECT_EQ(m.kv_bytes_per_token, expected.token) << name;
    EXPECT_EQ(m.window_bytes_per_token, expected.window) << name;
    EXPECT_EQ(m.state_bytes, expected.state) << name;
  }
}

}  // namespace
}  // namespace kvtwin
