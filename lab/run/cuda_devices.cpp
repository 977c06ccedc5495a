#include "lab/run/cuda_devices.hpp"

namespace kvtwin {
namespace {

CudaDevices& served() {
  static CudaDevices devices;
  return devices;
}

}  // namespace

void serve_cuda_devices(const CudaDevices& devices) { served() = devices; }

const CudaDevices& cuda_devices() { return served(); }

CudaPresence cuda_at_hand() {
  if (served().presence == nullptr) return {0, "this build is without CUDA"};
  return served().presence();
}

}  // namespace kvtwin
