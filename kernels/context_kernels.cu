#include "kernels/context_kernels.hpp"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/vector_access.cuh"

namespace kvtwin {
namespace {

constexpr std::uint32_t kThreads = 256;

struct GpuAccess {
  template <std::uint32_t kBytes>
  __device__ ContextVector<kBytes> load(const std::byte* at) const {
    ContextVector<kBytes> value{};
    const auto loaded = *reinterpret_cast<const typename VectorOf<kBytes>::Type*>(at);
    memcpy(value.words, &loaded, kBytes);
    return value;
  }
  template <std::uint32_t kBytes>
  __device__ void store(std::byte* at, const ContextVector<kBytes>& value) const {
    typename VectorOf<kBytes>::Type stored;
    memcpy(&stored, value.words, kBytes);
    *reinterpret_cast<typename VectorOf<kBytes>::Type*>(at) = stored;
  }
};

// One CTA per block. The first thread combines the results of all threads.
template <std::uint32_t kBytes>
__global__ void __launch_bounds__(kThreads)
    read_blocks(const __grid_constant__ ContextPages p, const std::byte* query, float* scores, ContextFaults* faults) {
  __shared__ std::uint32_t firsts[kThreads / kWarpLanes];
  __shared__ float dots[kThreads / kWarpLanes];
  const std::uint64_t blocks = p.count * p.shape.planes;
  for (std::uint64_t number = blockIdx.x; number < blocks; number += gridDim.x) {
    const LaneRead found = read_lane<kBytes>(p, number, query, threadIdx.x, kThreads, GpuAccess{});
    const std::uint32_t first = __reduce_min_sync(~0u, found.first);
    float dot = found.dot;
    for (std::uint32_t lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) dot += __shfl_down_sync(~0u, dot, lanes);
    if (threadIdx.x % kWarpLanes == 0) {
      firsts[threadIdx.x / kWarpLanes] = first;
      dots[threadIdx.x / kWarpLanes] = dot;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      std::uint32_t least = firsts[0];
      float sum = dots[0];
      for (std::uint32_t warp = 1; warp < kThreads / kWarpLanes; ++warp) {
        least = min(least, firsts[warp]);
        sum += dots[warp];
      }
      if (query != nullptr) scores[number] = sum;
      if (least != UINT32_MAX) {
        const std::uint32_t entry = atomicAdd(&faults->wrong, 1u);
        if (entry < ContextFaults::kMaxKept) {
          faults->kept[entry] = {static_cast<std::uint32_t>(number / p.shape.planes),
                                 static_cast<std::uint16_t>(p.layer),
                                 static_cast<std::uint16_t>(number % p.shape.planes), least,
                                 static_cast<std::uint32_t>(context_block(p, number)[least])};
        }
      }
    }
    __syncthreads();  // the next block's warps write to firsts and dots only after this
  }
}

template <std::uint32_t kBytes>
__global__ void __launch_bounds__(kThreads) write_blocks(const __grid_constant__ ContextPages p) {
  const std::uint64_t blocks = p.count * p.shape.planes;
  for (std::uint64_t number = blockIdx.x; number < blocks; number += gridDim.x) {
    write_lane<kBytes>(p, number, threadIdx.x, kThreads, GpuAccess{});
  }
}

unsigned ctas_of(const ContextPages& p, const LaunchLimits& limits) {
  return static_cast<unsigned>(std::min<std::uint64_t>(limits.ctas, p.count * p.shape.planes));
}

}  // namespace

cudaError_t launch_read_context(const ContextPages& p, const std::byte* query, float* scores, ContextFaults* faults,
                                const LaunchLimits& limits, cudaStream_t stream) {
  if (!valid(p) || limits.ctas == 0 || faults == nullptr || (query == nullptr) != (scores == nullptr)) {
    return cudaErrorInvalidValue;
  }
  if (p.count == 0) return cudaSuccess;
  const auto address = reinterpret_cast<std::uintptr_t>(p.pool) | reinterpret_cast<std::uintptr_t>(query);
  const std::uint32_t vector = context_vector(address, p.shape.row_bytes());
  const auto kernel = vector == 16 ? read_blocks<16> : vector == 4 ? read_blocks<4> : read_blocks<1>;
  kernel<<<ctas_of(p, limits), kThreads, 0, stream>>>(p, query, scores, faults);
  return cudaGetLastError();
}

cudaError_t launch_write_context(const ContextPages& p, const LaunchLimits& limits, cudaStream_t stream) {
  if (!valid(p) || limits.ctas == 0) return cudaErrorInvalidValue;
  if (p.count == 0) return cudaSuccess;
  const std::uint32_t vector = context_vector(reinterpret_cast<std::uintptr_t>(p.pool), p.shape.row_bytes());
  const auto kernel = vector == 16 ? write_blocks<16> : vector == 4 ? write_blocks<4> : write_blocks<1>;
  kernel<<<ctas_of(p, limits), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace kvtwin
