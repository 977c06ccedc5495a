#include "tests/gpu/bench/rig.hpp"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace kvtwin::test {

void check(cudaError_t error, const char* action) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(action) + " failed: " + cudaGetErrorString(error));
}

void copy_to_gpu(void* target, const void* source, std::uint64_t bytes) {
  check(cudaMemcpy(target, source, bytes, cudaMemcpyHostToDevice), "copying an array to the GPU");
  check(cudaStreamSynchronize(nullptr), "copying an array to the GPU");
}

Memory::Memory(Place place, std::uint64_t bytes) : bytes_(bytes), place_(place) {
  void* at = nullptr;
  const cudaError_t error =
      place == Place::gpu ? cudaMalloc(&at, bytes) : cudaHostAlloc(&at, bytes, cudaHostAllocMapped);
  check(error, ("taking " + std::to_string(bytes) + " bytes of " +
                (place == Place::gpu ? "GPU memory" : "page-locked host memory"))
                   .c_str());
  at_ = static_cast<std::byte*>(at);
}
Memory::Memory(Memory&& other) noexcept : at_(other.at_), bytes_(other.bytes_), place_(other.place_) {
  other.at_ = nullptr;
}
Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(at_, other.at_);
  std::swap(bytes_, other.bytes_);
  std::swap(place_, other.place_);
  return *this;
}
Memory::~Memory() {
  if (at_ == nullptr) return;
  if (place_ == Place::gpu) {
    static_cast<void>(cudaFree(at_));
  } else {
    static_cast<void>(cudaFreeHost(at_));
  }
}

Stream::Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream"); }
Stream::~Stream() { static_cast<void>(cudaStreamDestroy(stream_)); }
void Stream::wait() { check(cudaStreamSynchronize(stream_), "the work on a stream"); }

Event::Event(bool timed) {
  check(cudaEventCreateWithFlags(&event_, timed ? cudaEventDefault : cudaEventDisableTiming), "making an event");
}
Event::~Event() {
  if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
}
bool Event::happened() const {
  const cudaError_t error = cudaEventQuery(event_);
  if (error == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());  // clears it; otherwise the next launch would seem to fail
  } else {
    check(error, "the work before an event");
  }
  return error == cudaSuccess;
}

void follow(const Stream& later, const Event& event) {
  check(cudaStreamWaitEvent(later.get(), event.get(), 0), "making a stream wait");
}

double seconds_between(const Event& begin, const Event& end) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "reading a time");
  return std::max(1e-9, static_cast<double>(milliseconds) * 1e-3);
}

Gpu current_gpu() {
  int device = 0;
  check(cudaGetDevice(&device), "asking for a GPU");
  Gpu gpu;
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "asking for the GPU's kind");
  gpu.name = properties.name;
  gpu.sms = static_cast<std::uint32_t>(std::max(1, properties.multiProcessorCount));
  gpu.major = properties.major;
  gpu.minor = properties.minor;
  check(cudaDriverGetVersion(&gpu.driver), "asking for the driver's version");
  check(cudaRuntimeGetVersion(&gpu.runtime), "asking for CUDA's version");
  if (cudaDeviceGetAttribute(&gpu.numa_node, cudaDevAttrHostNumaId, device) != cudaSuccess) gpu.numa_node = -1;
  static_cast<void>(cudaGetLastError());  // clears the error of older drivers, which do not know this attribute
  return gpu;
}

std::vector<std::string> provenance(const Gpu& gpu, const std::string& command) {
  const auto version = [](int number) {
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  };
  char host[256] = "", date[32] = "";
  static_cast<void>(gethostname(host, sizeof host - 1));
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%MZ", gmtime_r(&now, &utc));
  std::string cpu = "unknown", line;
  for (std::ifstream info("/proc/cpuinfo"); std::getline(info, line);) {
    if (line.starts_with("model name") && line.find(": ") != std::string::npos) {
      cpu = line.substr(line.find(": ") + 2);
      break;
    }
  }
  std::string driver = "unknown";
  std::ifstream module("/sys/module/nvidia/version");
  if (std::getline(module, line)) driver = line;
  return {"machine: " + cpu + ", " + std::to_string(sysconf(_SC_NPROCESSORS_ONLN)) + " cores",
          "gpu: " + gpu.name + ", " + std::to_string(gpu.sms) + " SMs, compute capability " +
              std::to_string(gpu.major) + "." + std::to_string(gpu.minor),
          "driver: " + driver + ", CUDA " + version(gpu.driver),
          "cuda: " + version(gpu.runtime),
          "date: " + std::string(date),
          "command: " + command};
}

}  // namespace kvtwin::test
