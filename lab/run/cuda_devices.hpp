// Access to GPUs. The library links no CUDA: a program that links CUDA registers its functions here.
#pragma once

#include <memory>
#include <string>

#include "impl/device/cuda/cuda_device.hpp"
#include "impl/device/cuda/cufile.hpp"

namespace kvtwin {

struct CudaDevices {
  CudaPresence (*presence)(std::size_t ranks) = nullptr;
  CudaDeviceBytes (*bytes)(const CudaDeviceConfig& config) = nullptr;
  Bytes (*bytes_free)(int ordinal) = nullptr;
  std::unique_ptr<Device> (*make)(const CudaDeviceConfig& config) = nullptr;
  std::shared_ptr<CuFile> (*load_cufile)(const std::string& library) = nullptr;
};

// Registers the functions. Call it before any other use of the library. Without a call, there is no CUDA.
void serve_cuda_devices(const CudaDevices& devices);
const CudaDevices& cuda_devices();
// Returns the number of GPUs, or 0 and one sentence with the reason. `ranks`: processes on this machine, which take the
// GPUs in turn.
CudaPresence cuda_at_hand(std::size_t ranks);

}  // namespace kvtwin
