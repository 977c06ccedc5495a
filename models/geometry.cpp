#include "models/geometry.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "models/config_reader.hpp"
#include "models/geometry_layers.hpp"
#include "models/presets.hpp"
#include "models/text_file.hpp"

namespace kvtwin {

namespace {

constexpr std::uint64_t kUnitsPerBit = 1024;  // WeightFormat counts in 1/1024 bit

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

ElementType read_dtype(const ConfigReader& config) {
  // Configs without this key are of bf16 checkpoints (gpt-oss), or of engines that load weights as bf16.
  const std::string_view key = config.has("torch_dtype") ? "torch_dtype" : "dtype";
  const std::string spelling = config.text(key, "bfloat16");
  for (const ElementType& type : kElementTypes) {
    if (type.spelling == spelling) return type;
  }
  config.fail(key, "one of bfloat16, float16, float32, float8_e4m3fn, float8_e5m2");
}

void read_kv_dtype(ModelGeometry& m, const ElementType& dtype, KvDtype kv) {
  m.dtype_bytes = dtype.bytes;
  m.kv_element_bytes = dtype.bytes;
  m.kv_dtype = dtype.name;
  if (kv == KvDtype::automatic) return;
  m.kv_element_bytes = kv == KvDtype::fp8 ? 1 : 2;
  m.kv_dtype = kv == KvDtype::fp8 ? "fp8" : kv == KvDtype::fp16 ? "fp16" : "bf16";
}

// Eight bits per weight, and a 32-bit scale per block of weights; 0 = per matrix or row.
WeightFormat fp8_weights(std::uint64_t block = 0) {
  return {"fp8", 8 * kUnitsPerBit + (block == 0 ? 0 : 32 * kUnitsPerBit / block)};
}

// 16 values of 4 bits share one 8-bit scale.
WeightFormat nvfp4_weights() { return {"nvfp4", 4 * kUnitsPerBit + kUnitsPerBit / 2}; }

// Weight-only integers of `bits` bits, with a 16-bit scale per group, and a zero point unless they are symmetric.
WeightFormat grouped_integers(std::uint32_t bits, std::uint32_t group, bool symmetric = false) {
  WeightFormat format{"int" + std::to_string(bits), bits * kUnitsPerBit};
  if (group != 0) format.bits_x1024 += (16 + (symmetric ? 0 : std::uint64_t{bits})) * kUnitsPerBit / group;
  return format;
}

WeightFormat fp8_format(const ConfigReader& quantization) {
  const nlohmann::json* block = quantization.find("weight_block_size");
  if (block == nullptr) return fp8_weights();
  if (!block->is_array() || block->size() != 2 || !(*block)[0].is_number_unsigned() ||
      !(*block)[1].is_number_unsigned() || (*block)[0] == 0 || (*block)[1] == 0) {
    quantization.fail("weight_block_size", "a list of two positive integers");
  }
  const auto rows = std::min<std::uint64_t>((*block)[0].get<std::uint64_t>(), 1 << 20);
  const auto columns = std::min<std::uint64_t>((*block)[1].get<std::uint64_t>(), 1 << 20);
  return fp8_weights(rows * columns);
}

WeightFormat compressed_tensors_format(const ConfigReader& quantization) {
  if (const nlohmann::json* groups = quantization.find("config_groups"); groups != nullptr && groups->is_object()) {
    for (const auto& [name, group] : groups->items()) {
      if (!group.is_object() || !group.contains("weights") || !group["weights"].is_object()) continue;
      const ConfigReader weights(group["weights"], quantization.file());
      const std::uint32_t bits = weights.need("num_bits");
      if (weights.text("type", "int") == "float" && bits == 8) return fp8_weights();
      if (weights.text("type", "int") == "float") return nvfp4_weights();
      return grouped_integers(bits, weights.get("group_size", 0), weights.flag("symmetric", true));
    }
  }
  quantization.fail("config_groups", "an object of groups, each with weights.num_bits");
}

WeightFormat quantized_format(const ConfigReader& quantization) {
  const std::string method = quantization.text("quant_method", "");
  if (method == "fp8" || method == "fbgemm_fp8") return fp8_format(quantization);
  if (method == "mxfp4")
    return {"mxfp4", 4 * kUnitsPerBit + kUnitsPerBit / 4};  // 32 values of 4 bits share one 8-bit scale
  if (method == "gptq" || method == "awq") {
    return grouped_integers(quantization.need("bits"), quantization.get("group_size", 0));
  }
  if (method == "compressed-tensors") return compressed_tensors_format(quantization);
  if (method == "bitsandbytes") {
    if (quantization.flag("load_in_4bit", false)) return {"int4", 4 * kUnitsPerBit + kUnitsPerBit / 2};
    return {"int8", 8 * kUnitsPerBit};
  }
  if (method == "modelopt") {
    if (quantization.text("quant_algo", "") == "FP8") return fp8_weights();
    return nvfp4_weights();
  }
  quantization.fail("quant_method",
                    "one of fp8, fbgemm_fp8, mxfp4, gptq, awq, compressed-tensors, bitsandbytes, modelopt");
}

bool spares_attention(const ConfigReader& quantization) {
  for (std::string_view key : {"modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules"}) {
    const nlohmann::json* list = quantization.find(key);
    if (list == nullptr || !list->is_array()) continue;
    for (const nlohmann::json& word : *list) {
      if (word.is_string() && word.get_ref<const std::string&>().find("attn") != std::string::npos) return true;
    }
  }
  return false;
}

void read_formats(ModelGeometry& m, const ConfigReader& config, const ElementType& dtype) {
  const WeightFormat plain{std::string(dtype.name), std::uint64_t{dtype.bytes} * 8 * kUnitsPerBit};
  m.linear_format = m.attention_format = m.expert_format = plain;
  const nlohmann::json* object = config.find("quantization_config");
  if (object == nullptr) return;
  if (!object->is_object()) config.fail("quantization_config", "an object with quant_method");
  const ConfigReader quantization(*object, config.file() + ": quantization_config");
  const WeightFormat format = quantized_format(quantization);
  m.expert_format = format;
  if (format.name == "mxfp4") return;  // gpt-oss: only the experts are quantised
  m.linear_format = format;
  if (!spares_attention(quantization)) m.attention_format = format;
}

void choose_formats(ModelGeometry& m, WeightChoice weights) {
  constexpr std::uint64_t kBlock = 128, kGroup = 32;  // weights that share a scale: fp8_block 128 x 128, int4 32
  const WeightFormat bf16{"bf16", 16 * kUnitsPerBit};
  WeightFormat format = bf16;
  switch (weights) {
    case WeightChoice::automatic: return;
    case WeightChoice::bf16: break;
    case WeightChoice::fp8: format = fp8_weights(); break;
    case WeightChoice::fp8_block: format = fp8_weights(kBlock * kBlock); break;
    case WeightChoice::nvfp4: format = nvfp4_weights(); break;
    case WeightChoice::int4: format = grouped_integers(4, kGroup, true); break;
  }
  const bool four_bits = weights == WeightChoice::nvfp4 || weights == WeightChoice::int4;
  m.linear_format = m.expert_format = format;
  m.attention_format = four_bits && m.latent_rank != 0 ? bf16 : format;
}

bool has_gate(std::string_view model_type) {
  static constexpr std::array<std::string_view, 9> kWithout{"gpt2",   "gpt_neox", "gptj",     "opt",       "phi",
                                                            "falcon", "bloom",    "nemotron", "starcoder2"};
  return std::find(kWithout.begin(), kWithout.end(), model_type) == kWithout.end() &&
         !model_type.starts_with("nemotron");
}

void read_attention(ModelGeometry& m, const ConfigReader& config) {
  m.heads = config.need("num_attention_heads");
  m.kv_heads = config.first({"num_key_value_heads"}, m.heads);
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
  if (config.has("head_dim")) {
    m.head_dim = config.need("head_dim");
  } else {
    if (m.hidden % m.heads != 0) config.fail("head_dim", "given, as hidden_size is no multiple of num_attention_heads");
    m.head_dim = m.hidden / m.heads;
  }
  m.value_dim = m.head_dim;
}

bool has_kind(const ModelGeometry& m, FeedForwardKind kind) {
  return std::any_of(m.layers.begin(), m.layers.end(), [&](const auto& layer) { return layer.feed_forward == kind; });
}

void read_feed_forward(ModelGeometry& m, const ConfigReader& config) {
  const bool llama4 = m.model_type.starts_with("llama4");
  if (has_kind(m, FeedForwardKind::dense)) {
    m.dense_width = config.need(llama4 ? "intermediate_size_mlp" : "intermediate_size");
  }
  if (!has_kind(m, FeedForwardKind::experts)) return;
  m.experts = config.first({"num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"}, 0);
  m.experts_per_token = config.first({"num_experts_per_tok", "experts_per_token", "moe_topk"}, 0);
  if (m.experts_per_token == 0 || m.experts_per_token > m.experts) {
    config.fail("num_experts_per_tok", "at least 1 and at most the number of experts");
  }
  m.expert_width = config.first({"moe_intermediate_size", "intermediate_size"}, 0);
  if (m.expert_width == 0) config.fail("moe_intermediate_size", "a positive integer");
  const std::uint32_t shared = config.get("n_shared_experts", llama4 ? 1 : 0);
  const std::uint64_t shared_width = std::uint64_t{shared} * m.expert_width;
  if (shared_width > 1U << 24) config.fail("n_shared_experts", "a handful");
  m.shared_width = config.first({"shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"},
                                static_cast<std::uint32_t>(shared_width));
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

std::uint64_t attention_parameters(const ModelGeometry& m) {
  const std::uint64_t hidden = m.hidden, heads = m.heads;
  if (m.latent_rank == 0) {
    return hidden * heads * m.head_dim * 2 + hidden * m.kv_heads * m.head_dim * 2;
  }
  const std::uint64_t query =
      m.query_rank == 0 ? hidden * heads * m.head_dim : (hidden + heads * m.head_dim) * m.query_rank;
  const std::uint64_t latent = hidden * (m.latent_rank + m.rope_dim);
  const std::uint64_t expansion = std::uint64_t{m.latent_rank} * heads * (m.nope_dim + m.value_dim);
  const std::uint64_t output = heads * m.value_dim * hidden;
  const std::uint64_t query_width = m.query_rank == 0 ? hidden : m.query_rank;
  const std::uint64_t indexer = m.index_topk == 0 ? 0
                                                  : query_width * m.index_heads * m.index_dim +
                                                        hidden * (std::uint64_t{m.index_dim} + m.index_heads);
  return query + latent + expansion + output + indexer;
}

Bytes stored(std::uint64_t parameters, const WeightFormat& format) {
  // Whole units and rest separately: parameters * bits would exceed 64 bits for a trillion parameters.
  constexpr std::uint64_t kUnit = 8 * kUnitsPerBit;
  return parameters / kUnit * format.bits_x1024 + (parameters % kUnit * format.bits_x1024 + kUnit - 1) / kUnit;
}

// Sums the weights. Not counted: biases and norms of heads (below 0.1 %), and extra layers for multi-token prediction,
// which serving without speculation does not load.
void count_parameters(ModelGeometry& m, std::uint64_t state_layer) {
  const std::uint64_t hidden = m.hidden, matrices = m.gated ? 3 : 2;
  const std::uint64_t states = count_layers(m, AttentionKind::state) * state_layer;
  const std::uint64_t attending =
      m.layers.size() - count_layers(m, AttentionKind::none) - count_layers(m, AttentionKind::state);
  const std::uint64_t attention = attending * attention_parameters(m);
  const std::uint64_t expert_layers = count_layers(m, FeedForwardKind::experts);
  const std::uint64_t dense = count_layers(m, FeedForwardKind::dense) * matrices * hidden * m.dense_width +
                              expert_layers * matrices * hidden * m.shared_width + states;
  const std::uint64_t plain = expert_layers * hidden * m.experts + (2 * m.layers.size() + 1) * hidden;
  m.expert_parameters = expert_layers * matrices * hidden * m.expert_width;
  m.embedding_parameters = hidden * m.vocab;
  m.head_parameters = hidden * m.vocab;
  const std::uint64_t shared = attention + dense + plain;
  const std::uint64_t tables = m.embedding_parameters + (m.tied_embedding ? 0 : m.head_parameters);
  m.parameters = shared + m.experts * m.expert_parameters + tables;
  m.active_parameters = shared + m.experts_per_token * m.expert_parameters + m.head_parameters;
  m.embedding_bytes = m.embedding_parameters * m.dtype_bytes;
  m.expert_weight_bytes = stored(m.expert_parameters, m.expert_format);
  m.group_parameters = attention + dense;
  m.group_weight_bytes = stored(attention, m.attention_format) + stored(dense, m.linear_format);
  m.weight_bytes = stored(attention, m.attention_format) + stored(dense, m.linear_format) +
                   m.experts * m.expert_weight_bytes + (plain + tables) * m.dtype_bytes;
}

// DSA with an fp8 cache packs the latent: fp8 values, one fp32 scale per 128 values, and the rope part in bf16.
std::uint32_t latent_row_bytes(const ModelGeometry& m) {
  if (m.index_topk != 0 && m.kv_element_bytes == 1) return m.latent_rank + 4 * (m.latent_rank / 128) + 2 * m.rope_dim;
  return (m.latent_rank + m.rope_dim) * m.kv_element_bytes;
}

// The indexer's key: fp8 values with one fp32 scale per 128 values.
std::uint32_t index_row_bytes(const ModelGeometry& m) {
  return m.index_topk == 0 ? 0 : m.index_dim + 4 * ((m.index_dim + 127) / 128);
}

// Returns the bytes of one token in one layer, with all KV heads.
Bytes row_bytes(const ModelGeometry& m, AttentionKind kind) {
  switch (kind) {
    case AttentionKind::full:
    case AttentionKind::window: return Bytes{2} * m.kv_heads * m.head_dim * m.kv_element_bytes;
    case AttentionKind::latent: return latent_row_bytes(m);
    case AttentionKind::sparse_latent: return latent_row_bytes(m) + index_row_bytes(m);
    case AttentionKind::state:
    case AttentionKind::none: return 0;
  }
  return 0;
}

std::uint64_t full_layers(const ModelGeometry& m) {
  return count_layers(m, AttentionKind::full) + count_layers(m, AttentionKind::latent) +
         count_layers(m, AttentionKind::sparse_latent);
}

AttentionKind full_kind(const ModelGeometry& m) {
  if (m.latent_rank == 0) return AttentionKind::full;
  return m.index_topk == 0 ? AttentionKind::latent : AttentionKind::sparse_latent;
}

std::string layers_text(const ModelGeometry& m, std::uint64_t count, std::string_view kind) {
  const bool all = count == m.layers.size();
  return std::to_string(count) + (all ? "" : " " + std::string(kind)) + (count == 1 ? " layer" : " layers");
}

std::string row_text(const ModelGeometry& m, AttentionKind kind) {
  const std::string element = std::to_string(m.kv_element_bytes) + " byte" + (m.kv_element_bytes == 1 ? "" : "s");
  if (kind == AttentionKind::latent) {
    return "(" + std::to_string(m.latent_rank) + " + " + std::to_string(m.rope_dim) + ") * " + element;
  }
  if (kind == AttentionKind::sparse_latent) {
    return "(" + std::to_string(latent_row_bytes(m)) + " latent + " + std::to_string(index_row_bytes(m)) +
           " indexer bytes)";
  }
  return std::to_string(m.kv_heads) + (m.kv_heads == 1 ? " kv head * " : " kv heads * ") + std::to_string(m.head_dim) +
         " * " + element;
}

std::string formula_term(const ModelGeometry& m, std::uint64_t count, AttentionKind kind, std::string_view word) {
  const bool planes = kind == AttentionKind::full || kind == AttentionKind::window;
  return (planes ? "2 * " : "") + layers_text(m, count, word) + " * " + row_text(m, kind);
}

std::string state_text(const ModelGeometry& m) {
  return ", plus " + std::to_string(m.state_bytes) + " bytes of state a sequence";
}

void count_cache(ModelGeometry& m, Bytes state_layer) {
  const AttentionKind kind = full_kind(m);
  const std::uint64_t full = full_layers(m), windows = count_layers(m, AttentionKind::window);
  m.window_bytes_per_token = windows * row_bytes(m, AttentionKind::window);
  m.state_bytes = count_layers(m, AttentionKind::state) * state_layer;
  for (const LayerGeometry& layer : m.layers) m.window = std::max(m.window, layer.window);
  const bool only_windows = full == 0;
  m.kv_bytes_per_token = only_windows ? m.window_bytes_per_token : full * row_bytes(m, kind);
  const std::uint64_t paged = only_windows ? windows : full;
  m.kv_formula = formula_term(m, paged, only_windows ? AttentionKind::window : kind, only_windows ? "window" : "full") +
                 " = " + std::to_string(m.kv_bytes_per_token) + " bytes/token";
  const std::string span = "min(" + std::to_string(m.window) + ", tokens)";
  if (only_windows) {
    m.kv_formula += ", up to " + std::to_string(m.window) + " tokens a sequence";
  } else if (windows != 0) {
    m.kv_formula += ", plus " + formula_term(m, windows, AttentionKind::window, "window") + " * " + span;
  }
  if (m.state_bytes != 0) m.kv_formula += state_text(m);
}

void count_attention(ModelGeometry& m) {
  const std::uint64_t heads = m.heads, full = full_layers(m);
  const std::uint64_t prefill = 2 * heads * (std::uint64_t{m.head_dim} + m.value_dim);
  m.attention_window = m.window;
  if (m.latent_rank == 0) {
    m.full_attention = {full * prefill, full * prefill};
    const std::uint64_t windows = count_layers(m, AttentionKind::window);
    m.window_attention = {windows * prefill, windows * prefill};
    return;
  }
  // Decode stays in the latent space, because the projections are absorbed into query and output: queries have rank +
  // rope elements, values have rank elements. Prefill first projects keys and values out of the latent.
  const std::uint64_t absorbed = 2 * heads * (2 * std::uint64_t{m.latent_rank} + m.rope_dim);
  if (m.index_topk == 0) {
    m.full_attention = {full * prefill, full * absorbed};
    m.context_projection_flops = full * 2 * heads * m.latent_rank * (std::uint64_t{m.nope_dim} + m.value_dim);
    return;
  }
  const std::uint64_t indexer = full * 2 * m.index_heads * m.index_dim;
  m.full_attention = {indexer, indexer};
  m.window_attention = {full * absorbed, full * absorbed};
  m.attention_window = m.index_topk;
}

void list_inexact(ModelGeometry& m) {
  const std::uint64_t windows = count_layers(m, AttentionKind::window), states = count_layers(m, AttentionKind::state);
  const std::string subject = m.name + ": ";
  if (windows != 0) {
    std::string sentence = subject + std::to_string(windows) + " of " + std::to_string(m.layers.size()) +
                           " layers use a sliding window of " + std::to_string(m.window) +
                           (m.windows_paged ? " tokens; their KV is counted by formula as that of all tokens"
                                            : " tokens; their KV is counted by formula as min(window, tokens) a "
                                              "sequence and isn't paged");
    if (full_layers(m) == 0) sentence += ", and as no layer attends to everything, pages count all their tokens";
    m.inexact.push_back(sentence + ".");
  }
  if (states != 0) {
    m.inexact.push_back(subject + std::to_string(states) + " of " + std::to_string(m.layers.size()) +
                        " layers keep a state-space (Mamba) or linear-attention state; it is counted by formula as " +
                        std::to_string(m.state_bytes) + " bytes a sequence and prefix hits assume that it is at hand.");
  }
  if (m.index_topk != 0) {
    m.inexact.push_back(subject + "sparse attention (DSA) reads the " + std::to_string(m.index_topk) +
                        " tokens that its indexer picks; the indexer's " + std::to_string(index_row_bytes(m)) +
                        " bytes a token and layer are counted by formula within the latent's row.");
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

KvDtype kv_dtype_from_name(std::string_view name) {
  if (name == "auto") return KvDtype::automatic;
  if (name == "bf16") return KvDtype::bf16;
  if (name == "fp16") return KvDtype::fp16;
  if (name == "fp8") return KvDtype::fp8;
  throw ModelError("unknown KV element type \"" + std::string(name) + "\"; it must be auto, bf16, fp16 or fp8.");
}

std::string_view name_of(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::none: return "none";
    case AttentionKind::full: return "full";
    case AttentionKind::window: return "window";
    case AttentionKind::latent: return "latent";
    case AttentionKind::sparse_latent: return "sparse_latent";
    case AttentionKind::state: return "state";
  }
  return "unknown";
}

ModelGeometry parse_model(std::string_view text, const std::string& file, KvDtype kv, WeightChoice weights) {
  nlohmann::json object = parse_object(text, file);
  // A multimodal config has the language model in text_config, but some keys can be outside.
  if (!object.contains("hidden_size") && object.contains("text_config") && object["text_config"].is_object()) {
    nlohmann::json inner = object["text_config"];
    for (const char* key : {"quantization_config", "torch_dtype", "dtype"}) {
      if (!inner.contains(key) && object.contains(key)) inner[key] = object[key];
    }
    object = std::move(inner);
  }
  const ConfigReader config(object, file);
  ModelGeometry m;
  m.name = config.text("_name", file);
  m.source = config.text("_source", file);
  m.date = config.text("_date", "");
  m.model_type = config.text("model_type", "");
  const std::uint32_t count = config.need("num_hidden_layers");
  if (count > 4096) config.fail("num_hidden_layers", "at most 4096");
  m.hidden = config.need("hidden_size");
  m.vocab = config.need("vocab_size");
  m.gated = has_gate(m.model_type);
  m.tied_embedding = config.flag("tie_word_embeddings", false);
  const ElementType dtype = read_dtype(config);
  read_kv_dtype(m, dtype, kv);
  read_formats(m, config, dtype);
  m.layers = read_layers(config, count);
  read_attention(m, config);
  choose_formats(m, weights);
  read_feed_forward(m, config);
  check_plausible(m, config);
  const StateLayer state =
      count_layers(m, AttentionKind::state) == 0 ? StateLayer{} : read_state_layer(config, m.hidden, m.dtype_bytes);
  if (full_layers(m) + count_layers(m, AttentionKind::window) == 0) {
    throw ModelError(file + ": no layer attends, so there is no KV cache; it must be a model with attention layers.");
  }
  m.delta_net = state.delta_net;
  count_parameters(m, state.parameters);
  count_cache(m, state.bytes);
  count_attention(m);
  list_inexact(m);
  return m;
}

ModelGeometry model_from_file(const std::string& path, KvDtype kv, WeightChoice weights) {
  return parse_model(read_text_file(path, "give a config.json (JSON)"), path, kv, weights);
}

ModelGeometry model_preset(std::string_view name, KvDtype kv, WeightChoice weights) {
  ModelGeometry m = parse_model(model_preset_text(name), std::string(name), kv, weights);
  m.name = name;
  return m;
}

Bytes ModelGeometry::kv_bytes(Tokens tokens) const {
  Bytes bytes = state_bytes;
  for (const LayerGeometry& layer : layers) {
    const bool windowed = layer.attention == AttentionKind::window && !windows_paged;
    const Tokens held = windowed ? std::min(layer.window, tokens) : tokens;
    bytes += held * row_bytes(*this, layer.attention);
  }
  return bytes;
}

namespace {
std::uint32_t rank_kv_heads(const ModelGeometry& m, std::uint32_t tp) {
  if (tp == 0 || m.heads % tp != 0) {
    throw ModelError(m.name + ": parallel.tp is " + std::to_string(tp) + "; it must be a divisor of the " +
                     std::to_string(m.heads) + " attention heads.");
  }
  if (m.kv_heads % tp == 0) return m.kv_heads / tp;
  if (tp % m.kv_heads == 0) return 1;
  throw ModelError(m.name + ": parallel.tp is " + std::to_string(tp) + "; it must be a divisor or a multiple of the " +
                   std::to_string(m.kv_heads) + " KV heads.");
}
}  // namespace

bool ModelGeometry::page_windows() {
  const std::uint64_t full = full_layers(*this), windows = count_layers(*this, AttentionKind::window);
  if (windows_paged || full == 0 || windows == 0 || latent_rank != 0) return false;
  windows_paged = true;
  window_bytes_per_token = 0;
  kv_bytes_per_token += windows * row_bytes(*this, AttentionKind::window);
  kv_formula = formula_term(*this, full + windows, AttentionKind::full, "full and window") + " = " +
               std::to_string(kv_bytes_per_token) + " bytes/token";
  if (state_bytes != 0) kv_formula += state_text(*this);
  inexact.clear();
  list_inexact(*this);
  return true;
}

std::uint32_t ModelGeometry::paged_layers() const {
  const std::uint64_t full = full_layers(*this);
  if (windows_paged) return static_cast<std::uint32_t>(full + count_layers(*this, AttentionKind::window));
  return static_cast<std::uint32_t>(full != 0 ? full : count_layers(*this, AttentionKind::window));
}

KvShape ModelGeometry::shape(std::uint32_t tp, std::uint32_t page_tokens) const {
  const std::uint32_t rank_heads = rank_kv_heads(*this, tp);
  if (page_tokens == 0) throw ModelError(name + ": cache.page_tokens is 0; it must be a positive integer.");
  if (latent_rank != 0) {
    return {paged_layers(), 1, 1, static_cast<std::uint32_t>(row_bytes(*this, full_kind(*this))), page_tokens};
  }
  return {paged_layers(), 2, rank_heads, head_dim * kv_element_bytes, page_tokens};
}

Bytes ModelGeometry::full_read_bytes(std::uint32_t tp) const {
  const std::uint32_t rank_heads = rank_kv_heads(*this, tp);
  if (index_topk != 0) return full_layers(*this) * index_row_bytes(*this);
  if (latent_rank != 0) return full_layers(*this) * latent_row_bytes(*this);
  return full_layers(*this) * row_bytes(*this, AttentionKind::full) / kv_heads * rank_heads;
}

Bytes ModelGeometry::window_read_bytes(std::uint32_t tp) const {
  const std::uint32_t rank_heads = rank_kv_heads(*this, tp);
  if (latent_rank != 0) return index_topk == 0 ? 0 : full_layers(*this) * latent_row_bytes(*this);
  return count_layers(*this, AttentionKind::window) * row_bytes(*this, AttentionKind::window) / kv_heads * rank_heads;
}

std::string refuse_in_run(const ModelGeometry& model) {
  if (model.inexact.empty()) return {};
  std::string sentence = "a real run can't carry this model: ";
  for (std::size_t i = 0; i < model.inexact.size(); ++i) sentence += (i == 0 ? "" : " ") + model.inexact[i];
  return sentence + " Use kvtwin simulate, or a model with full attention in every layer.";
}

}  // namespace kvtwin
