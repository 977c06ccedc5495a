#include "lab/engine_flags/model_names.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "lab/engine_flags/flag_text.hpp"

namespace kvtwin {

namespace {

constexpr std::pair<std::string_view, std::string_view> kModels[] = {
    {"llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct"},
    {"llama-3.1-8b", "meta-llama/Meta-Llama-3.1-8B-Instruct"},
    {"llama-3.1-70b", "meta-llama/Llama-3.1-70B-Instruct"},
    {"llama-3.1-70b", "meta-llama/Meta-Llama-3.1-70B-Instruct"},
    {"llama-3.1-70b", "meta-llama/Llama-3.3-70B-Instruct"},  // equal config.json
    {"qwen3-32b", "Qwen/Qwen3-32B"},
    {"qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B"},
    {"qwen3.5-397b-a17b", "Qwen/Qwen3.5-397B-A17B"},
    {"minimax-m2.5", "MiniMaxAI/MiniMax-M2.5"},
    {"kimi-k2.5", "moonshotai/Kimi-K2.5"},
    {"glm-5", "zai-org/GLM-5"},
    {"qwen3-coder-30b-a3b", "Qwen/Qwen3-Coder-30B-A3B-Instruct"},
    {"gpt-oss-120b", "openai/gpt-oss-120b"},
    {"deepseek-v3", "deepseek-ai/DeepSeek-V3"},
    {"deepseek-v3", "deepseek-ai/DeepSeek-V3.1"},  // the next two have the shape of V3
    {"deepseek-v3", "deepseek-ai/DeepSeek-R1"},
    {"deepseek-v3-mtp", "lmsys/DeepSeek-R1-NextN"},
    {"qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct"},
    {"qwen2.5-7b", "Qwen/Qwen2.5-Coder-7B-Instruct"},
    {"qwen2.5-72b", "Qwen/Qwen2.5-72B-Instruct"},
    {"qwen3-8b", "Qwen/Qwen3-8B"},
    {"qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B"},
    {"qwen3-coder-480b-a35b", "Qwen/Qwen3-Coder-480B-A35B-Instruct"},
    {"qwen3-vl-8b", "Qwen/Qwen3-VL-8B-Instruct"},
    {"qwen3-vl-32b", "Qwen/Qwen3-VL-32B-Instruct"},
    {"qwen3-vl-235b-a22b", "Qwen/Qwen3-VL-235B-A22B-Instruct"},
    {"qwen3-next-80b-a3b", "Qwen/Qwen3-Next-80B-A3B-Instruct"},
    {"qwen3.5-27b", "Qwen/Qwen3.5-27B"},
    {"qwen3.5-27b", "Qwen/Qwen3.6-27B"},
    {"qwen3.5-35b-a3b", "Qwen/Qwen3.5-35B-A3B"},
    {"qwen3.5-35b-a3b", "Qwen/Qwen3.6-35B-A3B"},
    {"qwen3.5-122b-a10b", "Qwen/Qwen3.5-122B-A10B"},
    {"deepseek-v3.2", "deepseek-ai/DeepSeek-V3.2"},
    {"deepseek-v4-flash", "deepseek-ai/DeepSeek-V4-Flash"},
    {"deepseek-v4-pro", "deepseek-ai/DeepSeek-V4-Pro"},
    {"gemma-3-27b", "google/gemma-3-27b-it"},
    {"gemma-4-26b-a4b", "google/gemma-4-26B-A4B"},
    {"gemma-4-31b", "google/gemma-4-31B-it"},
    {"glm-5", "zai-org/GLM-5.1"},
    {"glm-5.3", "zai-org/GLM-5.3"},
    {"glm-5.3", "zai-org/GLM-5.2"},
    {"gpt-oss-20b", "openai/gpt-oss-20b"},
    {"kimi-k2", "moonshotai/Kimi-K2-Instruct"},
    {"kimi-k2.5", "moonshotai/Kimi-K2-Thinking"},
    {"kimi-k2.5", "moonshotai/Kimi-K2.6"},
    {"kimi-k2.5", "moonshotai/Kimi-K2.7-Code"},
    {"kimi-k3", "moonshotai/Kimi-K3"},
    {"llama-3.1-405b", "meta-llama/Llama-3.1-405B-Instruct"},
    {"llama-3.1-405b", "meta-llama/Meta-Llama-3.1-405B-Instruct"},
    {"llama-4-maverick", "meta-llama/Llama-4-Maverick-17B-128E-Instruct"},
    {"llama-4-scout", "meta-llama/Llama-4-Scout-17B-16E-Instruct"},
    {"mimo-v2-flash", "XiaomiMiMo/MiMo-V2-Flash"},
    {"minimax-m2.5", "MiniMaxAI/MiniMax-M2"},
    {"minimax-m2.5", "MiniMaxAI/MiniMax-M2.1"},
    {"minimax-m2.5", "MiniMaxAI/MiniMax-M2.7"},
    {"minimax-m3", "MiniMaxAI/MiniMax-M3"},
    {"mixtral-8x7b", "mistralai/Mixtral-8x7B-Instruct-v0.1"},
    {"mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1"},
    {"mixtral-8x22b", "mistralai/Mixtral-8x22B-Instruct-v0.1"},
    {"mixtral-8x22b", "mistralai/Mixtral-8x22B-v0.1"},
    {"nemotron-3-nano-30b-a3b", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B"},
    {"nemotron-3-super-120b-a12b", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B"},
    {"nemotron-3-ultra-550b-a55b", "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B"},
    {"step-3.7-flash", "stepfun-ai/Step-3.7-Flash"},
};

// Words of a name that change neither the geometry nor the weights' format.
constexpr std::array kPlainWords = std::to_array<std::string_view>(
    {"instruct",  "chat",  "base",      "thinking", "it",     "pt",  "hf",        "terminus", "preview",  "reasoning",
     "original",  "exp",   "block",     "dynamic",  "static", "per", "pertensor", "tensor",   "channel",  "token",
     "quantized", "quant", "autoround", "marlin",   "g32",    "g64", "g128",      "kv",       "speciale", "zero"});

using Words = std::vector<std::string>;

std::string last_part(std::string_view path) {
  while (path.ends_with('/')) path.remove_suffix(1);
  return lower_case(path.substr(path.rfind('/') + 1));  // npos + 1 = 0
}

std::string first_part(std::string_view path) {
  const std::size_t slash = path.find('/');
  return slash == std::string_view::npos ? "" : lower_case(path.substr(0, slash));
}

Words name_words(std::string_view rest) {
  Words words;
  std::string word;
  for (const char c : rest) {
    if (c != '-' && c != '.') {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

bool is_date(std::string_view word) {
  return (word.size() == 4 || word.size() == 6 || word.size() == 8) &&
         std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
}

bool has_word(const Words& words, std::string_view word) { return std::ranges::find(words, word) != words.end(); }

// The format that one word tells. `words`: all of the name; `org` publishes the checkpoint.
WeightChoice format_of(std::string_view word, const Words& words, std::string_view org) {
  if (word == "nvfp4" || word == "fp4") return WeightChoice::nvfp4;
  if (word == "mxfp4") return WeightChoice::mxfp4;
  if (word == "mxfp8") return WeightChoice::mxfp8;
  if (word == "w4a8" || word == "w4afp8") return WeightChoice::w4a8;
  if (word == "awq" || word == "w4a16") return WeightChoice::awq;
  if (word == "gptq")
    return has_word(words, "int8") || has_word(words, "8bit") ? WeightChoice::int8 : WeightChoice::awq;
  if (word == "int4" || word == "4bit")
    return has_word(words, "gptq") || has_word(words, "awq") ? WeightChoice::awq : WeightChoice::int4;
  if (word == "int8" || word == "w8a8" || word == "w8a16" || word == "8bit") return WeightChoice::int8;
  if (word == "bf16") return WeightChoice::bf16;
  if (word != "fp8") return WeightChoice::automatic;
  // These publish blocks of 128 x 128 weights with one scale; others publish one scale for a matrix or a row.
  static constexpr std::array<std::string_view, 9> kOfBlocks{
      "qwen", "zai-org", "deepseek-ai", "minimaxai", "moonshotai", "stepfun-ai", "sgl-project", "xiaomimimo", ""};
  const bool whole = has_word(words, "dynamic") || has_word(words, "static") || has_word(words, "tensor") ||
                     has_word(words, "pertensor");
  const bool block = has_word(words, "block") || std::ranges::find(kOfBlocks, org) != kOfBlocks.end();
  return block && !whole ? WeightChoice::fp8_block : WeightChoice::fp8;
}

struct Method {
  std::string_view name;
  WeightChoice weights;
};
constexpr std::array<Method, 34> kMethods{{{"fp8", WeightChoice::fp8},
                                           {"w8a8_fp8", WeightChoice::fp8},
                                           {"modelopt_fp8", WeightChoice::fp8},
                                           {"fbgemm_fp8", WeightChoice::fp8},
                                           {"mxfp8", WeightChoice::mxfp8},
                                           {"fp8_per_tensor", WeightChoice::fp8},
                                           {"fp8_per_channel", WeightChoice::fp8},
                                           {"fp8_per_block", WeightChoice::fp8_block},
                                           {"int8_per_channel_weight_only", WeightChoice::int8},
                                           {"nvfp4_per_token", WeightChoice::nvfp4},
                                           {"auto_awq", WeightChoice::awq},
                                           {"auto_gptq", WeightChoice::awq},
                                           {"gpt_oss_mxfp4", WeightChoice::mxfp4},
                                           {"modelopt_mxfp8", WeightChoice::mxfp8},
                                           {"deepseek_v4_fp8", WeightChoice::automatic},
                                           {"modelopt_fp4", WeightChoice::nvfp4},
                                           {"nvfp4_online", WeightChoice::nvfp4},
                                           {"petit_nvfp4", WeightChoice::nvfp4},
                                           {"mxfp4", WeightChoice::mxfp4},
                                           {"quark_mxfp4", WeightChoice::mxfp4},
                                           {"w8a8_int8", WeightChoice::int8},
                                           {"experts_int8", WeightChoice::int8},
                                           {"auto-round-int8", WeightChoice::int8},
                                           {"awq", WeightChoice::awq},
                                           {"awq_marlin", WeightChoice::awq},
                                           {"gptq", WeightChoice::awq},
                                           {"gptq_marlin", WeightChoice::awq},
                                           {"moe_wna16", WeightChoice::awq},
                                           {"w4afp8", WeightChoice::w4a8},
                                           {"bitsandbytes", WeightChoice::int4},
                                           {"modelopt", WeightChoice::automatic},
                                           {"modelopt_mixed", WeightChoice::automatic},
                                           {"compressed-tensors", WeightChoice::automatic},
                                           {"unquant", WeightChoice::bf16}}};

}  // namespace

NamedModel model_named(std::string_view path) {
  const std::string wanted = last_part(path);
  if (wanted == "tiny") return {wanted, WeightChoice::automatic, ""};
  NamedModel found;
  std::size_t best = 0;
  const auto consider = [&](std::string_view preset, std::string known) {
    if (known.ends_with("-instruct")) known.resize(known.size() - std::string_view("-instruct").size());
    if (known.size() <= best || !wanted.starts_with(known)) return;
    const std::string_view rest = std::string_view(wanted).substr(known.size());
    if (!rest.empty() && rest.front() != '-' && rest.front() != '.') return;
    const Words words = name_words(rest);
    NamedModel one{std::string(preset), WeightChoice::automatic, ""};
    for (const std::string& word : words) {
      const WeightChoice format = format_of(word, words, first_part(path));
      if (format == WeightChoice::automatic) {
        if (!is_date(word) && std::ranges::find(kPlainWords, word) == kPlainWords.end()) return;
      } else if (one.weights == WeightChoice::automatic) {
        one.weights = format;
        one.suffix = word;
      }
    }
    best = known.size();
    found = std::move(one);
  };
  for (const auto& [preset, repository] : kModels) {
    consider(preset, last_part(repository));
    consider(preset, std::string(preset));
  }
  std::ranges::transform(found.suffix, found.suffix.begin(),
                         [](char c) { return c >= 'a' && c <= 'z' ? char(c - 'a' + 'A') : c; });
  return found;
}

std::span<const std::pair<std::string_view, std::string_view>> published_models() { return kModels; }

NamedRepository repository_of(const ModelGeometry& preset, WeightChoice weights) {
  const auto checkpoint = std::ranges::find(preset.checkpoints, weights, &PublishedCheckpoint::weights);
  if (weights != WeightChoice::automatic && checkpoint != preset.checkpoints.end()) {
    return {checkpoint->repository, true};
  }
  for (const auto& [name, repository] : kModels) {
    if (name == preset.name) return {std::string(repository), weights == WeightChoice::automatic};
  }
  return {};
}

std::string written_cache_type(const std::string& kv_dtype, WeightChoice weights, const ModelGeometry& model) {
  const bool own = weights == WeightChoice::automatic || weights == WeightChoice::bf16;
  const bool has_word = model.kv_dtype == "bf16" || model.kv_dtype == "fp8";
  return kv_dtype == "auto" && !own && has_word ? model.kv_dtype : kv_dtype;
}

WeightChoice weights_of_quantization(std::string_view method) {
  const auto known = std::ranges::find(kMethods, method, &Method::name);
  return known == kMethods.end() ? WeightChoice::automatic : known->weights;
}

bool is_known_quantization(std::string_view method) {
  return std::ranges::find(kMethods, method, &Method::name) != kMethods.end();
}

}  // namespace kvtwin
