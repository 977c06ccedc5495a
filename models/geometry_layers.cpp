#include "models/geometry_layers.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>

namespace kvtwin {

namespace {

using Kinds = std::vector<AttentionKind>;

AttentionKind kind_from_word(const ConfigReader& config, std::string_view key, const nlohmann::json& word) {
  struct Word {
    std::string_view word;
    AttentionKind kind;
  };
  static constexpr std::array<Word, 9> kWords{{{"full_attention", AttentionKind::full},
                                               {"attention", AttentionKind::full},
                                               {"sliding_attention", AttentionKind::window},
                                               {"chunked_attention", AttentionKind::window},
                                               {"local_attention", AttentionKind::window},
                                               {"linear_attention", AttentionKind::state},
                                               {"mamba", AttentionKind::state},
                                               {"mamba2", AttentionKind::state},
                                               {"recurrent", AttentionKind::state}}};
  if (word.is_string()) {
    const auto& text = word.get_ref<const std::string&>();
    for (const Word& known : kWords) {
      if (known.word == text) return known.kind;
    }
  }
  config.fail(key,
              "a list of full_attention, sliding_attention, chunked_attention, linear_attention, attention or mamba, "
              "one a layer");
}

Kinds kinds_from_list(const ConfigReader& config, std::string_view key, std::uint32_t count) {
  const nlohmann::json& list = *config.find(key);
  if (!list.is_array() || list.size() != count) {
    config.fail(key, "a list with one entry for each of the " + std::to_string(count) + " layers");
  }
  Kinds kinds;
  for (const nlohmann::json& word : list) kinds.push_back(kind_from_word(config, key, word));
  return kinds;
}

// Either each period-th layer attends and the other layers keep a state (Jamba, Qwen3-Next), or the listed layers
// attend (Bamba).
Kinds hybrid_kinds(const ConfigReader& config, std::uint32_t count) {
  Kinds kinds(count, AttentionKind::state);
  if (const nlohmann::json* list = config.find("attn_layer_indices")) {
    if (!list->is_array()) config.fail("attn_layer_indices", "a list of layer numbers");
    for (const nlohmann::json& index : *list) {
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

// Windows in configs without layer_types: each model family has a rule of its own.
Kinds window_kinds(const ConfigReader& config, std::uint32_t count) {
  Kinds kinds(count, AttentionKind::full);
  if (config.get("attention_chunk_size", 0) != 0) {  // Llama 4
    const std::uint32_t interval = config.first({"no_rope_layer_interval"}, 4);
    for (std::uint32_t i = 0; i < count; ++i) {
      if ((i + 1) % interval != 0) kinds[i] = AttentionKind::window;
    }
    return kinds;
  }
  if (config.get("sliding_window", 0) == 0 || !config.flag("use_sliding_window", true)) return kinds;
  const std::string type = config.text("model_type", "");
  const bool alternates = type == "gpt_oss" || type == "gemma2";
  const std::uint32_t pattern = alternates ? 2 : config.get("sliding_window_pattern", 0);
  const std::uint32_t first = config.has("use_sliding_window") ? config.get("max_window_layers", 0) : 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool slides = pattern > 1 ? (i + 1) % pattern != 0 : i >= first;
    if (slides) kinds[i] = AttentionKind::window;
  }
  return kinds;
}

Kinds attention_kinds(const ConfigReader& config, std::uint32_t count) {
  if (config.has("layer_types")) return kinds_from_list(config, "layer_types", count);
  if (config.has("layers_block_type")) return kinds_from_list(config, "layers_block_type", count);
  const std::string type = config.text("model_type", "");
  if (type == "falcon_h1") {
    config.fail("model_type", "a model whose layers have either attention or a state, not both side by side");
  }
  if (const nlohmann::json* list = config.find("attn_type_list"); list != nullptr && list->is_array()) {
    for (const nlohmann::json& entry : *list) {
      if (entry != 1) config.fail("attn_type_list", "a list of 1, as lightning attention isn't known here");
    }
  }
  if (config.has("attn_layer_indices") || config.has("attn_layer_period") || config.has("full_attention_interval")) {
    return hybrid_kinds(config, count);
  }
  if (type.starts_with("mamba") || type.starts_with("rwkv")) return Kinds(count, AttentionKind::state);
  return window_kinds(config, count);
}

// moe_layer_freq is a period (DeepSeek), or a list of 0 and 1 with one entry per layer.
bool listed_as_experts(const ConfigReader& config, std::uint32_t layer, std::uint32_t count) {
  const nlohmann::json* value = config.find("moe_layer_freq");
  if (value == nullptr) return true;
  if (!value->is_array()) return layer % config.need("moe_layer_freq") == 0;
  if (value->size() != count || !(*value)[layer].is_number_integer()) {
    config.fail("moe_layer_freq", "a positive integer, or a list of 0 and 1 with one entry a layer");
  }
  return (*value)[layer].get<std::int64_t>() != 0;
}

bool layer_has_experts(const ConfigReader& config, std::uint32_t layer, std::uint32_t count) {
  if (layer < config.get("first_k_dense_replace", 0)) return false;
  if (!listed_as_experts(config, layer, count)) return false;
  if ((layer + 1) % std::max(1U, config.get("decoder_sparse_step", 1)) != 0) return false;
  if ((layer + 1) % std::max(1U, config.get("interleave_moe_layer_step", 1)) != 0) return false;
  if (const nlohmann::json* dense = config.find("mlp_only_layers"); dense != nullptr && dense->is_array()) {
    for (const nlohmann::json& index : *dense) {
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
    LayerGeometry layer{AttentionKind::none, FeedForwardKind::none, 0};
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

std::vector<LayerGeometry> read_layers(const ConfigReader& config, std::uint32_t count) {
  if (config.has("hybrid_override_pattern")) return layers_from_letters(config, count);
  const bool latent = config.has("kv_lora_rank");
  const bool sparse = latent && config.get("index_topk", 0) != 0;
  const bool experts = config.first({"num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"}, 1) > 1;
  const Kinds kinds = attention_kinds(config, count);
  std::vector<LayerGeometry> layers(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    LayerGeometry& layer = layers[i];
    layer.attention = kinds[i];
    if (kinds[i] == AttentionKind::window) {
      layer.window = config.first({"attention_chunk_size", "sliding_window"}, 0);
      if (layer.window == 0) config.fail("sliding_window", "a positive integer, as some layers slide");
    } else if (kinds[i] == AttentionKind::full && latent) {
      layer.attention = sparse ? AttentionKind::sparse_latent : AttentionKind::latent;
    }
    if (experts && layer_has_experts(config, i, count)) layer.feed_forward = FeedForwardKind::experts;
  }
  return layers;
}

StateLayer read_state_layer(const ConfigReader& config, std::uint32_t hidden, std::uint32_t dtype_bytes) {
  // Engines keep the recurrent state in fp32 and the convolution's state in dtype.
  constexpr std::uint64_t kStateElement = 4;
  StateLayer layer;
  std::uint64_t state = 0, convolved = 0, kernel = 0;
  if (config.has("linear_num_value_heads")) {  // gated delta net
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
    const std::uint64_t inner =
        heads == 0 ? expand * hidden : heads * config.first({"mamba_d_head", "mamba_head_dim"}, 64);
    const std::uint64_t groups = heads == 0 ? 0 : config.first({"mamba_n_groups", "n_groups"}, 1);
    state = inner * width;
    kernel = config.first({"mamba_d_conv", "conv_kernel"}, 4);
    convolved = inner + 2 * groups * width;
    layer.parameters = hidden * (3 * inner + 2 * groups * width + heads);
    if (heads == 0) layer.parameters += inner * (3 * width + hidden / 8);  // Mamba-1: x and dt projections, A
  }
  layer.parameters += convolved * kernel;
  layer.bytes = state * kStateElement + (kernel - 1) * convolved * dtype_bytes;
  return layer;
}

}  // namespace kvtwin
