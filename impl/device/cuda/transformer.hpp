// The arithmetic of a transformer's layers without its meaning, on a GPU: a layer's matrix products in bf16 on random
// weights, and for the pairs of tokens that a prefill's attention looks at, products of as many multiply-adds. (That a
// decode's attention reads is the context kernel's part: kernels/context.hpp.)
//
// One layer's weights stand for all where they are several times what the GPU's L2 cache holds, else as many copies
// take turns: weights come from GPU memory, as a model's do.
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
  // On the current GPU. `library`: cuBLAS's file, empty = the usual one. Queues on `stream`, and waits for it.
  Transformer(const TransformerSizes& sizes, std::uint64_t seed, const std::string& library, int ordinal,
              const CudaStream& stream);

  // Queues one layer, for so many tokens and pairs: in blocks of tokens, and of pairs (rounded up).
  void layer(std::uint32_t number, Tokens tokens, std::uint64_t pairs, const CudaStream& stream);
  // What came out of the last product, finite numbers in bf16: at least `bytes`() of them.
  const std::byte* activations() const { return activations_[0].data(); }
  static Bytes activation_bytes(const TransformerSizes& sizes);

  // GPU memory, cuBLAS's own workspace too; `cache`: of L2.
  static Bytes gpu_bytes(const TransformerSizes& sizes, Bytes cache);

 private:
  void fill(const GpuMemory& memory, float scale, std::uint64_t seed, const CudaStream& stream) const;

  const TransformerSizes sizes_;
  std::unique_ptr<Blas> blas_;
  std::uint32_t copies_ = 1;
  std::vector<GpuMemory> weights_;  // [copies_][products]
  GpuMemory input_;                 // [kBlock][the widest inner], never written again
  GpuMemory activations_[2];        // [kBlock][the widest row]: products take turns
  GpuMemory queries_, keys_, scores_;
};

}  // namespace kvtwin
