// The baseline of the other kernels.
#include <cuda_runtime.h>

#include <algorithm>
#include <numeric>

#include "kernels/row_kernels.hpp"
#include "kernels/start_kernel.cuh"
#include "kernels/vector_access.cuh"

namespace kvtwin {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kWarps = kThreads / kWarpLanes;

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
  if (!valid(t) || limits.ctas == 0 || t.host_page_stride != 0) return cudaErrorInvalidValue;
  if (empty(t)) return cudaSuccess;
  // Rows are walked one by one, also where a piece is many.
  const std::uint64_t row = t.host_layout == Layout::page_head ? t.shape.head_bytes : t.shape.row_bytes();
  const std::uint64_t width = std::gcd(row, vector_bytes(t));
  const auto kernel = width >= 8 ? warp_per_row<8> : width == 4 ? warp_per_row<4> : warp_per_row<1>;
  const std::uint64_t rows = t.count * t.shape.page_tokens * (t.host_layout == Layout::page_head ? t.shape.heads : 1);
  const auto ctas = static_cast<unsigned>(std::min<std::uint64_t>(limits.ctas, (rows + kWarps - 1) / kWarps));
  for (std::uint32_t layer = t.layer_begin; layer < t.layer_end; ++layer) {
    const cudaError_t error = start_kernel(kernel, {ctas, kThreads}, stream, t, layer);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace kvtwin
