// The formats of the weights and of the KV cache that a checkpoint states: quantization_config of its config.json, or
// hf_quant_config.json beside it. A closed list: other forms are refused. Private to models/geometry*.cpp.
// Errors: ModelError with file, key and a valid value.
#pragma once

#include <string>

#include "models/config_reader.hpp"
#include "models/geometry.hpp"
#include "models/json.hpp"

namespace kvtwin {

inline constexpr std::uint64_t kUnitsPerBit = 1024;  // WeightFormat counts in 1/1024 bit

// Return the format of a group of weights. fp8_weights: `block` weights share a 32-bit scale; 0 = a matrix or a row.
WeightFormat fp8_weights(std::uint64_t block = 0);
WeightFormat mxfp8_weights();
WeightFormat nvfp4_weights();
WeightFormat mxfp4_weights();
// Weight-only integers of `bits` bits, with a 16-bit scale per group, and a zero point unless they are symmetric.
WeightFormat grouped_integers(std::uint32_t bits, std::uint32_t group, bool symmetric = false);

// Of the matrices outside of the embedding.
struct WeightFormats {
  WeightFormat linear, attention, states, experts, head;
};

// `plain`: of weights that are not quantised. `config` may have no quantization_config.
WeightFormats read_weight_formats(const ConfigReader& config, const WeightFormat& plain);

// The type that the KV cache has by default (--kv-cache-dtype auto) because of the checkpoint: as in SGLang 0.5.23
// (srt/mem_cache/kv_cache_dtype.py; the classes of srt/layers/quantization). automatic = the type of the activations.
// `note`: a sentence if vLLM 0.33.0 (vllm/utils/torch_utils.py, resolve_kv_cache_dtype_string) takes another one.
struct CheckpointCache {
  KvDtype dtype = KvDtype::automatic;
  std::string note;
};
CheckpointCache read_checkpoint_cache(const ConfigReader& config);

// Puts the text of hf_quant_config.json into the config, as the engines do: if the config has no quantization_config,
// or if that is one of mixed precision without the list of layers or without a type of the cache (SGLang only).
void add_quantization_file(Json& config, std::string_view text, const std::string& file);

}  // namespace kvtwin
