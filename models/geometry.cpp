#include "models/geometry.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "models/config_reader.hpp"
#include "models/geometry_layers.hpp"
#include "models/json.hpp"
#include "models/presets.hpp"
#include "models/quantization.hpp"
#include "models/text_file.hpp"
#include "models/weights.hpp"
#include "models/wide.hpp"
#include "policy/base/names.hpp"

namespace kvtwin {

namespace {

// ---- reading of the config ----------------------------------------------------------------------------

struct ElementType {
  std::string_view spelling, name;
  std::uint32_t bytes;
};
constexpr std::array<ElementType, 6> kElementTypes{{{"bfloat16", "bf16", 2},
                                                    {"float16", "fp16", 2},
                                                    {"float32", "fp32", 4},
                                                    {"half", "fp16", 2},
                                                    {"float8_e4m3fn", "fp8", 1},
                                                    {"float8_e5m2", "fp8", 1}}};

constexpr std::array<std::pair<std::string_view, KvDtype>, 7> kCacheTypes{{{"auto", KvDtype::automatic},
                                                                           {"bf16", KvDtype::bf16},
                                                                           {"fp16", KvDtype::fp16},
                                                                           {"fp8", KvDtype::fp8},
                                                                           {"mxfp8", KvDtype::mxfp8},
                                                                           {"nvfp4", KvDtype::nvfp4},
                                                                           {"int4", KvDtype::int4}}};

ElementType read_dtype(const ConfigReader& config) {
  // Configs without this key are of bf16 checkpoints (gpt-oss), or of engines that load weights as bf16.
  const std::string_view key = config.has("torch_dtype") ? "torch_dtype" : "dtype";
  const std::string spelling = config.text(key, "bfloat16");
  for (const ElementType& type : kElementTypes) {
    if (type.spelling == spelling) return type;
  }
  config.fail(key, "one of bfloat16, float16, float32, float8_e4m3fn, float8_e5m2");
}

void set_cache_type(ModelGeometry& m, const ElementType& dtype, KvDtype kv) {
  constexpr std::uint32_t kHead = 1 << 24;  // one scale for a whole head
  switch (kv) {
    case KvDtype::automatic:
      m.kv_format = {8 * dtype.bytes, 0, 0};
      m.kv_dtype = dtype.name;
      return;
    case KvDtype::bf16: m.kv_format = {16, 0, 0}; break;
    case KvDtype::fp16: m.kv_format = {16, 0, 0}; break;
    case KvDtype::fp8: m.kv_format = {8, 0, 0}; break;
    case KvDtype::fp8_raw: m.kv_format = {8, 0, 0, true}; break;
    case KvDtype::mxfp8: m.kv_format = {8, 32, 1}; break;  // SGLang: pool_configurator.py, scale_block_size
    case KvDtype::nvfp4: m.kv_format = {4, 16, 1}; break;  // SGLang: NVFP4KVCacheMethod; vLLM: nvfp4_kv_cache_full_dim
    case KvDtype::int4: m.kv_format = {4, kHead, 4}; break;  // vLLM: int4_per_token_head, TritonAttentionBackend
  }
  m.kv_dtype = name_of(kv);
}

void set_formats(ModelGeometry& m, WeightFormats formats) {
  m.linear_format = std::move(formats.linear);
  m.attention_format = std::move(formats.attention);
  m.state_format = std::move(formats.states);
  m.expert_format = std::move(formats.experts);
  m.head_format = std::move(formats.head);
}

std::vector<PublishedCheckpoint> read_checkpoints(const ConfigReader& config) {
  constexpr std::string_view kKey = "_checkpoints";
  std::vector<PublishedCheckpoint> checkpoints;
  const Json* const object = config.find(kKey);
  if (object == nullptr) return checkpoints;
  const auto refuse = [&] {
    config.fail(kKey, "an object of repositories by their format, as model.weights names it");
  };
  if (!object->is_object()) refuse();
  for (const auto& [format, repository] : object->items()) {
    const std::optional<WeightChoice> weights = value_named<WeightChoice>(format);
    if (!weights || !repository.is_string()) refuse();
    checkpoints.push_back({*weights, repository.get<std::string>()});
  }
  // The first values of WeightChoice are the config's own format: auto, or bf16.
  std::ranges::stable_sort(checkpoints, {}, &PublishedCheckpoint::weights);
  return checkpoints;
}

// The user's choice, in place of the checkpoint's formats.
WeightFormats chosen_formats(const ModelGeometry& m, WeightChoice weights, const WeightFormat& plain) {
  constexpr std::uint64_t kBlock = 128;  // weights that share a scale: fp8_block 128 x 128, int4 32 or 128
  const WeightFormat bf16{"bf16", 16 * kUnitsPerBit};
  WeightFormat format = bf16;
  switch (weights) {
    case WeightChoice::automatic:
    case WeightChoice::bf16: break;
    case WeightChoice::fp8: format = fp8_weights(); break;
    case WeightChoice::fp8_block: format = fp8_weights(kBlock * kBlock); break;
    case WeightChoice::mxfp8: format = mxfp8_weights(); break;
    case WeightChoice::nvfp4: format = nvfp4_weights(); break;
    case WeightChoice::mxfp4: format = mxfp4_weights(); break;
    case WeightChoice::int4: format = grouped_integers(4, 32, true); break;
    case WeightChoice::int8: format = grouped_integers(8, 0, true); break;
    case WeightChoice::awq: format = grouped_integers(4, 128); break;
    case WeightChoice::w4a8: format = fp8_weights(kBlock * kBlock); break;
  }
  WeightFormats formats{format, format, format, format, plain};
  if (format.bits_x1024 < 8 * kUnitsPerBit && m.latent_rank != 0) formats.attention = bf16;
  if (weights == WeightChoice::w4a8) formats.experts = grouped_integers(4, 128, true);
  return formats;
}

bool has_gate(std::string_view model_type) {
  static constexpr std::array<std::string_view, 9> kWithout{"gpt2",   "gpt_neox", "gptj",     "opt",       "phi",
                                                            "falcon", "bloom",    "nemotron", "starcoder2"};
  return std::find(kWithout.begin(), kWithout.end(), model_type) == kWithout.end() &&
         !model_type.starts_with("nemotron");
}

void read_attention(ModelGeometry& m, const ConfigReader& config) {
  m.heads = config.need("num_attention_heads");
  m.kv_heads = config.first({"num_key_value_heads", "num_attention_groups"}, m.heads);
  if (config.has("kv_lora_rank")) {
    m.latent_rank = config.need("kv_lora_rank");
    m.rope_dim = config.need("qk_rope_head_dim");
    m.nope_dim = config.need("qk_nope_head_dim");
    m.value_dim = config.need("v_head_dim");
    m.query_rank = config.get("q_lora_rank", 0);
    m.head_dim = m.nope_dim + m.rope_dim;
    m.kv_heads = 1;
    m.index_topk = config.get("index_topk", 0);
    if (m.index_topk != 0) {
      m.index_heads = config.need("index_n_heads");
      m.index_dim = config.need("index_head_dim");
    }
    return;
  }
  if (m.heads % m.kv_heads != 0) config.fail("num_key_value_heads", "a divisor of num_attention_heads");
  if (config.has("head_dim") || config.has("attention_head_dim")) {
    m.head_dim = config.need(config.has("head_dim") ? "head_dim" : "attention_head_dim");
  } else {
    if (m.hidden % m.heads != 0) config.fail("head_dim", "given, as hidden_size is no multiple of num_attention_heads");
    m.head_dim = m.hidden / m.heads;
  }
  m.value_dim = config.has("compress_ratios") ? m.head_dim : config.first({"v_head_dim"}, m.head_dim);
}

bool has_kind(const ModelGeometry& m, FeedForwardKind kind) {
  return std::any_of(m.layers.begin(), m.layers.end(), [&](const auto& layer) { return layer.feed_forward == kind; });
}

std::uint32_t multiplied_width(double multiple, std::uint32_t hidden) {  // Nemotron-NAS
  const auto width = static_cast<std::uint64_t>(2 * multiple * hidden / 3);
  return static_cast<std::uint32_t>((width + 255) / 256 * 256);
}

void read_feed_forward(ModelGeometry& m, const ConfigReader& config) {
  const bool llama4 = m.model_type.starts_with("llama4");
  for (LayerGeometry& layer : m.layers) {
    if (layer.feed_forward != FeedForwardKind::dense) continue;
    if (layer.dense_width == 0) {
      const bool shared = config.get("intermediate_size", 0) == 0 || m.model_type == "granitemoehybrid";
      const std::uint32_t own = config.get("dense_intermediate_size", 0);
      layer.dense_width = llama4     ? config.need("intermediate_size_mlp")
                          : own != 0 ? own
                          : shared && config.get("shared_intermediate_size", 0) != 0
                              ? config.need("shared_intermediate_size")
                              : config.need("intermediate_size");
    }
    m.dense_width = std::max(m.dense_width, layer.dense_width);
  }
  if (!has_kind(m, FeedForwardKind::experts)) return;
  m.experts = count_experts(config);
  m.experts_per_token = read_even(config,
                                  {"num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk",
                                   "moe_k", "moe_top_k", "top_k_experts"},
                                  0);
  if (m.experts_per_token == 0 || m.experts_per_token > m.experts) {
    config.fail("num_experts_per_tok", "at least 1 and at most the number of experts");
  }
  m.expert_width = read_even(config, {"moe_intermediate_size", "expert_intermediate_size", "intermediate_size"}, 0);
  if (m.expert_width == 0) config.fail("moe_intermediate_size", "a positive integer");
  m.expert_hidden = config.first({"moe_latent_size", "routed_expert_hidden_size"}, m.hidden);
  const std::uint32_t shared =
      read_even(config, {"n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"},
                llama4 ? 1 : 0);
  const std::uint64_t shared_width = std::uint64_t{shared} * m.expert_width;
  if (shared_width > 1U << 24) config.fail("n_shared_experts", "a handful");
  m.shared_width = config.first({"shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
                                 "share_expert_dim", "shared_intermediate_size"},
                                static_cast<std::uint32_t>(shared_width));
  // Gemma 4 has the experts beside a dense feed-forward.
  if (config.flag("enable_moe_block", false)) m.shared_width = config.need("intermediate_size");
}

// ---- counts -------------------------------------------------------------------------------------------

std::uint64_t count_layers(const ModelGeometry& m, AttentionKind kind) {
  return static_cast<std::uint64_t>(
      std::count_if(m.layers.begin(), m.layers.end(), [&](const auto& layer) { return layer.attention == kind; }));
}

std::uint64_t count_layers(const ModelGeometry& m, FeedForwardKind kind) {
  return static_cast<std::uint64_t>(
      std::count_if(m.layers.begin(), m.layers.end(), [&](const auto& layer) { return layer.feed_forward == kind; }));
}

std::uint64_t latent_parameters(const ModelGeometry& m, bool indexes) {
  const std::uint64_t hidden = m.hidden, heads = m.heads;
  const std::uint64_t query =
      m.query_rank == 0 ? hidden * heads * m.head_dim : (hidden + heads * m.head_dim) * m.query_rank;
  const std::uint64_t latent = hidden * (m.latent_rank + m.rope_dim);
  const std::uint64_t expansion = std::uint64_t{m.latent_rank} * heads * (m.nope_dim + m.value_dim);
  const std::uint64_t output = heads * m.value_dim * hidden;
  const std::uint64_t query_width = m.query_rank == 0 ? hidden : m.query_rank;
  const std::uint64_t indexer =
      !indexes ? 0 : query_width * m.index_heads * m.index_dim + hidden * (std::uint64_t{m.index_dim} + m.index_heads);
  return query + latent + expansion + output + indexer;
}

std::uint64_t heads_parameters(const ModelGeometry& m, const LayerGeometry& layer, bool one_plane) {
  const std::uint64_t hidden = m.hidden, dims = std::uint64_t{layer.head_dim} + layer.value_dim;
  const std::uint64_t keys = layer.shares_rows ? 0 : one_plane ? layer.head_dim : dims;
  return hidden * (layer.heads * dims + layer.kv_heads * keys);
}

Bytes stored(std::uint64_t parameters, const WeightFormat& format) {
  // Whole units and rest separately: parameters * bits would exceed 64 bits for a trillion parameters.
  constexpr std::uint64_t kUnit = 8 * kUnitsPerBit;
  return parameters / kUnit * format.bits_x1024 + (parameters % kUnit * format.bits_x1024 + kUnit - 1) / kUnit;
}

// Sums the weights. Not counted: biases and norms of heads (below 0.1 %), and extra layers for multi-token prediction,
// which serving without speculation does not load.
void count_parameters(ModelGeometry& m) {
  const std::uint64_t hidden = m.hidden, matrices = m.gated ? 3 : 2;
  std::uint64_t attention = 0, states = 0, widths = 0;
  for (const LayerGeometry& layer : m.layers) {
    (layer.attention == AttentionKind::state ? states : attention) += layer.parameters;
    if (layer.feed_forward == FeedForwardKind::dense) widths += layer.dense_width;
  }
  const std::uint64_t expert_layers = count_layers(m, FeedForwardKind::experts);
  const std::uint64_t dense = matrices * hidden * widths + expert_layers * matrices * hidden * m.shared_width +
                              (m.expert_hidden < hidden ? 2 * expert_layers * hidden * m.expert_hidden : 0);
  const std::uint64_t plain = expert_layers * hidden * m.experts + (2 * m.layers.size() + 1) * hidden;
  m.expert_parameters = expert_layers * matrices * m.expert_hidden * m.expert_width;
  m.embedding_parameters = hidden * m.vocab;
  m.head_parameters = hidden * m.vocab;
  const std::uint64_t shared = attention + dense + states + plain;
  const std::uint64_t tables = m.embedding_parameters + (m.tied_embedding ? 0 : m.head_parameters);
  m.parameters = shared + m.experts * m.expert_parameters + tables;
  m.active_parameters = shared + m.experts_per_token * m.expert_parameters + m.head_parameters;
  m.embedding_bytes = m.embedding_parameters * m.dtype_bytes;
  m.expert_weight_bytes = stored(m.expert_parameters, m.expert_format);
  m.group_parameters = attention + dense + states;
  m.group_weight_bytes =
      stored(attention, m.attention_format) + stored(dense, m.linear_format) + stored(states, m.state_format);
  const Bytes head = m.tied_embedding ? 0 : stored(m.head_parameters, m.head_format);
  m.weight_bytes =
      m.group_weight_bytes + m.experts * m.expert_weight_bytes + m.embedding_bytes + head + plain * m.dtype_bytes;
}

// DSA with an fp8 cache packs the latent: fp8 values, one fp32 scale per 128 values, and the rope part in bf16; on
// Blackwell all values are in fp8 (SGLang: kv_cache_configurator.py, calculate_mla_kv_cache_dim).
std::uint32_t latent_row_bytes(const ModelGeometry& m) {
  if (m.index_topk != 0 && m.kv_dtype == "fp8" && !m.kv_format.raw_latent)
    return m.latent_rank + 4 * (m.latent_rank / 128) + 2 * m.rope_dim;
  return static_cast<std::uint32_t>(m.kv_format.bytes(m.latent_rank + m.rope_dim));
}

// The indexer's key: fp8 values with one fp32 scale per 128 values.
std::uint32_t index_row_bytes(const ModelGeometry& m) {
  return m.index_topk == 0 ? 0 : m.index_dim + 4 * ((m.index_dim + 127) / 128);
}

// DeepSeek-V4's row, in every engine: fp8 values, the rope part in bf16, and 8 bytes of scales.
Bytes packed_row_bytes(const ModelGeometry& m, std::uint32_t rope) { return Bytes{m.head_dim} + rope + 8; }

Bytes heads_row(const LayerGeometry& layer, const KvFormat& format) {
  return Bytes{layer.kv_heads} * (format.bytes(layer.head_dim) + format.bytes(layer.value_dim));
}

// Returns whether a layer of DSA has an indexer; other layers take the tokens that an earlier layer picked.
bool has_indexer(const ConfigReader& config, std::uint32_t i) {
  if (const Json* types = config.find("indexer_types"); types != nullptr) {
    if (!types->is_array() || i >= types->size() || ((*types)[i] != "full" && (*types)[i] != "shared")) {
      config.fail("indexer_types", "a list of full and shared, one a layer");
    }
    return (*types)[i] == "full";
  }
  if (const Json* pattern = config.find("index_topk_pattern"); pattern != nullptr) {
    if (!pattern->is_string()) config.fail("index_topk_pattern", "a word of the letters F and S");
    const auto& letters = pattern->text();
    return i >= letters.size() || letters[i] != 'S';
  }
  const std::uint32_t every = std::max(1U, config.get("index_topk_freq", 1));
  const std::uint32_t offset = std::max(1U, config.get("index_skip_topk_offset", 2));
  return i < offset || (i - offset + 1) % every == 0;
}

void set_compressed(ModelGeometry& m, LayerGeometry& layer, const ConfigReader& config, std::uint32_t i) {
  const Json& ratios = *config.find("compress_ratios");
  constexpr const char* kRight = "a list of 0, 4 and 128, one a layer";
  if (!ratios.is_array() || i >= ratios.size() || !ratios[i].is_number_unsigned()) {
    config.fail("compress_ratios", kRight);
  }
  const auto ratio = ratios[i].get<std::uint64_t>();
  if (ratio != 0 && ratio != 4 && ratio != 128) config.fail("compress_ratios", kRight);
  constexpr Bytes kFloat = 4;
  const std::uint64_t hidden = m.hidden, dim = m.head_dim;
  const Bytes row = packed_row_bytes(m, config.need("qk_rope_head_dim"));
  const std::uint32_t index_dim = config.need("index_head_dim");
  layer.kv_heads = 0;
  layer.rows.push_back({row, 1, layer.window, false});
  layer.parameters = hidden * (config.need("q_lora_rank") + dim) + config.need("q_lora_rank") * m.heads * dim +
                     m.heads * dim * config.need("o_lora_rank") +
                     hidden * config.need("o_lora_rank") * config.need("o_groups");
  if (ratio == 0) return;
  layer.rows.push_back({row, static_cast<std::uint32_t>(ratio), 0, false});
  // Open groups: keys and scores of `ratio` tokens in float32; of twice as many, as groups of ratio 4 overlap.
  layer.state_bytes = ratio == 128 ? 128 * 2 * dim * kFloat : 8 * 4 * (dim + index_dim) * kFloat;
  layer.parameters += 2 * hidden * dim * (ratio == 4 ? 2 : 1);
  if (ratio != 4) return;
  m.index_topk = config.need("index_topk");
  m.index_heads = config.need("index_n_heads");
  m.index_dim = index_dim;
  layer.picks = m.index_topk;
  layer.rows.push_back({index_row_bytes(m), 4, 0, true});
  layer.parameters += std::uint64_t{config.need("q_lora_rank")} * m.index_heads * index_dim +
                      hidden * (m.index_heads + 4 * std::uint64_t{index_dim});
}

// MiniMax-M3: sparse_attention_config.
void set_block_sparse(ModelGeometry& m, LayerGeometry& layer, const ConfigReader& config, std::uint32_t i) {
  const Json& object = *config.find("sparse_attention_config");
  if (!object.is_object()) config.fail("sparse_attention_config", "an object");
  const ConfigReader sparse(object, config.file() + ": sparse_attention_config");
  if (!sparse.flag("use_sparse_attention", true)) return;
  const auto flag = [&](const char* key, bool fallback) {
    const Json* list = sparse.find(key);
    if (list == nullptr) return fallback;
    if (!list->is_array() || i >= list->size() || !(*list)[i].is_number_unsigned()) {
      sparse.fail(key, "a list of 0 and 1, one a layer");
    }
    return (*list)[i] != 0U;
  };
  if (!flag("sparse_attention_freq", true)) return;
  layer.attention = AttentionKind::sparse;
  m.index_dim = sparse.need("sparse_index_dim");
  m.index_heads = sparse.need("sparse_num_index_heads");
  layer.picks = Tokens{sparse.need("sparse_topk_blocks")} * sparse.need("sparse_block_size");
  // The indexer's keys, and its values unless they are disabled: in fp8 beside an fp8 cache, else in dtype (SGLang:
  // memory_pool.py, get_minimax_sparse_index_dtype).
  const Bytes planes = flag("sparse_disable_index_value", false) ? 1 : 2;
  const Bytes element = m.kv_format.bits == 8 && m.kv_format.group == 0 ? 1 : m.dtype_bytes;
  layer.rows.push_back({planes * m.index_dim * element, 1, 0, true});
  layer.parameters += std::uint64_t{m.hidden} * m.index_dim * (m.index_heads + planes);
}

// Nemotron-NAS: layers without attention or feed-forward, and other numbers of KV heads and widths.
void read_block(ModelGeometry& m, LayerGeometry& layer, const ConfigReader& config, std::uint32_t i) {
  const Json& blocks = *config.find("block_configs");
  constexpr const char* kRight = "a list of objects with attention and ffn, one a layer";
  if (!blocks.is_array() || blocks.size() != m.layers.size() || !blocks[i].is_object() ||
      !blocks[i].contains("attention") || !blocks[i]["attention"].is_object() || !blocks[i].contains("ffn") ||
      !blocks[i]["ffn"].is_object()) {
    config.fail("block_configs", kRight);
  }
  const std::string where = config.file() + ": block_configs";
  const ConfigReader attention(blocks[i]["attention"], where), ffn(blocks[i]["ffn"], where);
  for (const char* key : {"replace_with_linear", "window_length", "num_sink_tokens", "sparsify"}) {
    for (const ConfigReader* part : {&attention, &ffn}) {
      if (part->matters(key)) part->fail(key, "absent or false, as its meaning for the KV cache isn't known here");
    }
  }
  if (attention.flag("no_op", false)) {
    layer.attention = AttentionKind::none;
  } else {
    const std::uint32_t group = attention.need("n_heads_in_group");
    if (m.heads % group != 0) attention.fail("n_heads_in_group", "a divisor of num_attention_heads");
    layer.kv_heads = m.heads / group;
  }
  if (ffn.flag("no_op", false)) {
    layer.feed_forward = FeedForwardKind::none;
  } else {
    const Json* multiple = ffn.find("ffn_mult");
    if (multiple == nullptr || !multiple->is_number() || !(*multiple > 0) || !(*multiple < 1000)) {
      ffn.fail("ffn_mult", "a positive number");
    }
    layer.dense_width = multiplied_width(multiple->get<double>(), m.hidden);
  }
}

void set_heads(const ModelGeometry& m, LayerGeometry& layer, const ConfigReader& config) {
  layer.heads = m.heads;
  layer.kv_heads = m.kv_heads;
  layer.head_dim = m.head_dim;
  layer.value_dim = m.value_dim;
  if (layer.attention == AttentionKind::window) {
    layer.heads = config.first({"swa_num_attention_heads"}, layer.heads);
    layer.kv_heads = config.first({"swa_num_key_value_heads"}, layer.kv_heads);
    layer.head_dim = config.first({"swa_head_dim"}, layer.head_dim);
    layer.value_dim = config.first({"swa_v_head_dim"}, config.has("swa_head_dim") ? layer.head_dim : layer.value_dim);
    if (const Json* other = config.find("attention_other_setting"); other != nullptr && other->is_object()) {
      const ConfigReader own(*other, config.file() + ": attention_other_setting");  // Step-3.5
      layer.heads = own.get("num_attention_heads", layer.heads);
      layer.kv_heads = own.get("num_attention_groups", layer.kv_heads);
      layer.head_dim = layer.value_dim = own.get("head_dim", layer.head_dim);
    }
  } else if (config.has("global_head_dim") || config.has("num_global_key_value_heads")) {
    layer.kv_heads = config.first({"num_global_key_value_heads"}, layer.kv_heads);
    layer.head_dim = layer.value_dim = config.first({"global_head_dim"}, layer.head_dim);
  }
  if (layer.kv_heads == 0 || layer.heads % layer.kv_heads != 0) {
    config.fail("num_key_value_heads", "a divisor of num_attention_heads");
  }
}

void set_layers(ModelGeometry& m, const ConfigReader& config) {
  const bool stateful = std::ranges::any_of(m.layers, [](const LayerGeometry& layer) {
    return layer.attention == AttentionKind::state || layer.attention == AttentionKind::full_state;
  });
  const StateLayer state = stateful ? read_state_layer(config, m.hidden) : StateLayer{};
  m.delta_net = state.delta_net;
  const auto count = static_cast<std::uint32_t>(m.layers.size());
  const std::uint32_t shared = std::min(config.get("num_kv_shared_layers", 0), count);
  for (std::uint32_t i = 0; i < count; ++i) {
    LayerGeometry& layer = m.layers[i];
    switch (layer.attention) {
      case AttentionKind::full:
      case AttentionKind::window:
      case AttentionKind::full_state:
        set_heads(m, layer, config);
        if (config.has("block_configs")) read_block(m, layer, config, i);
        if (layer.attention == AttentionKind::none) break;
        layer.shares_rows = i >= count - shared;
        layer.rows.push_back({heads_row(layer, m.kv_format), 1, layer.window, false});
        layer.parameters = heads_parameters(
            m, layer, layer.attention == AttentionKind::full && config.flag("attention_k_eq_v", false));
        if (layer.attention == AttentionKind::full && config.has("sparse_attention_config")) {
          set_block_sparse(m, layer, config, i);
        }
        if (layer.attention != AttentionKind::full_state) break;
        layer.state_bytes = state.bytes;
        layer.parameters += state.parameters;
        break;
      case AttentionKind::latent:
      case AttentionKind::sparse_latent: {
        layer.heads = m.heads;
        layer.head_dim = m.head_dim;
        layer.value_dim = m.value_dim;
        layer.rows.push_back({latent_row_bytes(m), 1, 0, false});
        const bool sparse = layer.attention == AttentionKind::sparse_latent, indexes = sparse && has_indexer(config, i);
        if (sparse) layer.picks = m.index_topk;
        if (indexes) layer.rows.push_back({index_row_bytes(m), 1, 0, true});
        layer.parameters = latent_parameters(m, indexes);
        break;
      }
      case AttentionKind::compressed:
        set_heads(m, layer, config);
        set_compressed(m, layer, config, i);
        break;
      case AttentionKind::state:
        layer.state_bytes = state.bytes;
        layer.parameters = state.parameters;
        break;
      case AttentionKind::sparse:
      case AttentionKind::none: break;
    }
  }
}

std::uint64_t full_layers(const ModelGeometry& m) {
  return static_cast<std::uint64_t>(std::ranges::count_if(m.layers, [](const LayerGeometry& layer) {
    return !layer.shares_rows && std::ranges::any_of(layer.rows, [](const KvRow& row) { return row.window == 0; });
  }));
}

// Returns whether pages have the row: rows of all tokens, and of windows if they keep all, or if there is nothing else.
bool is_paged(const ModelGeometry& m, const KvRow& row, bool only_windows) {
  return row.window == 0 || m.windows_paged || only_windows;
}

// Returns bytes of a token, in 1/128 byte: the group sizes are 1, 4 and 128.
constexpr std::uint64_t kGroupUnit = 128;
std::uint64_t token_units(const KvRow& row) { return row.bytes * kGroupUnit / row.tokens; }

std::string layers_text(const ModelGeometry& m, std::uint64_t count, std::string_view kind) {
  const bool all = count == m.layers.size();
  return std::to_string(count) + (all ? "" : " " + std::string(kind)) + (count == 1 ? " layer" : " layers");
}

std::string row_text(const ModelGeometry& m, const LayerGeometry& layer) {
  const bool scaled = m.kv_format.group != 0;
  const std::uint32_t bytes = m.kv_format.bits / 8;
  const std::string element = std::to_string(bytes) + " byte" + (bytes == 1 ? "" : "s");
  if (layer.attention == AttentionKind::latent ||
      (layer.attention == AttentionKind::sparse_latent && layer.rows.size() == 1)) {
    if (layer.attention == AttentionKind::sparse_latent && (scaled || bytes == 1)) {
      return std::to_string(layer.rows.front().bytes) + " latent bytes";
    }
    return "(" + std::to_string(m.latent_rank) + " + " + std::to_string(m.rope_dim) + ") * " + element;
  }
  if (layer.attention == AttentionKind::sparse_latent) {
    return "(" + std::to_string(layer.rows[0].bytes) + " latent + " + std::to_string(layer.rows[1].bytes) +
           " indexer bytes)";
  }
  if (layer.attention == AttentionKind::compressed) {
    const KvRow& row = layer.rows[1];
    return "(" + std::to_string(row.bytes) + (layer.picks == 0 ? "" : " + " + std::to_string(layer.rows[2].bytes)) +
           " bytes) / " + std::to_string(row.tokens);
  }
  const auto of_head = [&](std::uint32_t dim) { return std::to_string(scaled ? m.kv_format.bytes(dim) : dim); };
  const std::string dims = layer.head_dim == layer.value_dim
                               ? of_head(layer.head_dim)
                               : "(" + of_head(layer.head_dim) + " + " + of_head(layer.value_dim) + ")";
  const std::string heads = std::to_string(layer.kv_heads) + (layer.kv_heads == 1 ? " kv head * " : " kv heads * ") +
                            dims + (scaled ? " bytes" : " * " + element);
  if (layer.attention != AttentionKind::sparse) return heads;
  const std::string planes = layer.head_dim == layer.value_dim ? "2 * " : "";
  return "(" + planes + heads + " + " + std::to_string(layer.rows[1].bytes) + " indexer bytes)";
}

// "18 full layers * ..."; word: the kind, left out if it is of all layers.
std::string formula_term(const ModelGeometry& m, std::uint64_t count, const LayerGeometry& layer,
                         std::string_view word) {
  const bool planes = (layer.attention == AttentionKind::full || layer.attention == AttentionKind::window ||
                       layer.attention == AttentionKind::full_state) &&
                      layer.head_dim == layer.value_dim;
  return (planes ? "2 * " : "") + layers_text(m, count, word) + " * " + row_text(m, layer);
}

// Sums the terms of layers that `has` holds for; layers with the same term share one.
template <typename Has>
std::string formula_sum(const ModelGeometry& m, std::string_view word, const Has& has) {
  std::vector<std::pair<const LayerGeometry*, std::uint64_t>> groups;
  for (const LayerGeometry& layer : m.layers) {
    if (layer.shares_rows || !has(layer)) continue;
    const std::string text = row_text(m, layer);
    const auto same = std::ranges::find_if(groups, [&](const auto& one) { return row_text(m, *one.first) == text; });
    if (same == groups.end()) {
      groups.emplace_back(&layer, 1);
    } else {
      ++same->second;
    }
  }
  std::string sum;
  for (const auto& [layer, count] : groups) sum += (sum.empty() ? "" : " + ") + formula_term(m, count, *layer, word);
  return sum;
}

std::string state_text(const ModelGeometry& m) {
  return ", plus " + std::to_string(m.state_bytes) + " bytes of state a sequence";
}

std::string hundredths(std::uint64_t units) {
  std::string text = std::to_string(units / kGroupUnit);
  const std::uint64_t rest = units % kGroupUnit * 100 / kGroupUnit;
  if (rest != 0) text += (rest < 10 ? ".0" : ".") + std::to_string(rest);
  return text;
}

void count_cache(ModelGeometry& m) {
  m.window_bytes_per_token = m.state_bytes = 0;
  const bool only_windows = full_layers(m) == 0;
  std::uint64_t units = 0;
  for (const LayerGeometry& layer : m.layers) {
    m.state_bytes += layer.state_bytes;
    m.window = std::max(m.window, layer.window);
    if (layer.shares_rows) continue;
    for (const KvRow& row : layer.rows) {
      if (row.window != 0 && !m.windows_paged) m.window_bytes_per_token += row.bytes;
      if (is_paged(m, row, only_windows)) units += token_units(row);
    }
  }
  m.kv_bytes_per_token = (units + kGroupUnit - 1) / kGroupUnit;
  const auto of_window = [](const LayerGeometry& layer) { return layer.attention == AttentionKind::window; };
  const auto of_all = [](const LayerGeometry& layer) {
    return std::ranges::any_of(layer.rows, [](const KvRow& row) { return row.window == 0; });
  };
  const std::string span = "min(" + std::to_string(m.window) + ", tokens)";
  const std::string total = " = " + hundredths(units) + " bytes/token";
  if (m.windows_paged) {
    m.kv_formula = formula_sum(m, "full and window", [&](const auto& l) { return of_all(l) || of_window(l); }) + total;
  } else if (only_windows) {
    m.kv_formula =
        formula_sum(m, "window", of_window) + total + ", up to " + std::to_string(m.window) + " tokens a sequence";
  } else {
    m.kv_formula = formula_sum(m, "full", of_all) + total;
    if (const std::string windows = formula_sum(m, "window", of_window); !windows.empty()) {
      m.kv_formula += ", plus " + windows + " * " + span;
    } else if (m.window_bytes_per_token != 0) {
      m.kv_formula += ", plus " + std::to_string(m.window_bytes_per_token) + " bytes * " + span;
    }
  }
  if (m.given.kv_bytes_per_token != 0) {
    m.kv_bytes_per_token = m.given.kv_bytes_per_token;
    m.kv_formula = "model.kv_bytes_per_token = " + std::to_string(m.kv_bytes_per_token) + " bytes/token";
  }
  if (m.given.state_bytes != 0) m.state_bytes = m.given.state_bytes;
  if (m.state_bytes != 0) m.kv_formula += state_text(m);
}

// The tokens whose rows a query of the layer reads at most, in windows and by an indexer's choice; 0 = all.
Tokens seen_tokens(const LayerGeometry& layer) { return layer.window + layer.picks; }

void count_attention(ModelGeometry& m) {
  for (const LayerGeometry& layer : m.layers) m.attention_window = std::max(m.attention_window, seen_tokens(layer));
  for (const LayerGeometry& layer : m.layers) {
    const std::uint64_t heads = layer.heads;
    const std::uint64_t prefill = 2 * heads * (std::uint64_t{layer.head_dim} + layer.value_dim);
    // Decode stays in the latent space, because the projections are absorbed into query and output: queries have rank +
    // rope elements, values have rank elements. Prefill first projects keys and values out of the latent.
    const std::uint64_t absorbed = 2 * heads * (2 * std::uint64_t{m.latent_rank} + m.rope_dim);
    const std::uint64_t indexer = 2 * std::uint64_t{m.index_heads} * m.index_dim;
    const auto add = [&](AttentionWork& work, std::uint64_t prefilling, std::uint64_t decoding) {
      work.prefill_pair_flops += prefilling;
      work.decode_token_flops += decoding;
    };
    // A layer that sees fewer tokens than the widest one counts as many FLOPs as it has at the end of a long sequence.
    const auto in_window = [&](std::uint64_t flops) { return flops * seen_tokens(layer) / m.attention_window; };
    switch (layer.attention) {
      case AttentionKind::full:
      case AttentionKind::full_state: add(m.full_attention, prefill, prefill); break;
      case AttentionKind::window: add(m.window_attention, in_window(prefill), in_window(prefill)); break;
      case AttentionKind::latent:
        add(m.full_attention, prefill, absorbed);
        m.context_projection_flops += 2 * heads * m.latent_rank * (std::uint64_t{m.nope_dim} + m.value_dim);
        break;
      case AttentionKind::sparse_latent:
        if (layer.rows.size() > 1) add(m.full_attention, indexer, indexer);
        add(m.window_attention, in_window(absorbed), in_window(absorbed));
        break;
      case AttentionKind::sparse:
        add(m.full_attention, indexer, indexer);
        add(m.window_attention, in_window(prefill), in_window(prefill));
        break;
      case AttentionKind::compressed: {
        add(m.window_attention, in_window(prefill), in_window(prefill));
        if (layer.rows.size() < 2) break;
        const std::uint64_t all = (layer.picks != 0 ? indexer : prefill) / layer.rows[1].tokens;
        add(m.full_attention, all, all);
        break;
      }
      case AttentionKind::state:
      case AttentionKind::none: break;
    }
  }
}

void list_inexact(ModelGeometry& m) {
  const auto counted = [&](const auto& has) {
    return static_cast<std::uint64_t>(std::ranges::count_if(m.layers, has));
  };
  const std::uint64_t windows = count_layers(m, AttentionKind::window);
  const std::uint64_t states = count_layers(m, AttentionKind::state) + count_layers(m, AttentionKind::full_state);
  const std::string subject = m.name + ": ";
  if (windows != 0) {
    const bool chunks = m.model_type.starts_with("llama4");
    std::string sentence = subject + std::to_string(windows) + " of " + std::to_string(m.layers.size()) +
                           (chunks ? " layers attend within chunks of " : " layers use a sliding window of ") +
                           std::to_string(m.window) +
                           (m.windows_paged ? " tokens; their KV is counted by formula as that of all tokens"
                                            : " tokens; their KV is counted by formula as min(window, tokens) a "
                                              "sequence and isn't paged");
    if (full_layers(m) == 0) sentence += ", and as no layer attends to everything, pages count all their tokens";
    m.without_pages.push_back(sentence + ".");
  }
  if (states != 0) {
    m.without_pages.push_back(
        subject + std::to_string(states) + " of " + std::to_string(m.layers.size()) +
        " layers keep a state-space (Mamba) or linear-attention state; it is counted by formula as " +
        std::to_string(m.state_bytes) + " bytes a sequence and prefix hits assume that it is at hand.");
  }
  if (const auto layers = count_layers(m, AttentionKind::compressed); layers != 0) {
    m.without_pages.push_back(subject + std::to_string(layers) +
                              " layers compress groups of 4 or 128 tokens into packed fp8 "
                              "rows, whatever model.kv_dtype is; the rows, the windows of " +
                              std::to_string(m.window) + " tokens and the state of open groups (" +
                              std::to_string(m.state_bytes) +
                              " bytes a sequence) are counted by formula, and only the compressed rows are paged.");
  } else if (m.index_topk != 0) {
    m.inexact.push_back(subject + "sparse attention (DSA) reads the " + std::to_string(m.index_topk) +
                        " tokens that its indexer picks; the indexer's " + std::to_string(index_row_bytes(m)) +
                        " bytes a token and layer are counted by formula within the latent's row.");
  }
  if (const auto layers = count_layers(m, AttentionKind::sparse); layers != 0) {
    m.inexact.push_back(subject + std::to_string(layers) + " of " + std::to_string(m.layers.size()) +
                        " layers read the blocks that an indexer picks; the indexer's rows are counted by formula, in "
                        "fp8 beside an fp8 cache and else in the type of the activations.");
  }
  if (const auto layers = counted([](const LayerGeometry& layer) { return layer.shares_rows; }); layers != 0) {
    m.inexact.push_back(subject + std::to_string(layers) + " of " + std::to_string(m.layers.size()) +
                        " layers use the KV of an earlier layer and are counted without rows of their own, as in vLLM; "
                        "SGLang's pools have rows for them.");
  }
  if (m.given.kv_bytes_per_token != 0) {
    m.inexact.push_back(subject + "model.kv_bytes_per_token = " + std::to_string(m.given.kv_bytes_per_token) +
                        " is the user's figure, in place of the config's.");
  }
  if (m.given.state_bytes != 0) {
    m.inexact.push_back(subject + "model.state_bytes = " + std::to_string(m.given.state_bytes) +
                        " is the user's figure, in place of the config's.");
  }
}

// Refuses implausible numbers, whose products could wrap. No model has 10^15 parameters.
void check_plausible(const ModelGeometry& m, const ConfigReader& config) {
  const double width =
      std::max({1.0 * m.dense_width, 1.0 * m.shared_width, 1.0 * m.expert_width * std::max(1U, m.experts)});
  const double heads = 1.0 * m.heads * (1.0 * m.head_dim + m.value_dim + m.latent_rank + m.query_rank + m.index_dim);
  const double estimate =
      3.0 * m.hidden * (width + heads) * static_cast<double>(m.layers.size()) + 2.0 * m.hidden * m.vocab;
  if (estimate > 1e15) config.fail("hidden_size", "of a plausible model, below 10^15 parameters");
}

}  // namespace

std::string_view name_of(KvDtype dtype) {
  for (const auto& [name, type] : kCacheTypes) {
    if (type == dtype) return name;
  }
  return "fp8";  // fp8_raw
}

KvDtype kv_dtype_from_name(std::string_view name) {
  for (const auto& [known, type] : kCacheTypes) {
    if (name == known) return type;
  }
  throw ModelError("unknown KV element type \"" + std::string(name) +
                   "\"; it must be auto, bf16, fp16, fp8, mxfp8, nvfp4 or int4.");
}

Bytes KvFormat::bytes(std::uint64_t numbers) const {
  const std::uint64_t scales = group == 0 ? 0 : (numbers + group - 1) / group;
  return (numbers * bits + 7) / 8 + scales * scale_bytes;
}

std::string_view name_of(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::none: return "none";
    case AttentionKind::full: return "full";
    case AttentionKind::window: return "window";
    case AttentionKind::latent: return "latent";
    case AttentionKind::sparse_latent: return "sparse_latent";
    case AttentionKind::state: return "state";
    case AttentionKind::sparse: return "sparse";
    case AttentionKind::compressed: return "compressed";
    case AttentionKind::full_state: return "full_state";
  }
  return "unknown";
}

