#include "models/geometry_layers.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>
#include <string>

#include "models/json.hpp"

namespace kvtwin {

namespace {

using Kinds = std::vector<AttentionKind>;

AttentionKind kind_from_word(const ConfigReader& config, std::string_view key, const Json& word) {
  struct Word {
    std::string_view word;
    AttentionKind kind;
  };
  static constexpr std::array<Word, 13> kWords{{{"full_attention", AttentionKind::full},
                                                {"attention", AttentionKind::full},
                                                {"sliding_attention", AttentionKind::window},
                                                {"chunked_attention", AttentionKind::window},
                                                {"local_attention", AttentionKind::window},
                                                {"linear_attention", AttentionKind::state},
                                                {"mamba", AttentionKind::state},
                                                {"mamba2", AttentionKind::state},
                                                {"recurrent", AttentionKind::state},
                                                {"conv", AttentionKind::state},
                                                {"deepseek_sparse_attention", AttentionKind::full},
                                                {"moe", AttentionKind::none},
                                                {"mlp", AttentionKind::none}}};
  if (word.is_string()) {
    const auto& text = word.text();
    for (const Word& known : kWords) {
      if (known.word == text) return known.kind;
    }
  }
  config.fail(key,
              "a list of full_attention, sliding_attention, chunked_attention, linear_attention, attention or mamba, "
              "one a layer");
}

// Further entries are of the layers that predict more tokens, which a draft model has.
void check_list(const ConfigReader& config, std::string_view key, const Json& list, std::uint32_t count) {
  const std::uint32_t predicting =
      config.first({"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"}, 0);
  if (!list.is_array() || (list.size() != count && list.size() != std::size_t{count} + predicting)) {
    config.fail(key, "a list with one entry for each of the " + std::to_string(count) + " layers");
  }
}

// A list of 0 and other integers.
std::vector<std::uint32_t> integers_of(const ConfigReader& config, std::string_view key, std::uint32_t count) {
  const Json& list = *config.find(key);
  check_list(config, key, list, count);
  std::vector<std::uint32_t> numbers;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!list[i].is_number_unsigned() || list[i].get<std::uint64_t>() > 1U << 20) {
      config.fail(key, "a list of small integers, one a layer");
    }
    numbers.push_back(list[i].get<std::uint32_t>());
  }
  return numbers;
}

Kinds kinds_from_list(const ConfigReader& config, std::string_view key, std::uint32_t count) {
  const Json& list = *config.find(key);
  check_list(config, key, list, count);
  Kinds kinds;
  for (std::uint32_t i = 0; i < count; ++i) kinds.push_back(kind_from_word(config, key, list[i]));
  return kinds;
}

// Either each period-th layer attends and the other layers keep a state (Jamba, Qwen3-Next), or the listed layers
// attend (Bamba).
Kinds hybrid_kinds(const ConfigReader& config, std::uint32_t count) {
  Kinds kinds(count, AttentionKind::state);
  if (const Json* list = config.find("attn_layer_indices")) {
    if (!list->is_array()) config.fail("attn_layer_indices", "a list of layer numbers");
    for (const Json& index : *list) {
      if (!index.is_number_unsigned() || index.get<std::uint64_t>() >= count) {
        config.fail("attn_layer_indices", "a list of layer numbers below num_hidden_layers");
      }
      kinds[index.get<std::size_t>()] = AttentionKind::full;
    }
    return kinds;
  }
  const bool jamba = config.has("attn_layer_period");
  const std::uint32_t period = config.need(jamba ? "attn_layer_period" : "full_attention_interval");
  const std::uint32_t offset = jamba ? config.get("attn_layer_offset", 0) : period - 1;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (i % period == offset) kinds[i] = AttentionKind::full;
  }
  return kinds;
}

