// The kernel launchers for the CUDA twin. The CPU does the work, as an item of a stream. The argument checks are those
// of the real launchers. The code is the body that kernels and CPU share (kernels/row_transfer.hpp), or the CPU twin.
// Index arrays, tables and keys are read when the work runs. Before a byte moves, every address is checked: the GPU
// must be able to access it.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/page_checksum.hpp"
#include "kernels/page_pattern.hpp"
#include "kernels/pattern_kernels.hpp"
#include "kernels/row_kernels.hpp"
#include "tests/cuda_twin/runtime.hpp"

namespace kvtwin {
namespace {

using twin::Reach;

bool refused(const RowTransfer& t, const LaunchLimits& limits) { return !valid(t) || limits.ctas == 0; }

std::size_t index_bytes(IndexType type, std::uint64_t count) { return count * (type == IndexType::int32 ? 4 : 8); }

bool holds_arrays(const Reach& reach, const RowTransfer& t) {
  return reach.holds(t.source_pages, index_bytes(t.index_type, t.count)) &&
         reach.holds(t.target_pages, index_bytes(t.index_type, t.count)) &&
         (t.device_blocks == nullptr ||
          reach.holds(t.device_blocks, sizeof(std::byte*) * t.shape.planes * t.shape.layers));
}

// Checks the addresses of all segments. Returns false if the GPU cannot access one, or if one is not aligned to the
// vector size.
bool holds_segments(const Reach& reach, const RowTransfer& t, const RowPlan& plan) {
  for (std::uint64_t number = 0; number < plan.segments; ++number) {
    const RowSegment segment = segment_at(plan, t.shape, number);
    const SegmentAddress at = address_of(t, plan, segment);
    if (at.source == nullptr) continue;
    const auto bits = reinterpret_cast<std::uintptr_t>(at.source) | reinterpret_cast<std::uintptr_t>(at.target);
    if (bits % plan.vector_bytes != 0) return false;
    if (!reach.holds(at.source, segment.bytes) || !reach.holds(at.target, segment.bytes)) return false;
  }
  return true;
}

template <std::uint32_t kBytes>
struct Lane : CpuPlaces {
  struct Vector {
    std::uint8_t bytes[kBytes];
  };
  static constexpr bool kNeedsSegments = true;
  std::uint64_t* checksums;
  explicit Lane(std::uint64_t* sums) : checksums(sums) {}

