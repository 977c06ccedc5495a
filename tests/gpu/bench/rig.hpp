// What the GPU benchmarks stand on: CUDA's objects with owners, times, the machine's name, and KV pools whose bytes are
// known. Plain C++: linked with CUDA's runtime or with a twin of it.
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

// std::runtime_error, with what was tried, unless it succeeded.
void check(cudaError_t error, const char* what);

// From ordinary host memory; there when it returns. (cudaMemcpy may return earlier, and streams like Stream don't wait
// for the one it uses.)
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
  void wait();  // for all it has been given

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

// `later` has waited for this.
void follow(const Stream& later, const Event& event);

// --help, wherever it stands: a program prints it and is done.
inline bool asked_for_help(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--help") return true;
  }
  return false;
}

// Of the host's clock.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Of the GPU, between two recorded events that have happened; more than 0, whatever the clock's tick.
double seconds_between(const Event& begin, const Event& end);

// Times what a stream carries out.
class Stopwatch {
 public:
  struct Time {
    double seconds = 0;  // of the GPU
    double submit = 0;   // of the host, until `queue` came back
  };
  // Runs `queue`, which gives `stream` work, and waits for that.
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
  int driver = 0, runtime = 0;  // as CUDA writes them: 13000 for 13.0
  std::uint32_t sms = 1;
  int major = 0, minor = 0;
  int numa_node = -1;  // of the host memory nearest to it; -1: not said
};
Gpu current_gpu();

// What every table begins with.
std::vector<std::string> provenance(const Gpu& gpu, const std::string& command);

}  // namespace kvtwin::test