// Kimi-Linear: lists of the layers, counted from 1.
Kinds kda_kinds(const ConfigReader& config, std::uint32_t count) {
  const Json& object = *config.find("linear_attn_config");
  constexpr const char* kRight = "an object whose full_attn_layers and kda_layers have each layer once, from 1 on";
  if (!object.is_object()) config.fail("linear_attn_config", kRight);
  Kinds kinds(count, AttentionKind::none);
  const auto add = [&](const char* key, AttentionKind kind) {
    if (!object.contains(key) || !object[key].is_array()) config.fail("linear_attn_config", kRight);
    for (const Json& layer : object[key]) {
      if (!layer.is_number_unsigned() || layer < 1U || layer > count ||
          kinds[layer.get<std::size_t>() - 1] != AttentionKind::none) {
        config.fail("linear_attn_config", kRight);
      }
      kinds[layer.get<std::size_t>() - 1] = kind;
    }
  };
  add("full_attn_layers", AttentionKind::full);
  add("kda_layers", AttentionKind::state);
  if (std::ranges::find(kinds, AttentionKind::none) != kinds.end()) config.fail("linear_attn_config", kRight);
  return kinds;
}

// A list of numbers, one a layer: `full` stands for full attention, and 0 or 1 for the other kind.
Kinds kinds_from_numbers(const ConfigReader& config, std::string_view key, std::uint32_t count, std::uint32_t full,
                         AttentionKind other) {
  Kinds kinds;
  for (const std::uint32_t number : integers_of(config, key, count)) {
    if (number > 1) config.fail(key, "a list of 0 and 1, one a layer");
    kinds.push_back(number == full ? AttentionKind::full : other);
  }
  return kinds;
}

// Windows in configs without layer_types: each model family has a rule of its own.
Kinds window_kinds(const ConfigReader& config, std::uint32_t count) {
  Kinds kinds(count, AttentionKind::full);
  if (config.get("attention_chunk_size", 0) != 0) {  // Llama 4
    if (config.has("no_rope_layers") && config.find("no_rope_layers")->is_array() &&
        !config.find("no_rope_layers")->empty()) {
      return kinds_from_numbers(config, "no_rope_layers", count, 0, AttentionKind::window);
    }
    const std::uint32_t interval = config.first({"no_rope_layer_interval"}, 4);
    for (std::uint32_t i = 0; i < count; ++i) {
      if ((i + 1) % interval != 0) kinds[i] = AttentionKind::window;
    }
    return kinds;
  }
  if (config.get("sliding_window", 0) == 0 || !config.flag("use_sliding_window", true)) return kinds;
  const std::string type = config.text("model_type", "");
  const bool alternates = type == "gpt_oss" || type == "gemma2";
  // A window as long as the longest sequence is none.
  if (config.get("sliding_window", 0) >= config.get("max_position_embeddings", 1U << 24)) return kinds;
  if (const Json* word = config.find("sliding_window_pattern"); word != nullptr && word->is_string()) {
    const std::string letters = word->get<std::string>();  // EXAONE 4: "LLLG"
    if (letters.empty() || letters.find_first_not_of("LG") != std::string::npos) {
      config.fail("sliding_window_pattern", "an integer, or a word of the letters L and G");
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      if (letters[i % letters.size()] == 'L') kinds[i] = AttentionKind::window;
    }
    return kinds;
  }
  const std::uint32_t known = alternates ? 2 : type == "gemma3_text" ? 6 : type == "cohere2" ? 4 : 0;
  const std::uint32_t pattern = config.first({"sliding_window_pattern", "layer_switch"}, known);
  const std::uint32_t first = config.has("use_sliding_window") ? config.get("max_window_layers", 0) : 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool slides = pattern > 1 ? (i + 1) % pattern != 0 : i >= first;
    if (slides) kinds[i] = AttentionKind::window;
  }
  return kinds;
}

