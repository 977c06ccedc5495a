// The sizes of the surrogate transformer's arithmetic (cuda/transformer.hpp).
#pragma once

#include <cstdint>
#include <vector>

#include "models/geometry.hpp"

namespace kvtwin {

// [tokens x inner] * [inner x outer]. Both sizes are multiples of 8, so that rows are aligned for tensor cores.
struct LayerProduct {
  std::uint32_t inner = 0, outer = 0;
};

struct TransformerSizes {
  std::vector<LayerProduct> products;  // of one layer and rank, in order; empty = no arithmetic
  std::uint32_t pair_work = 0;         // multiply-adds of attention per layer and pair of prefill tokens
  std::uint32_t layers = 0;
};

// Returns the products of the model's last layer, for one rank. In models with several kinds of layers, the last layer
// is of the most frequent kind. Products: projections into attention and out of it, then the feed-forward matrices; for
// an expert layer, the matrices that are active for a token.
TransformerSizes transformer_sizes(const ModelGeometry& model, std::uint32_t tp);

}  // namespace kvtwin
