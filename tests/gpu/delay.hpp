// A kernel that takes time and reads or writes no memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtwin::test {

// On a GPU: one thread that spins `spins` times. On the CUDA twin: a point at which work of other streams may run.
cudaError_t launch_delay(std::uint32_t spins, cudaStream_t stream);

}  // namespace kvtwin::test
