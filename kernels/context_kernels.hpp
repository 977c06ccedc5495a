// Launchers of the kernels of context.hpp. As in row_kernels.hpp, each launcher checks its arguments, launches on
// `stream` and returns without waiting.
// Returns: cudaErrorInvalidValue for invalid pages; cudaSuccess without a launch if there is no page.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/context.hpp"
#include "kernels/row_kernels.hpp"

namespace kvtwin {

// Reads and checks the context. Adds to `faults` (GPU memory). `query` (16-byte aligned, row_bytes of bf16) and
// `scores` [count * planes] are both in GPU memory, or both null.
cudaError_t launch_read_context(const ContextPages& pages, const std::byte* query, float* scores, ContextFaults* faults,
                                const LaunchLimits& limits, cudaStream_t stream);

// Writes the rows of the new tokens.
cudaError_t launch_write_context(const ContextPages& pages, const LaunchLimits& limits, cudaStream_t stream);

}  // namespace kvtwin
