// Launchers of the kernels of context.hpp. As in row_kernels.hpp, each launcher checks its arguments, launches on
// `stream` and returns without waiting. A launch does not depend on the pages of the step, so a CUDA graph can have it.
// Returns: cudaErrorInvalidValue for invalid pages.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/context.hpp"
#include "kernels/row_kernels.hpp"

namespace kvtwin {

// Writes `step` to `place` (GPU memory) for the launches after it. A kernel, because a copy would wait for the bytes of
// loads that the copy engine has in front of it.
cudaError_t launch_context_step(const ContextStep& step, ContextStep* place, cudaStream_t stream);

// Reads and checks the context. Adds to `faults` (GPU memory), and writes the folds of the step.
cudaError_t launch_read_context(const ContextPages& pages, ContextFaults* faults, const LaunchLimits& limits,
                                cudaStream_t stream);

// Writes the rows of the new tokens.
cudaError_t launch_write_context(const ContextPages& pages, const LaunchLimits& limits, cudaStream_t stream);

}  // namespace kvtwin