namespace {

// Returns the language model's part of a config: of a multimodal model, an object inside, with the keys that the model
// and its parts share.
Json language_model(Json object) {
  for (const char* name : {"thinker_config", "text_config", "llm_config", "language_config"}) {
    const auto inside = object.find(name);
    if (inside == object.end() || !inside->is_object() || inside->empty()) continue;
    if (!inside->contains("num_hidden_layers") && !inside->contains("layers_block_type") &&
        !inside->contains("text_config")) {
      continue;
    }
    Json inner = *inside;
    for (const char* key :
         {"quantization_config", "torch_dtype", "dtype", "tie_word_embeddings", "_name", "_source", "_checkpoints"}) {
      if (!inner.contains(key) && object.contains(key)) inner[key] = object[key];
    }
    if (!inner.contains("model_type") && object.contains("model_type") && object["model_type"].is_string()) {
      inner["model_type"] = object["model_type"].get<std::string>();
    }
    return language_model(std::move(inner));
  }
  // Names of whole models that have no name for the part, or another one for the same architecture.
  if (const auto type = object.find("model_type"); type != object.end() && type->is_string()) {
    for (const auto& [whole, part] :
         std::initializer_list<std::pair<std::string_view, const char*>>{{"minimax_m3_vl", "minimax_m3"},
                                                                         {"kimi_k25", "kimi_k2"},
                                                                         {"gemma4", "gemma4_text"},
                                                                         {"qwen3_5_moe", "qwen3_5_moe_text"},
                                                                         {"qwen3_5", "qwen3_5_text"},
                                                                         {"kimi_k3", "kimi_linear"}}) {
      if (*type == whole) *type = part;
    }
  }
  return object;
}

// Figures that the user gave in place of the config's: equal ones are none.
void apply_given(ModelGeometry& m, const GivenFigures& given) {
  if (given.kv_bytes_per_token != m.kv_bytes_per_token) m.given.kv_bytes_per_token = given.kv_bytes_per_token;
  if (given.state_bytes != m.state_bytes) m.given.state_bytes = given.state_bytes;
  if (m.given.kv_bytes_per_token != 0 || m.given.state_bytes != 0) count_cache(m);
}

}  // namespace

