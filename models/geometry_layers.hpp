// The kind of attention and feed-forward of each layer, from the many spellings in config.json. Private to
// models/geometry.cpp. Errors: ModelError.
#pragma once

#include <vector>

#include "models/config_reader.hpp"
#include "models/geometry.hpp"

namespace kvtwin {

std::vector<LayerGeometry> read_layers(const ConfigReader& config, std::uint32_t count);

// State of one state-space or linear-attention layer, per sequence, and the weights of the layer.
struct StateLayer {
  Bytes bytes = 0;
  std::uint64_t parameters = 0;
  DeltaNet delta_net;
};
StateLayer read_state_layer(const ConfigReader& config, std::uint32_t hidden);

// Returns the number of layers: num_hidden_layers, or the length of the list of layers. Errors: not 1 to 4096.
std::uint32_t read_layer_count(const ConfigReader& config);

// The first of the spellings that is present: a positive integer, or a list of equal ones.
std::uint32_t read_even(const ConfigReader& config, std::initializer_list<std::string_view> keys,
                        std::uint32_t fallback);

std::uint32_t count_experts(const ConfigReader& config);

// Returns the key because of which the attention may be of an unknown kind: model_type, or a key about attention or the
// cache that is not in the list of known keys; empty if there is none.
std::string unknown_key(const ConfigReader& config);
[[noreturn]] void refuse_unknown(const ConfigReader& config, const std::string& key);

// Full attention in every layer, for a model whose cache the user states.
std::vector<LayerGeometry> plain_layers(const ConfigReader& config, std::uint32_t count);

}  // namespace kvtwin
