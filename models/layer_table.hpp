// The layers of a model by kind, with the bytes of their KV cache and of their states, for the reader.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/geometry.hpp"
#include "models/json.hpp"

namespace kvtwin {

// The layers of one kind that have equal rows and states. Bytes: of all these layers and of all ranks together.
struct LayerRow {
  std::string
      kind;  // name_of(AttentionKind); "shared": reads the rows of an earlier layer; "given": the user's figures
  std::uint64_t layers = 0;
  double bytes_per_token = 0;        // of each token of a sequence; a whole number, or with 1/128ths (compressed)
  Tokens window = 0;                 // 0 = no window
  Bytes window_bytes_per_token = 0;  // of each of the last `window` tokens
  Bytes bytes_per_sequence = 0;      // of states, and of a whole window
};

// Returns the rows in the order of the first layer of each kind. Layers without attention and without a state have the
// kind "none".
std::vector<LayerRow> layer_table(const ModelGeometry& model);

// Returns whether the table has more than one kind of layers that keep something.
bool has_several_kinds(const std::vector<LayerRow>& table);

// Returns model_layers of report.json.
Json layer_table_json(const std::vector<LayerRow>& table);

// Returns the table as lines with aligned columns, each with `indent` before it.
std::string layer_table_text(const std::vector<LayerRow>& table, const std::string& indent);

}  // namespace kvtwin
