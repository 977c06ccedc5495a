// Basics of the GPU benchmarks: owners of CUDA objects, a stopwatch, and the name of the GPU. Plain C++, linked with
// CUDA's runtime or with the CUDA twin.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "policy/transfer/layout.hpp"

namespace kvtwin::test {

// Errors: std::runtime_error with `action` in the text, if `error` is an error.
void check(cudaError_t error, const char* action);

// Copies from ordinary host memory. The bytes are on the GPU when the function returns. (cudaMemcpy may return earlier,
// and a non-blocking stream like Stream does not wait for cudaMemcpy's stream.)
void copy_to_gpu(void* target, const void* source, std::uint64_t bytes);

enum class Place : std::uint8_t { gpu, pinned };

class Memory {
 public:
  Memory() = default;
  Memory(Place place, std::uint64_t bytes);
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  ~Memory();

  std::byte* data() const { return at_; }
  std::uint64_t size() const { return bytes_; }

 private:
  std::byte* at_ = nullptr;
  std::uint64_t bytes_ = 0;
  Place place_ = Place::gpu;
};

class Stream {
 public:
  Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();
  cudaStream_t get() const { return stream_; }
  void wait();  // until all submitted work is complete

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  explicit Event(bool timed = true);
  Event(Event&& other) noexcept : event_(other.event_) { other.event_ = nullptr; }
  Event& operator=(Event&&) = delete;
  ~Event();
  cudaEvent_t get() const { return event_; }
  void record(const Stream& stream) { check(cudaEventRecord(event_, stream.get()), "recording an event"); }
  bool happened() const;

 private:
  cudaEvent_t event_ = nullptr;
};

// Makes `later` wait for `event`.
void follow(const Stream& later, const Event& event);

// Returns true if any argument is --help.
inline bool asked_for_help(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--help") return true;
  }
  return false;
}

// Returns the time of the host's clock.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Returns the GPU time between two recorded events that have happened. Never 0, even if the time is below the clock's
// resolution.
double seconds_between(const Event& begin, const Event& end);

// Measures the work of a stream.
class Stopwatch {
 public:
  struct Time {
    double seconds = 0;  // GPU time
    double submit = 0;   // host time until `queue` returned, in seconds
  };
  // Calls `queue`, which submits work to `stream`, and waits for the work.
  template <typename Queue>
  Time operator()(Stream& stream, const Queue& queue) {
    Time time;
    begin_.record(stream);
    const double from = now_seconds();
    queue();
    time.submit = now_seconds() - from;
    end_.record(stream);
    stream.wait();
    time.seconds = seconds_between(begin_, end_);
    return time;
  }

 private:
  Event begin_, end_;
};

struct Gpu {
  std::string name;
  int driver = 0, runtime = 0;  // versions in CUDA's form: 13000 for 13.0
  std::uint32_t sms = 1;
  int major = 0, minor = 0;  // compute capability
  int numa_node = -1;        // NUMA node of the nearest host memory; -1: unknown
};
Gpu current_gpu();

// Returns the first lines of every table: GPU, versions, command.
std::vector<std::string> provenance(const Gpu& gpu, const std::string& command);

}  // namespace kvtwin::test
