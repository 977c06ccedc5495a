// The CUDA device on the CUDA twin, with a stand-in for cuBLAS.
#pragma once

#include "impl/device/cuda/cuda_device.hpp"
#include "impl/device/host_device.hpp"

namespace kvtwin::test {

// Of the same pools; where the host device does arithmetic, this one does too. Small staging buffers: they turn.
inline CudaDeviceConfig cuda_device_of(const HostDeviceConfig& host) {
  CudaDeviceConfig config;
  static_cast<DeviceConfig&>(config) = host;
  config.staging_bytes = 3 * host.shape.page_bytes();
  config.blas_library = KVTWIN_BLAS_STAND_IN;
  if (host.hidden == 0) return config;
  config.transformer.products = {{host.hidden, host.width}, {host.width, host.hidden}};
  config.transformer.pair_work = host.pair_work;
  config.transformer.layers = host.shape.layers;
  return config;
}

}  // namespace kvtwin::test
