#include "models/quantization.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace kvtwin {

namespace {

constexpr const char* kWayOut = ", or set model.weights";

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  return text;
}

bool has_part(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::string method_of(const ConfigReader& quantization) {
  std::string method = quantization.text("quant_method", "");
  if (method.empty() && quantization.has("quant_algo")) return "modelopt";
  if (method.empty() && quantization.has("config_groups")) return "compressed-tensors";
  return method.starts_with("modelopt") ? "modelopt" : method;
}

WeightFormat fp8_format(const ConfigReader& quantization) {
  const Json* block = quantization.find("weight_block_size");
  if (block == nullptr) return fp8_weights();
  if (!block->is_array() || block->size() != 2 || !(*block)[0].is_number_unsigned() ||
      !(*block)[1].is_number_unsigned() || (*block)[0] == 0 || (*block)[1] == 0) {
    quantization.fail("weight_block_size", "a list of two positive integers");
  }
  const auto rows = std::min<std::uint64_t>((*block)[0].get<std::uint64_t>(), 1 << 20);
  const auto columns = std::min<std::uint64_t>((*block)[1].get<std::uint64_t>(), 1 << 20);
  return fp8_weights(rows * columns);
}

WeightFormat group_format(const ConfigReader& weights) {
  const std::uint32_t bits = weights.need("num_bits"), group = weights.get("group_size", 0);
  const std::string type = weights.text("type", "int");
  if (type == "int") return grouped_integers(bits, group, weights.flag("symmetric", true));
  if (type == "float" && bits == 8) return group == 32 ? mxfp8_weights() : fp8_weights();
  if (type == "float" && bits == 4) return group == 32 ? mxfp4_weights() : nvfp4_weights();
  weights.fail("num_bits", std::string("4 or 8 for type float, or any for type int") + kWayOut);
}

WeightFormat compressed_tensors_format(const ConfigReader& quantization) {
  std::optional<WeightFormat> format;
  if (const Json* groups = quantization.find("config_groups"); groups != nullptr && groups->is_object()) {
    for (const auto& [name, group] : groups->items()) {
      if (!group.is_object() || !group.contains("weights") || !group["weights"].is_object()) continue;
      const WeightFormat own = group_format(ConfigReader(group["weights"], quantization.file()));
      if (format && (format->name != own.name || format->bits_x1024 != own.bits_x1024)) {
        quantization.fail("config_groups", std::string("of groups with one format of weights") + kWayOut);
      }
      format = own;
    }
  }
  if (!format) quantization.fail("config_groups", "an object of groups, each with weights.num_bits");
  return *format;
}

// NVIDIA's ModelOpt: quant_algo.
std::optional<WeightFormat> algorithm_format(std::string_view name) {
  constexpr std::uint64_t kBlock = 128 * 128;
  constexpr std::uint32_t kAwqGroup = 128;
  if (name == "FP8" || name == "FP8_PER_CHANNEL_PER_TOKEN") return fp8_weights();
  if (name == "FP8_PB_WO" || name == "FP8_BLOCK_SCALES") return fp8_weights(kBlock);
  if (name == "MXFP8") return mxfp8_weights();
  if (name == "NVFP4" || name == "NVFP4_AWQ" || name == "W4A16_NVFP4") return nvfp4_weights();
  if (name == "MXFP4" || name == "W4A8_MXFP4_FP8" || name == "W4A16_MXFP4") return mxfp4_weights();
  if (name == "W4A16_AWQ" || name == "W4A8_AWQ" || name == "INT4_AWQ") return grouped_integers(4, kAwqGroup, true);
  if (name == "W8A8_SQ_PER_CHANNEL" || name == "W8A16" || name == "INT8_SQ") return grouped_integers(8, 0);
  return std::nullopt;
}

WeightFormat modelopt_format(const ConfigReader& quantization) {
  const std::string name = quantization.text("quant_algo", "");
  if (const auto format = algorithm_format(name)) return *format;
  quantization.fail("quant_algo",
                    std::string("one of FP8, FP8_PB_WO, MXFP8, NVFP4, MXFP4, W4A16_AWQ, W4A8_AWQ, INT8_SQ and "
                                "MIXED_PRECISION") +
                        kWayOut);
}

WeightFormat quantized_format(const ConfigReader& quantization) {
  const std::string method = method_of(quantization);
  if (method == "fp8" || method == "fbgemm_fp8") return fp8_format(quantization);
  if (method == "mxfp8") return mxfp8_weights();
  if (method == "mxfp4") return mxfp4_weights();
  if (method == "gptq" || method == "awq" || method == "auto-round") {
    return grouped_integers(quantization.need("bits"), quantization.get("group_size", 0),
                            method == "auto-round" && quantization.flag("sym", true));
  }
  if (method == "w4afp8") return grouped_integers(4, 128, true);
  if (method == "compressed-tensors") return compressed_tensors_format(quantization);
  if (method == "bitsandbytes") {
    if (quantization.flag("load_in_4bit", false)) return {"int4", 4 * kUnitsPerBit + kUnitsPerBit / 2};
    return {"int8", 8 * kUnitsPerBit};
  }
  if (method == "modelopt") return modelopt_format(quantization);
  quantization.fail("quant_method", std::string("one of fp8, fbgemm_fp8, mxfp8, mxfp4, gptq, awq, auto-round, w4afp8, "
                                                "compressed-tensors, bitsandbytes, modelopt") +
                                        kWayOut);
}

// The part of the model that a module's name belongs to.
WeightFormat* part_of(WeightFormats& formats, std::string_view module) {
  if (has_part(module, "norm") || has_part(module, "bias") || has_part(module, "conv1d") ||
      has_part(module, "indexer") || has_part(module, "vis") || module.starts_with("mtp")) {
    return nullptr;  // small, or outside of the language model
  }
  if (has_part(module, "lm_head") || module == "head") return &formats.head;
  if (has_part(module, "shared_expert")) return has_part(module, "shared_expert_gate") ? nullptr : &formats.linear;
  if (has_part(module, "experts")) return &formats.experts;
  if (has_part(module, "linear_attn") || has_part(module, "mixer.in_proj") || has_part(module, "mixer.out_proj")) {
    return &formats.states;
  }
  if (has_part(module, "attn") || has_part(module, ".q_proj")) return &formats.attention;
  const bool mlp = has_part(module, "mlp") || has_part(module, "ffn");
  return mlp && (has_part(module, "down") || module.ends_with("mlp*") || module.ends_with("mlp")) ? &formats.linear
                                                                                                  : nullptr;
}

// The modules that a quantisation leaves as they are.
void spare_modules(const ConfigReader& quantization, WeightFormats& formats, const WeightFormat& plain) {
  for (std::string_view key : {"modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules"}) {
    const Json* list = quantization.find(key);
    if (list == nullptr || !list->is_array()) continue;
    for (const Json& word : *list) {
      if (!word.is_string()) continue;
      const auto& module = word.text();
      WeightFormat* const part = part_of(formats, module);
      // Nemotron-H spares the states of a few layers only.
      if (part != nullptr && !(part == &formats.states && has_part(module, "mixer"))) *part = plain;
    }
  }
}

// Mixed precision: each quantised module with its own algorithm.
void read_listed_modules(const ConfigReader& quantization, WeightFormats& formats) {
  const Json* list = quantization.find("quantized_layers");
  constexpr const char* kRight =
      "an object of modules, each with a quant_algo of one format for each part of the model";
  if (list == nullptr || !list->is_object() || list->empty()) {
    quantization.fail("quantized_layers", std::string(kRight) + kWayOut);
  }
  std::vector<const WeightFormat*> seen;
  for (const auto& [module, value] : list->items()) {
    WeightFormat* part = part_of(formats, module);
    if (part == nullptr) continue;
    const auto format = value.is_object() && value.contains("quant_algo") && value["quant_algo"].is_string()
                            ? algorithm_format(value["quant_algo"].text())
                            : std::nullopt;
    const bool known = std::ranges::find(seen, part) != seen.end();
    if (!format || (known && part->name != format->name)) {
      quantization.fail("quantized_layers", std::string(kRight) + kWayOut);
    }
    if (!known) seen.push_back(part);
    *part = *format;
  }
}

// Whether a kv_cache_scheme is of static numbers, one scale a tensor, as each engine can serve.
bool is_static(const Json& scheme) {
  return !scheme.value("dynamic", Json(false)).is_boolean() || !scheme.value("dynamic", Json(false)).get<bool>();
}

CheckpointCache differing(KvDtype dtype, std::string_view said, std::string_view of_sglang, std::string_view of_vllm) {
  return {dtype, "the checkpoint's " + std::string(said) + ": SGLang 0.5.23 takes " + std::string(of_sglang) +
                     " for the KV cache by default, vLLM 0.33.0 takes " + std::string(of_vllm) +
                     "; SGLang's is counted, and model.kv_dtype sets the other one"};
}

}  // namespace

