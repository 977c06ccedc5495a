// Launchers of the kernels that move KV pages (row_transfer.hpp) between GPU memory and mapped host memory, or between
// two places in GPU memory. Each launcher checks its arguments, launches on `stream` and returns without waiting.
// Returns: cudaErrorInvalidValue for a transfer that is not valid(); cudaSuccess without a launch for an empty one;
// otherwise the result of the launch.
// Requires: the current device is the stream's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/row_transfer.hpp"

namespace kvtwin {

struct LaunchLimits {
  std::uint32_t ctas = 4;         // thread blocks, at most; at least 1. More blocks leave less of the GPU to other work
  std::uint32_t ring_stages = 4;  // of 16 KB of shared memory, of each block of launch_ring; 2 to 4
};

// Copies through registers, with all layers and planes in one kernel. Any alignment.
cudaError_t launch_gather_scatter(const RowTransfer& transfer, const LaunchLimits& limits, cudaStream_t stream);

// The same, with a staging buffer in GPU memory, in the host's layout, in place of the host pool.
cudaError_t launch_relayout(const RowTransfer& transfer, const LaunchLimits& limits, cudaStream_t stream);

// Like launch_relayout or launch_gather_scatter from the device pool. Also writes checksums[i] (GPU memory, [count]):
// the page_checksum of the page of pair i over the moved layers; 0 for skipped pairs.
// Returns: cudaErrorInvalidValue if the transfer is to the device.
cudaError_t launch_gather_checksum(const RowTransfer& transfer, std::uint64_t* checksums, const LaunchLimits& limits,
                                   cudaStream_t stream);

// Bulk copies through a ring in shared memory.
// Returns: cudaErrorNotSupported on GPUs before compute capability 9.0; cudaErrorInvalidValue if ring_fits() is false,
// or for other numbers of stages.
cudaError_t launch_ring(const RowTransfer& transfer, const LaunchLimits& limits, cudaStream_t stream);

// The baseline for comparisons: one warp per token's row, 8 bytes per lane, one kernel per layer.
cudaError_t launch_warp_per_row(const RowTransfer& transfer, const LaunchLimits& limits, cudaStream_t stream);

}  // namespace kvtwin
