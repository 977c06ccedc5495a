// The kernel that copies rows through registers, for the files that launch its variants (row_kernels.hpp).
// Only a run on a GPU covers the effect of the cache hints on memory that the host or a copy engine has just written
// (vector_access.cuh). The simulator executes the rest of the PTX (docs/internals/gpu.md).
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/page_checksum.hpp"
#include "kernels/row_kernels.hpp"
#include "kernels/start_kernel.cuh"
#include "kernels/vector_access.cuh"

namespace kvtwin::gather {

inline constexpr std::uint32_t kThreads = 256;
inline constexpr std::uint32_t kWarps = kThreads / kWarpLanes;

// The work of a kernel beside the copy.
enum class Extra { none, checksum };

template <std::uint32_t kBytes, bool kFromHost, Extra kExtra>
struct Registers {
  using Vector = typename VectorOf<kBytes>::Type;
  static_assert(sizeof(Vector) == kBytes);
  static constexpr bool kNeedsSegments = kExtra == Extra::checksum;
  std::uint64_t* checksums;
  SegmentPlace own{};  // of the segment that this lane has found

  __device__ void find(const RowTransfer& t, const RowPlan& plan, std::uint64_t first) {
    own = place_of(t, plan, first + threadIdx.x % kWarpLanes);
  }
  __device__ SegmentPlace place(std::uint32_t i) const {
    constexpr std::uint32_t kAll = 0xFFFFFFFFu;
    return {reinterpret_cast<const std::byte*>(__shfl_sync(kAll, reinterpret_cast<std::uintptr_t>(own.source), i)),
            reinterpret_cast<std::byte*>(__shfl_sync(kAll, reinterpret_cast<std::uintptr_t>(own.target), i)),
            __shfl_sync(kAll, own.bytes, i)};
  }

  __device__ Vector load(const std::byte* segment, std::uint32_t offset) const {
    if constexpr (kFromHost) {
      return load_shared_with_host<Vector>(segment + offset);
    } else {
      return load_settled<Vector>(segment + offset);
    }
  }
  __device__ void store(std::byte* segment, std::uint32_t offset, Vector value) const {
    store_once(segment + offset, value);
  }

  __device__ void moved(const RowSegment& s, std::uint64_t offset, const Vector& value, std::uint64_t& sum) const {
    const std::uint64_t at = s.block + offset;
    if constexpr (kBytes == 16) {
      sum += checksum_part(s.plane, s.layer, at, value.x) + checksum_part(s.plane, s.layer, at + 4, value.y) +
             checksum_part(s.plane, s.layer, at + 8, value.z) + checksum_part(s.plane, s.layer, at + 12, value.w);
    } else if constexpr (kBytes == 8) {
      sum += checksum_part(s.plane, s.layer, at, value.x) + checksum_part(s.plane, s.layer, at + 4, value.y);
    } else {
      sum += checksum_part(s.plane, s.layer, at, value);
    }
  }
  __device__ void finish(std::uint64_t pair, std::uint64_t sum, std::uint32_t group_lanes) const {
    for (std::uint32_t step = group_lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
    if (threadIdx.x % group_lanes == 0 && sum != 0) {
      static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t));
      atomicAdd(reinterpret_cast<unsigned long long*>(checksums + pair), static_cast<unsigned long long>(sum));
    }
  }
};

template <std::uint32_t kBytes, std::uint32_t kVectors, bool kFromHost, Extra kExtra>
__global__ void __launch_bounds__(kThreads)
    gather_scatter(const __grid_constant__ RowTransfer t, const __grid_constant__ RowPlan plan, std::uint64_t* sums) {
  Registers<kBytes, kFromHost, kExtra> access{sums};
  const std::uint64_t warp = std::uint64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpLanes;
  move_rows<kVectors>(t, plan, warp, std::uint64_t{gridDim.x} * kWarps, threadIdx.x % kWarpLanes, access);
}

using GatherScatter = void (*)(RowTransfer, RowPlan, std::uint64_t*);

template <std::uint32_t kBytes, bool kFromHost, Extra kExtra>
GatherScatter kernel_of(std::uint32_t lane_vectors) {
  if constexpr (kBytes == 16) {
    if (lane_vectors == 2) return gather_scatter<kBytes, 2, kFromHost, kExtra>;
    if (lane_vectors == 4) return gather_scatter<kBytes, 4, kFromHost, kExtra>;
  }
  return lane_vectors == 1 ? gather_scatter<kBytes, 1, kFromHost, kExtra>
                           : gather_scatter<kBytes, kLaneLoads, kFromHost, kExtra>;
}

template <bool kFromHost, Extra kExtra>
cudaError_t launch(const RowTransfer& t, std::uint64_t* sums, const LaunchLimits& limits, cudaStream_t stream) {
  const RowPlan plan = row_plan(t);
  GatherScatter kernel = nullptr;
  switch (plan.vector_bytes) {
    case 16: kernel = kernel_of<16, kFromHost, kExtra>(plan.lane_vectors); break;
    case 8: kernel = kernel_of<8, kFromHost, kExtra>(plan.lane_vectors); break;
    case 4: kernel = kernel_of<4, kFromHost, kExtra>(plan.lane_vectors); break;
    case 2: kernel = kernel_of<2, kFromHost, kExtra>(plan.lane_vectors); break;
    default: kernel = kernel_of<1, kFromHost, kExtra>(plan.lane_vectors); break;
  }
  const std::uint64_t needed = (warp_batches(plan) + kWarps - 1) / kWarps;
  const auto ctas = static_cast<unsigned>(std::min<std::uint64_t>(limits.ctas, needed));
  return start_kernel(kernel, {ctas, kThreads}, stream, t, plan, sums);
}

inline bool refused(const RowTransfer& t, const LaunchLimits& limits) { return !valid(t) || limits.ctas == 0; }

}  // namespace kvtwin::gather
