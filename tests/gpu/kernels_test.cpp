// Each launcher against its CPU twin, byte for byte, on the GPU: pages that move, all other bytes, and the bands of
// other bytes around each pool. Needs a GPU, and says so where there is none.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/page_checksum.hpp"
#include "kernels/page_pattern.hpp"
#include "kernels/pattern_kernels.hpp"
#include "kernels/row_kernels.hpp"
#include "kernels/transfer.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

constexpr Layout kLayouts[] = {Layout::layer_first, Layout::page_first, Layout::page_first_direct, Layout::page_head};
constexpr std::uint32_t kRows[] = {8, 16, 64, 128, 512, 576, 656, 1152, 2048, 4096, 4680, 257};
constexpr std::uint32_t kPageTokens[] = {1, 2, 16, 32, 64, 128};
constexpr std::uint32_t kLayers[] = {1, 2, 61, 80};
constexpr std::uint64_t kBand = 4096;
constexpr std::uint64_t kMostBytes = 48u << 20;  // of a pool; drawn shapes that need more have fewer layers

#define ASSERT_CUDA(call)                                       \
  do {                                                          \
    const cudaError_t error = (call);                           \
    ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); \
  } while (false)

enum class Place { gpu, pinned };

// A pool between two bands, `skew` bytes off a multiple of 256. `bytes` is what it should hold.
class Pool {
 public:
  Pool(Place place, std::uint64_t size, std::uint64_t skew) : skew_(skew), bytes(size + 2 * kBand) {
    const cudaError_t error = place == Place::gpu ? cudaMalloc(&memory_, bytes.size() + 256)
                                                  : cudaHostAlloc(&memory_, bytes.size() + 256, cudaHostAllocMapped);
    if (error != cudaSuccess) memory_ = nullptr;
    free_ = place == Place::gpu ? cudaFree : cudaFreeHost;
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() { free_(memory_); }

  bool there() const { return memory_ != nullptr; }
  std::byte* start() const { return static_cast<std::byte*>(memory_) + skew_; }
  std::byte* data() const { return start() + kBand; }
  std::byte* expected() { return bytes.data() + kBand; }
  void draw(Splitmix& rng) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (i % 8 == 0) word_ = rng.next();
      bytes[i] = static_cast<std::byte>(word_ >> (i % 8 * 8));
    }
  }
  cudaError_t write() { return cudaMemcpy(start(), bytes.data(), bytes.size(), cudaMemcpyDefault); }
  bool as_expected() {
    std::vector<std::byte> found(bytes.size());
    return cudaMemcpy(found.data(), start(), found.size(), cudaMemcpyDefault) == cudaSuccess && found == bytes;
  }

 private:
  void* memory_ = nullptr;
  cudaError_t (*free_)(void*) = nullptr;
  std::uint64_t skew_, word_ = 0;

 public:
  std::vector<std::byte> bytes;
};