WeightFormat fp8_weights(std::uint64_t block) {
  return {"fp8", 8 * kUnitsPerBit + (block == 0 ? 0 : 32 * kUnitsPerBit / block)};
}
// 32 values share one 8-bit scale.
WeightFormat mxfp8_weights() { return {"fp8", 8 * kUnitsPerBit + kUnitsPerBit / 4}; }
WeightFormat mxfp4_weights() { return {"mxfp4", 4 * kUnitsPerBit + kUnitsPerBit / 4}; }
// 16 values share one 8-bit scale.
WeightFormat nvfp4_weights() { return {"nvfp4", 4 * kUnitsPerBit + kUnitsPerBit / 2}; }

WeightFormat grouped_integers(std::uint32_t bits, std::uint32_t group, bool symmetric) {
  WeightFormat format{"int" + std::to_string(bits), bits * kUnitsPerBit};
  if (group != 0) format.bits_x1024 += (16 + (symmetric ? 0 : std::uint64_t{bits})) * kUnitsPerBit / group;
  return format;
}

WeightFormats read_weight_formats(const ConfigReader& config, const WeightFormat& plain) {
  WeightFormats formats{plain, plain, plain, plain, plain};
  const Json* object = config.find("quantization_config");
  if (object == nullptr) return formats;
  if (!object->is_object()) config.fail("quantization_config", "an object with quant_method");
  const ConfigReader quantization(*object, config.file() + ": quantization_config");
  const std::string method = method_of(quantization);
  const auto algorithm = object->find("quant_algo");
  if (method == "modelopt" && algorithm != object->end() && algorithm->is_null()) return formats;  // only the cache
  const bool mixed = quantization.text("quant_algo", "") == "MIXED_PRECISION";
  if (!mixed || method != "modelopt") {
    const WeightFormat format = quantized_format(quantization);
    formats.experts = format;
    if (method == "mxfp4") return formats;  // gpt-oss: only the experts are quantised
    formats.linear = formats.attention = formats.states = format;
    if (!mixed) spare_modules(quantization, formats, plain);
    formats.head = plain;
  }
  if (mixed) read_listed_modules(quantization, formats);
  if (config.text("expert_dtype", "") == "fp4" && formats.experts.name == "fp8") {
    formats.experts = mxfp4_weights();  // DeepSeek-V4
  }
  return formats;
}

