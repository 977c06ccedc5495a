// Owners of CUDA resources: streams, events, GPU memory, page-locked memory. Each destructor frees its resource and
// ignores errors, because the error that led to the destruction has been reported.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "policy/base/types.hpp"

namespace kvtwin {

// The text is one sentence: the call, the place, and CUDA's text.
class CudaError : public std::runtime_error {
 public:
  CudaError(cudaError_t error, const std::string& call, const std::string& where);
};

inline void must(cudaError_t error, const char* call, const std::string& where) {
  if (error != cudaSuccess) throw CudaError(error, call, where);
}

// The calling thread uses this GPU from now on.
inline void use_gpu(int ordinal) { must(cudaSetDevice(ordinal), "cudaSetDevice", "GPU " + std::to_string(ordinal)); }

class CudaEvent {
 public:
  // A wait for the event sleeps. `timed`: the event also records its time.
  explicit CudaEvent(bool timed = false);
  ~CudaEvent();
  CudaEvent(CudaEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Does not wait for the default stream. The destructor waits for all queued work.
class CudaStream {
 public:
  // `urgent`: kernels of this stream run before kernels of other streams.
  CudaStream(std::string name, bool urgent);
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cudaStream_t get() const { return stream_; }
  const std::string& name() const { return name_; }
  void must(cudaError_t error, const char* call) const { kvtwin::must(error, call, name_); }
  void record(const CudaEvent& event) const { must(cudaEventRecord(event.get(), stream_), "cudaEventRecord"); }
  void wait_for(const CudaEvent& event) const {
    must(cudaStreamWaitEvent(stream_, event.get(), 0), "cudaStreamWaitEvent");
  }
  // Waits until all queued work is done or has failed.
  void drain() const;
  // Sleeps until `event` has occurred. Requires: `event` was recorded in this stream.
  void until(const CudaEvent& event) const { must(cudaEventSynchronize(event.get()), "cudaEventSynchronize"); }

 private:
  std::string name_;
  CudaEvent last_;
  cudaStream_t stream_ = nullptr;
};

enum class CudaMemoryKind : std::uint8_t { gpu, pinned };

// GPU memory (cudaMalloc), or page-locked host memory (cudaMallocHost) for small amounts.
// Errors: CudaError with `what` and the number of bytes.
template <CudaMemoryKind kKind>
class CudaMemory {
 public:
  CudaMemory() = default;
  CudaMemory(Bytes bytes, const char* what);
  ~CudaMemory();
  CudaMemory(CudaMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  CudaMemory& operator=(CudaMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  std::byte* data() const { return data_; }
  Bytes bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  Bytes bytes_ = 0;
};

using GpuMemory = CudaMemory<CudaMemoryKind::gpu>;
using PinnedMemory = CudaMemory<CudaMemoryKind::pinned>;

// Host memory for a pool of pages. Uses huge pages if the system has them and the control group
// allows them, on the NUMA node of GPU `ordinal`. All pages are
// touched (filled with Arena::kPoison), then page-locked and mapped for all GPUs with one registration.
class HostPool {
 public:
  HostPool() = default;
  // Errors: std::runtime_error, one sentence, if the system or CUDA refuses the memory. `note`: set to a sentence if
  // the memory may be on another node.
  HostPool(Bytes bytes, int ordinal, std::string& note);
  ~HostPool();
  HostPool(HostPool&& other) noexcept { *this = std::move(other); }
  HostPool& operator=(HostPool&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    std::swap(gpu_data_, other.gpu_data_);
    std::swap(registered_, other.registered_);
    return *this;
  }
  std::byte* data() const { return data_; }
  std::byte* gpu_data() const { return gpu_data_; }  // the address for kernels

 private:
  void map(Bytes bytes);

  std::byte* data_ = nullptr;
  std::byte* gpu_data_ = nullptr;
  Bytes mapped_bytes_ = 0;
  bool registered_ = false;
};

}  // namespace kvtwin