namespace {

ModelGeometry read_model(Json whole, const std::string& file, KvDtype kv, WeightChoice weights,
                         const GivenFigures& given) {
  const Json object = language_model(std::move(whole));
  const ConfigReader config(object, file);
  ModelGeometry m;
  m.name = config.text("_name", file);
  m.source = config.text("_source", file);
  m.date = config.text("_date", "");
  m.checkpoints = read_checkpoints(config);
  m.model_type = config.text("model_type", "");
  m.context_tokens = config.get("max_position_embeddings", 0);
  const std::uint32_t count = read_layer_count(config);
  m.hidden = config.need("hidden_size");
  m.expert_hidden = m.hidden;
  m.vocab = config.need("vocab_size");
  const std::string unknown = unknown_key(config);
  if (!unknown.empty() && given.kv_bytes_per_token == 0) refuse_unknown(config, unknown);
  m.gated = has_gate(m.model_type);
  m.tied_embedding = config.flag("tie_word_embeddings", false);
  const ElementType dtype = read_dtype(config);
  m.dtype_bytes = dtype.bytes;
  CheckpointCache cache{kv, ""};
  if (kv == KvDtype::automatic) cache = read_checkpoint_cache(config);
  if (!cache.note.empty()) m.notes.push_back(m.name + ": " + cache.note);
  set_cache_type(m, dtype, cache.dtype);
  m.layers = unknown.empty() ? read_layers(config, count) : plain_layers(config, count);
  read_attention(m, config);
  const WeightFormat plain{std::string(dtype.name), std::uint64_t{dtype.bytes} * 8 * kUnitsPerBit};
  set_formats(
      m, weights == WeightChoice::automatic ? read_weight_formats(config, plain) : chosen_formats(m, weights, plain));
  set_layers(m, config);
  read_feed_forward(m, config);
  check_plausible(m, config);
  if (std::ranges::all_of(m.layers, [](const LayerGeometry& layer) { return layer.rows.empty(); })) {
    throw ModelError(file + ": no layer attends, so there is no KV cache; it must be a model with attention layers.");
  }
  count_parameters(m);
  count_cache(m);
  count_attention(m);
  apply_given(m, given);
  list_inexact(m);
  return m;
}

// Takes the bytes that the checkpoint has; each part of the weights keeps its share.
void take_weight_bytes(ModelGeometry& m, Bytes bytes, const std::string& from) {
  const Bytes computed = m.weight_bytes;
  const auto part = [&](Bytes of) { return static_cast<Bytes>(Wide128{of} * bytes / std::max<Bytes>(1, computed)); };
  constexpr Bytes kMostDifference = 50;  // of 1/50 = 2 %; more is worth a note
  if ((computed > bytes ? computed - bytes : bytes - computed) > computed / kMostDifference) {
    m.notes.push_back(m.name + ": the weights have " + std::to_string(bytes) + " bytes, by " + from +
                      "; by the config's formats they would have " + std::to_string(computed) + ".");
  }
  m.weight_bytes = bytes;
  m.embedding_bytes = part(m.embedding_bytes);
  m.expert_weight_bytes = part(m.expert_weight_bytes);
  m.group_weight_bytes = part(m.group_weight_bytes);
}

}  // namespace

