// The GPU's part of calls.hpp: the launchers of kernels/, and lists of copies.
#include <cuda_runtime_api.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "kernels/copy_list.hpp"
#include "kernels/pattern_kernels.hpp"
#include "kernels/row_kernels.hpp"
#include "python/src/kernels/calls.hpp"

namespace kvtwin::python {
namespace {

void must(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  if (error == cudaErrorNotSupported && std::string(call) == "launch_ring") {
    throw std::invalid_argument("path='ring' needs a GPU of compute capability 9.0 or later: take path='registers'");
  }
  throw std::runtime_error(std::string(call) + " failed: " + cudaGetErrorString(error));
}

// Selects a GPU, and later the one that was selected before.
class OnGpu {
 public:
  explicit OnGpu(int gpu) {
    must(cudaGetDevice(&before_), "cudaGetDevice");
    must(cudaSetDevice(gpu), "cudaSetDevice");
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  ~OnGpu() { cudaSetDevice(before_); }

 private:
  int before_ = 0;
};

cudaStream_t stream_of(const Launch& launch) { return reinterpret_cast<cudaStream_t>(launch.stream); }

PatternPages pattern_pages(const Pages& p) {
  return {.shape = p.shape,
          .pool = p.pool,
          .blocks = p.blocks,
          .block_alignment = p.block_alignment,
          .pool_pages = p.pool_pages,
          .layout = p.layout,
          .pages = p.pages,
          .keys = p.keys,
          .index_type = p.index_type,
          .count = p.count,
          .layer_begin = p.layer_begin,
          .layer_end = p.layer_end};
}

void copy_runs(const RowTransfer& rows, const std::vector<PageRun>& runs, Path path, cudaStream_t stream) {
  if (stream == nullptr) {
    throw std::invalid_argument(
        "path='copies' and path='boxes' need a stream other than the default stream 0: give "
        "stream=torch.cuda.Stream()");
  }
  const TransferParams params{.shape = rows.shape,
                              .device = rows.device,
                              .device_pages = rows.device_pages,
                              .host = rows.host,
                              .host_pages = rows.host_pages,
                              .host_layout = rows.host_layout,
                              .to_device = rows.to_device,
                              .runs = runs.data(),
                              .run_count = runs.size(),
                              .layer_begin = rows.layer_begin,
                              .layer_end = rows.layer_end};
  CopyList list;
  path == Path::copies ? list.assign_pieces(params) : list.assign_boxes(params);
  must(list.submit(0, list.size(), stream), path == Path::copies ? "cudaMemcpyBatchAsync" : "cudaMemcpy3DBatchAsync");
}

struct FreeMemory {
  void operator()(void* memory) const { cudaFree(memory); }
};

}  // namespace

bool built_with_cuda() { return true; }

Kind kind_of(const void* address) {
  cudaPointerAttributes attributes{};
  must(cudaPointerGetAttributes(&attributes, address), "cudaPointerGetAttributes");
  switch (attributes.type) {
    case cudaMemoryTypeHost: return Kind::pinned;
    case cudaMemoryTypeDevice:
    case cudaMemoryTypeManaged: return Kind::gpu;
    case cudaMemoryTypeUnregistered: break;
  }
  return Kind::pageable;
}

void gpu_transfer(const RowTransfer& rows, const std::vector<PageRun>& runs, Path path, const Launch& launch) {
  const OnGpu on(launch.gpu);
  const LaunchLimits limits{launch.ctas};
  const cudaStream_t stream = stream_of(launch);
  switch (path) {
    case Path::registers: return must(launch_gather_scatter(rows, limits, stream), "launch_gather_scatter");
    case Path::relayout: return must(launch_relayout(rows, limits, stream), "launch_relayout");
    case Path::ring: return must(launch_ring(rows, limits, stream), "launch_ring");
    case Path::warp_per_row: return must(launch_warp_per_row(rows, limits, stream), "launch_warp_per_row");
    case Path::copies:
    case Path::boxes: return copy_runs(rows, runs, path, stream);
  }
}

void gpu_gather_checksum(const RowTransfer& rows, std::uint64_t* checksums, const Launch& launch) {
  const OnGpu on(launch.gpu);
  must(launch_gather_checksum(rows, checksums, {launch.ctas}, stream_of(launch)), "launch_gather_checksum");
}

void gpu_fill_pattern(const Pages& pages, const Launch& launch) {
  const OnGpu on(launch.gpu);
  must(launch_fill_pattern(pattern_pages(pages), {launch.ctas}, stream_of(launch)), "launch_fill_pattern");
}

Faults gpu_check_pattern(const Pages& pages, const Launch& launch) {
  const OnGpu on(launch.gpu);
  const cudaStream_t stream = stream_of(launch);
  void* memory = nullptr;
  must(cudaMalloc(&memory, sizeof(PatternFaults)), "cudaMalloc");
  const std::unique_ptr<void, FreeMemory> owner(memory);
  must(launch_check_pattern(pattern_pages(pages), static_cast<PatternFaults*>(memory), {launch.ctas}, stream),
       "launch_check_pattern");
  PatternFaults found;
  must(cudaMemcpyAsync(&found, memory, sizeof found, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  must(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  if (found.wrong == 0) return {};
  const WrongByte first = wrong_byte(pages.shape, found.first);
  return {found.wrong, first.index, first.offset, first.plane, first.layer};
}

std::uintptr_t gpu_table(const std::vector<std::uintptr_t>& pointers, int gpu) {
  const OnGpu on(gpu);
  const std::size_t bytes = pointers.size() * sizeof(std::uintptr_t);
  void* memory = nullptr;
  must(cudaMalloc(&memory, bytes), "cudaMalloc");
  std::unique_ptr<void, FreeMemory> owner(memory);
  must(cudaMemcpy(memory, pointers.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  // From pageable memory, cudaMemcpy returns before the GPU has the bytes, and the caller's stream does not wait for
  // it.
  must(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  return reinterpret_cast<std::uintptr_t>(owner.release());
}

void free_gpu_table(std::uintptr_t table, int gpu) noexcept {
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess || cudaSetDevice(gpu) != cudaSuccess) return;
  cudaFree(reinterpret_cast<void*>(table));
  cudaSetDevice(before);
}

}  // namespace kvtwin::python
