// The CUDA twin itself: it gives the guarantees of CUDA, but no stronger ones, and rejects what a GPU would reject.
#include "tests/cuda_twin/cuda_twin.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "kernels/row_kernels.hpp"

namespace kvtwin::test {
namespace {

using twin::CudaTwin;
using twin::Live;
using twin::Machine;
using twin::Streams;
using twin::Way;

Machine seeded(std::uint64_t seed) { return {.streams = Streams::seeded, .seed = seed}; }

cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  return stream;
}

cudaEvent_t new_event() {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  return event;
}

unsigned char* on_gpu(std::size_t bytes) {
  void* at = nullptr;
  EXPECT_EQ(cudaMalloc(&at, bytes), cudaSuccess);
  return static_cast<unsigned char*>(at);
}

unsigned char* pinned(std::size_t bytes) {
  void* at = nullptr;
  EXPECT_EQ(cudaMallocHost(&at, bytes), cudaSuccess);
  return static_cast<unsigned char*>(at);
}

unsigned char read_byte(const unsigned char* gpu) {
  unsigned char byte = 0;
  EXPECT_EQ(cudaMemcpy(&byte, gpu, 1, cudaMemcpyDeviceToHost), cudaSuccess);
  return byte;
}

constexpr std::uint64_t kSeeds = 100;

class BothWays : public testing::TestWithParam<Streams> {};
INSTANTIATE_TEST_SUITE_P(CudaTwin, BothWays, testing::Values(Streams::seeded, Streams::threads),
                         [](const auto& run) { return run.param == Streams::seeded ? "seeded" : "threads"; });

TEST_P(BothWays, AStreamKeepsItsOrderAndEventsTieStreams) {
  for (std::uint64_t seed = 1; seed <= (GetParam() == Streams::seeded ? kSeeds : 3); ++seed) {
    const CudaTwin twin({.streams = GetParam(), .seed = seed});
    unsigned char* memory = on_gpu(64);
    unsigned char* host = pinned(64);
    const cudaStream_t first = new_stream(), second = new_stream();
    const cudaEvent_t event = new_event();
    for (int value = 1; value <= 3; ++value) ASSERT_EQ(cudaMemsetAsync(memory, value, 64, first), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event, first), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
    ASSERT_EQ(cudaMemcpyAsync(host, memory, 64, cudaMemcpyDeviceToHost, second), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event, second), cudaSuccess);
    ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
    EXPECT_EQ(std::set<unsigned char>(host, host + 64), std::set<unsigned char>{3});
    EXPECT_TRUE(twin.violations().empty() && twin.hidden_syncs().empty());
  }
}

// Returns the values that a copy on another stream reads after two writes, over all seeds.
std::set<unsigned char> read_in_seeds(bool waits) {
  std::set<unsigned char> read;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const CudaTwin twin(seeded(seed));
    unsigned char* memory = on_gpu(1);
    unsigned char* host = pinned(1);
    const cudaStream_t writer = new_stream(), reader = new_stream();
    const cudaEvent_t event = new_event();
    EXPECT_EQ(cudaStreamWaitEvent(reader, event, 0),
              cudaSuccess);  // the event isn't recorded yet, so there is nothing to wait for
    EXPECT_EQ(cudaMemsetAsync(memory, 1, 1, writer), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(event, writer), cudaSuccess);
    if (waits) {
      EXPECT_EQ(cudaStreamWaitEvent(reader, event, 0), cudaSuccess);
    }
    EXPECT_EQ(cudaMemsetAsync(memory, 2, 1, writer), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(event, writer), cudaSuccess);  // recorded after the wait, so the wait ignores it
    EXPECT_EQ(cudaMemcpyAsync(host, memory, 1, cudaMemcpyDeviceToHost, reader), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(reader), cudaSuccess);
    read.insert(*host);
  }
  return read;
}

TEST(CudaTwin, SeedsShowEveryOrderThatEventsLeaveOpen) {
  EXPECT_EQ(read_in_seeds(true), (std::set<unsigned char>{1, 2}));
  EXPECT_EQ(read_in_seeds(false), (std::set<unsigned char>{0xA5, 1, 2}));
}