Kinds attention_kinds(const ConfigReader& config, std::uint32_t count) {
  const std::string type = config.text("model_type", "");
  if (config.has("compress_ratios")) return Kinds(count, AttentionKind::compressed);
  if (config.has("linear_attn_config")) return kda_kinds(config, count);
  if (config.has("layer_types")) return kinds_from_list(config, "layer_types", count);
  if (config.has("layers_block_type")) return kinds_from_list(config, "layers_block_type", count);
  if (config.has("hybrid_layer_pattern")) {
    return kinds_from_numbers(config, "hybrid_layer_pattern", count, 0, AttentionKind::window);
  }
  if (type == "falcon_h1") return Kinds(count, AttentionKind::full_state);
  if (config.has("attn_type_list")) {
    return kinds_from_numbers(config, "attn_type_list", count, 1, AttentionKind::state);
  }
  if (config.has("attn_layer_indices") || config.has("attn_layer_period") || config.has("full_attention_interval")) {
    return hybrid_kinds(config, count);
  }
  if (type.starts_with("mamba")) return Kinds(count, AttentionKind::state);
  return window_kinds(config, count);
}

// moe_layer_freq is a period (DeepSeek), or a list of 0 and 1 with one entry per layer.
bool listed_as_experts(const ConfigReader& config, std::uint32_t layer, std::uint32_t count) {
  const Json* value = config.find("moe_layer_freq");
  if (value == nullptr) return true;
  if (!value->is_array()) return layer % config.need("moe_layer_freq") == 0;
  if (value->size() < count || !(*value)[layer].is_number_integer()) {
    config.fail("moe_layer_freq", "a positive integer, or a list of 0 and 1 with one entry a layer");
  }
  return (*value)[layer].get<std::int64_t>() != 0;
}

// Step-3: the layers with experts, as "4,5,6".
bool is_listed(const ConfigReader& config, const Json& list, std::uint32_t layer) {
  constexpr const char* kRight = "a text of layer numbers with commas between them";
  if (!list.is_string()) config.fail("moe_layers_enum", kRight);
  std::istringstream numbers(list.get<std::string>());
  bool found = false;
  for (std::string word; std::getline(numbers, word, ',');) {
    std::uint32_t number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc() || end != word.data() + word.size()) config.fail("moe_layers_enum", kRight);
    found = found || number == layer;
  }
  return found;
}

bool layer_has_experts(const ConfigReader& config, std::uint32_t layer, std::uint32_t count) {
  if (const Json* words = config.find("mlp_layer_types"); words != nullptr && words->is_array()) {
    return layer < words->size() && (*words)[layer] == "sparse";
  }
  if (const Json* list = config.find("moe_layers_enum")) return is_listed(config, *list, layer);
  if (layer < config.get("moe_layer_start_index", 0)) return false;
  if (layer < config.get("first_k_dense_replace", 0)) return false;
  if (!listed_as_experts(config, layer, count)) return false;
  if ((layer + 1) % std::max(1U, config.get("decoder_sparse_step", 1)) != 0) return false;
  if ((layer + 1) % std::max(1U, config.get("interleave_moe_layer_step", 1)) != 0) return false;
  if (const Json* dense = config.find("mlp_only_layers"); dense != nullptr && dense->is_array()) {
    for (const Json& index : *dense) {
      if (index.is_number_integer() && index.get<std::int64_t>() == static_cast<std::int64_t>(layer)) return false;
    }
  }
  const std::uint32_t period = std::max(1U, config.get("expert_layer_period", 1));
  return layer % period == config.get("expert_layer_offset", 0) % period;
}

// Nemotron-H: one letter per layer. Each layer is either attention, state, or feed-forward.
std::vector<LayerGeometry> layers_from_letters(const ConfigReader& config, std::uint32_t count) {
  const std::string letters = config.text("hybrid_override_pattern", "");
  if (letters.size() != count) config.fail("hybrid_override_pattern", "one letter of M, * and - for each layer");
  std::vector<LayerGeometry> layers;
  for (char letter : letters) {
    LayerGeometry layer;
    layer.attention = AttentionKind::none;
    layer.feed_forward = FeedForwardKind::none;
    if (letter == '*') {
      layer.attention = AttentionKind::full;
    } else if (letter == 'M') {
      layer.attention = AttentionKind::state;
    } else if (letter == 'E') {
      layer.feed_forward = FeedForwardKind::experts;
    } else if (letter == '-') {
      layer.feed_forward = FeedForwardKind::dense;
    } else {
      config.fail("hybrid_override_pattern", "a word of the letters M, *, E and -");
    }
    layers.push_back(layer);
  }
  return layers;
}

}  // namespace

