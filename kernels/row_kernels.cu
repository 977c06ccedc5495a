// Seen without a GPU: which bytes each lane of gather_scatter moves, and in which vectors (move_rows, tests of
// row_transfer.hpp). Not seen: what the loads' and stores' cache hints do to memory that the host or a copy engine has
// just written (vector_access.cuh), the sum over a group's lanes, warp_per_row's arithmetic, and how a grid of so many
// CTAs shares out the warps. tests/gpu sees them on a GPU.
#include "kernels/row_kernels.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <numeric>

#include "kernels/page_checksum.hpp"
#include "kernels/vector_access.cuh"

namespace kvtwin {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kWarps = kThreads / kWarpLanes;

// What a kernel does beside moving.
enum class Extra { none, checksum };

template <std::uint32_t kBytes, bool kFromHost, Extra kExtra>
struct Registers {
  using Vector = typename VectorOf<kBytes>::Type;
  static_assert(sizeof(Vector) == kBytes);
  std::uint64_t* checksums;

  __device__ Vector load(const std::byte* at) const {
    if constexpr (kFromHost) {
      return load_shared_with_host<Vector>(at);
    } else {
      return load_settled<Vector>(at);
    }
  }
  __device__ void store(std::byte* at, Vector value) const { store_once(at, value); }

  __device__ void moved(const Segment& s, std::uint64_t offset, const Vector& value, std::uint64_t& sum) const {
    if constexpr (kExtra == Extra::checksum) {
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
  }
  __device__ void finish(std::uint64_t pair, std::uint64_t sum, std::uint32_t group_lanes) const {
    if constexpr (kExtra == Extra::checksum) {
      for (std::uint32_t step = group_lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
      if (threadIdx.x % group_lanes == 0 && sum != 0) {
        static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t));
        atomicAdd(reinterpret_cast<unsigned long long*>(checksums + pair), static_cast<unsigned long long>(sum));
      }
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
  kernel<<<ctas, kThreads, 0, stream>>>(t, plan, sums);
  return cudaGetLastError();
}

bool refused(const RowTransfer& t, const LaunchLimits& limits) { return !valid(t) || limits.ctas == 0; }

}  // namespace

cudaError_t launch_gather_scatter(const RowTransfer& t, const LaunchLimits& limits, cudaStream_t stream) {
  if (refused(t, limits)) return cudaErrorInvalidValue;
  if (empty(t)) return cudaSuccess;
  return t.to_device ? launch<true, Extra::none>(t, nullptr, limits, stream)
                     : launch<false, Extra::none>(t, nullptr, limits, stream);
}

cudaError_t launch_relayout(const RowTransfer& t, const LaunchLimits& limits, cudaStream_t stream) {
  if (refused(t, limits)) return cudaErrorInvalidValue;
  if (empty(t)) return cudaSuccess;
  return launch<false, Extra::none>(t, nullptr, limits, stream);
}

cudaError_t launch_gather_checksum(const RowTransfer& t, std::uint64_t* checksums, const LaunchLimits& limits,
                                   cudaStream_t stream) {
  if (refused(t, limits) || t.to_device || (t.count > 0 && checksums == nullptr)) return cudaErrorInvalidValue;
  if (t.count == 0) return cudaSuccess;
  const cudaError_t zeroed = cudaMemsetAsync(checksums, 0, t.count * sizeof *checksums, stream);
  if (zeroed != cudaSuccess || empty(t)) return zeroed;
  return launch<false, Extra::checksum>(t, checksums, limits, stream);
}

namespace {

// One layer. A row, or a head's part of it where the host's layout breaks rows up, a warp at a time.
template <std::uint32_t kBytes>
__global__ void __launch_bounds__(kThreads) warp_per_row(const __grid_constant__ RowTransfer t, std::uint32_t layer) {
  using Vector = typename VectorOf<kBytes>::Type;
  const bool whole_rows = t.host_layout != Layout::page_head;
  const std::uint32_t parts = whole_rows ? 1 : t.shape.heads;
  const std::uint64_t bytes = whole_rows ? t.shape.row_bytes() : t.shape.head_bytes;
  const std::uint64_t rows = t.count * t.shape.page_tokens * parts;
  const std::uint64_t warps = std::uint64_t{gridDim.x} * kWarps;
  KvShape block = t.shape;  // one plane and layer of the device pool
  block.layers = block.planes = 1;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpLanes; i < rows; i += warps) {
    std::uint64_t rest = i;
    KvIndex at;
    at.head = take_digit(rest, parts);
    at.token = take_digit(rest, t.shape.page_tokens);
    const auto source = static_cast<std::uint64_t>(index_at(t.source_pages, t.index_type, rest));
    const auto target = static_cast<std::uint64_t>(index_at(t.target_pages, t.index_type, rest));
    const std::uint64_t on_device = t.to_device ? target : source, on_host = t.to_device ? source : target;
    if (on_device >= t.device_pages || on_host >= t.host_pages) continue;
    for (std::uint32_t plane = 0; plane < t.shape.planes; ++plane) {
      const std::uint64_t number = std::uint64_t{plane} * t.shape.layers + layer;
      KvIndex in_block = at;
      in_block.page = on_device;
      std::byte* device = t.device_blocks != nullptr
                              ? t.device_blocks[number]
                              : t.device + number * t.device_pages * t.shape.page_tokens * t.shape.row_bytes();
      device += byte_offset(Layout::layer_first, block, t.device_pages, in_block);
      at.page = on_host;
      at.plane = plane;
      at.layer = layer;
      std::byte* host = t.host + byte_offset(t.host_layout, t.shape, t.host_pages, at);
      const std::byte* from = t.to_device ? host : device;
      std::byte* to = t.to_device ? device : host;
      for (std::uint64_t b = threadIdx.x % kWarpLanes * sizeof(Vector); b < bytes; b += kWarpLanes * sizeof(Vector)) {
        *reinterpret_cast<Vector*>(to + b) = *reinterpret_cast<const Vector*>(from + b);
      }
      at.plane = at.layer = 0;
    }
  }
}

}  // namespace

cudaError_t launch_warp_per_row(const RowTransfer& t, const LaunchLimits& limits, cudaStream_t stream) {
  if (refused(t, limits)) return cudaErrorInvalidValue;
  if (empty(t)) return cudaSuccess;
  // Rows are walked one by one, also where a piece is many.
  const std::uint64_t row = t.host_layout == Layout::page_head ? t.shape.head_bytes : t.shape.row_bytes();
  const std::uint64_t width = std::gcd(row, vector_bytes(t));
  const auto kernel = width >= 8 ? warp_per_row<8> : width == 4 ? warp_per_row<4> : warp_per_row<1>;
  const std::uint64_t rows = t.count * t.shape.page_tokens * (t.host_layout == Layout::page_head ? t.shape.heads : 1);
  const auto ctas = static_cast<unsigned>(std::min<std::uint64_t>(limits.ctas, (rows + kWarps - 1) / kWarps));
  for (std::uint32_t layer = t.layer_begin; layer < t.layer_end; ++layer) {
    kernel<<<ctas, kThreads, 0, stream>>>(t, layer);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace kvtwin
