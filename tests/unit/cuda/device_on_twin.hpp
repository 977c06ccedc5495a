// The CUDA device on the CUDA twin, with stand-ins for cuBLAS and cuFile.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>

#include "impl/device/cuda/cuda_device.hpp"
#include "impl/device/cuda/cufile.hpp"
#include "impl/device/host_device.hpp"
#include "tests/paths.hpp"

namespace kvtwin::test {

// Returns a function of a stand-in's library.
template <typename Function>
Function* function_of(const std::string& library, const char* name) {
  void* const opened = dlopen(library.c_str(), RTLD_NOW);
  EXPECT_NE(opened, nullptr) << library;
  return reinterpret_cast<Function*>(dlsym(opened, name));
}

// A process can load one CuFile at a time, so the ranks of a test share one.
inline std::shared_ptr<CuFile> shared_cufile() {
  static std::mutex mutex;
  static std::weak_ptr<CuFile> loaded;
  const std::lock_guard lock(mutex);
  std::shared_ptr<CuFile> cufile = loaded.lock();
  if (!cufile) loaded = cufile = CuFile::load(built("libcufile_stand_in.so"));
  return cufile;
}

// Returns a CUDA device with the pools and the arithmetic of the host device `host`. The staging buffers are small, so
// that transfers use each buffer several times.
inline CudaDeviceConfig cuda_device_of(const HostDeviceConfig& host) {
  CudaDeviceConfig config;
  static_cast<DeviceConfig&>(config) = host;
  config.staging_bytes = 3 * host.shape.page_bytes();
  config.staging_area = 13 * host.shape.page_bytes();
  config.blas_library = built("libblas_stand_in.so");
  config.cufile = shared_cufile();
  config.direct_buffers = 3;
  for (const HostDeviceConfig& other : host.beside) {
    config.beside.push_back(cuda_device_of(other));
    config.beside.back().cufile.reset();
  }
  if (host.hidden == 0) return config;
  config.transformer.products = {{host.hidden, host.width}, {host.width, host.hidden}};
  config.transformer.pair_work = host.pair_work;
  config.transformer.layers = host.shape.layers;
  return config;
}

}  // namespace kvtwin::test
