// Basics of the GPU tests: owners of memory, streams and events, and the amount of work. The same tests run on a GPU
// and on the CUDA twin; main() of the program selects one (gpu_main.cpp, ../cuda_twin/twin_main.cpp).
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/splitmix.hpp"

namespace kvtwin::test {

#define ASSERT_CUDA(call)                                       \
  do {                                                          \
    const cudaError_t error = (call);                           \
    ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); \
  } while (false)

// The amount of work. main() sets the values.
struct Scale {
  std::uint64_t pool_bytes = 0;   // size of a random pool, if the shape allows it
  std::uint32_t page_tokens = 0;  // upper limit
  std::uint64_t draws = 0;        // number of draws for each row size and page size
  std::uint64_t graphs = 0;       // number of seeds
  std::uint64_t first_seed = 1;
  std::uint32_t spins = 0;  // upper limit for a delay
  bool big = false;         // also test pools of more than 2^31 bytes, which a GPU really allocates
};
inline Scale& scale() {
  static Scale value;
  return value;
}

// For tools that watch every memory access.
inline Scale small_scale() {
  return {.pool_bytes = 64u << 10, .page_tokens = 2, .draws = 1, .graphs = 10, .spins = 20};
}

// cudaMemcpy to GPU memory may return before the bytes have arrived, and non-blocking streams do not wait for the copy.
inline cudaError_t copy_and_wait(void* to, const void* from, std::size_t bytes) {
  const cudaError_t error = cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

enum class Place : std::uint8_t { gpu, pinned };

// A pool between two guard bands, `skew` bytes after a multiple of 256. `bytes` has the expected bytes of the pool and
// of the bands.
class Pool {
 public:
  static constexpr std::uint64_t kBand = 4096;

  Pool(Place place, std::uint64_t size, std::uint64_t skew = 0) : bytes(size + 2 * kBand), place_(place), skew_(skew) {
    const std::uint64_t all = bytes.size() + 256;
    const cudaError_t error =
        place == Place::gpu ? cudaMalloc(&memory_, all) : cudaHostAlloc(&memory_, all, cudaHostAllocMapped);
    if (error != cudaSuccess) memory_ = nullptr;
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() { place_ == Place::gpu ? cudaFree(memory_) : cudaFreeHost(memory_); }

  bool there() const { return memory_ != nullptr; }
  std::byte* start() const { return static_cast<std::byte*>(memory_) + skew_; }
  std::byte* data() const { return start() + kBand; }
  std::byte* expected() { return bytes.data() + kBand; }
  std::uint64_t size() const { return bytes.size() - 2 * kBand; }
  cudaError_t write() const { return copy_and_wait(start(), bytes.data(), bytes.size()); }
  bool as_expected() const {
    std::vector<std::byte> found(bytes.size());
    return cudaMemcpy(found.data(), start(), found.size(), cudaMemcpyDefault) == cudaSuccess && found == bytes;
  }

  std::vector<std::byte> bytes;

 private:
  Place place_;
  void* memory_ = nullptr;
  std::uint64_t skew_;
};

// An array in GPU memory.
template <typename T>
class OnGpu {
 public:
  explicit OnGpu(const std::vector<T>& values) {
    if (values.empty() || cudaMalloc(&at_, values.size() * sizeof(T)) != cudaSuccess) return;
    EXPECT_EQ(copy_and_wait(at_, values.data(), values.size() * sizeof(T)), cudaSuccess);
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  ~OnGpu() { cudaFree(at_); }
  T* data() const { return static_cast<T*>(at_); }
  std::vector<T> read(std::uint64_t count) const {
    std::vector<T> values(count);
    EXPECT_EQ(cudaMemcpy(values.data(), at_, count * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

 private:
  void* at_ = nullptr;
};

class Stream {
 public:
  Stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }
  cudaError_t finish() const { return cudaStreamSynchronize(stream_); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { EXPECT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), cudaSuccess); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Draws random bytes, or floating-point values that arithmetic would change: NaNs, infinities, denormals.
inline void draw_bytes(Splitmix& rng, std::vector<std::byte>& bytes) {
  constexpr std::uint32_t kSpecialFloats[] = {0x7FC00000u, 0xFFFFFFFFu, 0x7F800001u, 0xFF800000u,
                                              0x00000001u, 0x80000000u, 0x7FFF7FFFu, 0xFFC1FFC1u,
                                              0x7F817F81u, 0x7E007E01u, 0xFCFFFCFFu, 0x7F7FFFFFu};
  const bool odd = rng.chance(30);
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    const std::uint64_t word = odd ? std::uint64_t{kSpecialFloats[rng.below(std::size(kSpecialFloats))]} << 32 |
                                         kSpecialFloats[rng.below(std::size(kSpecialFloats))]
                                   : rng.next();
    std::memcpy(bytes.data() + i, &word, std::min<std::size_t>(8, bytes.size() - i));
  }
}

}  // namespace kvtwin::test