TEST(CudaTwin, TheSameSeedGivesTheSameOrder) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::vector<unsigned char> runs[2];
    for (std::vector<unsigned char>& run : runs) {
      const CudaTwin twin(seeded(seed));
      unsigned char* memory = on_gpu(1);
      unsigned char* host = pinned(32);
      const cudaStream_t writer = new_stream(), reader = new_stream();
      for (int i = 0; i < 32; ++i) {
        ASSERT_EQ(cudaMemsetAsync(memory, i, 1, writer), cudaSuccess);
        ASSERT_EQ(cudaMemcpyAsync(host + i, memory, 1, cudaMemcpyDeviceToHost, reader), cudaSuccess);
      }
      ASSERT_EQ(cudaStreamSynchronize(reader), cudaSuccess);
      run.assign(host, host + 32);
    }
    EXPECT_EQ(runs[0], runs[1]);
  }
}

// The source may be read immediately at the call, or only when the stream reaches the copy.
TEST(CudaTwin, ABatchReadsASourceOfAnyOrderEarlyOrLate) {
  for (const cudaMemcpySrcAccessOrder order : {cudaMemcpySrcAccessOrderStream, cudaMemcpySrcAccessOrderAny}) {
    std::set<unsigned char> read;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      const CudaTwin twin(seeded(seed));
      unsigned char* memory = on_gpu(2);
      unsigned char* host = pinned(2);
      const cudaStream_t stream = new_stream();
      ASSERT_EQ(cudaMemsetAsync(memory, 7, 1, stream), cudaSuccess);
      void* to = host;
      const void* from = memory;
      std::size_t bytes = 1, first = 0;
      cudaMemcpyAttributes attributes{};
      attributes.srcAccessOrder = order;
#if CUDART_VERSION >= 13000
      ASSERT_EQ(cudaMemcpyBatchAsync(&to, &from, &bytes, 1, &attributes, &first, 1, stream), cudaSuccess);
#else
      void* source = memory;
      std::size_t failed = 0;
      ASSERT_EQ(cudaMemcpyBatchAsync(&to, &source, &bytes, 1, &attributes, &first, 1, &failed, stream), cudaSuccess);
      (void)from;
#endif
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      read.insert(*host);
    }
    EXPECT_EQ(read,
              order == cudaMemcpySrcAccessOrderAny ? (std::set<unsigned char>{7, 0xA5}) : std::set<unsigned char>{7});
  }
}

