// The arithmetic of a transformer's layer without its meaning: a matrix product of the layer's size for its tokens, and
// one for the pairs of tokens that attention looks at. Random weights; one layer stands for all.
#pragma once

#include <cstdint>
#include <memory>

#include "policy/base/types.hpp"

namespace kvtwin {

class DenseLayer {
 public:
  // A [hidden x width] float matrix: hidden * width multiply-adds a token; and pair_work multiply-adds a pair.
  DenseLayer(std::uint32_t hidden, std::uint32_t width, std::uint32_t pair_work, std::uint64_t seed);
  ~DenseLayer();
  DenseLayer(DenseLayer&&) noexcept;

  // Pairs are rounded up to a multiple of 128. Not for two threads at once.
  void run(Tokens tokens, std::uint64_t pairs);

  static Bytes bytes(std::uint32_t hidden, std::uint32_t width, std::uint32_t pair_work);

 private:
  struct Matrices;
  std::unique_ptr<Matrices> matrices_;
};

}  // namespace kvtwin
