// Transfers of chosen shapes, at every scale: rings that wrap, because a missing wait of one of the two warps shows
// only when a stage is used again; and every variant of the register kernel.
#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/page_checksum.hpp"
#include "kernels/row_kernels.hpp"
#include "kernels/transfer.hpp"
#include "tests/gpu/gpu_memory.hpp"

namespace kvtwin::test {
namespace {

// A transfer of all pages of a pool, in random order.
struct Move {
  KvShape shape;
  Layout layout = Layout::layer_first;
  std::uint64_t pages = 0;
  bool to_device = true;
  Place host_place = Place::pinned;
  std::uint64_t skew = 0;  // bytes from an address with alignment 256
  bool gaps = false;       // most pairs of the first half are left out
  std::uint64_t seed = 1;

  RowTransfer transfer() const {
    RowTransfer t;
    t.shape = shape;
    t.device_pages = t.host_pages = t.count = pages;
    t.host_layout = layout;
    t.to_device = to_device;
    t.index_type = IndexType::int32;
    t.layer_end = shape.layers;
    return t;
  }
};

using MoveLauncher = std::function<cudaError_t(const RowTransfer&, cudaStream_t)>;

void check_move(const Move& move, const MoveLauncher& launch) {
  Splitmix rng(mix(move.seed));
  const std::uint64_t bytes = move.pages * move.shape.page_bytes();
  Pool device(Place::gpu, bytes, move.skew), host(move.host_place, bytes, move.skew);
  ASSERT_TRUE(device.there() && host.there()) << "out of memory";
  draw_bytes(rng, device.bytes);
  draw_bytes(rng, host.bytes);
  ASSERT_CUDA(device.write());
  ASSERT_CUDA(host.write());
  std::vector<std::int32_t> source(move.pages), target(move.pages);
  std::iota(source.begin(), source.end(), 0);
  std::iota(target.rbegin(), target.rend(), 0);
  for (std::uint64_t i = move.pages; i > 1; --i) std::swap(source[i - 1], source[rng.below(i)]);
  for (std::uint64_t i = 0; move.gaps && i < move.pages / 2; ++i) {
    if (rng.chance(70)) source[i] = -1;
  }
  std::vector<PageRun> runs;
  for (std::uint64_t i = 0; i < move.pages; ++i) {
    if (source[i] < 0) continue;
    runs.push_back({static_cast<std::uint32_t>(source[i]), static_cast<std::uint32_t>(target[i]), 1});
  }
  const OnGpu<std::int32_t> gpu_source(source), gpu_target(target);
  RowTransfer t = move.transfer();
  t.device = device.data();
  t.host = host.data();
  t.source_pages = gpu_source.data();
  t.target_pages = gpu_target.data();
  const Stream stream;
  const cudaError_t launched = launch(t, stream);
  if (launched == cudaErrorNotSupported) return;  // the ring, on an older GPU
  ASSERT_CUDA(launched);
  ASSERT_CUDA(stream.finish());
  copy_pieces({move.shape, device.expected(), move.pages, host.expected(), move.pages, move.layout, move.to_device,
               runs.data(), runs.size(), 0, move.shape.layers});
  EXPECT_TRUE(device.as_expected());
  EXPECT_TRUE(host.as_expected());
}

// ---- rings --------------------------------------------------------------------------------------------------

struct RingCase {
  const char* name;
  KvShape shape;
  Layout layout;
  std::uint64_t pages;
};

// A stage has 16 KiB, and a ring has 2 to 4 stages.
constexpr RingCase kRings[] = {
    {"a segment per stage", {2, 1, 1, 2176, 8}, Layout::layer_first, 10},
    {"two segments per piece", {2, 1, 1, 2561 * 16, 1}, Layout::page_first, 4},
    {"three segments per stage", {2, 2, 1, 1152, 8}, Layout::page_first_direct, 12},
    {"a row per segment", {1, 2, 1, 576, 16}, Layout::page_first, 14},
    {"a head per segment", {2, 1, 4, 16, 64}, Layout::page_head, 28},
};

TEST(Kernels, RingsThatWrapLeaveWhatTheirCpuTwinsLeave) {
  std::uint64_t seed = scale().first_seed;
  for (const RingCase& one : kRings) {
    for (const bool to_device : {true, false}) {
      for (const std::uint32_t ctas : {1u, 2u}) {
        for (const bool gaps : {false, true}) {
          SCOPED_TRACE(std::string(one.name) + (to_device ? ", to the device, " : ", to the host, ") +
                       std::to_string(ctas) + " CTAs" + (gaps ? ", with gaps" : "") + ", seed " + std::to_string(seed));
          const LaunchLimits limits{ctas, static_cast<std::uint32_t>(2 + seed % 3)};
          check_move({one.shape, one.layout, one.pages, to_device, gaps ? Place::gpu : Place::pinned, 0, gaps, seed++},
                     [&](const RowTransfer& t, cudaStream_t stream) { return launch_ring(t, limits, stream); });
          if (HasFailure()) return;
        }
      }
    }
  }
}

// The cases above wrap even the largest ring: a CTA alone fills more stages than there are.
TEST(Kernels, TheRingsOfTheTestsWrap) {
  constexpr std::uint64_t kStageBytes = 16 << 10, kMaxStages = 4;
  for (const RingCase& one : kRings) {
    const Move move{.shape = one.shape, .layout = one.layout, .pages = one.pages};
    const RowPlan plan = ring_plan(move.transfer(), kStageBytes);
    const std::uint64_t in_stage = kStageBytes / plan.segment_bytes;
    EXPECT_GT((plan.segments + in_stage - 1) / in_stage, kMaxStages) << one.name;
  }
}

// ---- the register kernel ------------------------------------------------------------------------------------

// Each number of bytes of an access with each number of accesses of a lane.
TEST(Kernels, EveryVariantOfTheRegisterKernelLeavesWhatItsCpuTwinLeaves) {
  std::uint64_t seed = scale().first_seed;
  for (const std::uint32_t vector : {16u, 8u, 4u, 2u, 1u}) {
    for (const std::uint32_t accesses : {1u, 2u, 4u, 8u}) {
      // A piece is a row. The alignment of the pools gives the size of an access.
      Move move{.shape = {.layers = 2,
                          .planes = 2,
                          .heads = 1,
                          .head_bytes = vector * kWarpLanes * accesses,
                          .page_tokens = 1},
                .layout = Layout::page_first,
                .pages = 3,
                .skew = vector};
      RowTransfer t = move.transfer();
      t.device = t.host = reinterpret_cast<std::byte*>(std::uintptr_t{vector});
      const RowPlan plan = row_plan(t);
      ASSERT_EQ(plan.vector_bytes, vector);
      ASSERT_EQ(plan.lane_vectors, vector < 16 && accesses > 1 ? kLaneLoads : accesses);
      for (const bool to_device : {true, false}) {
        move.to_device = to_device;
        move.seed = seed++;
        SCOPED_TRACE(std::to_string(accesses) + " accesses of " + std::to_string(vector) + " bytes, seed " +
                     std::to_string(move.seed));
        check_move(move,
                   [](const RowTransfer& one, cudaStream_t stream) { return launch_gather_scatter(one, {2}, stream); });
        if (to_device) continue;
        const OnGpu<std::uint64_t> sums(std::vector<std::uint64_t>(move.pages));
        check_move(move, [&](const RowTransfer& one, cudaStream_t stream) {
          EXPECT_EQ(launch_gather_checksum(one, sums.data(), {2}, stream), cudaSuccess);
          EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
          std::vector<std::int32_t> source(one.count);
          std::vector<std::byte> pool(one.device_pages * one.shape.page_bytes());
          EXPECT_EQ(cudaMemcpy(source.data(), one.source_pages, 4 * one.count, cudaMemcpyDeviceToHost), cudaSuccess);
          EXPECT_EQ(cudaMemcpy(pool.data(), one.device, pool.size(), cudaMemcpyDeviceToHost), cudaSuccess);
          const std::vector<std::uint64_t> found = sums.read(one.count);
          for (std::uint64_t i = 0; i < one.count; ++i) {
            EXPECT_EQ(found[i], page_checksum(Layout::layer_first, one.shape, pool.data(), one.device_pages,
                                              static_cast<std::uint64_t>(source[i]), 0, one.layer_end));
          }
          return cudaSuccess;
        });
      }
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace kvtwin::test