TEST_P(BothWays, CallsFailAsTold) {
  CudaTwin twin({.streams = GetParam()});
  void* at = nullptr;
  twin.fail_call(2, cudaErrorMemoryAllocation, "cudaMalloc");
  unsigned char* memory = on_gpu(1);
  EXPECT_EQ(cudaMalloc(&at, 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(at, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  twin.fail_call(1, cudaErrorUnknown);
  EXPECT_EQ(cudaFree(memory), cudaErrorUnknown);  // the memory is freed all the same
  EXPECT_EQ(twin.live(), Live{});
  EXPECT_EQ(twin.calls("cudaMalloc"), 2u);
  EXPECT_EQ(twin.calls(), 3u);
}

TEST_P(BothWays, AStickyErrorStaysAndNothingHangs) {
  for (const bool by_work : {false, true}) {
    CudaTwin twin({.streams = GetParam()});
    unsigned char* memory = on_gpu(1);
    const cudaStream_t stream = new_stream(), other = new_stream();
    const cudaEvent_t event = new_event();
    if (by_work) twin.fail_work(2, cudaErrorECCUncorrectable);
    ASSERT_EQ(cudaMemsetAsync(memory, 1, 1, stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    if (!by_work) twin.fail_call(1, cudaErrorECCUncorrectable, "cudaMemsetAsync", true);
    const cudaError_t submitted = cudaMemsetAsync(memory, 2, 1, stream);
    EXPECT_EQ(submitted, by_work ? cudaSuccess : cudaErrorECCUncorrectable);
    const cudaError_t recorded = cudaEventRecord(event, stream);
    EXPECT_TRUE(by_work || recorded == cudaErrorECCUncorrectable);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorECCUncorrectable);
    EXPECT_EQ(cudaEventQuery(event), cudaErrorECCUncorrectable);
    EXPECT_EQ(cudaMalloc(nullptr, 1), cudaErrorECCUncorrectable);
    EXPECT_EQ(cudaGetLastError(), cudaErrorECCUncorrectable);
    EXPECT_EQ(cudaGetLastError(), cudaErrorECCUncorrectable);
    EXPECT_EQ(cudaEventDestroy(event), cudaErrorECCUncorrectable);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorECCUncorrectable);
    EXPECT_EQ(cudaStreamDestroy(other), cudaErrorECCUncorrectable);
    EXPECT_EQ(cudaFree(memory), cudaErrorECCUncorrectable);
    EXPECT_EQ(twin.live(), Live{});
  }
}

TEST(CudaTwin, AMachineMayHaveNoDriverNoDeviceOrLittleMemory) {
  int devices = -1, version = -1;
  {
    const CudaTwin twin({.driver = false});
    EXPECT_EQ(cudaGetDeviceCount(&devices), cudaErrorInsufficientDriver);
    EXPECT_EQ(devices, 0);
    EXPECT_EQ(cudaDriverGetVersion(&version), cudaSuccess);
    EXPECT_EQ(version, 0);
  }
  {
    const CudaTwin twin({.devices = 0});
    EXPECT_EQ(cudaGetDeviceCount(&devices), cudaErrorNoDevice);
  }
  const CudaTwin twin({.device_bytes = 1000, .pinned_bytes = 100});
  void* at = nullptr;
  EXPECT_EQ(cudaMalloc(&at, 1001), cudaErrorMemoryAllocation);
  unsigned char* memory = on_gpu(600);
  EXPECT_EQ(cudaMalloc(&at, 401), cudaErrorMemoryAllocation);
  std::size_t left = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&left, &total), cudaSuccess);
  EXPECT_EQ(left, 400u);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&at, 1000), cudaSuccess);
  std::vector<char> host(101);
  EXPECT_EQ(cudaHostRegister(host.data(), 101, cudaHostRegisterPortable), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaHostRegister(host.data(), 100, cudaHostRegisterPortable), cudaSuccess);
  EXPECT_EQ(cudaHostRegister(host.data() + 99, 1, 0), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(twin.live(), (Live{.allocations = 1, .registrations = 1}));
  EXPECT_EQ(cudaHostUnregister(host.data()), cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(host.data()), cudaErrorHostMemoryNotRegistered);
}

