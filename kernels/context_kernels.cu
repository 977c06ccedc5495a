#include "kernels/context_kernels.hpp"

#include <cuda_runtime.h>

#include "kernels/start_kernel.cuh"
#include "kernels/vector_access.cuh"

namespace kvtwin {
namespace {

constexpr std::uint32_t kThreads = kContextLanes;
constexpr std::uint32_t kWarps = kThreads / kWarpLanes;

struct GpuAccess {
  template <std::uint32_t kBytes>
  __device__ ContextVector<kBytes> load(const std::byte* at) const {
    ContextVector<kBytes> value{};
    const auto loaded = load_settled<typename VectorOf<kBytes>::Type>(at);
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

__global__ void context_step(const __grid_constant__ ContextStep step, ContextStep* place) { *place = step; }

// Reports the first wrong byte of a block, if there is one. All threads of the CTA take part. `firsts`: [kWarps],
// shared.
__device__ inline void report(const ContextPages& p, const ContextBlocks& at, const std::byte* block, std::uint32_t own,
                              std::uint64_t bytes, std::uint32_t* firsts, ContextFaults* faults) {
  const std::uint32_t first = __reduce_min_sync(~0u, own);
  if (threadIdx.x % kWarpLanes == 0) firsts[threadIdx.x / kWarpLanes] = first;
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&faults->checked), static_cast<unsigned long long>(bytes));
    std::uint32_t least = firsts[0];
    for (std::uint32_t warp = 1; warp < kWarps; ++warp) least = min(least, firsts[warp]);
    if (least != UINT32_MAX) {
      const std::uint32_t entry = atomicAdd(&faults->wrong, 1u);
      if (entry < ContextFaults::kMaxKept) {
        faults->kept[entry] = {static_cast<std::uint32_t>(at.page), static_cast<std::uint16_t>(p.layer),
                               static_cast<std::uint16_t>(at.plane), least, static_cast<std::uint32_t>(block[least])};
      }
    }
  }
  __syncthreads();  // the next block's warps write to firsts only after this
}

// One CTA per block.
template <std::uint32_t kBytes>
__global__ void __launch_bounds__(kThreads)
    read_context_blocks(const __grid_constant__ ContextPages p, ContextFaults* faults) {
  __shared__ std::uint32_t firsts[kWarps];
  const ContextStep step = *p.step;
  const auto in_row = static_cast<std::uint32_t>(p.shape.row_bytes() / kBytes);
  for (ContextBlocks at(blockIdx.x, gridDim.x, p.shape.planes); at.page < step.count; at.next()) {
    const ContextPage& page = step.pages[at.page];
    LaneRead found;
    if (in_pool(p, page)) {
      const std::byte* block = context_block(p, page, at.plane);
      const std::uint32_t end = context_of(page, step.advance, p.shape.page_tokens).end * in_row;
      if (checks_block(p, page, at.plane, step.advance)) {
        found =
            read_lane<kBytes, true>(block, end, pattern_seed(page.key, p.layer, at.plane), threadIdx.x, GpuAccess{});
        report(p, at, block, found.first, std::uint64_t{end} * kBytes, firsts, faults);
      } else {
        found = read_lane<kBytes, false>(block, end, 0, threadIdx.x, GpuAccess{});
      }
    }
    // This store depends on every byte, so no compiler drops a load.
    const std::uint32_t fold = __reduce_xor_sync(~0u, found.fold);
    if (threadIdx.x % kWarpLanes == 0) {
      step.folds[(at.page * p.shape.planes + at.plane) * kContextFolds + threadIdx.x / kWarpLanes] = fold;
    }
  }
}

template <std::uint32_t kBytes>
__global__ void __launch_bounds__(kThreads) write_context_blocks(const __grid_constant__ ContextPages p) {
  const ContextStep step = *p.step;
  for (ContextBlocks at(blockIdx.x, gridDim.x, p.shape.planes); at.page < step.count; at.next()) {
    write_lane<kBytes>(p, step.pages[at.page], at.plane, step.advance, threadIdx.x, GpuAccess{});
  }
}

std::uint32_t vector_of(const ContextPages& p) {
  return context_vector(reinterpret_cast<std::uintptr_t>(p.pool), p.shape.row_bytes());
}

}  // namespace

cudaError_t launch_context_step(const ContextStep& step, ContextStep* place, cudaStream_t stream) {
  if (place == nullptr || (step.count > 0 && (step.pages == nullptr || step.folds == nullptr))) {
    return cudaErrorInvalidValue;
  }
  return start_kernel(context_step, {}, stream, step, place);
}

cudaError_t launch_read_context(const ContextPages& p, ContextFaults* faults, const LaunchLimits& limits,
                                cudaStream_t stream) {
  if (!valid(p) || limits.ctas == 0 || faults == nullptr) return cudaErrorInvalidValue;
  const std::uint32_t vector = vector_of(p);
  const auto kernel = vector == 16  ? read_context_blocks<16>
                      : vector == 4 ? read_context_blocks<4>
                                    : read_context_blocks<1>;
  return start_kernel(kernel, {limits.ctas, kThreads}, stream, p, faults);
}

cudaError_t launch_write_context(const ContextPages& p, const LaunchLimits& limits, cudaStream_t stream) {
  if (!valid(p) || limits.ctas == 0) return cudaErrorInvalidValue;
  const std::uint32_t vector = vector_of(p);
  const auto kernel = vector == 16  ? write_context_blocks<16>
                      : vector == 4 ? write_context_blocks<4>
                                    : write_context_blocks<1>;
  return start_kernel(kernel, {limits.ctas, kThreads}, stream, p);
}

}  // namespace kvtwin
