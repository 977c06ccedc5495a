// The CPU twins walk pages in another way; tests/gpu compares both.
#include "kernels/pattern_kernels.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#include "kernels/page_pattern.hpp"
#include "kernels/start_kernel.cuh"

namespace kvtwin {
namespace {

constexpr std::uint32_t kThreads = 256;

struct Strides {
  std::uint64_t head, token, layer, plane, page;  // bytes
};

// Calls act(address, seed, offset in the block, ordinal of the block) for each word (Unit = 32 bits) or byte of the
// pages' blocks. One CTA per block; its threads share the units.
template <typename Unit, typename Act>
__device__ inline void for_units(const PatternPages& p, const Strides& strides, const Act& act) {
  const std::uint32_t layers = p.layer_end - p.layer_begin;
  const std::uint64_t blocks = p.count * p.shape.planes * layers;
  const auto units = static_cast<std::uint32_t>(p.shape.row_bytes() * p.shape.page_tokens / sizeof(Unit));
  const auto head_units = static_cast<std::uint32_t>(p.shape.head_bytes / sizeof(Unit));
  for (std::uint64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    std::uint64_t rest = block;
    const std::uint32_t layer = p.layer_begin + take_digit(rest, layers);
    const std::uint32_t plane = take_digit(rest, p.shape.planes);
    const auto page = static_cast<std::uint64_t>(index_at(p.pages, p.index_type, rest));
    if (page >= p.pool_pages) continue;
    const std::uint64_t plane_layer = std::uint64_t{plane} * p.shape.layers + layer;
    std::byte* first =
        (p.blocks != nullptr ? p.blocks[plane_layer] : p.pool + plane * strides.plane + layer * strides.layer) +
        page * strides.page;
    const std::uint64_t seed = pattern_seed(p.keys + 4 * rest, layer, plane);
    const std::uint64_t ordinal = rest * p.shape.planes * p.shape.layers + plane_layer;
    for (std::uint64_t unit = threadIdx.x; unit < units; unit += kThreads) {
      const auto row = static_cast<std::uint32_t>(unit) / head_units;
      const auto in_row = static_cast<std::uint32_t>(unit) % head_units;
      std::byte* at = first + row / p.shape.heads * strides.token + row % p.shape.heads * strides.head +
                      std::uint64_t{in_row} * sizeof(Unit);
      act(reinterpret_cast<Unit*>(at), seed, unit * sizeof(Unit), ordinal);
    }
  }
}

template <typename Unit>
__device__ inline Unit pattern_unit(std::uint64_t seed, std::uint64_t offset) {
  if constexpr (sizeof(Unit) == 4) {
    return pattern_word(seed, static_cast<std::uint32_t>(offset / 4));
  } else {
    return pattern_byte(seed, offset);
  }
}

template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    fill_pattern_units(const __grid_constant__ PatternPages p, const __grid_constant__ Strides strides) {
  for_units<Unit>(p, strides, [](Unit* at, std::uint64_t seed, std::uint64_t offset, std::uint64_t) {
    *at = pattern_unit<Unit>(seed, offset);
  });
}

template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    check_pattern_units(const __grid_constant__ PatternPages p, const __grid_constant__ Strides strides,
                        PatternFaults* faults) {
  const std::uint64_t block_bytes = p.shape.row_bytes() * p.shape.page_tokens;
  unsigned long long wrong = 0, first = ~0ull;
  for_units<Unit>(p, strides, [&](Unit* at, std::uint64_t seed, std::uint64_t offset, std::uint64_t ordinal) {
    const std::uint32_t differing = std::uint32_t{*at} ^ pattern_unit<Unit>(seed, offset);
    if (differing == 0) return;
    for (std::uint32_t byte = sizeof(Unit); byte-- > 0;) {
      if ((differing >> (8 * byte) & 0xFF) == 0) continue;
      ++wrong;
      first = min(first, static_cast<unsigned long long>(ordinal * block_bytes + offset + byte));
    }
  });
  if (wrong == 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(&faults->wrong), wrong);
  atomicMin(reinterpret_cast<unsigned long long*>(&faults->first), first);
}

Strides strides_of(const PatternPages& p) {
  const auto stride = [&](const KvIndex& one) { return byte_offset(p.layout, p.shape, p.pool_pages, one); };
  return {stride({.head = 1}), stride({.token = 1}), stride({.layer = 1}), stride({.plane = 1}), stride({.page = 1})};
}

bool fits_words(const PatternPages& p, const Strides& s) {
  std::uint64_t bits = p.shape.head_bytes | s.head | s.token | s.page;
  bits |= p.blocks != nullptr ? p.block_alignment : reinterpret_cast<std::uintptr_t>(p.pool) | s.layer | s.plane;
  return bits % 4 == 0;
}

unsigned ctas_of(const PatternPages& p, const LaunchLimits& limits) {
  return static_cast<unsigned>(
      std::min<std::uint64_t>(limits.ctas, p.count * p.shape.planes * (p.layer_end - p.layer_begin)));
}

}  // namespace

cudaError_t launch_fill_pattern(const PatternPages& p, const LaunchLimits& limits, cudaStream_t stream) {
  if (!valid(p, limits)) return cudaErrorInvalidValue;
  if (p.count == 0 || p.layer_begin == p.layer_end) return cudaSuccess;
  const Strides strides = strides_of(p);
  const auto kernel = fits_words(p, strides) ? fill_pattern_units<std::uint32_t> : fill_pattern_units<std::uint8_t>;
  return start_kernel(kernel, {ctas_of(p, limits), kThreads}, stream, p, strides);
}

cudaError_t launch_check_pattern(const PatternPages& p, PatternFaults* faults, const LaunchLimits& limits,
                                 cudaStream_t stream) {
  if (!valid(p, limits) || faults == nullptr) return cudaErrorInvalidValue;
  cudaError_t error = cudaMemsetAsync(&faults->wrong, 0, sizeof faults->wrong, stream);
  if (error == cudaSuccess) error = cudaMemsetAsync(&faults->first, 0xFF, sizeof faults->first, stream);
  if (error != cudaSuccess || p.count == 0 || p.layer_begin == p.layer_end) return error;
  const Strides strides = strides_of(p);
  const auto kernel = fits_words(p, strides) ? check_pattern_units<std::uint32_t> : check_pattern_units<std::uint8_t>;
  return start_kernel(kernel, {ctas_of(p, limits), kThreads}, stream, p, strides, faults);
}

}  // namespace kvtwin