ModelGeometry parse_model(std::string_view text, const std::string& file, KvDtype kv, WeightChoice weights,
                          const GivenFigures& given) {
  return read_model(parse_object(text, file), file, kv, weights, given);
}

ModelGeometry model_from_file(const std::string& path, KvDtype kv, WeightChoice weights, const GivenFigures& given) {
  Json object = parse_object(read_text_file(path, "give a config.json (JSON)"), path);
  constexpr std::string_view kConfig = "config.json";
  if (path.ends_with(kConfig)) {
    const std::string beside = path.substr(0, path.size() - kConfig.size()) + "hf_quant_config.json";
    std::error_code error;
    if (std::filesystem::is_regular_file(beside, error)) {
      add_quantization_file(object, read_text_file(beside, "give hf_quant_config.json (JSON)"), beside);
    }
  }
  ModelGeometry m = read_model(std::move(object), path, kv, weights, given);
  if (weights != WeightChoice::automatic) return m;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const CheckpointBytes found = checkpoint_bytes(folder.empty() ? "." : folder, m.layers.size());
  if (found.bytes) {
    take_weight_bytes(m, *found.bytes, found.from);
  } else if (!found.from.empty()) {
    m.notes.push_back(m.name + ": the bytes of the weights are those of the config's formats, as " + found.from + ".");
  }
  return m;
}