CheckpointCache read_checkpoint_cache(const ConfigReader& config) {
  const Json* object = config.find("quantization_config");
  if (object == nullptr || !object->is_object()) return {};
  const ConfigReader quantization(*object, config.file() + ": quantization_config");
  const std::string method = method_of(quantization);
  const Json* scheme = quantization.find("kv_cache_scheme");
  if (scheme != nullptr && scheme->is_object() && (method == "modelopt" || method == "compressed-tensors")) {
    const Json bits = scheme->value("num_bits", Json()), type = scheme->value("type", Json());
    if (method == "compressed-tensors") {
      const bool served = type == "float" && bits == 8 && is_static(*scheme) &&
                          scheme->value("strategy", Json()) == "tensor" &&
                          scheme->value("symmetric", Json(true)) == true;
      if (served) return {KvDtype::fp8, ""};
      return differing(KvDtype::automatic, "kv_cache_scheme", "the type of the activations", "fp8");
    }
    if (type == "float" && bits == 8) {
      if (is_static(*scheme)) return {KvDtype::fp8, ""};
      return differing(KvDtype::fp8, "dynamic kv_cache_scheme", "fp8", "the type of the activations");
    }
    if (type == "float" && bits == 4) {
      return differing(KvDtype::automatic, "kv_cache_scheme of 4 bits", "the type of the activations", "nvfp4");
    }
    return {};
  }
  const bool of_scheme = scheme != nullptr && scheme->is_string() && method == "modelopt";
  const std::string said = of_scheme ? "kv_cache_scheme" : "kv_cache_quant_algo";
  const std::string algorithm = lower(quantization.text(said, ""));
  if (algorithm == "nvfp4" && method == "modelopt") {
    return differing(KvDtype::automatic, said + " NVFP4", "the type of the activations", "nvfp4");
  }
  if (algorithm != "fp8") return {};
  if (of_scheme && !has_part(quantization.text("quant_algo", ""), "FP4")) {
    return differing(KvDtype::automatic, "kv_cache_scheme \"FP8\"", "the type of the activations", "fp8");
  }
  if (method == "modelopt") {
    if (quantization.flag("_of_file_beside", false)) {
      return differing(KvDtype::fp8, "hf_quant_config.json beside a quantization_config", "fp8",
                       "the type of the activations");
    }
    return {KvDtype::fp8, ""};
  }
  if (method == "fp8" || method == "mxfp8") {
    return differing(KvDtype::fp8, said + " FP8", "fp8", "the type of the activations");
  }
  return {};
}

void add_quantization_file(Json& config, std::string_view text, const std::string& file) {
  const Json object = parse_object(text, file);
  const auto inside = object.find("quantization");
  const Json& stated = inside != object.end() && inside->is_object() ? *inside : object;
  if (!stated.contains("quant_algo")) {
    throw ModelError(file +
                     ": key \"quant_algo\" is missing; it must be the format of the weights, or remove the file.");
  }
  Json& known = config["quantization_config"];
  if (known.is_null()) {
    known = stated;
    known["quant_method"] = "modelopt";
    return;
  }
  const bool mixed = known.is_object() && known.value("quant_algo", Json()) == "MIXED_PRECISION" &&
                     known.value("quant_method", std::string("modelopt")).starts_with("modelopt");
  if (!mixed || (known.contains("quantized_layers") &&
                 (known.contains("kv_cache_quant_algo") || known.contains("kv_cache_scheme")))) {
    return;
  }
  known = stated;
  known["quant_method"] = "modelopt";
  known["_of_file_beside"] = true;
}

}  // namespace kvtwin
