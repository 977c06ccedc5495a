// Starts kernels for the launchers.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

namespace kvtwin {

struct LaunchSize {
  unsigned ctas = 1, threads = 1;
  std::size_t shared_bytes = 0;  // dynamic shared memory per CTA
};

// Returns the result of this launch. (The <<<>>> syntax has no result, and cudaGetLastError() after it may return the
// error of an earlier call of the thread.)
template <typename... Parameters>
cudaError_t start_kernel(void (*kernel)(Parameters...), const LaunchSize& size, cudaStream_t stream,
                         std::type_identity_t<Parameters>... arguments) {
  void* pointers[] = {&arguments...};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(size.ctas), dim3(size.threads), pointers,
                          size.shared_bytes, stream);
}

}  // namespace kvtwin
