// How a program comes by GPUs. This library links no CUDA: the program puts in what it was linked with.
#pragma once

#include <memory>
#include <string>

#include "impl/device/cuda/cuda_device.hpp"
#include "impl/device/cuda/cufile.hpp"

namespace kvtwin {

struct CudaDevices {
  CudaPresence (*presence)() = nullptr;
  CudaDeviceBytes (*bytes)(const CudaDeviceConfig& config) = nullptr;
  Bytes (*bytes_free)(int ordinal) = nullptr;
  std::unique_ptr<Device> (*make)(const CudaDeviceConfig& config) = nullptr;
  std::shared_ptr<CuFile> (*load_cufile)(const std::string& library) = nullptr;
};

// Before the command line is parsed; never called: this build is without CUDA.
void serve_cuda_devices(const CudaDevices& devices);
const CudaDevices& cuda_devices();
// How many GPUs there are, or one sentence why none.
CudaPresence cuda_at_hand();

}  // namespace kvtwin