std::uint32_t read_layer_count(const ConfigReader& config) {
  std::uint32_t count = config.get("num_hidden_layers", 0);
  const Json* list = config.find("layers_block_type");
  if (count == 0 && list != nullptr && list->is_array() && list->size() <= 4096) {
    count = static_cast<std::uint32_t>(list->size());
  }
  if (count == 0) count = config.need("num_hidden_layers");
  if (count > 4096) config.fail("num_hidden_layers", "at most 4096");
  return count;
}

std::uint32_t read_even(const ConfigReader& config, std::initializer_list<std::string_view> keys,
                        std::uint32_t fallback) {
  for (std::string_view key : keys) {
    const Json* value = config.find(key);
    if (value == nullptr) continue;
    if (!value->is_array()) {
      if (const std::uint32_t number = config.get(key, 0); number != 0) return number;
      continue;
    }
    const bool even = !value->empty() && value->front().is_number_unsigned() && value->front() <= 1U << 24 &&
                      std::ranges::all_of(*value, [&](const auto& one) { return one == value->front(); });
    if (!even) config.fail(key, "an integer, or a list of equal integers");
    return value->front().get<std::uint32_t>();
  }
  return fallback;
}

std::uint32_t count_experts(const ConfigReader& config) {
  return config.first({"num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"}, 0);
}

std::vector<LayerGeometry> plain_layers(const ConfigReader& config, std::uint32_t count) {
  std::vector<LayerGeometry> layers(count);
  if (count_experts(config) < 2) return layers;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (layer_has_experts(config, i, count)) layers[i].feed_forward = FeedForwardKind::experts;
  }
  return layers;
}

std::vector<LayerGeometry> read_layers(const ConfigReader& config, std::uint32_t count) {
  if (config.has("hybrid_override_pattern")) return layers_from_letters(config, count);
  const bool latent = config.has("kv_lora_rank"), sparse = config.get("index_topk", 0) != 0;
  const bool experts = count_experts(config) > 1;
  const bool one_part = config.text("model_type", "") == "nemotron_h";  // attention, or a state, or a feed-forward
  const Kinds kinds = attention_kinds(config, count);
  std::vector<LayerGeometry> layers(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    LayerGeometry& layer = layers[i];
    layer.attention = kinds[i];
    if (kinds[i] == AttentionKind::window || kinds[i] == AttentionKind::compressed) {
      const bool chunks = config.text("model_type", "").starts_with("llama4");
      layer.window = chunks ? config.first({"attention_chunk_size", "sliding_window"}, 0)
                            : config.first({"sliding_window", "attention_chunk_size"}, 0);
      if (layer.window == 0) config.fail("sliding_window", "a positive integer, as some layers slide");
    } else if (kinds[i] == AttentionKind::full && latent) {
      layer.attention = sparse ? AttentionKind::sparse_latent : AttentionKind::latent;
    }
    if (one_part) {
      const bool of_experts = kinds[i] == AttentionKind::none && (*config.find("layers_block_type"))[i] == "moe";
      layer.feed_forward = kinds[i] != AttentionKind::none ? FeedForwardKind::none
                           : of_experts                    ? FeedForwardKind::experts
                                                           : FeedForwardKind::dense;
    } else if (experts && layer_has_experts(config, i, count)) {
      layer.feed_forward = FeedForwardKind::experts;
    }
  }
  return layers;
}

