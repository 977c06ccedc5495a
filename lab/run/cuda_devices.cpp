#include "lab/run/cuda_devices.hpp"

namespace kvtwin {
namespace {

CudaDevices& registered() {
  static CudaDevices devices;
  return devices;
}

}  // namespace

void serve_cuda_devices(const CudaDevices& devices) { registered() = devices; }

const CudaDevices& cuda_devices() { return registered(); }

CudaPresence cuda_at_hand(std::size_t ranks) {
  if (registered().presence == nullptr) return {0, "this build is without CUDA"};
  return registered().presence(ranks);
}

}  // namespace kvtwin
