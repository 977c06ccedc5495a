// Work that takes time and touches nothing.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtwin::test {

// On a GPU, one thread that spins so many times; on the twin, a point where others may be run.
cudaError_t launch_delay(std::uint32_t spins, cudaStream_t stream);

}  // namespace kvtwin::test