  Vector load(const std::byte* segment, std::uint32_t offset) const {
    const std::byte* at = segment + offset;
    Vector v;
    std::memcpy(&v, at, kBytes);
    return v;
  }
  void store(std::byte* segment, std::uint32_t offset, const Vector& v) const {
    std::memcpy(segment + offset, &v, kBytes);
  }
  void moved(const RowSegment& s, std::uint64_t offset, const Vector& v, std::uint64_t& sum) const {
    if (checksums == nullptr) return;
    for (std::uint32_t i = 0; i < kBytes; ++i) {
      sum += checksum_part(s.plane, s.layer, s.block + offset + i, v.bytes[i]);
    }
  }
  void finish(std::uint64_t pair, std::uint64_t sum, std::uint32_t) const {
    if (checksums != nullptr && sum != 0) checksums[pair] += sum;
  }
};

template <std::uint32_t kBytes, std::uint32_t kVectors>
void walk(const RowTransfer& t, const RowPlan& plan, std::uint64_t warps, std::uint64_t* checksums) {
  Lane<kBytes> access{checksums};
  for (std::uint64_t warp = 0; warp < warps; ++warp) {
    for (std::uint32_t lane = 0; lane < kWarpLanes; ++lane) move_rows<kVectors>(t, plan, warp, warps, lane, access);
  }
}

template <std::uint32_t kBytes>
void walk(const RowTransfer& t, const RowPlan& plan, std::uint64_t warps, std::uint64_t* checksums) {
  switch (plan.lane_vectors) {
    case 1: return walk<kBytes, 1>(t, plan, warps, checksums);
    case 2: return walk<kBytes, 2>(t, plan, warps, checksums);
    case 4: return walk<kBytes, 4>(t, plan, warps, checksums);
    default: return walk<kBytes, kLaneLoads>(t, plan, warps, checksums);
  }
}

bool move_by_registers(const Reach& reach, const RowTransfer& t, std::uint64_t warps, std::uint64_t* checksums) {
  const RowPlan plan = row_plan(t);
  if (!holds_arrays(reach, t) || !holds_segments(reach, t, plan)) return false;
  switch (plan.vector_bytes) {
    case 16: walk<16>(t, plan, warps, checksums); break;
    case 8: walk<8>(t, plan, warps, checksums); break;
    case 4: walk<4>(t, plan, warps, checksums); break;
    case 2: walk<2>(t, plan, warps, checksums); break;
    default: walk<1>(t, plan, warps, checksums); break;
  }
  return true;
}

cudaError_t launch_registers(const char* name, const RowTransfer& t, std::uint64_t* checksums,
                             const LaunchLimits& limits, cudaStream_t stream) {
  constexpr std::uint64_t kWarpsPerCta = 8;
  const std::uint64_t warps = std::min(limits.ctas, 64u) * kWarpsPerCta;
  return twin::launch(name, stream, [t, checksums, warps](const Reach& reach) {
    if (checksums != nullptr && !reach.holds(checksums, t.count * sizeof *checksums)) return false;
    return move_by_registers(reach, t, warps, checksums);
  });
}

bool move_by_ring(const Reach& reach, const RowTransfer& t) {
  constexpr std::uint64_t kStageBytes = 16 * 1024;
  const RowPlan plan = ring_plan(t, kStageBytes);
  if (!holds_arrays(reach, t) || !holds_segments(reach, t, plan)) return false;
  for (std::uint64_t number = 0; number < plan.segments; ++number) {
    const RowSegment segment = segment_at(plan, t.shape, number);
    const SegmentAddress at = address_of(t, plan, segment);
    if (at.source != nullptr) std::memcpy(at.target, at.source, segment.bytes);
  }
  return true;
}

// Moves one layer, with the address arithmetic of the layouts.
bool move_layer_by_rows(const Reach& reach, const RowTransfer& t, std::uint32_t layer) {
  if (!holds_arrays(reach, t)) return false;
  KvShape block = t.shape;  // one plane and layer of the device pool
  block.layers = block.planes = 1;
  const std::uint64_t block_bytes = t.device_pages * t.shape.page_tokens * t.shape.row_bytes();
  KvIndex at{.layer = layer};
  for (std::uint64_t i = 0; i < t.count; ++i) {
    const auto source = static_cast<std::uint64_t>(index_at(t.source_pages, t.index_type, i));
    const auto target = static_cast<std::uint64_t>(index_at(t.target_pages, t.index_type, i));
    const std::uint64_t on_device = t.to_device ? target : source, on_host = t.to_device ? source : target;
    if (on_device >= t.device_pages || on_host >= t.host_pages) continue;
    for (at.plane = 0; at.plane < t.shape.planes; ++at.plane) {
      const std::uint64_t number = std::uint64_t{at.plane} * t.shape.layers + layer;
      std::byte* of_block = t.device_blocks != nullptr ? t.device_blocks[number] : t.device + number * block_bytes;
      for (at.token = 0; at.token < t.shape.page_tokens; ++at.token) {
        for (at.head = 0; at.head < t.shape.heads; ++at.head) {
          const KvIndex in_block{.page = on_device, .token = at.token, .head = at.head};
          std::byte* device = of_block + byte_offset(Layout::layer_first, block, t.device_pages, in_block);
          at.page = on_host;
          std::byte* host = t.host + byte_offset(t.host_layout, t.shape, t.host_pages, at);
          if (!reach.holds(device, t.shape.head_bytes) || !reach.holds(host, t.shape.head_bytes)) return false;
          std::memcpy(t.to_device ? device : host, t.to_device ? host : device, t.shape.head_bytes);
        }
      }
    }
  }
  return true;
}

// ---- patterns -----------------------------------------------------------------------------------------------

// Calls act(address, seed, offset in the block, number of the block) for each row of one head of each page. Returns
// false if the GPU cannot access one of the addresses.
template <typename Act>
bool for_rows(const Reach& reach, const PatternPages& p, const Act& act) {
  const KvShape& s = p.shape;
  if (!reach.holds(p.pages, index_bytes(p.index_type, p.count))) return false;
  if (!reach.holds(p.keys, p.count * 4 * sizeof *p.keys)) return false;
  if (p.blocks != nullptr && !reach.holds(p.blocks, sizeof(std::byte*) * s.planes * s.layers)) return false;
  KvShape of_block = s;
  of_block.layers = of_block.planes = 1;
  for (std::uint64_t i = 0; i < p.count; ++i) {
    KvIndex at{.page = static_cast<std::uint64_t>(index_at(p.pages, p.index_type, i))};
    if (at.page >= p.pool_pages) continue;
    for (at.plane = 0; at.plane < s.planes; ++at.plane) {
      for (at.layer = p.layer_begin; at.layer < p.layer_end; ++at.layer) {
        const std::uint64_t seed = pattern_seed(p.keys + 4 * i, at.layer, at.plane);
        const std::uint64_t block = (i * s.planes + at.plane) * s.layers + at.layer;
        std::uint64_t offset = 0;
        for (at.token = 0; at.token < s.page_tokens; ++at.token) {
          for (at.head = 0; at.head < s.heads; ++at.head, offset += s.head_bytes) {
            const KvIndex in_block{.page = at.page, .token = at.token, .head = at.head};
            std::byte* row = p.blocks != nullptr ? p.blocks[std::uint64_t{at.plane} * s.layers + at.layer] +
                                                       byte_offset(p.layout, of_block, p.pool_pages, in_block)
                                                 : p.pool + byte_offset(p.layout, s, p.pool_pages, at);
            if (!reach.holds(row, s.head_bytes)) return false;
            act(row, seed, offset, block);
          }
        }
      }
    }
  }
  return true;
}

}  // namespace

cudaError_t launch_gather_scatter(const RowTransfer& t, const LaunchLimits& limits, cudaStream_t stream) {
  if (refused(t, limits)) return cudaErrorInvalidValue;
  if (empty(t)) return cudaSuccess;
  return launch_registers("gather_scatter", t, nullptr, limits, stream);
}

cudaError_t launch_relayout(const RowTransfer& t, const LaunchLimits& limits, cudaStream_t stream) {
  if (refused(t, limits)) return cudaErrorInvalidValue;
  if (empty(t)) return cudaSuccess;
  return launch_registers("relayout", t, nullptr, limits, stream);
}

cudaError_t launch_gather_checksum(const RowTransfer& t, std::uint64_t* checksums, const LaunchLimits& limits,
                                   cudaStream_t stream) {
  if (refused(t, limits) || t.to_device || (t.count > 0 && checksums == nullptr)) return cudaErrorInvalidValue;
  if (t.count == 0) return cudaSuccess;
  const cudaError_t zeroed = cudaMemsetAsync(checksums, 0, t.count * sizeof *checksums, stream);
  if (zeroed != cudaSuccess || empty(t)) return zeroed;
  return launch_registers("gather_checksum", t, checksums, limits, stream);
}

cudaError_t launch_ring(const RowTransfer& t, const LaunchLimits& limits, cudaStream_t stream) {
  if (refused(t, limits) || limits.ring_stages < 2 || limits.ring_stages > 4) return cudaErrorInvalidValue;
  if (empty(t)) return cudaSuccess;
  if (!ring_fits(t)) return cudaErrorInvalidValue;
  int device = 0, major = 0, shared = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess) return error;
  if (major < 9 || shared < 65 * 1024) return cudaErrorNotSupported;
  return twin::launch("ring", stream, [t](const Reach& reach) { return move_by_ring(reach, t); });
}

