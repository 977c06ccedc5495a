// The GPU's part of kvtwin_kernels (python/src/kernels), on the CUDA twin: the same bytes as on the CPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "python/src/kernels/calls.hpp"
#include "tests/cuda_twin/cuda_twin.hpp"

namespace kvtwin::test {
namespace {

using python::Faults;
using python::Kind;
using python::Launch;
using python::Path;
using python::PointerTable;

constexpr KvShape kShape{.layers = 3, .planes = 2, .heads = 2, .head_bytes = 48, .page_tokens = 4};
constexpr std::uint64_t kPages = 5;
constexpr Layout kLayouts[] = {Layout::layer_first, Layout::page_first, Layout::page_first_direct, Layout::page_head};

// Memory of the twin, freed with the twin.
std::byte* on_gpu(std::size_t bytes, const void* from = nullptr) {
  void* at = nullptr;
  EXPECT_EQ(cudaMalloc(&at, bytes), cudaSuccess);
  if (from != nullptr) {
    EXPECT_EQ(cudaMemcpy(at, from, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  }
  return static_cast<std::byte*>(at);
}
std::byte* pinned(std::size_t bytes, const void* from) {
  void* at = nullptr;
  EXPECT_EQ(cudaMallocHost(&at, bytes), cudaSuccess);
  std::memcpy(at, from, bytes);
  return static_cast<std::byte*>(at);
}

std::vector<std::byte> from_gpu(const std::byte* at, std::size_t bytes) {
  std::vector<std::byte> result(bytes);
  EXPECT_EQ(cudaMemcpy(result.data(), at, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
  return result;
}

std::vector<std::byte> numbered_bytes(std::uint8_t first) {
  std::vector<std::byte> bytes(kPages * kShape.page_bytes());
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = std::byte(static_cast<std::uint8_t>(first + i * 7 + i / 251));
  return bytes;
}

std::string sentence_of(const auto& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

class PythonKernels : public testing::Test {
 protected:
  PythonKernels() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    source_gpu_ = on_gpu(sizeof source_, source_);
    target_gpu_ = on_gpu(sizeof target_, target_);
  }
  ~PythonKernels() override { EXPECT_EQ(machine_.violations(), std::vector<std::string>()); }

  Launch launch() const { return {.gpu = 0, .stream = reinterpret_cast<std::uintptr_t>(stream_), .ctas = 2}; }
  RowTransfer rows(std::byte* device, std::byte* host, Layout layout, bool to_device, bool on_cpu) const {
    return {.shape = kShape,
            .device = device,
            .device_pages = kPages,
            .host = host,
            .host_pages = kPages,
            .host_layout = layout,
            .to_device = to_device,
            .source_pages = on_cpu ? static_cast<const void*>(source_) : source_gpu_,
            .target_pages = on_cpu ? static_cast<const void*>(target_) : target_gpu_,
            .index_type = IndexType::int32,
            .count = std::size(source_),
            .layer_begin = 1,
            .layer_end = 3};
  }

  twin::CudaTwin machine_{twin::Machine{.devices = 2}};
  cudaStream_t stream_ = nullptr;
  const std::int32_t source_[4] = {4, 0, 1, -1}, target_[4] = {0, 2, 3, 1};
  std::byte *source_gpu_ = nullptr, *target_gpu_ = nullptr;
};

TEST_F(PythonKernels, MoveTheSameBytesAsTheCpu) {
  const std::vector<std::byte> device_bytes = numbered_bytes(1), host_bytes = numbered_bytes(101);
  for (const Path path : {Path::registers, Path::ring, Path::warp_per_row, Path::copies, Path::boxes, Path::relayout}) {
    const bool copies = path == Path::copies || path == Path::boxes;
    for (const Layout layout : kLayouts) {
      for (const bool to_device : {true, false}) {
        std::vector<std::byte> device = device_bytes, host = host_bytes;
        python::transfer(rows(device.data(), host.data(), layout, to_device, true), path, {});
        std::byte* const device_gpu = on_gpu(device.size(), device_bytes.data());
        std::byte* const host_pinned = pinned(host.size(), host_bytes.data());
        python::transfer(rows(device_gpu, host_pinned, layout, to_device, copies), path, launch());
        ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
        EXPECT_EQ(from_gpu(device_gpu, device.size()), device) << int(path) << name_of(layout) << to_device;
        EXPECT_EQ(std::memcmp(host_pinned, host.data(), host.size()), 0) << int(path) << name_of(layout) << to_device;
        EXPECT_NE(to_device ? device : host, to_device ? device_bytes : host_bytes);
      }
    }
  }
}

TEST_F(PythonKernels, PoolsOfLayersHaveATableThatTheGpuReads) {
  const std::vector<std::byte> device_bytes = numbered_bytes(1), host_bytes = numbered_bytes(101);
  const std::size_t block = kPages * kShape.page_tokens * kShape.row_bytes();
  std::byte* const device_gpu = on_gpu(device_bytes.size(), device_bytes.data());
  std::byte* const host_gpu = on_gpu(host_bytes.size(), host_bytes.data());
  std::vector<std::uintptr_t> blocks;
  for (std::size_t i = 0; i < kShape.planes * kShape.layers; ++i) {
    blocks.push_back(reinterpret_cast<std::uintptr_t>(device_gpu + i * block));
  }
  {
    const PointerTable table(blocks, 0);
    RowTransfer transfer = rows(nullptr, host_gpu, Layout::page_first, true, false);
    transfer.device_blocks = reinterpret_cast<std::byte* const*>(table.address());
    transfer.block_alignment = 16;
    python::transfer(transfer, Path::registers, launch());
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(machine_.live().allocations, 5U);
    EXPECT_NE(sentence_of([&] { python::transfer(transfer, Path::copies, launch()); }).find("one array"),
              std::string::npos);
  }
  EXPECT_EQ(machine_.live().allocations, 4U) << "the table is freed";
  std::vector<std::byte> device = device_bytes, host = host_bytes;
  python::transfer(rows(device.data(), host.data(), Layout::page_first, true, true), Path::registers, {});
  EXPECT_EQ(from_gpu(device_gpu, device.size()), device);
}

TEST_F(PythonKernels, ChecksumsAndPatternsAreTheCpus) {
  std::vector<std::byte> device = numbered_bytes(1), host = numbered_bytes(101);
  std::byte* const device_gpu = on_gpu(device.size(), device.data());
  std::byte* const host_pinned = pinned(host.size(), host.data());
  std::uint64_t sums[4] = {}, sums_of_gpu[4] = {};
  std::byte* const sums_gpu = on_gpu(sizeof sums);
  python::gather_checksum(rows(device.data(), host.data(), Layout::page_head, false, true), sums, {});
  python::gather_checksum(rows(device_gpu, host_pinned, Layout::page_head, false, false),
                          reinterpret_cast<std::uint64_t*>(sums_gpu), launch());
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  std::memcpy(sums_of_gpu, from_gpu(sums_gpu, sizeof sums).data(), sizeof sums);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(sums[i], sums_of_gpu[i]) << i;
  EXPECT_EQ(sums[3], 0U);
  EXPECT_NE(sums[0], sums[1]);

  std::uint64_t keys[16];
  for (std::uint64_t i = 0; i < 16; ++i) keys[i] = pattern_mix(i + 1);
  python::Pages pages{.shape = kShape,
                      .pool = device_gpu,
                      .pool_pages = kPages,
                      .pages = source_gpu_,
                      .keys = reinterpret_cast<const std::uint64_t*>(on_gpu(sizeof keys, keys)),
                      .index_type = IndexType::int32,
                      .count = 4,
                      .layer_begin = 0,
                      .layer_end = 2};
  python::fill_pattern(pages, launch());
  EXPECT_EQ(python::check_pattern(pages, launch()).wrong, 0U);
  pages.layer_end = 3;
  const Faults gpu = python::check_pattern(pages, launch());
  std::vector<std::byte> copy = from_gpu(device_gpu, device.size());
  pages.pool = copy.data();
  pages.pages = source_;
  pages.keys = keys;
  const Faults cpu = python::check_pattern(pages, {});
  EXPECT_GT(gpu.wrong, 0U);
  EXPECT_EQ(gpu.wrong, cpu.wrong);
  EXPECT_EQ(gpu.index, cpu.index);
  EXPECT_EQ(gpu.plane, cpu.plane);
  EXPECT_EQ(gpu.layer, 2U);
  EXPECT_EQ(gpu.offset, cpu.offset);
}

TEST_F(PythonKernels, KindsOfMemory) {
  int on_stack = 0;
  EXPECT_EQ(python::kind_of(&on_stack), Kind::pageable);
  EXPECT_EQ(python::kind_of(pinned(4, &on_stack)), Kind::pinned);
  EXPECT_EQ(python::kind_of(source_gpu_), Kind::gpu);
}

TEST_F(PythonKernels, TheCallersGpuStaysSelected) {
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  std::byte* const pool = on_gpu(numbered_bytes(1).size(), numbered_bytes(1).data());
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  python::transfer(
      rows(pool, pinned(numbered_bytes(2).size(), numbered_bytes(2).data()), Layout::page_first, true, true),
      Path::copies, launch());
  int device = -1;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 0);
  EXPECT_EQ(sentence_of([] { const PointerTable table({1}, 7); }).rfind("cudaSetDevice failed: ", 0), 0U);
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 0);
}

TEST_F(PythonKernels, FailuresAreOneSentence) {
  const std::size_t bytes = numbered_bytes(1).size();
  std::byte* const device = on_gpu(bytes, numbered_bytes(1).data());
  const RowTransfer transfer = rows(device, pinned(bytes, numbered_bytes(2).data()), Layout::page_first, true, true);
  EXPECT_NE(sentence_of([&] {
              python::transfer(transfer, Path::copies, {.gpu = 0});
            }).find("other than the default stream 0"),
            std::string::npos);
  machine_.fail_call(1, cudaErrorUnknown, "cudaLaunchKernel");
  EXPECT_EQ(sentence_of([&] {
              python::transfer(transfer, Path::registers, launch());
            }).rfind("launch_gather_scatter failed: ", 0),
            0U);
}

TEST(PythonKernelsOnOlderGpus, TheRingIsRefused) {
  const twin::CudaTwin machine({.compute_major = 8});
  const std::vector<std::byte> bytes = numbered_bytes(1);
  const std::int64_t page = 0;
  const std::byte* const pages = on_gpu(sizeof page, &page);
  const RowTransfer transfer{.shape = kShape,
                             .device = on_gpu(bytes.size(), bytes.data()),
                             .device_pages = kPages,
                             .host = pinned(bytes.size(), bytes.data()),
                             .host_pages = kPages,
                             .source_pages = pages,
                             .target_pages = pages,
                             .count = 1,
                             .layer_end = 3};
  EXPECT_NE(sentence_of([&] { python::transfer(transfer, Path::ring, {.gpu = 0}); }).find("compute capability 9.0"),
            std::string::npos);
}

}  // namespace
}  // namespace kvtwin::test
