#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "models/geometry.hpp"
#include "models/json.hpp"
#include "models/layer_table.hpp"
#include "tests/paths.hpp"
#include "tests/small_config.hpp"

namespace kvtwin {
namespace {

using test::llama;

Json with(const Json& more) {
  Json config = llama();
  config.update(more);
  return config;
}

ModelGeometry parse(const Json& config, KvDtype kv = KvDtype::automatic, const GivenFigures& given = {}) {
  return parse_model(config.dump(), "config.json", kv, WeightChoice::automatic, given);
}

std::string error_of(const Json& config) {
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
  Json config = with({{"model_type", "glm_moe_dsa"},
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

  const Json sparse{{"use_sparse_attention", true},
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
  const Json kda{{"full_attn_layers", {4}},
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

  const Json mamba{{"mamba_d_state", 16}, {"mamba_n_heads", 4}, {"mamba_d_head", 16}, {"mamba_n_groups", 1}};
  Json falcon = with(mamba);
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
    return Json{{"attention", {{"no_op", !attends}, {"n_heads_in_group", attends ? Json(4) : Json(nullptr)}}},
                {"ffn", {{"no_op", multiple == 0}, {"ffn_mult", multiple}}}};
  };
  const ModelGeometry nas =
      parse(with({{"model_type", "nemotron-nas"},
                  {"num_key_value_heads", nullptr},
                  {"intermediate_size", nullptr},
                  {"block_configs", {block(true, 2), block(false, 1), block(false, 0), block(true, 4)}}}));
  EXPECT_EQ(nas.kv_bytes_per_token, 2U * 2 * 2 * 8 * 2);
  EXPECT_EQ(nas.layers[2].feed_forward, FeedForwardKind::none);

  Json nemotron = with({{"model_type", "nemotron_h"},
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
  Json phi = with({{"model_type", "phi3"}, {"sliding_window", 4096}, {"max_position_embeddings", 4096}});
  EXPECT_TRUE(parse(phi).inexact.empty());
  Json exaone = with({{"model_type", "exaone4"}, {"sliding_window", 8}, {"sliding_window_pattern", "LLLG"}});
  EXPECT_EQ(parse(exaone).paged_layers(), 1U);
}

TEST(LayerKinds, LanguageModelsInsideOthers) {
  const Json inner = with({{"num_experts", 8}, {"num_experts_per_token", 2}, {"moe_intermediate_size", 32}});
  const Bytes bytes = parse(inner).kv_bytes_per_token;
  EXPECT_EQ(parse({{"hidden_size", 7}, {"llm_config", inner}}).kv_bytes_per_token, bytes);
  EXPECT_EQ(parse({{"thinker_config", {{"text_config", inner}}}}).kv_bytes_per_token, bytes);
  Json typeless = inner;
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

// tests/fixtures/models/published.tsv: one row for each config of the PyPI package aiconfigurator-core 0.12.0.
struct Published {
  std::string config, cache, pool, formula;
  Bytes token = 0, window_token = 0, default_token = 0, default_window_token = 0, state = 0;
  Tokens window = 0;
  friend void PrintTo(const Published& row, std::ostream* out) { *out << row.config; }
};

std::vector<Published> published() {
  std::ifstream file(in_source("tests/fixtures/models/published.tsv"));
  std::vector<Published> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#") || line.starts_with("config\t")) continue;
    std::istringstream cells(line);
    Published row;
    cells >> row.config >> row.token >> row.window_token >> row.window >> row.state >> row.cache >> row.default_token >>
        row.default_window_token;
    std::getline(cells >> std::ws, row.pool, '\t');
    std::getline(cells, row.formula);
    rows.push_back(row);
  }
  return rows;
}

// The folder of the configs, which tools/engine-env makes; empty: tools/test counts the tests as not run.
std::string configs_folder() {
  const char* const folder = std::getenv("KVTWIN_MODEL_CONFIGS");
  return folder == nullptr ? "" : folder;
}

class PublishedConfigs : public testing::TestWithParam<Published> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PublishedConfigs);
INSTANTIATE_TEST_SUITE_P(Package, PublishedConfigs,
                         testing::ValuesIn(configs_folder().empty() ? std::vector<Published>{} : published()),
                         [](const auto& row) {
                           std::string name = row.param.config;
                           std::ranges::replace_if(
                               name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
                           return name;
                         });

TEST_P(PublishedConfigs, HaveTheBytesOfTheEnginesPools) {
  const Published& expected = GetParam();
  SCOPED_TRACE(expected.pool + ": " + expected.formula);
  const std::string path = configs_folder() + "/" + expected.config + "_config.json";
  const ModelGeometry bf16 = model_from_file(path, KvDtype::bf16);
  EXPECT_EQ(bf16.kv_bytes_per_token, expected.token);
  EXPECT_EQ(bf16.window_bytes_per_token, expected.window_token);
  EXPECT_EQ(bf16.window, expected.window);
  EXPECT_EQ(bf16.state_bytes, expected.state);
  const ModelGeometry automatic = model_from_file(path);
  EXPECT_EQ(automatic.kv_dtype, expected.cache);
  EXPECT_EQ(automatic.kv_bytes_per_token, expected.default_token);
  EXPECT_EQ(automatic.window_bytes_per_token, expected.default_window_token);
  Bytes of_table = 0;
  double token = 0;
  for (const LayerRow& row : layer_table(automatic)) {
    token += row.bytes_per_token;
    of_table += row.bytes_per_sequence;
  }
  EXPECT_EQ(static_cast<Bytes>(std::ceil(token)), expected.default_token);
  EXPECT_EQ(of_table, expected.state + expected.window * expected.default_window_token);
}

TEST(PublishedTable, HasARowForEachConfigOfThePackage) {
  const std::vector<Published> rows = published();
  EXPECT_EQ(rows.size(), 89U);
  std::set<std::string> names;
  for (const Published& row : rows) {
    EXPECT_TRUE(names.insert(row.config).second) << row.config;
    EXPECT_FALSE(row.formula.empty()) << row.config;
  }
  if (configs_folder().empty()) return;
  for (const auto& entry : std::filesystem::directory_iterator(configs_folder())) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view kEnd = "_config.json";
    if (!name.ends_with(kEnd) || name.ends_with("_hf_quant_config.json")) continue;
    EXPECT_TRUE(names.contains(name.substr(0, name.size() - kEnd.size()))) << name;
  }
}

// Published models that the package does not have: figures of their config.json, and the bytes of a bf16 cache by the
// sizes of SGLang's pool classes.
TEST(OutsideConfigs, HaveTheBytesOfTheEnginesPools) {
  struct Case {
    const char* name;
    Json config;
    Bytes token, window_token, state;
  };
  const auto size = [](const char* type, int layers, int hidden, int heads, int kv_heads) {
    return Json{{"model_type", type},
                {"torch_dtype", "bfloat16"},
                {"num_hidden_layers", layers},
                {"hidden_size", hidden},
                {"intermediate_size", 8192},
                {"num_attention_heads", heads},
                {"num_key_value_heads", kv_heads},
                {"vocab_size", 100'000}};
  };
  const auto plus = [](Json config, const Json& more) {
    config.update(more);
    return config;
  };
  const auto repeated = [](int count, const auto& of) {
    Json list = Json::array();
    for (int i = 0; i < count; ++i) list.push_back(of(i));
    return list;
  };
  const Json experts{{"num_experts", 16}, {"num_experts_per_tok", 2}};
  Json kimi_layers{{"full_attn_layers", {4, 8, 12, 16, 20, 24, 27}},
                   {"kda_layers", Json::array()},
                   {"num_heads", 32},
                   {"head_dim", 128},
                   {"short_conv_kernel_size", 4}};
  for (int i = 1; i < 27; ++i) {
    if (i % 4 != 0) kimi_layers["kda_layers"].push_back(i);
  }
  const Case cases[] = {
      {"AI21-Jamba-1.5-Mini",
       plus(size("jamba", 32, 4096, 32, 8), {{"attn_layer_offset", 4},
                                             {"attn_layer_period", 8},
                                             {"mamba_d_state", 16},
                                             {"mamba_d_conv", 4},
                                             {"mamba_expand", 2},
                                             {"num_experts", 16},
                                             {"num_experts_per_tok", 2},
                                             {"expert_layer_period", 2},
                                             {"expert_layer_offset", 1}}),
       2U * 4 * 8 * 128 * 2, 0, 28U * (8192 * 16 * 4 + 3 * 8192 * 2)},
      {"granite-4.0-h-small",
       plus(size("granitemoehybrid", 40, 4096, 32, 8),
            {{"layer_types", repeated(40, [](int i) { return i % 10 == 5 ? "attention" : "mamba"; })},
             {"mamba_d_state", 128},
             {"mamba_d_conv", 4},
             {"mamba_expand", 2},
             {"mamba_n_heads", 128},
             {"mamba_d_head", 64},
             {"mamba_n_groups", 1},
             {"num_local_experts", 72},
             {"num_experts_per_tok", 10},
             {"shared_intermediate_size", 1536}}),
       2U * 4 * 8 * 128 * 2, 0, 36U * (8192 * 128 * 4 + 3 * (8192 + 256) * 2)},
      {"Falcon-H1-7B",
       plus(size("falcon_h1", 44, 3072, 12, 2), {{"head_dim", 128},
                                                 {"mamba_d_conv", 4},
                                                 {"mamba_d_head", 128},
                                                 {"mamba_d_ssm", 3072},
                                                 {"mamba_d_state", 256},
                                                 {"mamba_expand", 2},
                                                 {"mamba_n_groups", 1},
                                                 {"mamba_n_heads", 24}}),
       2U * 44 * 2 * 128 * 2, 0, 44U * (3072 * 256 * 4 + 3 * (3072 + 512) * 2)},
      {"Kimi-Linear-48B-A3B",
       plus(size("kimi_linear", 27, 2304, 32, 32), {{"kv_lora_rank", 512},
                                                    {"qk_rope_head_dim", 64},
                                                    {"qk_nope_head_dim", 128},
                                                    {"v_head_dim", 128},
                                                    {"linear_attn_config", kimi_layers}}),
       8'064, 0, 43'417'600},
      {"MiniMax-Text-01",
       plus(size("minimax_text_01", 80, 6144, 64, 8),
            {{"head_dim", 128}, {"attn_type_list", repeated(80, [](int i) { return i % 8 == 7 ? 1 : 0; })}}),
       2U * 10 * 8 * 128 * 2, 0, 70U * 64 * 128 * 128 * 4},
      {"LFM2-1.2B",
       plus(size("lfm2", 16, 2048, 32, 8), {{"conv_L_cache", 3},
                                            {"layer_types", repeated(16,
                                                                     [](int i) {
                                                                       const bool attends = i == 2 || i == 5 ||
                                                                                            i == 8 || i == 10 ||
                                                                                            i == 12 || i == 14;
                                                                       return attends ? "full_attention" : "conv";
                                                                     })}}),
       2U * 6 * 8 * 64 * 2, 0, 10U * 2 * 2048 * 2},
      {"c4ai-command-a",
       plus(size("cohere2", 64, 12288, 96, 8),
            {{"head_dim", 128}, {"sliding_window", 4096}, {"sliding_window_pattern", 4}}),
       2U * 16 * 8 * 128 * 2, 2U * 48 * 8 * 128 * 2, 0},
      {"Ministral-8B",
       plus(size("mistral", 36, 4096, 32, 8),
            {{"head_dim", 128}, {"sliding_window", 32'768}, {"max_position_embeddings", 32'768}}),
       2U * 36 * 8 * 128 * 2, 0, 0},
      {"phi-4", plus(size("phi3", 40, 5120, 40, 10), {{"sliding_window", nullptr}}), 2U * 40 * 10 * 128 * 2, 0, 0},
      {"GLM-4.5", plus(plus(size("glm4_moe", 92, 5120, 96, 8), {{"head_dim", 128}}), experts), 2U * 92 * 8 * 128 * 2, 0,
       0},
      {"ERNIE-4.5-300B-A47B", size("ernie4_5_moe", 54, 8192, 64, 8), 2U * 54 * 8 * 128 * 2, 0, 0},
      {"Hunyuan-A13B", plus(size("hunyuan_v1_moe", 32, 4096, 32, 8), {{"attention_head_dim", 128}}),
       2U * 32 * 8 * 128 * 2, 0, 0},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const ModelGeometry m = parse(c.config);
    EXPECT_EQ(m.kv_bytes_per_token, c.token);
    EXPECT_EQ(m.window_bytes_per_token, c.window_token);
    EXPECT_EQ(m.state_bytes, c.state);
  }
  // Gemma 3n has embeddings of each layer beside its layers, which no figure of the weights counts yet.
  EXPECT_NE(error_of(size("gemma3n_text", 35, 2048, 8, 2)).find("gemma3n_text"), std::string::npos);
}

TEST(LayerKinds, ListedLayersHaveExperts) {
  Json config =
      with({{"model_type", "step3p5"}, {"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_layers_enum", "1,3"}});
  const ModelGeometry m = parse(config);
  EXPECT_EQ(m.layers[0].feed_forward, FeedForwardKind::dense);
  EXPECT_EQ(m.layers[1].feed_forward, FeedForwardKind::experts);
  EXPECT_EQ(m.layers[3].feed_forward, FeedForwardKind::experts);
  config["moe_layers_enum"] = "1;3";
  EXPECT_NE(error_of(config).find("moe_layers_enum"), std::string::npos);
}

}  // namespace
}  // namespace kvtwin