cudaError_t launch_warp_per_row(const RowTransfer& t, const LaunchLimits& limits, cudaStream_t stream) {
  if (refused(t, limits) || t.host_page_stride != 0) return cudaErrorInvalidValue;
  if (empty(t)) return cudaSuccess;
  for (std::uint32_t layer = t.layer_begin; layer < t.layer_end; ++layer) {
    const cudaError_t error = twin::launch(
        "warp_per_row", stream, [t, layer](const Reach& reach) { return move_layer_by_rows(reach, t, layer); });
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t launch_fill_pattern(const PatternPages& p, const LaunchLimits& limits, cudaStream_t stream) {
  if (!valid(p, limits)) return cudaErrorInvalidValue;
  if (p.count == 0 || p.layer_begin == p.layer_end) return cudaSuccess;
  return twin::launch("fill_pattern", stream, [p](const Reach& reach) {
    return for_rows(reach, p, [&](std::byte* row, std::uint64_t seed, std::uint64_t offset, std::uint64_t) {
      for (std::uint32_t i = 0; i < p.shape.head_bytes; ++i) row[i] = std::byte{pattern_byte(seed, offset + i)};
    });
  });
}

cudaError_t launch_check_pattern(const PatternPages& p, PatternFaults* faults, const LaunchLimits& limits,
                                 cudaStream_t stream) {
  if (!valid(p, limits) || faults == nullptr) return cudaErrorInvalidValue;
  cudaError_t error = cudaMemsetAsync(&faults->wrong, 0, sizeof faults->wrong, stream);
  if (error == cudaSuccess) error = cudaMemsetAsync(&faults->first, 0xFF, sizeof faults->first, stream);
  if (error != cudaSuccess || p.count == 0 || p.layer_begin == p.layer_end) return error;
  return twin::launch("check_pattern", stream, [p, faults](const Reach& reach) {
    const std::uint64_t block_bytes = p.shape.row_bytes() * p.shape.page_tokens;
    return reach.holds(faults, sizeof *faults) &&
           for_rows(reach, p, [&](const std::byte* row, std::uint64_t seed, std::uint64_t offset, std::uint64_t block) {
             for (std::uint32_t i = 0; i < p.shape.head_bytes; ++i) {
               if (row[i] == std::byte{pattern_byte(seed, offset + i)}) continue;
               ++faults->wrong;
               faults->first = std::min(faults->first, block * block_bytes + offset + i);
             }
           });
  });
}

}  // namespace kvtwin
