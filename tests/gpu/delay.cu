#include "tests/gpu/delay.hpp"

#include "kernels/start_kernel.cuh"

namespace kvtwin::test {
namespace {

__global__ void spin(std::uint32_t spins) {
  for (std::uint32_t i = 0; i < spins; ++i) __nanosleep(100);
}

}  // namespace

cudaError_t launch_delay(std::uint32_t spins, cudaStream_t stream) { return start_kernel(spin, {}, stream, spins); }

}  // namespace kvtwin::test
