// One warp loads segments into a ring of stages in shared memory with bulk copies. Another warp stores them from there
// with bulk copies. No byte passes through a register. A segment is one bulk copy in each direction; a stage holds as
// many segments as fit.
//
// Tests of ring.hpp run the two warps against a model of the barriers; the simulator executes the PTX and checks that
// the fences and the lanes' expects are there (docs/internals/gpu.md). Only a run on a GPU covers the machine code that
// ptxas makes of them, and how bulk copies read mapped host memory.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/ring.hpp"
#include "kernels/row_kernels.hpp"
#include "kernels/start_kernel.cuh"

namespace kvtwin {
namespace {

// 64 KB in all, so that a CTA fits beside a matrix product that has most of the shared memory of its SM.
constexpr std::uint32_t kStageBytes = 16 * 1024;
constexpr std::uint32_t kMaxStages = 4;
constexpr std::uint32_t kThreads = 2 * kWarpLanes;  // the loading warp and the storing warp

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ inline std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

__device__ inline void barrier_init(std::uint64_t* barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ inline void barrier_arrive(std::uint64_t* barrier) {
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.release.cta.shared::cta.b64 state, [%0]; }" ::"r"(shared_address(barrier))
      : "memory");
}

// The phase ends only after `bytes` more bytes have arrived.
__device__ inline void barrier_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

// Waits for the end of the barrier phase of this parity. Before the end of the first phase, the phase before it counts
// as ended.
__device__ inline void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  std::uint32_t over = 0;
  while (over == 0) {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(over)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
}

__device__ inline void bulk_load(std::byte* shared, const std::byte* global, std::uint32_t bytes,
                                 std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

__device__ inline void bulk_store(std::byte* global, const std::byte* shared, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(global)),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}

// One lane of either warp; the Warp of ring.hpp.
struct RingLane {
  const RowTransfer& t;
  const RowPlan& plan;
  std::byte* bytes;  // [stages][kStageBytes]
  std::uint64_t* full;
  std::uint64_t* empty;  // [stages]
  std::uint32_t in_stage;

  __device__ bool first_lane() const { return threadIdx.x % kWarpLanes == 0; }

  // Calls copy(address, place in the stage, bytes) for each segment of this lane.
  template <typename Copy>
  __device__ void lane_segments(std::uint64_t batch, std::uint32_t stage, const Copy& copy) const {
    for (std::uint32_t i = threadIdx.x % kWarpLanes; i < in_stage; i += kWarpLanes) {
      const std::uint64_t number = batch * in_stage + i;
      if (number >= plan.segments) return;
      const RowSegment segment = segment_at(plan, t.shape, number);
      const SegmentAddress at = address_of(t, plan, segment);
      if (at.source == nullptr) continue;
      copy(at, bytes + stage * kStageBytes + i * static_cast<std::uint32_t>(plan.segment_bytes),
           static_cast<std::uint32_t>(segment.bytes));
    }
  }

  // ---- filling ----
  __device__ void wait_empty(std::uint32_t stage, std::uint32_t parity) const { barrier_wait(&empty[stage], parity); }
  __device__ void load(std::uint64_t batch, std::uint32_t stage) const {
    lane_segments(batch, stage, [&](const SegmentAddress& at, std::byte* place, std::uint32_t size) {
      barrier_expect(&full[stage], size);
      bulk_load(place, at.source, size, &full[stage]);
    });
    __syncwarp();  // each lane has announced its bytes before the phase can end
  }
  __device__ void arrive_full(std::uint32_t stage) const {
    if (first_lane()) barrier_arrive(&full[stage]);
  }

  // ---- draining ----
  __device__ void wait_full(std::uint32_t stage, std::uint32_t parity) const {
    barrier_wait(&full[stage], parity);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __device__ void store(std::uint64_t batch, std::uint32_t stage) const {
    lane_segments(batch, stage, [&](const SegmentAddress& at, const std::byte* place, std::uint32_t size) {
      bulk_store(at.target, place, size);
    });
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  __device__ void wait_reads_but_one() const {
    asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
    __syncwarp();
  }
  __device__ void arrive_empty(std::uint32_t stage) const {
    if (first_lane()) barrier_arrive(&empty[stage]);
  }
  __device__ void wait_stores() const { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
};

#endif

__global__ void __launch_bounds__(kThreads)
    ring(const __grid_constant__ RowTransfer t, const __grid_constant__ RowPlan plan, std::uint32_t stages) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::byte ring_bytes[];  // [stages][kStageBytes]
  __shared__ std::uint64_t full[kMaxStages], empty[kMaxStages];
  if (threadIdx.x == 0) {
    for (std::uint32_t i = 0; i < stages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();

  const std::uint32_t in_stage = kStageBytes / static_cast<std::uint32_t>(plan.segment_bytes);
  const RingWalk walk{blockIdx.x, gridDim.x, (plan.segments + in_stage - 1) / in_stage, stages};
  RingLane lane{t, plan, ring_bytes, full, empty, in_stage};
  if (threadIdx.x < kWarpLanes) {
    fill_ring(walk, lane);
  } else {
    drain_ring(walk, lane);
  }
#else
  __trap();
#endif
}

}  // namespace

cudaError_t launch_ring(const RowTransfer& t, const LaunchLimits& limits, cudaStream_t stream) {
  if (!valid(t) || limits.ctas == 0 || limits.ring_stages < 2 || limits.ring_stages > kMaxStages) {
    return cudaErrorInvalidValue;
  }
  if (empty(t)) return cudaSuccess;
  if (!ring_fits(t)) return cudaErrorInvalidValue;
  int device = 0, major = 0, shared = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess) return error;
  const std::uint32_t barriers = 2 * kMaxStages * sizeof(std::uint64_t);
  const std::uint32_t room = (static_cast<std::uint32_t>(std::max(shared, 1024)) - barriers) / kStageBytes;
  const std::uint32_t stages = std::min(limits.ring_stages, room);
  if (major < 9 || stages < 2) return cudaErrorNotSupported;
  const std::uint32_t ring_bytes = stages * kStageBytes;
  error = cudaFuncSetAttribute(ring, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(ring_bytes));
  if (error != cudaSuccess) return error;
  const RowPlan plan = ring_plan(t, kStageBytes);
  const std::uint64_t in_stage = kStageBytes / plan.segment_bytes;
  const std::uint64_t batches = (plan.segments + in_stage - 1) / in_stage;
  const auto ctas = static_cast<unsigned>(std::min<std::uint64_t>(limits.ctas, batches));
  return start_kernel(ring, {ctas, kThreads, ring_bytes}, stream, t, plan, stages);
}

}  // namespace kvtwin