StateLayer read_state_layer(const ConfigReader& config, std::uint32_t hidden) {
  // Engines keep the convolution's state in bf16, and the recurrent state in float32 unless the config names a type.
  constexpr std::uint64_t kConvolvedElement = 2;
  const std::string_view key = config.has("mamba_ssm_dtype") ? "mamba_ssm_dtype" : "mamba_ssm_cache_dtype";
  const std::string type = config.text(key, "float32");
  if (type != "float32" && type != "bfloat16" && type != "float16") {
    config.fail(key, "float32, bfloat16 or float16");
  }
  const std::uint64_t element = type == "float32" ? 4 : 2;
  StateLayer layer;
  std::uint64_t state = 0, convolved = 0, kernel = 0;
  if (const Json* linear = config.find("linear_attn_config")) {  // Kimi delta attention
    const ConfigReader kda(*linear, config.file() + ": linear_attn_config");
    const std::uint64_t width = std::uint64_t{kda.need("num_heads")} * kda.need("head_dim");
    state = width * kda.need("head_dim");
    kernel = kda.need("short_conv_kernel_size");
    convolved = 3 * width;
    layer.parameters = hidden * (5 * width + kda.need("num_heads"));
  } else if (config.has("conv_L_cache")) {  // LFM2: a short convolution, without a recurrent state
    kernel = config.need("conv_L_cache");
    convolved = hidden;
    layer.parameters = 4 * std::uint64_t{hidden} * hidden;
  } else if (config.has("attn_type_list")) {  // lightning attention
    const std::uint64_t heads = config.need("num_attention_heads");
    const std::uint64_t dim = config.has("head_dim") ? config.need("head_dim") : hidden / heads;
    state = heads * dim * dim;
    kernel = 1;
    layer.parameters = 5 * std::uint64_t{hidden} * heads * dim;
  } else if (config.has("linear_num_value_heads")) {  // gated delta net
    const std::uint64_t keys = std::uint64_t{config.need("linear_num_key_heads")} * config.need("linear_key_head_dim");
    const std::uint64_t value_heads = config.need("linear_num_value_heads");
    const std::uint64_t values = value_heads * config.need("linear_value_head_dim");
    state = values * config.need("linear_key_head_dim");
    kernel = config.first({"linear_conv_kernel_dim"}, 4);
    convolved = 2 * keys + values;
    layer.parameters = hidden * (2 * keys + 3 * values + 2 * value_heads);
    layer.delta_net = {config.need("linear_num_key_heads"), config.need("linear_num_value_heads"),
                       config.need("linear_key_head_dim"), config.need("linear_value_head_dim")};
  } else {
    const std::uint64_t width = config.first({"mamba_d_state", "ssm_state_size", "state_size"}, 0);
    if (width == 0) config.fail("mamba_d_state", "a positive integer, as some layers keep a state");
    const std::uint64_t heads = config.first({"mamba_n_heads", "mamba_num_heads"}, 0);
    const std::uint64_t expand = config.first({"mamba_expand", "expand"}, 2);
    const std::string_view head_key = config.has("mamba_d_head") ? "mamba_d_head" : "mamba_head_dim";
    const Json* head = config.find(head_key);
    const bool automatic = head != nullptr && head->is_string() && *head == "auto";
    std::uint64_t inner = expand * hidden;
    if (heads != 0 && !automatic) inner = heads * config.get(head_key, 64);
    if (const std::uint32_t own = config.get("mamba_d_ssm", 0); own != 0) inner = own;  // Falcon-H1
    const std::uint64_t groups = heads == 0 ? 0 : config.first({"mamba_n_groups", "n_groups"}, 1);
    state = inner * width;
    kernel = config.first({"mamba_d_conv", "conv_kernel"}, 4);
    convolved = inner + 2 * groups * width;
    layer.parameters = hidden * (3 * inner + 2 * groups * width + heads);
    if (heads == 0) layer.parameters += inner * (3 * width + hidden / 8);  // Mamba-1: x and dt projections, A
  }
  layer.parameters += convolved * kernel;
  layer.bytes = state * element + (kernel - 1) * convolved * kConvolvedElement;
  return layer;
}

