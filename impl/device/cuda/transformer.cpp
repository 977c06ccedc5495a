#include "impl/device/cuda/transformer.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/page_pattern.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kPairsPerSide = 1024;           // pairs per side of a product
constexpr Bytes kBf16Bytes = 2;                         // bytes of a bf16 number
constexpr Bytes kBlasWorkspaceBytes = Bytes{32} << 20;  // cuBLAS's documentation: 32 MiB for Hopper, less for others
constexpr Bytes kBlasHandleBytes = Bytes{32} << 20;     // approximate memory of a cuBLAS handle beside it

std::uint32_t widest(const TransformerSizes& sizes) {
  std::uint32_t width = 0;
  for (const LayerProduct& product : sizes.products) width = std::max({width, product.inner, product.outer});
  return width;
}

Bytes layer_weights(const TransformerSizes& sizes) {
  Bytes bytes = 0;
  for (const LayerProduct& product : sizes.products) bytes += Bytes{product.inner} * product.outer * kBf16Bytes;
  return bytes;
}

std::uint32_t copies_of(const TransformerSizes& sizes, Bytes cache) {
  const Bytes layer = std::max<Bytes>(1, layer_weights(sizes));
  return static_cast<std::uint32_t>(std::clamp<Bytes>((4 * cache + layer - 1) / layer, 1, std::max(1U, sizes.layers)));
}

std::uint32_t pair_depth(const TransformerSizes& sizes) { return (sizes.pair_work + 7) / 8 * 8; }

std::uint16_t bf16_of(float value) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16); }

}  // namespace

Bytes Transformer::activation_bytes(const TransformerSizes& sizes) {
  return kTokensPerProduct * widest(sizes) * kBf16Bytes;
}

Bytes Transformer::gpu_bytes(const TransformerSizes& sizes, Bytes cache) {
  if (sizes.products.empty()) return 0;
  const Bytes pairs =
      sizes.pair_work == 0 ? 0 : (2 * kPairsPerSide * pair_depth(sizes) + kPairsPerSide * kPairsPerSide) * kBf16Bytes;
  return copies_of(sizes, cache) * layer_weights(sizes) + 3 * activation_bytes(sizes) + pairs + kBlasWorkspaceBytes +
         kBlasHandleBytes;
}

Transformer::Transformer(const TransformerSizes& sizes, std::uint64_t seed, const std::string& library, int ordinal,
                         const CudaStream& stream)
    : sizes_(sizes), workspace_(kBlasWorkspaceBytes, "cuBLAS's workspace"), blas_(Blas::load(library)) {
  blas_->use_workspace(workspace_.data(), workspace_.bytes());
  int cache = 0;
  must(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, ordinal), "cudaDeviceGetAttribute", "its L2 cache");
  copies_ = copies_of(sizes, static_cast<Bytes>(std::max(0, cache)));
  for (std::uint32_t copy = 0; copy < copies_; ++copy) {
    for (const LayerProduct& product : sizes.products) {
      weights_.emplace_back(Bytes{product.inner} * product.outer * kBf16Bytes, "the surrogate's weights");
      // Keeps the size of the results constant: the variance of [-1, 1) is 1/3.
      fill(weights_.back(), std::sqrt(3.0F / static_cast<float>(product.inner)), ++seed, stream);
    }
  }
  input_ = GpuMemory(activation_bytes(sizes), "the surrogate's input");
  fill(input_, 1, ++seed, stream);
  for (GpuMemory& activations : activations_) {
    activations = GpuMemory(activation_bytes(sizes), "the surrogate's activations");
    fill(activations, 1, ++seed, stream);
  }
  if (sizes.pair_work == 0) return;
  const Bytes side = kPairsPerSide * pair_depth(sizes) * kBf16Bytes;
  queries_ = GpuMemory(side, "the surrogate's queries");
  keys_ = GpuMemory(side, "the surrogate's keys");
  scores_ = GpuMemory(kPairsPerSide * kPairsPerSide * kBf16Bytes, "the surrogate's scores");
  fill(queries_, 1, ++seed, stream);
  fill(keys_, 1, ++seed, stream);
}

// Fills the memory with uniform numbers in [-scale, scale). Repeats one block of numbers, to save time.
void Transformer::fill(const GpuMemory& memory, float scale, std::uint64_t seed, const CudaStream& stream) const {
  const Bytes max_bytes = Bytes{1} << 20;
  const PinnedMemory block(std::min(max_bytes, memory.bytes()), "random numbers");
  auto* numbers = reinterpret_cast<std::uint16_t*>(block.data());
  for (std::size_t i = 0; i < block.bytes() / kBf16Bytes; ++i) {
    const std::uint64_t draw = pattern_mix(seed << 32 | i);
    numbers[i] = bf16_of(scale * (static_cast<float>(draw >> 40) / 8388608.0F - 1.0F));
  }
  for (Bytes at = 0; at < memory.bytes(); at += block.bytes()) {
    stream.must(cudaMemcpyAsync(memory.data() + at, block.data(), std::min(block.bytes(), memory.bytes() - at),
                                cudaMemcpyHostToDevice, stream.get()),
                "cudaMemcpyAsync");
  }
  const CudaEvent end;
  stream.record(end);
  stream.until(end);
}

void Transformer::layer(std::uint32_t number, Tokens tokens, std::uint64_t pairs, const CudaStream& stream) {
  const GpuMemory* weights = weights_.data() + number % copies_ * sizes_.products.size();
  for (Tokens done = 0; done < tokens; done += kTokensPerProduct) {
    const int rows = static_cast<int>(std::min(kTokensPerProduct, tokens - done));
    const std::byte* in = input_.data();
    for (std::size_t i = 0; i < sizes_.products.size(); ++i) {
      // The result is the next input, so the products run one after another, as in a model. The last result is in the
      // first buffer.
      std::byte* out = activations_[(sizes_.products.size() - 1 - i) % 2].data();
      blas_->product(out, in, weights[i].data(), rows, static_cast<int>(sizes_.products[i].outer),
                     static_cast<int>(sizes_.products[i].inner), stream.get());
      in = out;
    }
  }
  if (sizes_.pair_work == 0) return;
  const int depth = static_cast<int>(pair_depth(sizes_));
  for (std::uint64_t done = 0; done < pairs; done += kPairsPerSide * kPairsPerSide) {
    const std::uint64_t left = std::min(kPairsPerSide * kPairsPerSide, pairs - done);
    const int rows = static_cast<int>((left + kPairsPerSide - 1) / kPairsPerSide);
    blas_->product(scores_.data(), queries_.data(), keys_.data(), rows, static_cast<int>(kPairsPerSide), depth,
                   stream.get());
  }
}

}  // namespace kvtwin
