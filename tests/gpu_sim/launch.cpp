// The functions that the host code of nvcc calls to register and launch kernels, for translated kernels.
#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <regex>
#include <stdexcept>

#include "tests/gpu_sim/cta.hpp"

namespace kvtwin::gpu_sim {
namespace {

constexpr std::size_t kMaxSharedBytes = 48 << 10;  // without cudaFuncSetAttribute

// Replaces the names of anonymous namespaces, which have hashes of the compiler's command line.
std::string without_hashes(std::string mangled) {
  constexpr std::string_view kMark = "_GLOBAL__N__";
  for (std::size_t at; (at = mangled.find(kMark)) != std::string::npos;) {
    std::size_t begin = at;
    while (begin > 0 && mangled[begin - 1] >= '0' && mangled[begin - 1] <= '9') --begin;
    const auto size = static_cast<std::size_t>(std::atoi(mangled.c_str() + begin));
    mangled.replace(begin, at - begin + size, "12_GLOBAL__N_1");
  }
  return mangled;
}

// `gather_scatter<16u, 4u, true, 0>` for a mangled kernel.
std::string short_name(const std::string& mangled) {
  char* text = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, nullptr);
  std::string name = text == nullptr ? mangled : text;
  std::free(text);
  name = std::regex_replace(name, std::regex("\\(anonymous namespace\\)::|\\([A-Za-z_:]+\\)(?=[0-9])|^void "), "");
  int depth = 0;
  std::size_t begin = 0, end = 0;
  for (; end < name.size() && (name[end] != '(' || depth > 0); ++end) {
    depth += (name[end] == '<') - (name[end] == '>');
    if (name[end] == ':' && depth == 0) begin = end + 1;
  }
  return name.substr(begin, end - begin);
}

struct Entry {
  const Kernel* kernel = nullptr;
  std::string name;
};

// All state of the simulator; the lock protects it.
struct State {
  std::mutex mutex;
  std::map<std::pair<std::string, std::uint32_t>, Entry> kernels;  // by mangled name and architecture
  std::map<const void*, std::string> stubs;                        // host function -> mangled name
  std::map<const void*, std::size_t> dynamic_bytes;                // limits that were set
  std::map<std::pair<std::string, std::uint32_t>, Counts> counts;  // by short name and architecture
  std::uint64_t generation = 0, launches = 0;                      // launches of this generation of the twin
  std::atomic<int> counting = 0;

  static State& get() {
    static State* state = new State;  // outlives the twin, which completes its work at the end of the process
    return *state;
  }
};

// Holds the lock, hidden from ThreadSanitizer as the twin's own locks are.
class Locked {
 public:
  Locked() : hidden_(twin::Runtime::get().threads()), lock_(State::get().mutex) {}

