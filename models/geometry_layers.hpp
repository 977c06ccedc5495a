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
StateLayer read_state_layer(const ConfigReader& config, std::uint32_t hidden, std::uint32_t dtype_bytes);

}  // namespace kvtwin