// An array in GPU memory.
template <typename T>
class OnGpu {
 public:
  explicit OnGpu(const std::vector<T>& values) {
    if (cudaMalloc(&at_, values.size() * sizeof(T)) != cudaSuccess) at_ = nullptr;
    if (at_ != nullptr) cudaMemcpy(at_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  ~OnGpu() { cudaFree(at_); }
  T* data() const { return static_cast<T*>(at_); }
  std::vector<T> read(std::uint64_t count) const {
    std::vector<T> values(count);
    cudaMemcpy(values.data(), at_, count * sizeof(T), cudaMemcpyDeviceToHost);
    return values;
  }

 private:
  void* at_ = nullptr;
};

std::vector<std::int64_t> drawn_pages(Splitmix& rng, std::uint64_t pool, std::uint64_t count) {
  std::vector<std::int64_t> pages(pool);
  std::iota(pages.begin(), pages.end(), 0);
  const std::uint64_t kind = rng.below(3);  // as they are, reversed, any order
  if (kind == 1) std::reverse(pages.begin(), pages.end());
  for (std::uint64_t i = pool; kind == 2 && i > 1; --i) std::swap(pages[i - 1], pages[rng.below(i)]);
  pages.resize(count);
  return pages;
}

using Launcher = cudaError_t (*)(const RowTransfer&, const LaunchLimits&, cudaStream_t);

void check_geometry(std::uint32_t row, std::uint32_t page_tokens, std::uint64_t seed) {
  Splitmix rng(mix(seed));
  KvShape shape;
  shape.planes = static_cast<std::uint32_t>(rng.between(1, 2));
  shape.heads = row % 4 == 0 && rng.chance(50) ? 4 : 1;
  shape.head_bytes = row / shape.heads;
  shape.page_tokens = page_tokens;
  constexpr std::uint64_t kMostPages = 7;
  std::uint64_t drawn_layers = rng.below(std::size(kLayers));
  do {
    shape.layers = kLayers[drawn_layers];
  } while (kMostPages * shape.page_bytes() > kMostBytes && drawn_layers-- > 0);
  const std::uint64_t device_pages = rng.between(2, kMostPages), host_pages = rng.between(2, kMostPages);
  const std::uint64_t count = rng.between(1, std::min(device_pages, host_pages));
  constexpr std::uint64_t kSkews[] = {0, 0, 1, 2, 4, 8, 16};
  Pool device(Place::gpu, device_pages * shape.page_bytes(), kSkews[rng.below(7)]);
  Pool pinned(Place::pinned, host_pages * shape.page_bytes(), kSkews[rng.below(7)]);
  Pool staging(Place::gpu, host_pages * shape.page_bytes(), kSkews[rng.below(7)]);
  ASSERT_TRUE(device.there() && pinned.there() && staging.there()) << "out of memory";

  RowTransfer t;
  t.shape = shape;
  t.device = device.data();
  t.device_pages = device_pages;
  t.host_pages = host_pages;
  t.count = count;
  t.layer_begin = static_cast<std::uint32_t>(rng.below(shape.layers));
  t.layer_end = static_cast<std::uint32_t>(rng.between(t.layer_begin + 1, shape.layers));
  for (const bool to_device : {true, false}) {
    std::vector<std::int64_t> source = drawn_pages(rng, to_device ? host_pages : device_pages, count);
    std::vector<std::int64_t> target = drawn_pages(rng, to_device ? device_pages : host_pages, count);
    if (rng.chance(30)) source[count - 1] = source[0];
    const std::uint64_t left_out = rng.chance(20) ? rng.below(count) : count;
    if (left_out < count) target[left_out] = -1;
    const OnGpu<std::int64_t> source64(source), target64(target);
    const OnGpu<std::int32_t> source32({source.begin(), source.end()}), target32({target.begin(), target.end()});
    t.index_type = rng.chance(50) ? IndexType::int32 : IndexType::int64;
    const bool narrow = t.index_type == IndexType::int32;
    t.source_pages = narrow ? static_cast<const void*>(source32.data()) : source64.data();
    t.target_pages = narrow ? static_cast<const void*>(target32.data()) : target64.data();
    t.to_device = to_device;
    std::vector<PageRun> runs;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (i != left_out)
        runs.push_back({static_cast<std::uint32_t>(source[i]), static_cast<std::uint32_t>(target[i]), 1});
    }
    for (const Layout layout : kLayouts) {
      t.host_layout = layout;
      const auto check = [&](Pool& host, const char* name, const auto& launch) {
        SCOPED_TRACE(std::string(name) + (to_device ? " to the device" : " to the host") + ", layout " +
                     std::to_string(static_cast<int>(layout)));
        device.draw(rng);
        host.draw(rng);
        ASSERT_CUDA(device.write());
        ASSERT_CUDA(host.write());
        t.host = host.data();
        const cudaError_t launched = launch();
        if (launched == cudaErrorNotSupported) return;  // the ring, on an older GPU
        ASSERT_CUDA(launched);
        ASSERT_CUDA(cudaDeviceSynchronize());
        TransferParams params;
        params.shape = shape;
        params.device = device.expected();
        params.device_pages = device_pages;
        params.host = host.expected();
        params.host_pages = host_pages;
        params.host_layout = layout;
        params.to_device = to_device;
        params.runs = runs.data();
        params.run_count = runs.size();
        params.layer_begin = t.layer_begin;
        params.layer_end = t.layer_end;
        copy_pieces(params);
        ASSERT_TRUE(device.as_expected());
        ASSERT_TRUE(host.as_expected());
      };
      const auto with = [&](Launcher launcher) {
        return [&, launcher] { return launcher(t, {static_cast<std::uint32_t>(rng.between(1, 32))}, nullptr); };
      };
      check(pinned, "gather_scatter", with(launch_gather_scatter));
      check(pinned, "warp_per_row", with(launch_warp_per_row));
      check(staging, "relayout", with(launch_relayout));
      t.host = pinned.data();
      if (ring_fits(t)) check(pinned, "ring", with(launch_ring));
      t.host = staging.data();
      if (ring_fits(t)) check(staging, "ring in GPU memory", with(launch_ring));
      // One table entry a layer, into the same pool.
      std::vector<std::byte*> blocks;
      std::uintptr_t bits = 256;
      for (std::uint64_t i = 0; i < std::uint64_t{shape.planes} * shape.layers; ++i) {
        blocks.push_back(device.data() + i * device_pages * shape.page_tokens * shape.row_bytes());
        bits |= reinterpret_cast<std::uintptr_t>(blocks.back());
      }
      const OnGpu<std::byte*> table(blocks);
      t.device_blocks = table.data();
      t.block_alignment = static_cast<std::uint32_t>(bits & (~bits + 1));
      check(pinned, "gather_scatter of blocks", with(launch_gather_scatter));
      check(pinned, "warp_per_row of blocks", with(launch_warp_per_row));
      t.device_blocks = nullptr;
      if (to_device) continue;
      const OnGpu<std::uint64_t> sums(std::vector<std::uint64_t>(count, 1));
      check(pinned, "gather_checksum", [&] { return launch_gather_checksum(t, sums.data(), {4}, nullptr); });
      const std::vector<std::uint64_t> found = sums.read(count);
      for (std::uint64_t i = 0; i < count; ++i) {
        ASSERT_EQ(found[i], i == left_out
                                ? 0
                                : page_checksum(Layout::layer_first, shape, device.expected(), device_pages,
                                                static_cast<std::uint64_t>(source[i]), t.layer_begin, t.layer_end));
      }
    }
  }

  // Patterns, in each layout, in GPU memory.
  const std::vector<std::int64_t> pages = drawn_pages(rng, host_pages, count);
  std::vector<std::uint64_t> keys(4 * count);
  for (std::uint64_t& key : keys) key = rng.next();
  const OnGpu<std::int64_t> gpu_pages(pages);
  const OnGpu<std::uint64_t> gpu_keys(keys);
  const OnGpu<PatternFaults> gpu_faults(std::vector<PatternFaults>(1));
  for (const Layout layout : kLayouts) {
    SCOPED_TRACE("patterns, layout " + std::to_string(static_cast<int>(layout)));
    PatternPages p;
    p.shape = shape;
    p.pool = staging.data();
    p.pool_pages = host_pages;
    p.layout = layout;
    p.pages = gpu_pages.data();
    p.keys = gpu_keys.data();
    p.count = count;
    p.layer_begin = t.layer_begin;
    p.layer_end = t.layer_end;
    staging.draw(rng);
    ASSERT_CUDA(staging.write());
    ASSERT_CUDA(launch_fill_pattern(p, {8}, nullptr));
    KvIndex at, last;
    std::vector<std::byte> block(shape.row_bytes() * shape.page_tokens);
    for (std::uint64_t i = 0; i < count; ++i) {
      at.page = static_cast<std::uint64_t>(pages[i]);
      for (at.plane = 0; at.plane < shape.planes; ++at.plane) {
        for (at.layer = p.layer_begin; at.layer < p.layer_end; ++at.layer) {
          fill_pattern(block.data(), pattern_seed(&keys[4 * i], at.layer, at.plane), 0, block.size());
          const std::byte* from = block.data();
          for (at.token = 0; at.token < shape.page_tokens; ++at.token) {
            for (at.head = 0; at.head < shape.heads; ++at.head, from += shape.head_bytes) {
              std::memcpy(staging.expected() + byte_offset(layout, shape, host_pages, at), from, shape.head_bytes);
              last = at;
            }
          }
        }
      }
    }
    ASSERT_CUDA(cudaDeviceSynchronize());
    ASSERT_TRUE(staging.as_expected());
    ASSERT_CUDA(launch_check_pattern(p, gpu_faults.data(), {8}, nullptr));
    EXPECT_EQ(gpu_faults.read(1)[0].wrong, 0u);
    EXPECT_EQ(gpu_faults.read(1)[0].first, UINT64_MAX);
    // The last byte of all.
    const std::uint64_t wrong = byte_offset(layout, shape, host_pages, last) + shape.head_bytes - 1;
    const std::byte other = staging.expected()[wrong] ^ std::byte{1};
    ASSERT_CUDA(cudaMemcpy(staging.data() + wrong, &other, 1, cudaMemcpyHostToDevice));
    ASSERT_CUDA(launch_check_pattern(p, gpu_faults.data(), {8}, nullptr));
    const PatternFaults faults = gpu_faults.read(1)[0];
    EXPECT_EQ(faults.wrong, 1u);
    const WrongByte byte = wrong_byte(shape, faults.first);
    EXPECT_EQ(byte.index, count - 1);
    EXPECT_EQ(byte.plane, last.plane);
    EXPECT_EQ(byte.layer, last.layer);
    EXPECT_EQ(byte.offset, block.size() - 1);
  }
}

TEST(Kernels, LeaveWhatTheirCpuTwinsLeave) {
  std::uint64_t seed = 1;
  for (const std::uint32_t row : kRows) {
    for (const std::uint32_t page_tokens : kPageTokens) {
      for (int draw = 0; draw < 2; ++draw, ++seed) {
        SCOPED_TRACE("rows of " + std::to_string(row) + " bytes, pages of " + std::to_string(page_tokens) + ", seed " +
                     std::to_string(seed));
        check_geometry(row, page_tokens, seed);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(Kernels, RefuseNonsenseAndLaunchNothingForNothing) {
  RowTransfer t;
  t.shape = {.layers = 2, .planes = 1, .heads = 1, .head_bytes = 16, .page_tokens = 1};
  t.layer_end = 2;
  for (const Launcher launcher : {launch_gather_scatter, launch_relayout, launch_ring, launch_warp_per_row}) {
    EXPECT_EQ(launcher(t, {}, nullptr), cudaSuccess);  // no pages
    EXPECT_EQ(launcher(t, {0}, nullptr), cudaErrorInvalidValue);
    RowTransfer wrong = t;
    wrong.count = 1;  // of null pools
    EXPECT_EQ(launcher(wrong, {}, nullptr), cudaErrorInvalidValue);
    wrong = t;
    wrong.layer_end = 3;
    EXPECT_EQ(launcher(wrong, {}, nullptr), cudaErrorInvalidValue);
  }
}

}  // namespace
}  // namespace kvtwin::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int gpus = 0;
  const cudaError_t error = cudaGetDeviceCount(&gpus);
  if (error != cudaSuccess || gpus == 0) {
    std::fprintf(stderr, "gpu_tests needs an NVIDIA GPU, and this machine shows none: %s\n", cudaGetErrorString(error));
    return 1;
  }
  return RUN_ALL_TESTS();
}
