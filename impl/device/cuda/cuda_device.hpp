// A Device that is a GPU: pools in HBM and in page-locked host memory; copies on all paths of a Plan (copies.hpp);
// passes as the arithmetic of a surrogate transformer (transformer.hpp) and kernels that read, check and write the KV
// of every sequence (kernels/context.hpp). paged_device.hpp has the part that all devices share: meaning, waits and
// checks.
//
// A load moves in the layer groups of its plan, with an event after each group. A pass waits on the GPU: its stream
// waits for the event of the layer. The pass's thread waits only until that event has been recorded, because CUDA
// treats an event without a record as done. The record runs ahead of the bytes by the plan's window, so the GPU does
// not wait for the thread. Threads sleep while they wait for the GPU: at the end of each transfer and of each step.
// A decode step that waits for no load is one launch of a CUDA graph (step_graphs.hpp).
//
// This library links no CUDA runtime. The program adds the runtime, or the tests' twin.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "impl/device/device.hpp"
#include "impl/device/page_engine.hpp"
#include "impl/device/transformer_sizes.hpp"

namespace kvtwin {

class CuFile;

struct CudaDeviceConfig : DeviceConfig {
  TransformerSizes transformer;           // without products: no arithmetic
  Bytes staging_bytes = Bytes{8} << 20;   // of each of two staging buffers in each direction; at least one page
  Bytes staging_area = Bytes{256} << 20;  // of the area for staged loads, at most the device pool (staged_loads.hpp)
  std::uint32_t copy_ctas = 4;            // thread blocks of a copy kernel; more leave less of the GPU to passes
  std::uint32_t ring_ctas = 4, ring_stages = 4;  // of a copy kernel with bulk copies
  std::uint32_t check_every = 1;                 // passes check each block once in so many steps (kernels/context.hpp)
  // The device warms up before it starts: a step without pages for each number of decode tokens up to this one, a
  // prefill step, and a page on each path. 0 = it does not.
  std::uint32_t warm_tokens = 0;
  int ordinal = 0;           // number of the GPU
  std::string blas_library;  // file of cuBLAS; empty = the default
  // If set, pages of the disk tier come without host memory, through `direct_buffers` buffers of one page each. Null:
  // they come through host memory.
  std::shared_ptr<CuFile> cufile;
  std::uint32_t direct_buffers = 12;
  std::vector<CudaDeviceConfig> beside;  // of a draft model's pool, and of windows and states
};

struct CudaPresence {
  int gpus = 0;
  std::string why_none;  // one sentence, if `gpus` is 0
};
// `ranks`: processes on this machine, which take the GPUs in turn. The GPUs that they take must be new enough.
CudaPresence cuda_presence(std::size_t ranks);

struct CudaDeviceBytes {
  Bytes gpu = 0, host = 0;
};
// Returns the bytes of pools, weights and buffers. Reads the size of the GPU's L2 cache, if there is a GPU.
CudaDeviceBytes cuda_device_bytes(const CudaDeviceConfig& config);
// Returns the free bytes of the GPU. Errors: std::runtime_error.
Bytes cuda_bytes_free(int ordinal);

// Errors: std::runtime_error, one sentence: the resource, its bytes, and CUDA's text.
std::unique_ptr<Device> make_cuda_device(const CudaDeviceConfig& config);

}  // namespace kvtwin
