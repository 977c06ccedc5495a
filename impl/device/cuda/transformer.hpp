// The arithmetic of a transformer's layers without their meaning, on a GPU: the matrix products of a layer in bf16 with
// random weights, and, for the token pairs of a prefill's attention, products with as many multiply-adds. (The reads of
// a decode's attention are in the context kernel: kernels/context.hpp.)
//
// Weights must come from GPU memory, as in a model, not from the L2 cache. If one layer's weights are several times the
// size of the L2 cache, they serve for all layers. Otherwise several copies take turns.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "impl/device/cuda/blas.hpp"
#include "impl/device/cuda/handles.hpp"
#include "impl/device/transformer_sizes.hpp"
#include "policy/base/types.hpp"

namespace kvtwin {

class Transformer {
 public:
  static constexpr Tokens kTokensPerProduct = 1024;  // longer prefills take several products

  // Uses the current GPU. `library`: file of cuBLAS; empty = the default. Queues work on `stream` and waits for it.
  Transformer(const TransformerSizes& sizes, std::uint64_t seed, const std::string& library, int ordinal,
              const CudaStream& stream);

  // Queues one layer for the given tokens and pairs, in blocks; the last block of pairs is rounded up.
  void layer(std::uint32_t number, Tokens tokens, std::uint64_t pairs, const CudaStream& stream);
  static Bytes activation_bytes(const TransformerSizes& sizes);

  // Returns the GPU memory, with cuBLAS's workspace. `cache`: bytes of the L2 cache.
  static Bytes gpu_bytes(const TransformerSizes& sizes, Bytes cache);

 private:
  void fill(const GpuMemory& memory, float scale, std::uint64_t seed, const CudaStream& stream) const;

  const TransformerSizes sizes_;
  GpuMemory workspace_;  // of cuBLAS, so that products in a CUDA graph allocate nothing; outlives its handle
  std::unique_ptr<Blas> blas_;
  std::uint32_t copies_ = 1;
  std::vector<GpuMemory> weights_;  // [copies_][products]
  GpuMemory input_;                 // [kTokensPerProduct][largest width], constant
  GpuMemory activations_[2];        // [kTokensPerProduct][largest width]; products use them in turn
  GpuMemory queries_, keys_, scores_;
};

}  // namespace kvtwin
