// Launches the kernels that move KV pages (row_transfer.hpp) between GPU memory and host memory that the GPU maps, or
// between two places in GPU memory. Each launcher checks its arguments, launches on `stream` and returns; it never
// waits. It returns cudaErrorInvalidValue for a transfer that isn't valid(), cudaSuccess without a launch for an empty
// one, else what the launch returns. The current device is the stream's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/row_transfer.hpp"

namespace kvtwin {

struct LaunchLimits {
  std::uint32_t ctas = 4;  // at most; >= 1. What the rest of the GPU's work is left with hangs on it.
};

// Loads to registers and stores from them, all layers and planes in one kernel. Any alignment.
cudaError_t launch_gather_scatter(const RowTransfer& transfer, const LaunchLimits& limits, cudaStream_t stream);

// The same where the host pool's place is GPU memory: a staging buffer in the host's layout.
cudaError_t launch_relayout(const RowTransfer& transfer, const LaunchLimits& limits, cudaStream_t stream);

// launch_relayout or launch_gather_scatter from the device pool, which also leaves in checksums[i] (GPU memory,
// [count]) the page_checksum of the i-th pair's page over the layers that move; 0 for pairs that are left out. Not to
// the device: cudaErrorInvalidValue.
cudaError_t launch_gather_checksum(const RowTransfer& transfer, std::uint64_t* checksums, const LaunchLimits& limits,
                                   cudaStream_t stream);

// Bulk copies through a ring in shared memory. cudaErrorNotSupported on GPUs before compute capability 9.0;
// cudaErrorInvalidValue where ring_fits() says no.
cudaError_t launch_ring(const RowTransfer& transfer, const LaunchLimits& limits, cudaStream_t stream);

// What others are compared with: one warp a token's row, 8 bytes a lane, one kernel a layer.
cudaError_t launch_warp_per_row(const RowTransfer& transfer, const LaunchLimits& limits, cudaStream_t stream);

}  // namespace kvtwin