TEST_P(BothWays, CopiesOutsideOfMemoryAreRefused) {
  const CudaTwin twin({.streams = GetParam(), .devices = 2});
  unsigned char* memory = on_gpu(100);
  unsigned char* host = pinned(100);
  const cudaStream_t stream = new_stream();
  const auto copy = [&](void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, bytes, kind, stream);
  };
  std::size_t seen = 0;
  EXPECT_EQ(copy(memory + 1, host, 100, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(twin.violations().size(), ++seen);
  EXPECT_EQ(copy(memory, host + 1, 100, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(twin.violations().size(), ++seen);
  EXPECT_EQ(copy(memory, host, 100, cudaMemcpyDeviceToHost), cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(twin.violations().size(), ++seen);
  EXPECT_EQ(cudaMemcpyAsync(memory, host, 100, cudaMemcpyHostToDevice, reinterpret_cast<cudaStream_t>(memory)),
            cudaErrorInvalidResourceHandle);
  EXPECT_EQ(twin.violations().size(), ++seen);
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  const cudaEvent_t elsewhere = new_event();
  EXPECT_EQ(cudaEventRecord(elsewhere, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(twin.violations().size(), ++seen);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(copy(memory, host, 1, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(twin.violations().size(), ++seen);
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
  EXPECT_EQ(twin.violations().size(), ++seen);
  EXPECT_EQ(copy(nullptr, nullptr, 0, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(twin.violations().size(), seen);
  EXPECT_TRUE(twin.hidden_syncs().empty());
}

TEST_P(BothWays, WhatStopsThePipelineIsNoted) {
  const CudaTwin twin({.streams = GetParam()});
  unsigned char* memory = on_gpu(8);
  unsigned char* host = pinned(8);
  const cudaStream_t stream = new_stream();
  unsigned char pageable[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  std::size_t seen = 0;
  EXPECT_EQ(cudaMemcpyAsync(memory, pageable, 8, cudaMemcpyHostToDevice, stream), cudaSuccess);
  EXPECT_EQ(twin.hidden_syncs().size(), ++seen);
  EXPECT_EQ(read_byte(memory + 7), 8);
  EXPECT_EQ(cudaMemcpyAsync(host, memory, 8, cudaMemcpyDeviceToHost, nullptr), cudaSuccess);
  EXPECT_EQ(twin.hidden_syncs().size(), ++seen);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(twin.hidden_syncs().size(), ++seen);
  EXPECT_TRUE(std::equal(host, host + 8, pageable));
  EXPECT_TRUE(twin.violations().empty());
}

TEST(CudaTwin, BytesUnderWayAreThoseThatHaveNotRun) {
  CudaTwin twin(seeded(1));
  unsigned char* memory = on_gpu(30);
  unsigned char* host = pinned(30);
  const cudaStream_t stream = new_stream();
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(cudaMemcpyAsync(memory + 10 * i, host + 10 * i, 10, cudaMemcpyHostToDevice, stream), cudaSuccess);
  }
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  const twin::Copies seen = twin.copies(Way::to_device);
  EXPECT_EQ(seen.calls, 3u);
  EXPECT_EQ(seen.bytes, 30u);
  EXPECT_EQ(seen.bytes_under_way, 0u);
  EXPECT_GE(seen.max_under_way, 10u);
  EXPECT_LE(seen.max_under_way, 30u);
  EXPECT_EQ(twin.copies(Way::to_device, "cudaMemcpyAsync").copies, 3u);
  EXPECT_EQ(twin.copies(Way::to_host).calls, 0u);
}

// The arguments of a kernel that copies one page with one layer.
struct OnePage {
  OnePage() {
    t.shape = {.layers = 1, .planes = 1, .heads = 1, .head_bytes = 16, .page_tokens = 1};
    t.device = reinterpret_cast<std::byte*>(on_gpu(16));
    t.host = reinterpret_cast<std::byte*>(pinned(16));
    pages = reinterpret_cast<std::int64_t*>(on_gpu(8));
    EXPECT_EQ(cudaMemset(pages, 0, 8), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    t.device_pages = t.host_pages = t.count = t.layer_end = 1;
    t.source_pages = t.target_pages = pages;
  }
  RowTransfer t;
  std::int64_t* pages;
};

TEST_P(BothWays, KernelsTouchWhatTheGpuReachesOrTheErrorSticks) {
  {
    const CudaTwin twin({.streams = GetParam()});
    const OnePage page;
    const cudaStream_t stream = new_stream();
    ASSERT_EQ(cudaMemset(page.t.device, 9, 16), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    RowTransfer t = page.t;
    t.to_device = false;
    ASSERT_EQ(launch_gather_scatter(t, {}, stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(t.host[15], std::byte{9});
    EXPECT_EQ(twin.launches("gather_scatter"), 1u);
    EXPECT_TRUE(twin.violations().empty());
  }
  const CudaTwin twin({.streams = GetParam()});
  const OnePage page;
  const cudaStream_t stream = new_stream();
  std::vector<std::byte> pageable(16);
  RowTransfer t = page.t;
  t.host = pageable.data();
  ASSERT_EQ(launch_gather_scatter(t, {}, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(twin.violations().size(), 1u);
}

// When a copy from memory that isn't page-locked returns, it has read the source, but may not have written all of the
// target.
TEST(CudaTwin, ACopyToTheGpuMayReturnBeforeItIsThere) {
  std::set<unsigned char> read;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const CudaTwin twin(seeded(seed));
    unsigned char* memory = on_gpu(1);
    unsigned char* host = pinned(1);
    const cudaStream_t stream = new_stream();
    const unsigned char pageable = 5;
    ASSERT_EQ(cudaMemcpy(memory, &pageable, 1, cudaMemcpyHostToDevice), cudaSuccess);
    ASSERT_EQ(cudaMemcpyAsync(host, memory, 1, cudaMemcpyDeviceToHost, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    read.insert(*host);
  }
  EXPECT_EQ(read, (std::set<unsigned char>{5, 0xA5}));
}

TEST(CudaTwin, AKernelReadsItsIndicesWhenItRuns) {
  std::set<std::byte> read;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const CudaTwin twin(seeded(seed));
    const OnePage page;
    const cudaStream_t stream = new_stream(), other = new_stream();
    ASSERT_EQ(cudaMemset(page.t.device, 1, 16), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    std::memset(page.t.host, 2, 16);
    ASSERT_EQ(launch_gather_scatter(page.t, {}, stream), cudaSuccess);
    ASSERT_EQ(cudaMemsetAsync(page.pages, 0xFF, 8, other), cudaSuccess);  // page -1: the kernel skips it
    ASSERT_EQ(cudaStreamSynchronize(other), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    read.insert(std::byte{read_byte(reinterpret_cast<const unsigned char*>(page.t.device))});
  }
  EXPECT_EQ(read, (std::set<std::byte>{std::byte{1}, std::byte{2}}));
}

TEST(CudaTwin, TheRingNeedsAGpuThatHasIt) {
  for (const int major : {8, 9}) {
    const CudaTwin twin({.compute_major = major});
    const OnePage page;
    const cudaStream_t stream = new_stream();
    EXPECT_EQ(launch_ring(page.t, {}, stream), major < 9 ? cudaErrorNotSupported : cudaSuccess);
  }
}

TEST_P(BothWays, HostFunctionsRunInOrder) {
  const CudaTwin twin({.streams = GetParam()});
  const cudaStream_t stream = new_stream();
  std::vector<int> seen;
  struct Call {
    std::vector<int>* seen;
    int number;
  } calls[3] = {{&seen, 1}, {&seen, 2}, {&seen, 3}};
  const auto append = [](void* data) {
    const Call& call = *static_cast<Call*>(data);
    call.seen->push_back(call.number);
  };
  for (Call& call : calls) ASSERT_EQ(cudaLaunchHostFunc(stream, append, &call), cudaSuccess);
  while (cudaStreamQuery(stream) == cudaErrorNotReady) {
  }
  EXPECT_EQ(seen, (std::vector<int>{1, 2, 3}));
}

#if defined(__SANITIZE_THREAD__)
// Runs in a child process: ThreadSanitizer changes the exit code if it finds a race.
void run_two_streams(bool waits) {
  const CudaTwin twin({.streams = Streams::threads});
  unsigned char* memory = on_gpu(64);
  unsigned char* host = pinned(64);
  const cudaStream_t writer = new_stream(), reader = new_stream();
  const cudaEvent_t event = new_event();
  cudaMemsetAsync(memory, 1, 64, writer);
  cudaEventRecord(event, writer);
  if (waits) cudaStreamWaitEvent(reader, event, 0);
  cudaMemcpyAsync(host, memory, 64, cudaMemcpyDeviceToHost, reader);
  cudaStreamSynchronize(reader);
  const int read = host[63];
  cudaStreamSynchronize(writer);
  std::exit(read == 1 || !waits ? 0 : 1);
}

TEST(CudaTwinDeathTest, AMissingWaitIsARace) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(run_two_streams(true), testing::ExitedWithCode(0), "");
  for (int run = 0; run < 5; ++run) {
    EXPECT_EXIT(run_two_streams(false), testing::ExitedWithCode(66), "data race");
  }
}

void read_without_synchronising() {
  const CudaTwin twin({.streams = Streams::threads});
  unsigned char* memory = on_gpu(64);
  unsigned char* host = pinned(64);
  const cudaStream_t stream = new_stream();
  cudaMemcpyAsync(host, memory, 64, cudaMemcpyDeviceToHost, stream);
  cudaStreamSynchronize(new_stream());  // not the stream of the copy
  const volatile int read = host[63];
  (void)read;
  std::exit(0);
}

TEST(CudaTwinDeathTest, AReadByTheHostBeforeItHasSynchronisedIsARace) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(read_without_synchronising(), testing::ExitedWithCode(66), "data race");
}
#endif

}  // namespace
}  // namespace kvtwin::test
