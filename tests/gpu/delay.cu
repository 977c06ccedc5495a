#include "tests/gpu/delay.hpp"

#include <cuda_runtime.h>

namespace kvtwin::test {
namespace {

__global__ void spin(std::uint32_t spins) {
  for (std::uint32_t i = 0; i < spins; ++i) __nanosleep(100);
}

}  // namespace

cudaError_t launch_delay(std::uint32_t spins, cudaStream_t stream) {
  spin<<<1, 1, 0, stream>>>(spins);
  return cudaGetLastError();
}

}  // namespace kvtwin::test
