// The arithmetic of a transformer layer without its meaning: one matrix product of the layer's size for the tokens, and
// one for the pairs of tokens that attention compares. The weights are random. One layer's weights serve for all
// layers.
#pragma once

#include <cstdint>
#include <memory>

#include "policy/base/types.hpp"

namespace kvtwin {

class DenseLayer {
 public:
  // Allocates a [hidden x width] float matrix: hidden * width multiply-adds per token, pair_work multiply-adds per
  // pair.
  DenseLayer(std::uint32_t hidden, std::uint32_t width, std::uint32_t pair_work, std::uint64_t seed);
  ~DenseLayer();
  DenseLayer(DenseLayer&&) noexcept;

  // Rounds the pairs up to a multiple of 128. Thread: one at a time.
  void run(Tokens tokens, std::uint64_t pairs);

  // Returns the largest magnitude of the next input. It never vanishes: a product of numbers too small for a normal
  // float takes up to a hundred times as long.
  float largest_input() const;

  static Bytes bytes(std::uint32_t hidden, std::uint32_t width, std::uint32_t pair_work);

 private:
  struct Matrices;
  std::unique_ptr<Matrices> matrices_;
};

}  // namespace kvtwin