ModelGeometry model_preset(std::string_view name, KvDtype kv, WeightChoice weights, const GivenFigures& given) {
  ModelGeometry m = parse_model(model_preset_text(name), std::string(name), kv, weights, given);
  m.name = name;
  return m;
}

Bytes ModelGeometry::kv_bytes(Tokens tokens) const {
  Bytes bytes = state_bytes;
  if (given.kv_bytes_per_token != 0) return bytes + tokens * given.kv_bytes_per_token;
  for (const LayerGeometry& layer : layers) {
    if (layer.shares_rows) continue;
    for (const KvRow& row : layer.rows) {
      const Tokens held = row.window != 0 && !windows_paged ? std::min(row.window, tokens) : tokens;
      bytes += held / row.tokens * row.bytes;
    }
  }
  return bytes;
}

namespace {
std::uint32_t rank_heads_of(const ModelGeometry& m, std::uint32_t heads, std::uint32_t kv_heads, std::uint32_t tp) {
  if (tp == 0 || heads % tp != 0) {
    throw ModelError(m.name + ": parallel.tp is " + std::to_string(tp) + "; it must be a divisor of the " +
                     std::to_string(heads) + " attention heads.");
  }
  if (kv_heads % tp == 0) return kv_heads / tp;
  if (tp % kv_heads == 0) return 1;
  throw ModelError(m.name + ": parallel.tp is " + std::to_string(tp) + "; it must be a divisor or a multiple of the " +
                   std::to_string(kv_heads) + " KV heads.");
}

// Returns the units of one rank's row of one token. Rows of indexers and latents are whole on each rank.
std::uint64_t rank_units(const ModelGeometry& m, const LayerGeometry& layer, const KvRow& row, std::uint32_t tp) {
  if (row.indexer || layer.kv_heads == 0) return token_units(row);
  return token_units(row) / layer.kv_heads * rank_heads_of(m, layer.heads, layer.kv_heads, tp);
}
}  // namespace