 private:
  twin::Hidden hidden_;
  std::lock_guard<std::mutex> lock_;
};

struct Configuration {
  dim3 grid, block;
  std::size_t dynamic_bytes;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;

cudaError_t fail(cudaError_t error) { return twin::last_error() = error; }

cudaError_t launch(const void* stub, dim3 grid, dim3 block, void** arguments, std::size_t dynamic_bytes,
                   cudaStream_t stream) {
  State& state = State::get();
  twin::Runtime& runtime = twin::Runtime::get();
  std::shared_ptr<const LaunchOrder> made;
  std::string family;
  {
    const Locked lock;
    const auto name = state.stubs.find(stub);
    if (name == state.stubs.end()) return fail(cudaErrorInvalidDeviceFunction);
    const auto capability =
        static_cast<std::uint32_t>(runtime.machine().compute_major * 10 + runtime.machine().compute_minor);
    auto found = state.kernels.upper_bound({name->second, capability});
    if (found == state.kernels.begin() || (--found)->first.first != name->second)
      return fail(cudaErrorNoKernelImageForDevice);
    const Kernel& kernel = *found->second.kernel;
    if (grid.x == 0 || block.x == 0 || grid.y != 1 || grid.z != 1 || block.y != 1 || block.z != 1) {
      return fail(cudaErrorInvalidConfiguration);
    }
    const auto limit = state.dynamic_bytes.find(stub);
    const std::size_t most = limit == state.dynamic_bytes.end() ? kMaxSharedBytes - kernel.shared_bytes : limit->second;
    if (block.x > kernel.most_threads || dynamic_bytes > most) return fail(cudaErrorInvalidValue);
    std::vector<std::byte> parameters(kernel.parameter_bytes);
    for (std::size_t i = 0; i < kernel.parameters.size(); ++i) {
      std::memcpy(parameters.data() + kernel.parameters[i].at, arguments[i], kernel.parameters[i].bytes);
    }
    if (state.generation != runtime.generation) state.generation = runtime.generation, state.launches = 0;
    LaunchOrder order{.kernel = &kernel,
                      .name = found->second.name,
                      .ctas = grid.x,
                      .threads = block.x,
                      .dynamic_bytes = static_cast<std::uint32_t>(dynamic_bytes),
                      .parameters = std::move(parameters),
                      .seed = test::mix(runtime.machine().seed) ^ ++state.launches,
                      .counting = state.counting > 0};
    made = std::make_shared<const LaunchOrder>(std::move(order));
    family = made->name.substr(0, made->name.find('<'));
  }
  return twin::launch(family.c_str(), stream, [made = std::move(made)](const twin::Reach& reach) {
    Launch one(*made);  // a CUDA graph launches it several times
    const bool whole = one.run(reach);
    State& all = State::get();
    const Locked lock;
    Counts& sum = all.counts[{made->name, made->kernel->architecture}];
    ++sum.launches;
    sum.instructions += one.counts.instructions;
    sum.load_sectors += one.counts.load_sectors;
    sum.store_sectors += one.counts.store_sectors;
    return whole;
  });
}

}  // namespace

Registration::Registration(std::span<const Kernel> kernels) {
  State& state = State::get();
  const std::lock_guard lock(state.mutex);
  for (const Kernel& kernel : kernels) {
    state.kernels[{kernel.name, kernel.architecture}] = {&kernel, short_name(kernel.name)};
  }
}

Counting::Counting() { ++State::get().counting; }
Counting::~Counting() { --State::get().counting; }

std::map<std::string, Counts> counts() {
  State& state = State::get();
  const Locked lock;
  std::map<std::string, Counts> result;
  for (const auto& [key, counts] : state.counts) {
    Counts& sum = result[key.first];
    sum.launches += counts.launches;
    sum.instructions += counts.instructions;
    sum.load_sectors += counts.load_sectors;
    sum.store_sectors += counts.store_sectors;
  }
  return result;
}

void reset_counts() {
  State& state = State::get();
  const Locked lock;
  state.counts.clear();
}

std::vector<std::string> kernels_of(std::uint32_t architecture) {
  State& state = State::get();
  const Locked lock;
  std::vector<std::string> names;
  for (const auto& [key, entry] : state.kernels) {
    if (key.second == architecture) names.push_back(entry.name);
  }
  return names;
}

bool print_executed(std::uint32_t architecture) {
  State& state = State::get();
  std::uint64_t executed = 0, all = 0;
  for (const std::string& name : kernels_of(architecture)) {
    const Locked lock;
    const auto found = state.counts.find({name, architecture});
    const std::uint64_t launches = found == state.counts.end() ? 0 : found->second.launches;
    std::printf("%-12s %8llu launches  %s\n", launches > 0 ? "executed" : "NOT EXECUTED",
                static_cast<unsigned long long>(launches), name.c_str());
    executed += launches > 0;
    ++all;
  }
  std::printf("%llu of %llu kernels of sm_%u executed\n", static_cast<unsigned long long>(executed),
              static_cast<unsigned long long>(all), architecture);
  return executed == all;
}

void load_kernels(const std::string& library) {
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) throw std::runtime_error(dlerror());
}

}  // namespace kvtwin::gpu_sim

// The names of CUDA 12 and 13. Each host object registers its kernels before main().
extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  auto& state = kvtwin::gpu_sim::State::get();
  const std::lock_guard lock(state.mutex);
  state.stubs[stub] = kvtwin::gpu_sim::without_hashes(name);
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t dynamic_bytes, struct CUstream_st* stream) {
  kvtwin::gpu_sim::configurations.push_back({grid, block, dynamic_bytes, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* dynamic_bytes, void* stream) {
  const auto last = kvtwin::gpu_sim::configurations.back();
  kvtwin::gpu_sim::configurations.pop_back();
  *grid = last.grid;
  *block = last.block;
  *dynamic_bytes = last.dynamic_bytes;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t dynamic_bytes,
                               cudaStream_t stream) {
  return kvtwin::gpu_sim::launch(kernel, grid, block, arguments, dynamic_bytes, stream);
}
cudaError_t cudaLaunchKernel(const void* stub, dim3 grid, dim3 block, void** arguments, std::size_t dynamic_bytes,
                             cudaStream_t stream) {
  return kvtwin::gpu_sim::launch(stub, grid, block, arguments, dynamic_bytes, stream);
}
cudaError_t cudaFuncSetAttribute(const void* stub, cudaFuncAttribute attribute, int value) {
  return kvtwin::twin::call("cudaFuncSetAttribute", [&](kvtwin::twin::Runtime& runtime) {
    auto& state = kvtwin::gpu_sim::State::get();
    const kvtwin::gpu_sim::Locked lock;
    if (state.stubs.count(stub) == 0) return cudaErrorInvalidDeviceFunction;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        value > runtime.machine().shared_bytes) {
      return cudaErrorInvalidValue;
    }
    state.dynamic_bytes[stub] = static_cast<std::size_t>(value);
    return cudaSuccess;
  });
}

}  // extern "C"
