// Owners of what CUDA gives: streams, events, memory of the GPU, page-locked memory. Each gives back what it has, on
// whatever path it goes; an error while giving back is passed over, since whoever comes here with one has said so.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "policy/base/types.hpp"

namespace kvtwin {

// One sentence: the call, where, CUDA's text.
class CudaError : public std::runtime_error {
 public:
  CudaError(cudaError_t error, const std::string& call, const std::string& where);
};

inline void must(cudaError_t error, const char* call, const std::string& where) {
  if (error != cudaSuccess) throw CudaError(error, call, where);
}

// The calling thread works on this GPU from now on.
inline void use_gpu(int ordinal) { must(cudaSetDevice(ordinal), "cudaSetDevice", "GPU " + std::to_string(ordinal)); }

class CudaEvent {
 public:
  // Waiting for it sleeps; `timed`: with the time at which it came.
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

// Does not wait for the default stream. Goes when all that was queued has been done.
class CudaStream {
 public:
  // `urgent`: its kernels go before those of other streams.
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
  // Until all that was queued has been done, or has failed.
  void drain() const;
  // The calling thread sleeps until `event`, recorded here, has come.
  void until(const CudaEvent& event) const { must(cudaEventSynchronize(event.get()), "cudaEventSynchronize"); }

 private:
  std::string name_;
  CudaEvent last_;
  cudaStream_t stream_ = nullptr;
};

enum class CudaMemoryKind : std::uint8_t { gpu, pinned };

// Memory of the GPU (cudaMalloc), or page-locked memory of the host (cudaMallocHost), for what is small. CudaError
// naming `what` and its bytes if there is no room.
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

// Host memory for a pool of pages: in huge pages where there are any, on the NUMA node of GPU `ordinal`, every page
// touched (filled with Arena::kPoison), then page-locked and mapped for all GPUs by one registration.
class HostPool {
 public:
  HostPool() = default;
  // std::runtime_error, one sentence, if the system or CUDA refuses it. `note` gets a sentence if the memory may lie on
  // another node.
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
  std::byte* gpu_data() const { return gpu_data_; }  // the address by which kernels reach it

 private:
  void map(Bytes bytes);

  std::byte* data_ = nullptr;
  std::byte* gpu_data_ = nullptr;
  Bytes mapped_bytes_ = 0;
  bool registered_ = false;
};

}  // namespace kvtwin
