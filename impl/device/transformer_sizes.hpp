// What the surrogate transformer computes (cuda/transformer.hpp), in plain numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "models/geometry.hpp"

namespace kvtwin {

// [tokens x inner] * [inner x outer]; both multiples of 8, so that rows are aligned as tensor cores like them.
struct LayerProduct {
  std::uint32_t inner = 0, outer = 0;
};

struct TransformerSizes {
  std::vector<LayerProduct> products;  // of a layer and rank, in order; empty = no arithmetic
  std::uint32_t pair_work = 0;         // multiply-adds of attention, a layer and pair of prefill tokens
  std::uint32_t layers = 0;
};

// The products of the model's last layer (in models of several kinds the usual one): projections into attention and out
// of it, then the feed-forward matrices, of an expert layer those that are active for a token. One rank's part.
TransformerSizes transformer_sizes(const ModelGeometry& model, std::uint32_t tp);

}  // namespace kvtwin