namespace {

// Sorted. The model types whose attention follows from the keys that are read here.
constexpr std::array kKnownTypes = std::to_array<std::string_view>({"bamba",
                                                                    "cohere",
                                                                    "cohere2",
                                                                    "deepseek_ref",
                                                                    "deepseek_v2",
                                                                    "deepseek_v3",
                                                                    "deepseek_v32",
                                                                    "deepseek_v4",
                                                                    "dots1",
                                                                    "ernie4_5",
                                                                    "ernie4_5_moe",
                                                                    "exaone4",
                                                                    "falcon_h1",
                                                                    "gemma",
                                                                    "gemma2",
                                                                    "gemma3_text",
                                                                    "gemma4_text",
                                                                    "glm",
                                                                    "glm4",
                                                                    "glm4_moe",
                                                                    "glm_moe_dsa",
                                                                    "gpt_oss",
                                                                    "granite",
                                                                    "granitemoe",
                                                                    "granitemoehybrid",
                                                                    "hunyuan_v1_dense",
                                                                    "hunyuan_v1_moe",
                                                                    "internlm2",
                                                                    "internlm3",
                                                                    "jamba",
                                                                    "kimi_k2",
                                                                    "kimi_linear",
                                                                    "lfm2",
                                                                    "llama",
                                                                    "llama4_text",
                                                                    "mamba",
                                                                    "mamba2",
                                                                    "mimo",
                                                                    "mimo_v2_flash",
                                                                    "minimax_m1",
                                                                    "minimax_m2",
                                                                    "minimax_m3",
                                                                    "minimax_text_01",
                                                                    "mistral",
                                                                    "mixtral",
                                                                    "nemotron",
                                                                    "nemotron-nas",
                                                                    "nemotron_h",
                                                                    "olmo",
                                                                    "olmo2",
                                                                    "olmo3",
                                                                    "olmoe",
                                                                    "phi",
                                                                    "phi3",
                                                                    "phimoe",
                                                                    "qwen2",
                                                                    "qwen2_moe",
                                                                    "qwen3",
                                                                    "qwen3_5_moe_text",
                                                                    "qwen3_5_text",
                                                                    "qwen3_moe",
                                                                    "qwen3_next",
                                                                    "qwen3_vl_moe_text",
                                                                    "qwen3_vl_text",
                                                                    "seed_oss",
                                                                    "smollm3",
                                                                    "stablelm",
                                                                    "starcoder2",
                                                                    "step3p5",
                                                                    "step3p7"});

// A key whose name has one of these parts may concern attention or the cache.
constexpr std::array kParts = std::to_array<std::string_view>(
    {"attn",    "attention",  "window",    "kv_",    "_kv",       "cache",        "state",       "mamba",   "ssm",
     "conv",    "index",      "compress",  "sparse", "latent",    "head",         "layer_types", "pattern", "mla",
     "linear_", "chunk",      "recurrent", "lru",    "rwkv",      "block_config", "block_type",  "cla_",    "_cla",
     "sharing", "group_size", "key_value", "swa",    "lightning", "memory"});

// Keys with such a part that are read, or that change neither rows nor states.
constexpr std::array kKnownKeys = std::to_array<std::string_view>(
    {// read
     "attention_chunk_size", "attention_head_dim", "attention_k_eq_v", "attention_other_setting", "attn_layer_indices",
     "attn_layer_offset", "attn_layer_period", "attn_type_list", "block_configs", "compress_ratios", "conv_L_cache",
     "conv_kernel", "full_attention_interval", "global_head_dim", "head_dim", "hybrid_layer_pattern",
     "hybrid_override_pattern", "index_head_dim", "index_n_heads", "index_skip_topk_offset", "index_topk",
     "index_topk_freq", "index_topk_pattern", "indexer_types", "kv_lora_rank", "layer_types", "layers_block_type",
     "linear_attn_config", "linear_conv_kernel_dim", "linear_key_head_dim", "linear_num_key_heads",
     "linear_num_value_heads", "linear_value_head_dim", "mamba_d_conv", "mamba_d_head", "mamba_d_ssm", "mamba_d_state",
     "mamba_expand", "mamba_head_dim", "mamba_n_groups", "mamba_n_heads", "mamba_num_heads", "mamba_ssm_cache_dtype",
     "mamba_ssm_dtype", "max_window_layers", "mlp_layer_types", "moe_latent_size", "num_attention_groups",
     "num_attention_heads", "num_global_key_value_heads", "num_key_value_heads", "num_kv_shared_layers",
     "qk_nope_head_dim", "qk_rope_head_dim", "sliding_window", "sliding_window_pattern", "sparse_attention_config",
     "ssm_state_size", "state_size", "swa_head_dim", "swa_num_attention_heads", "swa_num_key_value_heads",
     "swa_v_head_dim", "use_sliding_window", "v_head_dim",
     // of the scores, the outputs, the training or the weights
     "activation_situ_linear_beta", "add_cross_attention", "decoder_sparse_step", "add_full_attention_sink_bias",
     "add_swa_attention_sink_bias", "attention_bias", "attention_dropout", "attention_in_multiplier",
     "attention_logit_softcapping", "attention_multiplier", "attention_out_bias", "attention_out_multiplier",
     "attention_output_gate", "attention_probs_dropout_prob", "attention_value_scale", "attn_bias", "attn_dropout",
     "attn_implementation", "attn_logit_softcapping", "attn_output_gate", "attn_pdrop", "attn_res_block_size",
     "attn_scale", "attn_temperature_tuning", "attn_rotary_emb", "cla_share_factor", "full_attn_mod",
     "cache_implementation", "chunk_size", "chunk_size_feed_forward", "compress_rope_theta", "conv_bias", "conv_dim",
     "conv_dim_out", "conv_use_xavier_init", "cross_attention_hidden_size", "eoa_token_index", "eoi_token_index",
     "image_token_index", "index_share_for_mtp_iteration", "indexer_rope_interleave", "key_multiplier",
     "latent_moe_use_norm", "lm_head_bias", "lm_head_multiplier", "mamba_chunk_size", "mamba_conv_bias",
     "mamba_dt_rank", "mamba_hidden_act", "mamba_inner_layernorms", "mamba_norm_before_gate", "mamba_proj_bias",
     "mamba_rms_norm", "mamba_use_mlp", "mla_use_nope", "mla_use_output_gate", "moe_layer_end_index",
     "moe_layer_start_index", "mtp_hybrid_override_pattern", "mtp_layers_block_type", "num_logits_to_keep",
     "num_reward_heads", "original_max_position_embeddings", "output_attentions", "output_hidden_states",
     "pruned_heads", "qk_head_dim", "query_pre_attn_scalar", "sliding_window_size", "ssm_in_multiplier",
     "ssm_multipliers", "ssm_out_multiplier", "swa_rope_theta", "use_bidirectional_attention", "use_cache",
     "use_conv_bias", "use_flash_attention", "use_mamba_kernels", "use_parallel_attention", "use_head_wise_attn_gate",
     "video_token_index", "layernorm_full_attention_alpha", "layernorm_full_attention_beta",
     "layernorm_linear_attention_alpha", "layernorm_linear_attention_beta"});

}  // namespace

std::string unknown_key(const ConfigReader& config) {
  if (std::ranges::find(kKnownTypes, config.text("model_type", "")) == kKnownTypes.end()) return "model_type";
  for (const std::string& key : config.keys()) {
    if (key.starts_with("_") || key.ends_with("_token_id") || key.ends_with("_token")) continue;
    const bool concerns =
        std::ranges::any_of(kParts, [&](std::string_view part) { return key.find(part) != std::string::npos; });
    if (!concerns || !config.matters(key)) continue;
    if (std::ranges::find(kKnownKeys, key) == kKnownKeys.end()) return key;
  }
  const bool indexed = config.has("kv_lora_rank") || config.has("compress_ratios");
  return config.matters("index_topk") && !indexed ? "index_topk" : "";
}

void refuse_unknown(const ConfigReader& config, const std::string& key) {
  config.fail(key, std::string(key == "model_type" ? "of a model whose KV cache is known here"
                                                   : "absent, as its meaning for the KV cache isn't known here") +
                       ", or set model.kv_bytes_per_token (and model.state_bytes, if there are states) to the engine's "
                       "figures");
}

}  // namespace kvtwin
