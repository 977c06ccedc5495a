#include "tests/gpu/delay.hpp"

#include <thread>

#include "tests/cuda_twin/runtime.hpp"

namespace kvtwin::test {

cudaError_t launch_delay(std::uint32_t, cudaStream_t stream) {
  return twin::launch("delay", stream, [](const twin::Reach&) {
    std::this_thread::yield();
    return true;
  });
}

}  // namespace kvtwin::test
