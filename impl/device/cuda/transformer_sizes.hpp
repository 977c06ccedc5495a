// What the surrogate transformer computes (transformer.hpp), in plain numbers.
#pragma once

#include <cstdint>
#include <vector>

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

}  // namespace kvtwin
