#include "impl/device/cuda/handles.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "impl/runtime/arena.hpp"

namespace kvtwin {
namespace {

constexpr Bytes kHugePage = Bytes{2} << 20;

std::string sentence_of(cudaError_t error, const std::string& call, const std::string& where) {
  return call + " failed (" + where + "): " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")";
}

// Prefers the node and does not bind to it: if the node is full, memory on another node is better than none. Returns
// false if the kernel refuses.
bool prefer_node(void* at, Bytes bytes, int node) {
  constexpr int kPreferred = 1;  // MPOL_PREFERRED
  std::array<unsigned long, 16> mask{};
  constexpr int kBits = 8 * sizeof(unsigned long);
  if (node / kBits >= static_cast<int>(mask.size())) return false;
  mask[static_cast<std::size_t>(node / kBits)] = 1UL << (node % kBits);
  return syscall(SYS_mbind, at, bytes, kPreferred, mask.data(), mask.size() * kBits, 0) == 0;
}

}  // namespace

CudaError::CudaError(cudaError_t error, const std::string& call, const std::string& where)
    : std::runtime_error(sentence_of(error, call, where)) {}

// ---- streams and events --------------------------------------------------------------------------------------

CudaEvent::CudaEvent(bool timed) {
  const unsigned flags = cudaEventBlockingSync | (timed ? 0U : cudaEventDisableTiming);
  must(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreateWithFlags", "events of the CUDA device");
}

CudaEvent::~CudaEvent() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

CudaStream::CudaStream(std::string name, bool urgent) : name_(std::move(name)) {
  int least = 0, greatest = 0;
  must(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  must(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, urgent ? greatest : least),
       "cudaStreamCreateWithPriority");
}

// Waits for an event, because this wait sleeps.
void CudaStream::drain() const {
  if (cudaEventRecord(last_.get(), stream_) == cudaSuccess) cudaEventSynchronize(last_.get());
}

CudaStream::~CudaStream() {
  if (stream_ == nullptr) return;
  drain();
  cudaStreamDestroy(stream_);
}

// ---- memory --------------------------------------------------------------------------------------------------

template <CudaMemoryKind kKind>
CudaMemory<kKind>::CudaMemory(Bytes bytes, const char* what) : bytes_(bytes) {
  if (bytes == 0) return;
  constexpr bool kOnGpu = kKind == CudaMemoryKind::gpu;
  void* memory = nullptr;
  must(kOnGpu ? cudaMalloc(&memory, bytes) : cudaMallocHost(&memory, bytes), kOnGpu ? "cudaMalloc" : "cudaMallocHost",
       std::string(what) + ", " + std::to_string(bytes) + " bytes");
  data_ = static_cast<std::byte*>(memory);
}

template <CudaMemoryKind kKind>
CudaMemory<kKind>::~CudaMemory() {
  if (data_ != nullptr) kKind == CudaMemoryKind::gpu ? cudaFree(data_) : cudaFreeHost(data_);
}

template class CudaMemory<CudaMemoryKind::gpu>;
template class CudaMemory<CudaMemoryKind::pinned>;

void HostPool::map(Bytes bytes) {
  constexpr int kProtection = PROT_READ | PROT_WRITE, kFlags = MAP_PRIVATE | MAP_ANONYMOUS;
  mapped_bytes_ = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* mapped = MAP_FAILED;
  if (huge_pages_allowed(mapped_bytes_)) {
    mapped = ::mmap(nullptr, mapped_bytes_, kProtection, kFlags | MAP_HUGETLB, -1, 0);
  }
  if (mapped == MAP_FAILED) {
    mapped = ::mmap(nullptr, mapped_bytes_, kProtection, kFlags, -1, 0);
    if (mapped == MAP_FAILED) {
      throw std::system_error(errno, std::generic_category(),
                              "mapping a host pool of " + std::to_string(bytes) + " bytes");
    }
    ::madvise(mapped, mapped_bytes_, MADV_HUGEPAGE);  // a hint; small pages work too
  }
  data_ = static_cast<std::byte*>(mapped);
}

HostPool::HostPool(Bytes bytes, int ordinal, std::string& note) {
  if (bytes == 0) return;
  HostPool pool;  // frees its memory if this constructor throws
  pool.map(bytes);
  int node = -1;
  must(cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, ordinal), "cudaDeviceGetAttribute", "its NUMA node");
  if (node >= 0 && !prefer_node(pool.data_, pool.mapped_bytes_, node)) {
    note = "The host pool may lie far from the GPU: mbind to NUMA node " + std::to_string(node) + " failed (" +
           std::strerror(errno) + ").";
  }
  std::memset(pool.data_, Arena::kPoison, pool.mapped_bytes_);
  const cudaError_t error =
      cudaHostRegister(pool.data_, pool.mapped_bytes_, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (error != cudaSuccess) {
    throw std::runtime_error(
        sentence_of(error, "cudaHostRegister", "the host pool, " + std::to_string(pool.mapped_bytes_) + " bytes") +
        "; may this process lock so much memory (ulimit -l, its control group's memory.max)?");
  }
  pool.registered_ = true;
  void* gpu = nullptr;
  must(cudaHostGetDevicePointer(&gpu, pool.data_, 0), "cudaHostGetDevicePointer", "the host pool");
  pool.gpu_data_ = static_cast<std::byte*>(gpu);
  *this = std::move(pool);
}

HostPool::~HostPool() {
  if (registered_) cudaHostUnregister(data_);
  if (data_ != nullptr) ::munmap(data_, mapped_bytes_);
}

}  // namespace kvtwin
