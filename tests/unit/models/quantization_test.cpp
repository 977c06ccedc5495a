#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "models/geometry.hpp"
#include "models/json.hpp"
#include "tests/folder.hpp"
#include "tests/small_config.hpp"

namespace kvtwin::test {
namespace {

ModelGeometry parse(const Json& config, KvDtype kv = KvDtype::automatic,
                    WeightChoice weights = WeightChoice::automatic) {
  return parse_model(config.dump(), "config.json", kv, weights);
}

Json quantised(const Json& quantization) {
  Json config = llama();
  config["quantization_config"] = quantization;
  return config;
}

std::string error_of(const Json& quantization) {
  try {
    parse(quantised(quantization));
  } catch (const ModelError& error) {
    return error.what();
  }
  return "no error";
}

// Writes DIR/config.json and DIR/hf_quant_config.json, and reads the model.
ModelGeometry from_folder(const Folder& folder, const Json& config, const Json& file) {
  std::ofstream(folder / "config.json") << config;
  std::ofstream(folder / "hf_quant_config.json") << file;
  return model_from_file(folder / "config.json");
}

constexpr Bytes kBf16Token = 2U * 4 * 2 * 8 * 2;

TEST(CheckpointCache, AnFp8CacheOfTheCheckpointIsTheDefault) {
  const Json fp8{{"dynamic", false}, {"num_bits", 8}, {"type", "float"}};
  Json config = quantised({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"kv_cache_scheme", fp8}});
  EXPECT_EQ(parse(config).kv_bytes_per_token, kBf16Token / 2);
  EXPECT_EQ(parse(config).kv_dtype, "fp8");
  EXPECT_TRUE(parse(config).notes.empty());
  EXPECT_EQ(parse(config, KvDtype::bf16).kv_bytes_per_token, kBf16Token) << "a choice of the user";
  config = quantised({{"quant_algo", "FP8"}, {"kv_cache_quant_algo", "FP8"}});
  EXPECT_EQ(parse(config).kv_dtype, "fp8");
  config = quantised({{"quant_algo", "FP8"}, {"kv_cache_quant_algo", nullptr}});
  EXPECT_EQ(parse(config).kv_dtype, "bf16");
  Json scheme = fp8;
  scheme["strategy"] = "tensor";
  const Json groups{{"group_0", {{"weights", {{"num_bits", 8}, {"type", "float"}}}}}};
  config = quantised({{"quant_method", "compressed-tensors"}, {"config_groups", groups}, {"kv_cache_scheme", scheme}});
  EXPECT_EQ(parse(config).kv_dtype, "fp8");
}

TEST(CheckpointCache, ANoteSaysWhereTheEnginesDiffer) {
  const auto note_of = [](const Json& quantization, const char* dtype) {
    const ModelGeometry m = parse(quantised(quantization));
    EXPECT_EQ(m.kv_dtype, dtype) << quantization;
    return m.notes.size() == 1 ? m.notes.front() : std::to_string(m.notes.size()) + " notes";
  };
  const Json groups{{"group_0", {{"weights", {{"num_bits", 8}, {"type", "float"}}}}}};
  const Json four{{"num_bits", 4}, {"type", "float"}},
      heads{{"num_bits", 8}, {"type", "float"}, {"strategy", "attn_head"}};
  for (const std::string& note :
       {note_of({{"quant_algo", "NVFP4"}, {"kv_cache_scheme", four}}, "bf16"),
        note_of({{"quant_algo", "NVFP4"}, {"kv_cache_quant_algo", "NVFP4"}}, "bf16"),
        note_of({{"quant_algo", "FP8"}, {"kv_cache_scheme", "FP8"}}, "bf16"),
        note_of({{"quant_method", "fp8"}, {"kv_cache_quant_algo", "FP8"}}, "fp8"),
        note_of({{"quant_method", "compressed-tensors"}, {"config_groups", groups}, {"kv_cache_scheme", heads}},
                "bf16")}) {
    EXPECT_NE(note.find("SGLang 0.5.23 takes"), std::string::npos) << note;
    EXPECT_NE(note.find("vLLM 0.33.0 takes"), std::string::npos) << note;
    EXPECT_NE(note.find("model.kv_dtype"), std::string::npos) << note;
  }
}

TEST(CheckpointCache, TheFileBesideTheConfigIsRead) {
  const Folder folder;
  const Json file{{"quantization", {{"quant_algo", "NVFP4"}, {"kv_cache_quant_algo", "FP8"}}}};
  const ModelGeometry m = from_folder(folder, llama(), file);
  EXPECT_EQ(m.kv_dtype, "fp8");
  EXPECT_EQ(m.linear_format.name, "nvfp4");
  // Only the cache is quantised.
  const ModelGeometry plain =
      from_folder(folder, llama(), {{"quantization", {{"quant_algo", nullptr}, {"kv_cache_quant_algo", "FP8"}}}});
  EXPECT_EQ(plain.kv_dtype, "fp8");
  EXPECT_EQ(plain.linear_format.name, "bf16");
  // A config with a quantization_config of its own does not need the file.
  const ModelGeometry own = from_folder(folder, quantised({{"quant_method", "fp8"}}), file);
  EXPECT_EQ(own.kv_dtype, "bf16");
  EXPECT_EQ(own.linear_format.name, "fp8");
  // Of mixed precision, SGLang takes the missing parts from the file.
  Json mixed{{"quant_method", "modelopt"},
             {"quant_algo", "MIXED_PRECISION"},
             {"quantized_layers", {{"model.layers.0.mlp.down_proj", {{"quant_algo", "NVFP4"}}}}}};
  Json whole = mixed;
  whole["kv_cache_quant_algo"] = "FP8";
  const ModelGeometry both = from_folder(folder, quantised(mixed), {{"quantization", whole}});
  EXPECT_EQ(both.kv_dtype, "fp8");
  ASSERT_EQ(both.notes.size(), 1U);
  EXPECT_NE(both.notes[0].find("hf_quant_config.json"), std::string::npos);
  std::ofstream(folder / "hf_quant_config.json") << "{\"quantization\": {}}";
  std::ofstream(folder / "config.json") << llama();
  EXPECT_THROW(model_from_file(folder / "config.json"), ModelError);
}

TEST(CacheFormats, HaveTheEnginesScales) {
  Json config = llama();
  config["head_dim"] = 128;
  const auto head = [&](KvDtype kv) { return parse(config, kv).kv_bytes_per_token / (2U * 4 * 2); };
  EXPECT_EQ(head(KvDtype::fp8), 128U);
  EXPECT_EQ(head(KvDtype::mxfp8), 128U + 128 / 32) << "SGLang: a byte for 32 numbers";
  EXPECT_EQ(head(KvDtype::nvfp4), 128U / 2 + 128 / 16) << "SGLang and vLLM: a byte for 16 numbers";
  EXPECT_EQ(head(KvDtype::int4), 128U / 2 + 4) << "vLLM: a float for a head of a token";
  EXPECT_EQ(parse(config, KvDtype::nvfp4).kv_formula, "2 * 4 layers * 2 kv heads * 72 bytes = 1152 bytes/token");
  EXPECT_EQ(parse(config, KvDtype::nvfp4).shape(2, 16).token_bytes(), 1152U / 2);
  for (const char* name : {"bf16", "fp16", "fp8", "mxfp8", "nvfp4", "int4"}) {
    EXPECT_EQ(name_of(kv_dtype_from_name(name)), name);
    EXPECT_EQ(parse(config, kv_dtype_from_name(name)).kv_dtype, name);
  }
  config.update({{"model_type", "deepseek_v3"},
                 {"kv_lora_rank", 512},
                 {"qk_rope_head_dim", 64},
                 {"qk_nope_head_dim", 128},
                 {"v_head_dim", 128}});
  EXPECT_EQ(parse(config, KvDtype::nvfp4).kv_bytes_per_token, 4U * (576 / 2 + 576 / 16));
}

TEST(CacheFormats, SparseLatentsInFp8DependOnTheGpu) {
  Json config = llama();
  config.update({{"model_type", "deepseek_v32"},
                 {"kv_lora_rank", 512},
                 {"qk_rope_head_dim", 64},
                 {"qk_nope_head_dim", 128},
                 {"v_head_dim", 128},
                 {"index_topk", 2048},
                 {"index_n_heads", 4},
                 {"index_head_dim", 128}});
  EXPECT_EQ(parse(config, KvDtype::fp8).kv_bytes_per_token, 4U * (656 + 132));
  EXPECT_EQ(parse(config, KvDtype::fp8_raw).kv_bytes_per_token, 4U * (576 + 132));
  EXPECT_EQ(parse(config, KvDtype::fp8_raw).kv_dtype, "fp8");
}

TEST(CacheFormats, MiniMaxM3sIndexerIsInFp8BesideAnFp8Cache) {
  Json config = llama();
  const Json sparse{{"sparse_index_dim", 16},
                    {"sparse_num_index_heads", 2},
                    {"sparse_topk_blocks", 2},
                    {"sparse_block_size", 8},
                    {"sparse_disable_index_value", {1, 1, 1, 1}}};
  config.update({{"model_type", "minimax_m3"}, {"sparse_attention_config", sparse}});
  EXPECT_EQ(parse(config).kv_bytes_per_token, 4U * (2 * 2 * 8 * 2 + 16 * 2));
  EXPECT_EQ(parse(config, KvDtype::fp8).kv_bytes_per_token, 4U * (2 * 2 * 8 + 16));
}

TEST(WeightFormats, ListedModulesKeepTheirType) {
  const auto of = [](const std::vector<std::string>& spared) {
    return parse(quantised({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", spared}}));
  };
  const ModelGeometry plain = of({"lm_head", "model.layers.0.self_attn.kv_a_layernorm", "model.layers.0.mlp.gate",
                                  "model.layers.0.self_attn.indexer.k_norm"});
  EXPECT_EQ(plain.attention_format.name, "nvfp4") << "norms, routers and indexers are small";
  EXPECT_EQ(plain.linear_format.name, "nvfp4");
  EXPECT_EQ(of({"model.layers.0.self_attn*"}).attention_format.name, "bf16");
  EXPECT_EQ(of({"model.layers.0.mlp.shared_experts*"}).linear_format.name, "bf16");
  EXPECT_EQ(of({"re:.*mlp\\.(gate|up|gate_up|down)_proj.*"}).linear_format.name, "bf16");
  EXPECT_EQ(of({"model.layers.0.linear_attn*"}).state_format.name, "bf16");
  EXPECT_EQ(of({"model.layers.0.linear_attn*"}).attention_format.name, "nvfp4");
}

TEST(WeightFormats, MixedPrecisionNamesTheFormatOfEachPart) {
  Json layers{{"lm_head", {{"quant_algo", "W4A16_NVFP4"}}},
              {"model.layers.0.mlp.down_proj", {{"quant_algo", "NVFP4"}}},
              {"model.layers.0.self_attn.q_proj", {{"quant_algo", "FP8"}}},
              {"model.layers.0.linear_attn.in_proj_z", {{"quant_algo", "MXFP8"}}}};
  Json config =
      quantised({{"quant_method", "modelopt"}, {"quant_algo", "MIXED_PRECISION"}, {"quantized_layers", layers}});
  const ModelGeometry m = parse(config);
  EXPECT_EQ(m.linear_format.name, "nvfp4");
  EXPECT_EQ(m.attention_format.name, "fp8");
  EXPECT_EQ(m.state_format.bits_x1024, 8U * 1024 + 256);
  EXPECT_EQ(m.head_format.name, "nvfp4");
  EXPECT_EQ(m.expert_format.name, "bf16") << "not listed";
  layers["model.layers.1.self_attn.q_proj"] = {{"quant_algo", "NVFP4"}};
  EXPECT_NE(error_of({{"quant_algo", "MIXED_PRECISION"}, {"quantized_layers", layers}}).find("quantized_layers"),
            std::string::npos);
  EXPECT_NE(error_of({{"quant_algo", "MIXED_PRECISION"}}).find("quantized_layers"), std::string::npos);
}

TEST(WeightFormats, UnknownFormsAreRefusedWithAWayOut) {
  const Json two{{"group_0", {{"weights", {{"num_bits", 8}, {"type", "float"}}}}},
                 {"group_1", {{"weights", {{"num_bits", 4}, {"type", "float"}}}}}};
  for (const Json& form : {Json{{"quant_method", "magic"}}, Json{{"quant_algo", "NVFP9"}},
                           Json{{"quant_method", "compressed-tensors"}, {"config_groups", two}},
                           Json{{"quant_method", "compressed-tensors"}}}) {
    const std::string error = error_of(form);
    EXPECT_NE(error.find("quantization_config"), std::string::npos) << error;
    if (form.contains("config_groups") || form.contains("quant_algo") || form["quant_method"] == "magic") {
      EXPECT_NE(error.find("set model.weights"), std::string::npos) << error;
    }
    EXPECT_EQ(parse(quantised(form), KvDtype::automatic, WeightChoice::fp8).linear_format.name, "fp8") << form;
  }
  const Json mx{{"group_0", {{"weights", {{"num_bits", 4}, {"type", "float"}, {"group_size", 32}}}}}};
  EXPECT_EQ(parse(quantised({{"quant_method", "compressed-tensors"}, {"config_groups", mx}})).linear_format.name,
            "mxfp4");
}

TEST(WeightFormats, ChoicesOfTheUser) {
  Json config = llama();
  const auto linear = [&](WeightChoice choice) { return parse(config, KvDtype::automatic, choice).linear_format; };
  EXPECT_EQ(linear(WeightChoice::mxfp4).bits_x1024, 4U * 1024 + 256);
  EXPECT_EQ(linear(WeightChoice::int8).bits_x1024, 8U * 1024);
  EXPECT_EQ(linear(WeightChoice::awq).bits_x1024, 4U * 1024 + 20 * 1024 / 128);
  EXPECT_EQ(linear(WeightChoice::w4a8).name, "fp8");
  EXPECT_EQ(parse(config, KvDtype::automatic, WeightChoice::w4a8).expert_format.name, "int4");
}

}  // namespace
}  // namespace kvtwin::test