bool ModelGeometry::page_windows() {
  const std::uint64_t full = full_layers(*this), windows = count_layers(*this, AttentionKind::window);
  if (windows_paged || full == 0 || windows == 0 || latent_rank != 0) return false;
  windows_paged = true;
  count_cache(*this);
  inexact.clear();
  without_pages.clear();
  list_inexact(*this);
  return true;
}

std::uint32_t ModelGeometry::paged_layers() const {
  const bool only_windows = full_layers(*this) == 0;
  return static_cast<std::uint32_t>(std::ranges::count_if(layers, [&](const LayerGeometry& layer) {
    return !layer.shares_rows &&
           std::ranges::any_of(layer.rows, [&](const KvRow& row) { return is_paged(*this, row, only_windows); });
  }));
}

KvShape ModelGeometry::shape(std::uint32_t tp, std::uint32_t page_tokens) const {
  (void)rank_heads_of(*this, heads, kv_heads, tp);
  if (page_tokens == 0) throw ModelError(name + ": cache.page_tokens is 0; it must be a positive integer.");
  const bool only_windows = full_layers(*this) == 0;
  const LayerGeometry* first = nullptr;
  std::uint64_t all = 0, of_first = 0, layers_paged = 0;
  bool alike = given.kv_bytes_per_token == 0;
  for (const LayerGeometry& layer : layers) {
    if (layer.shares_rows) continue;
    std::uint64_t units = 0;
    for (const KvRow& row : layer.rows) {
      if (!is_paged(*this, row, only_windows)) continue;
      units += rank_units(*this, layer, row, tp);
      alike = alike && row.tokens == 1 && (!row.indexer || layer.kv_heads == 0);
    }
    if (units == 0) continue;
    if (first == nullptr) {
      first = &layer;
      of_first = units;
    }
    alike = alike && units == of_first && layer.kv_heads == first->kv_heads;
    all += units;
    ++layers_paged;
  }
  const std::uint32_t planes = first->kv_heads == 0 ? 1 : 2;
  if (alike) {
    const std::uint32_t ranks = planes == 1 ? 1 : rank_heads_of(*this, first->heads, first->kv_heads, tp);
    const std::uint64_t of_head = of_first / kGroupUnit / planes / ranks;
    if (of_head * planes * ranks * kGroupUnit == of_first) {
      return {static_cast<std::uint32_t>(layers_paged), planes, ranks, static_cast<std::uint32_t>(of_head),
              page_tokens};
    }
  }
  // Layers with different rows: one row has the bytes of all of them.
  if (given.kv_bytes_per_token != 0) {
    all = given.kv_bytes_per_token * kGroupUnit / kv_heads *
          (planes == 1 ? 1 : rank_heads_of(*this, heads, kv_heads, tp));
  }
  const std::uint64_t unit = kGroupUnit * planes;
  return {1, planes, 1, static_cast<std::uint32_t>((all + unit - 1) / unit), page_tokens};
}

