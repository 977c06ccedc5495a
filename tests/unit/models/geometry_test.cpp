#include "models/geometry.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "models/json.hpp"
#include "models/presets.hpp"
#include "policy/base/names.hpp"
#include "tests/small_config.hpp"

namespace kvtwin {
namespace {

using test::llama;

Json latent() {
  Json config = llama();
  config.update({{"kv_lora_rank", 512},
                 {"qk_rope_head_dim", 64},
                 {"qk_nope_head_dim", 128},
                 {"v_head_dim", 128},
                 {"q_lora_rank", nullptr}});
  return config;
}

ModelGeometry parse(const Json& config, KvDtype kv = KvDtype::automatic) {
  return parse_model(config.dump(), "config.json", kv);
}

std::string error_of(const std::string& text) {
  try {
    parse_model(text, "config.json");
  } catch (const ModelError& error) {
    return error.what();
  }
  return "no error";
}

std::string error_with(const char* key, const Json& value) {
  Json config = llama();
  config[key] = value;
  return error_of(config.dump());
}

struct Known {
  const char* name;
  Bytes bytes_per_token;
  double total, active;   // the published numbers of parameters
  bool counts_embedding;  // does the published active count include the input embedding?
  double weight_bytes;
};

class Preset : public testing::TestWithParam<Known> {};

// The expected numbers are from the model cards and technical reports; the bytes of the weights are the sizes of the
// checkpoints.
TEST_P(Preset, MatchesThePublishedFigures) {
  const Known& known = GetParam();
  const ModelGeometry m = model_preset(known.name);
  EXPECT_EQ(m.name, known.name);
  EXPECT_EQ(m.kv_bytes_per_token, known.bytes_per_token);
  EXPECT_NE(m.kv_formula.find(" = " + std::to_string(known.bytes_per_token) + " bytes/token"), std::string::npos);
  EXPECT_NEAR(static_cast<double>(m.parameters) / known.total, 1.0, 0.01);
  const std::uint64_t active = m.active_parameters + (known.counts_embedding ? m.embedding_parameters : 0);
  // Published numbers of active parameters are cut to 0.1 or 1 billion: 3.35 is published as 3.3.
  EXPECT_NEAR(static_cast<double>(active) / known.active, 1.0, 0.02);
  EXPECT_NEAR(static_cast<double>(m.weight_bytes) / known.weight_bytes, 1.0, 0.01);
  EXPECT_EQ(m.shape(1, 16).token_bytes(), known.bytes_per_token);
  EXPECT_FALSE(m.date.empty());
}

INSTANTIATE_TEST_SUITE_P(
    All, Preset,
    testing::Values(Known{"llama-3.1-8b", 131072, 8.03e9, 8.03e9, true, 16.06e9},
                    Known{"llama-3.1-70b", 327680, 70.6e9, 70.6e9, true, 141.1e9},
                    Known{"qwen3-32b", 262144, 32.8e9, 32.8e9, true, 65.5e9},
                    Known{"qwen3-coder-30b-a3b", 98304, 30.5e9, 3.3e9, true, 61.1e9},
                    Known{"gpt-oss-120b", 36864, 116.8e9, 5.1e9, false, 65.2e9},
                    // 36.6 billion with the output head and without the embedding, rounded to 37 elsewhere.
                    Known{"deepseek-v3", 70272, 671e9, 36.6e9, false, 673e9},
                    Known{"deepseek-v3-mtp", 1152, 13.4e9, 1.5e9, false, 15.2e9},
                    Known{"minimax-m2.5", 253952, 230e9, 10.4e9, false, 230e9},
                    Known{"qwen3-235b-a22b", 192512, 235e9, 22e9, true, 470e9},
                    Known{"qwen3.5-397b-a17b", 30720, 397e9, 17e9, true, 794e9},
                    // 1 T and 32 B are published; the counts are of the config.
                    Known{"kimi-k2.5", 70272, 1.03e12, 32e9, false, 595e9},
                    Known{"glm-5", 100152, 744e9, 40.8e9, false, 1488e9},
                    Known{"tiny", 512, 689280, 689280, false, 1378560}),
    [](const auto& test) {
      std::string name = test.param.name;
      for (char& c : name) c = c == '-' || c == '.' ? '_' : c;
      return name;
    });

struct Served {
  const char* name;
  Bytes token, window_token, state;
  double total;  // the published number of parameters
};

class ServedPreset : public testing::TestWithParam<Served> {};

// The bytes are those of tests/fixtures/models/published.tsv, and for models that it does not have, of the same
// formulas.
TEST_P(ServedPreset, MatchesThePublishedFigures) {
  const Served& known = GetParam();
  const ModelGeometry m = model_preset(known.name);
  EXPECT_EQ(m.kv_bytes_per_token, known.token);
  EXPECT_EQ(m.window_bytes_per_token, known.window_token);
  EXPECT_EQ(m.state_bytes, known.state);
  // Published totals are rounded to billions, and some have the vision part.
  EXPECT_NEAR(static_cast<double>(m.parameters) / known.total, 1.0, 0.03);
  EXPECT_NE(m.source.find("config.json of "), std::string::npos);
  EXPECT_FALSE(m.date.empty());
}

const std::vector<Served> kServed = {{"deepseek-v3.2", 78'324, 0, 0, 671e9},
                                     {"deepseek-v4-flash", 3'851, 25'112, 12'206'080, 284e9},
                                     {"deepseek-v4-pro", 5'512, 35'624, 18'710'528, 1.6e12},
                                     {"gemma-3-27b", 81'920, 425'984, 0, 27.0e9},
                                     {"gemma-4-26b-a4b", 20'480, 204'800, 0, 25.2e9},
                                     {"gemma-4-31b", 81'920, 819'200, 0, 30.7e9},
                                     {"glm-5.3", 92'628, 0, 0, 744e9},
                                     {"gpt-oss-20b", 24'576, 24'576, 0, 20.9e9},
                                     {"kimi-k2", 70'272, 0, 0, 1.03e12},
                                     {"kimi-k3", 27'648, 0, 449'372'160, 2.8e12},
                                     {"llama-3.1-405b", 516'096, 0, 0, 405.9e9},
                                     {"llama-4-maverick", 49'152, 147'456, 0, 400e9},
                                     {"llama-4-scout", 49'152, 147'456, 0, 108e9},
                                     {"mimo-v2-flash", 23'040, 199'680, 0, 309e9},
                                     {"minimax-m3", 137'472, 0, 0, 428e9},
                                     {"mixtral-8x22b", 229'376, 0, 0, 140.6e9},
                                     {"mixtral-8x7b", 131'072, 0, 0, 46.7e9},
                                     {"nemotron-3-nano-30b-a3b", 6'144, 0, 49'082'368, 31.6e9},
                                     {"nemotron-3-super-120b-a12b", 8'192, 0, 170'229'760, 120.6e9},
                                     {"nemotron-3-ultra-550b-a55b", 12'288, 0, 407'961'600, 550e9},
                                     {"qwen2.5-72b", 327'680, 0, 0, 72.7e9},
                                     {"qwen2.5-7b", 57'344, 0, 0, 7.62e9},
                                     {"qwen3-30b-a3b", 98'304, 0, 0, 30.5e9},
                                     {"qwen3-8b", 147'456, 0, 0, 8.2e9},
                                     {"qwen3-coder-480b-a35b", 253'952, 0, 0, 480e9},
                                     {"qwen3-next-80b-a3b", 24'576, 0, 77'266'944, 80e9},
                                     {"qwen3-vl-235b-a22b", 192'512, 0, 0, 235e9},
                                     {"qwen3-vl-32b", 262'144, 0, 0, 32.8e9},
                                     {"qwen3-vl-8b", 147'456, 0, 0, 8.2e9},
                                     {"qwen3.5-122b-a10b", 24'576, 0, 153'649'152, 122e9},
                                     {"qwen3.5-27b", 65'536, 0, 153'944'064, 27e9},
                                     {"qwen3.5-35b-a3b", 20'480, 0, 64'389'120, 35e9},
                                     {"step-3.7-flash", 49'152, 135'168, 0, 196e9}};

INSTANTIATE_TEST_SUITE_P(All, ServedPreset, testing::ValuesIn(kServed), [](const auto& test) {
  std::string name = test.param.name;
  for (char& c : name) c = c == '-' || c == '.' ? '_' : c;
  return name;
});

TEST(Geometry, EveryPresetIsTested) { EXPECT_EQ(model_preset_names().size(), 13U + kServed.size()); }

TEST(Geometry, WeightsMayHaveAnotherFormat) {
  const auto bytes = [](const char* model, const char* weights) {
    const WeightChoice choice = value_named<WeightChoice>(weights).value();
    return static_cast<double>(model_preset(model, KvDtype::automatic, choice).weight_bytes);
  };
  const double bf16 = bytes("llama-3.1-70b", "auto");
  EXPECT_EQ(bytes("llama-3.1-70b", "bf16"), bf16);
  // The embedding and the output head, 2.1 of 70.6 billion parameters, stay bf16.
  EXPECT_NEAR(bytes("llama-3.1-70b", "fp8") / bf16, (68.5 + 2 * 2.1) / (2 * 70.6), 0.002);
  EXPECT_NEAR(bytes("llama-3.1-70b", "nvfp4") / bf16, (68.5 * 4.5 / 8 + 2 * 2.1) / (2 * 70.6), 0.002);
  EXPECT_GT(bytes("llama-3.1-70b", "fp8_block"), bytes("llama-3.1-70b", "fp8"));
  EXPECT_EQ(bytes("llama-3.1-70b", "int4"), bytes("llama-3.1-70b", "nvfp4")) << "both have 4.5 bits with scales";
  EXPECT_EQ(bytes("deepseek-v3", "fp8_block"), bytes("deepseek-v3", "auto"));
  // With 4 bits, the attention of an MLA model stays bf16.
  const ModelGeometry latent = model_preset("deepseek-v3", KvDtype::automatic, WeightChoice::nvfp4);
  EXPECT_EQ(latent.attention_format.name, "bf16");
  EXPECT_EQ(latent.expert_format.name, "nvfp4");
  // The checkpoint's shared experts and dense layers stay bf16.
  EXPECT_NEAR(bytes("kimi-k2.5", "int4") / bytes("kimi-k2.5", "auto"), 1.0, 0.01);
  EXPECT_EQ(value_named<WeightChoice>("fp7"), std::nullopt);
}

TEST(Geometry, FormulasArePrinted) {
  EXPECT_EQ(model_preset("llama-3.1-8b").kv_formula, "2 * 32 layers * 8 kv heads * 128 * 2 bytes = 131072 bytes/token");
  EXPECT_EQ(model_preset("deepseek-v3").kv_formula, "61 layers * (512 + 64) * 2 bytes = 70272 bytes/token");
  EXPECT_EQ(model_preset("deepseek-v3", KvDtype::fp8).kv_formula,
            "61 layers * (512 + 64) * 1 byte = 35136 bytes/token");
  EXPECT_EQ(
      model_preset("gpt-oss-120b").kv_formula,
      "2 * 18 full layers * 8 kv heads * 64 * 2 bytes = 36864 bytes/token, plus 2 * 18 window layers * 8 kv heads "
      "* 64 * 2 bytes * min(128, tokens)");
}

// vLLM without its hybrid KV cache manager: half of the layers of gpt-oss have a window.
TEST(Geometry, WindowLayersMayKeepAllTokens) {
  ModelGeometry m = model_preset("gpt-oss-120b");
  const KvShape windowed = m.shape(2, 16);
  ASSERT_TRUE(m.page_windows());
  EXPECT_EQ(m.kv_bytes_per_token, 2U * 36'864);
  EXPECT_EQ(m.kv_bytes(100'000), Bytes{100'000} * 73'728);
  EXPECT_EQ(m.shape(2, 16).page_bytes(), 2 * windowed.page_bytes());
  EXPECT_EQ(m.kv_formula, "2 * 36 layers * 8 kv heads * 64 * 2 bytes = 73728 bytes/token");
  EXPECT_EQ(m.attention_window, 128U) << "queries still see the window only";
  EXPECT_NE(refuse_in_run(m).find("counted by formula as that of all tokens"), std::string::npos);
  EXPECT_FALSE(m.page_windows()) << "once";
  ModelGeometry dense = model_preset("llama-3.1-8b");
  EXPECT_FALSE(dense.page_windows());
  EXPECT_EQ(dense.kv_bytes_per_token, model_preset("llama-3.1-8b").kv_bytes_per_token);
}

TEST(Geometry, GroupedAndMultiHeadAttention) {
  const ModelGeometry gqa = parse(llama());
  EXPECT_EQ(gqa.head_dim, 8U);
  EXPECT_EQ(gqa.kv_bytes_per_token, 2U * 4 * 2 * 8 * 2);
  Json config = llama();
  config.erase("num_key_value_heads");
  EXPECT_EQ(parse(config).kv_bytes_per_token, 2U * 4 * 8 * 8 * 2);
  config["head_dim"] = 32;
  EXPECT_EQ(parse(config).kv_bytes_per_token, 2U * 4 * 8 * 32 * 2);
}

TEST(Geometry, CountsParametersOfADenseModel) {
  const ModelGeometry m = parse(llama());
  const std::uint64_t attention = 64 * 64 * 2 + 64 * 16 * 2, feed_forward = 3 * 64 * 128, norms = 9 * 64;
  const std::uint64_t layers = 4 * (attention + feed_forward) + norms;
  EXPECT_EQ(m.parameters, layers + 2 * 6400);
  EXPECT_EQ(m.active_parameters, layers + 6400);
  EXPECT_EQ(m.weight_bytes, 2 * m.parameters);
  Json tied = llama();
  tied["tie_word_embeddings"] = true;
  EXPECT_EQ(parse(tied).parameters, layers + 6400);
  Json plain = llama();
  plain["model_type"] = "starcoder2";  // an MLP without a gate: two matrices
  EXPECT_EQ(parse(plain).parameters, layers + 2 * 6400 - 4 * 64 * 128);
}

TEST(Geometry, CountsExpertsUnderTheirManySpellings) {
  Json config = llama();
  config.update({{"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 32}});
  const ModelGeometry m = parse(config);
  EXPECT_EQ(m.expert_parameters, 4U * 3 * 64 * 32);
  EXPECT_EQ(m.parameters - m.active_parameters, 6 * m.expert_parameters + m.embedding_parameters);

  config["decoder_sparse_step"] = 2;
  config["mlp_only_layers"] = {3};
  const ModelGeometry sparse = parse(config);
  EXPECT_EQ(sparse.layers[0].feed_forward, FeedForwardKind::dense);
  EXPECT_EQ(sparse.layers[1].feed_forward, FeedForwardKind::experts);
  EXPECT_EQ(sparse.layers[3].feed_forward, FeedForwardKind::dense);

  Json mixtral = llama();
  mixtral.update({{"num_local_experts", 8}, {"num_experts_per_tok", 2}});
  EXPECT_EQ(parse(mixtral).expert_width, 128U);

  Json deepseek = llama();
  deepseek.update({{"n_routed_experts", 16},
                   {"num_experts_per_tok", 4},
                   {"moe_intermediate_size", 32},
                   {"n_shared_experts", 2},
                   {"first_k_dense_replace", 1},
                   {"moe_layer_freq", 1}});
  const ModelGeometry d = parse(deepseek);
  EXPECT_EQ(d.layers[0].feed_forward, FeedForwardKind::dense);
  EXPECT_EQ(d.expert_parameters, 3U * 3 * 64 * 32);
  EXPECT_EQ(d.shared_width, 64U);
}

TEST(Geometry, LatentAttentionIsOneHeadOnEveryRank) {
  const ModelGeometry m = parse(latent());
  EXPECT_EQ(m.kv_bytes_per_token, 4U * 576 * 2);
  for (std::uint32_t tp : {1U, 2U, 8U}) {
    const KvShape shape = m.shape(tp, 64);
    EXPECT_EQ(shape.planes, 1U);
    EXPECT_EQ(shape.heads, 1U);
    EXPECT_EQ(shape.head_bytes, 1152U);
    EXPECT_EQ(shape.page_bytes(), 4U * 1152 * 64);
    EXPECT_EQ(m.full_read_bytes(tp), 4U * 1152);
  }
  EXPECT_TRUE(m.inexact.empty());
  EXPECT_EQ(refuse_in_run(m), "");
}

TEST(Geometry, HeadsAreSplitOverRanksAndReplicatedBeyond) {
  const ModelGeometry m = model_preset("llama-3.1-70b");
  EXPECT_EQ(m.shape(1, 16).heads, 8U);
  EXPECT_EQ(m.shape(4, 16).heads, 2U);
  EXPECT_EQ(m.shape(4, 16).token_bytes(), 81920U);
  EXPECT_EQ(m.shape(8, 16).heads, 1U);
  EXPECT_EQ(m.shape(16, 16).heads, 1U);
  EXPECT_THROW(m.shape(3, 16), ModelError);
  EXPECT_THROW(m.shape(0, 16), ModelError);
  EXPECT_THROW(m.shape(1, 0), ModelError);
}

TEST(Geometry, CacheElementTypeCanBeOverridden) {
  EXPECT_EQ(parse(llama(), KvDtype::fp8).kv_bytes_per_token, 2U * 4 * 2 * 8);
  Json config = llama();
  config["torch_dtype"] = "float32";
  EXPECT_EQ(parse(config).kv_bytes_per_token, 2U * 4 * 2 * 8 * 4);
  EXPECT_EQ(parse(config, KvDtype::bf16).kv_bytes_per_token, 2U * 4 * 2 * 8 * 2);
  EXPECT_EQ(parse(config, KvDtype::fp16).kv_dtype, "fp16");
  EXPECT_EQ(kv_dtype_from_name("fp8"), KvDtype::fp8);
  EXPECT_EQ(kv_dtype_from_name("auto"), KvDtype::automatic);
  EXPECT_THROW(kv_dtype_from_name("fp9"), ModelError);
}

TEST(Geometry, QuantisedWeightsAreSmaller) {
  Json config = llama();
  const Bytes plain = parse(config).weight_bytes;
  config["quantization_config"] = {{"quant_method", "fp8"}};
  const ModelGeometry fp8 = parse(config);
  const std::uint64_t kept = 2 * 6400 + 9 * 64;  // embeddings and norms are not quantized
  EXPECT_EQ(fp8.weight_bytes, (plain / 2 - kept) + 2 * kept);
  config["quantization_config"] = {{"quant_method", "fp8"}, {"ignored_layers", {"model.layers.0.self_attn.q_proj"}}};
  EXPECT_EQ(parse(config).attention_format.name, "bf16");
  config["quantization_config"] = {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 128}};
  EXPECT_EQ(parse(config).linear_format.bits_x1024, 4U * 1024 + 20 * 1024 / 128);
  config["quantization_config"] = {
      {"quant_method", "compressed-tensors"},
      {"config_groups", {{"group_0", {{"weights", {{"num_bits", 8}, {"type", "float"}}}}}}}};
  EXPECT_EQ(parse(config).linear_format.name, "fp8");
  config["quantization_config"] = {{"quant_method", "magic"}};
  EXPECT_NE(error_of(config.dump()).find("quant_method\" is \"magic\"; it must be one of fp8"), std::string::npos);
}

TEST(Geometry, WindowLayersHoldAtMostTheirWindow) {
  const ModelGeometry m = model_preset("gpt-oss-120b");
  EXPECT_EQ(m.layers[0].attention, AttentionKind::window);
  EXPECT_EQ(m.layers[1].attention, AttentionKind::full);
  EXPECT_EQ(m.paged_layers(), 18U);
  EXPECT_EQ(m.kv_bytes(1), 73728U);
  EXPECT_EQ(m.kv_bytes(128), 128U * 73728);
  EXPECT_EQ(m.kv_bytes(129), 128U * 73728 + 36864);
  EXPECT_EQ(m.window, 128U);
  EXPECT_TRUE(m.inexact.empty());
  ASSERT_EQ(m.without_pages.size(), 1U);
  EXPECT_NE(refuse_in_run(m).find("gpt-oss-120b: 18 of 36 layers use a sliding window of 128 tokens"),
            std::string::npos);
}

TEST(Geometry, WindowsUnderTheirManySpellings) {
  Json mistral = llama();
  mistral["sliding_window"] = 4096;
  const ModelGeometry all = parse(mistral);
  EXPECT_EQ(all.kv_bytes_per_token, 2U * 4 * 2 * 8 * 2);  // nothing else to page
  EXPECT_EQ(all.paged_layers(), 4U);
  EXPECT_EQ(all.kv_bytes(10000), all.kv_bytes(4096));

  Json qwen = mistral;
  qwen.update({{"use_sliding_window", true}, {"max_window_layers", 3}});
  EXPECT_EQ(parse(qwen).paged_layers(), 3U);
  qwen["use_sliding_window"] = false;
  EXPECT_TRUE(parse(qwen).without_pages.empty());

  Json gemma = mistral;
  gemma["sliding_window_pattern"] = 4;
  EXPECT_EQ(parse(gemma).paged_layers(), 1U);

  Json llama4 = llama();
  llama4["attention_chunk_size"] = 8192;
  EXPECT_EQ(parse(llama4).paged_layers(), 1U);
  EXPECT_EQ(parse(llama4).window, 8192U);

  Json listed = mistral;
  listed["layer_types"] = {"full_attention", "sliding_attention", "sliding_attention", "full_attention"};
  EXPECT_EQ(parse(listed).paged_layers(), 2U);
  listed["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_NE(error_of(listed.dump()).find("one entry for each of the 4 layers"), std::string::npos);
  listed["layer_types"] = {"full_attention", "sliding_attention", "odd", "full_attention"};
  EXPECT_NE(error_of(listed.dump()).find("layer_types"), std::string::npos);
}

TEST(Geometry, StateLayersCountAConstantASequence) {
  Json config = llama();
  config.update({{"model_type", "qwen3_next"},
                 {"full_attention_interval", 4},
                 {"linear_num_key_heads", 2},
                 {"linear_num_value_heads", 4},
                 {"linear_key_head_dim", 8},
                 {"linear_value_head_dim", 8},
                 {"linear_conv_kernel_dim", 4}});
  const ModelGeometry m = parse(config);
  EXPECT_EQ(m.paged_layers(), 1U);
  EXPECT_EQ(m.state_bytes, 3U * (4 * 8 * 8 * 4 + 3 * (2 * 16 + 32) * 2));
  EXPECT_EQ(m.kv_bytes(5), m.state_bytes + 5 * m.kv_bytes_per_token);
  EXPECT_NE(refuse_in_run(m).find("Mamba"), std::string::npos);

  Json jamba = llama();
  jamba.update({{"model_type", "jamba"}, {"attn_layer_period", 4}, {"attn_layer_offset", 2}, {"mamba_d_state", 16}});
  EXPECT_EQ(parse(jamba).layers[2].attention, AttentionKind::full);
  EXPECT_EQ(parse(jamba).paged_layers(), 1U);

  Json nemotron = llama();
  nemotron.update({{"model_type", "nemotron_h"},
                   {"hybrid_override_pattern", "M-*-"},
                   {"ssm_state_size", 16},
                   {"mamba_num_heads", 4},
                   {"mamba_head_dim", 16},
                   {"n_groups", 2}});
  EXPECT_EQ(parse(nemotron).layers[0].feed_forward, FeedForwardKind::none);
  EXPECT_EQ(parse(nemotron).state_bytes, 4U * 16 * 16 * 4 + 3 * (64 + 2 * 2 * 16) * 2);

  Json mamba = llama();
  mamba["model_type"] = "mamba2";
  mamba["state_size"] = 16;
  EXPECT_NE(error_of(mamba.dump()).find("no layer attends"), std::string::npos);
}

TEST(Geometry, SparseAttentionCarriesItsIndexer) {
  Json config = latent();
  config.update({{"index_topk", 2048}, {"index_n_heads", 64}, {"index_head_dim", 128}});
  const ModelGeometry m = parse(config);
  EXPECT_EQ(m.kv_bytes_per_token, 4U * (1152 + 132));
  EXPECT_EQ(parse(config, KvDtype::fp8).kv_bytes_per_token, 4U * (656 + 132));
  EXPECT_EQ(m.window_read_bytes(1), 4U * 1152);
  EXPECT_EQ(m.full_read_bytes(1), 4U * 132);
  EXPECT_NE(refuse_in_run(m).find("DSA"), std::string::npos);
}

TEST(Geometry, MultimodalConfigsKeepTheLanguageModelInside) {
  Json inner = llama();
  inner.erase("torch_dtype");
  const Json config{{"torch_dtype", "float32"}, {"text_config", inner}};
  EXPECT_EQ(parse(config).kv_format.bits, 32U);
}

TEST(Geometry, CountsFlops) {
  const ModelGeometry m = model_preset("llama-3.1-8b");
  EXPECT_EQ(m.full_attention.prefill_pair_flops, 4U * 32 * 128 * 32);
  const ModelGeometry d = model_preset("deepseek-v3");
  EXPECT_EQ(d.full_attention.prefill_pair_flops, 61U * 2 * 128 * (192 + 128));
  EXPECT_EQ(d.full_attention.decode_token_flops, 61U * 2 * 128 * (576 + 512));
  const ModelGeometry g = model_preset("gpt-oss-120b");
  EXPECT_EQ(g.window_attention, g.full_attention);
}

TEST(Geometry, ErrorsSayFileKeyAndWhatIsRight) {
  EXPECT_EQ(error_of("{\"a\": "), "config.json: this is no valid JSON near byte 7; it must be one JSON object.");
  EXPECT_EQ(error_of("[1]"), "config.json: this is no JSON object; it must be one, { ... }.");
  EXPECT_EQ(error_of("{}"), "config.json: key \"num_hidden_layers\" is missing; it must be a positive integer.");
  EXPECT_EQ(error_with("hidden_size", -64),
            "config.json: key \"hidden_size\" is -64; it must be an integer of at least 0 and at most 2^24.");
  EXPECT_EQ(error_with("hidden_size", 0), "config.json: key \"hidden_size\" is 0; it must be a positive integer.");
  EXPECT_EQ(error_with("hidden_size", 64.5), "config.json: key \"hidden_size\" is 64.5; it must be an integer.");
  EXPECT_EQ(error_with("hidden_size", "64"), "config.json: key \"hidden_size\" is \"64\"; it must be an integer.");
  EXPECT_NE(error_with("hidden_size", 18446744073709551615ULL).find("at most 2^24"), std::string::npos);
  EXPECT_NE(error_with("num_hidden_layers", 1000000).find("at most 4096"), std::string::npos);
  EXPECT_NE(error_with("torch_dtype", "int3").find("one of bfloat16"), std::string::npos);
  EXPECT_NE(error_with("num_key_value_heads", 3).find("divisor of num_attention_heads"), std::string::npos);
  EXPECT_NE(error_with("num_attention_heads", 6).find("head"), std::string::npos);
  EXPECT_NE(error_with("num_experts", 8).find("num_experts_per_tok"), std::string::npos);
  EXPECT_NE(error_with("kv_lora_rank", 512).find("qk_rope_head_dim"), std::string::npos);
  EXPECT_NE(error_with("tie_word_embeddings", 1).find("true or false"), std::string::npos);
  EXPECT_NE(error_with("hidden_size", Json::array({1})).find("is a list; it must be an integer"), std::string::npos);
  EXPECT_NE(error_of("{\"a\": 1e999}").find("beyond all bounds"), std::string::npos);
  EXPECT_EQ(error_with("num_local_experts", 0), "no error");
  Json wild = llama();
  wild.update({{"hidden_size", 1 << 24}, {"intermediate_size", 1 << 24}, {"num_hidden_layers", 4096}});
  EXPECT_NE(error_of(wild.dump()).find("plausible"), std::string::npos);
  EXPECT_THROW(model_from_file("/nonexistent/config.json"), ModelError);
}

// Any content of a config is either read or refused with an error text.
TEST(Geometry, MutilatedConfigsAreReadOrRefused) {
  const std::vector<Json> junk{nullptr,        -1,      0, 1, 3, 1 << 24, 1e300, "x", true, Json::array(),
                               Json::object(), {1, "a"}};
  std::size_t refused = 0;
  for (const std::string& name : model_preset_names()) {
    const Json config = Json::parse(model_preset_text(name));
    for (const auto& [key, value] : config.items()) {
      for (const Json& other : junk) {
        Json changed = config;
        changed[key] = other;
        try {
          const ModelGeometry m = parse_model(changed.dump(), "config.json");
          EXPECT_GT(m.kv_bytes_per_token, 0U) << key << other;
          EXPECT_FALSE(m.kv_formula.empty());
        } catch (const ModelError& error) {
          EXPECT_NE(std::string(error.what()).find("config.json: "), std::string::npos);
          refused += 1;
        }
      }
    }
  }
  EXPECT_GT(refused, 300U);
}

}  // namespace
}  // namespace kvtwin
