// The device that is a GPU: pools of real HBM and page-locked host memory, copies by any of a Plan's paths
// (copies.hpp), passes as a surrogate transformer's arithmetic (transformer.hpp) and kernels that read, check and write
// every sequence's KV (kernels/context.hpp). What an operation means, who waits for whom and what is checked is the
// same as on the host device: paged_device.hpp.
//
// Loads move in the groups of layers that their plans name, an event after each. A pass's stream waits for a layer's
// event on the GPU; its thread waits on the host only until that event has been recorded, for CUDA takes an unrecorded
// one for done. The recording runs ahead of the bytes by the plan's window, so this costs the GPU nothing. Threads
// sleep while they wait for the GPU: at the end of each transfer and of each step of a pass.
//
// Links no CUDA runtime: the program that uses this does, or the tests' twin.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "impl/device/device.hpp"
#include "impl/device/page_engine.hpp"
#include "impl/device/transformer_sizes.hpp"

namespace kvtwin {

class CuFile;

struct CudaDeviceConfig : DeviceConfig {
  TransformerSizes transformer;          // of no products = no arithmetic
  Bytes staging_bytes = Bytes{8} << 20;  // of each of four staging buffers; a page at least
  std::uint32_t copy_ctas = 4;           // of a copy kernel: what it leaves to passes hangs on them
  int ordinal = 0;                       // which GPU
  std::string blas_library;              // cuBLAS's file; empty = the usual one
  // The disk tier's pages come without host memory by it, through so many buffers of a page; null = through host
  // memory.
  std::shared_ptr<CuFile> cufile;
  std::uint32_t direct_buffers = 12;
};

struct CudaPresence {
  int gpus = 0;
  std::string why_none;  // one sentence, if there are none
};
CudaPresence cuda_presence();

struct CudaDeviceBytes {
  Bytes gpu = 0, host = 0;
};
// What its pools, weights and buffers take. Asks the GPU how large its cache is, if there is one.
CudaDeviceBytes cuda_device_bytes(const CudaDeviceConfig& config);
// Free on that GPU now; std::runtime_error if it doesn't say.
Bytes cuda_bytes_free(int ordinal);

// std::runtime_error, one sentence: what couldn't be had, how much of it, CUDA's text.
std::unique_ptr<Device> make_cuda_device(const CudaDeviceConfig& config);

}  // namespace kvtwin