double ModelGeometry::rank_token_bytes(const LayerGeometry& layer, const KvRow& row, std::uint32_t tp) const {
  return static_cast<double>(rank_units(*this, layer, row, tp)) / kGroupUnit;
}

Bytes ModelGeometry::full_read_bytes(std::uint32_t tp) const {
  std::uint64_t units = 0;
  for (const LayerGeometry& layer : layers) {
    for (const KvRow& row : layer.rows) {
      if (row.window == 0 && (row.indexer || layer.picks == 0)) units += rank_units(*this, layer, row, tp);
    }
  }
  return units / kGroupUnit;
}

Bytes ModelGeometry::window_read_bytes(std::uint32_t tp) const {
  std::uint64_t bytes = 0;
  for (const LayerGeometry& layer : layers) {
    for (const KvRow& row : layer.rows) {
      const Tokens seen = row.window != 0 ? row.window : row.indexer ? 0 : layer.picks;
      if (seen != 0) {
        bytes += rank_units(*this, layer, row, tp) * row.tokens / kGroupUnit * seen / attention_window;
      }
    }
  }
  return bytes;
}

std::string refuse_in_run(const ModelGeometry& model) {
  std::vector<std::string> parts = model.without_pages;
  parts.insert(parts.end(), model.inexact.begin(), model.inexact.end());
  if (parts.empty()) return {};
  std::string sentence = "a real run can't carry this model: ";
  for (std::size_t i = 0; i < parts.size(); ++i) sentence += (i == 0 ? "" : " ") + parts[i];
  return sentence + " Use kvtwin simulate, or a model with full attention in every layer.";
}

}  // namespace kvtwin
