// What the copy kernels move, and how they cut it up: pages given by index arrays, between a layer_first device pool
// and a host pool in any of the four layouts (policy/transfer/layout.hpp), a range of layers at a time. The arithmetic
// is the same on the CPU and in a kernel, and move_rows is the kernel's body in both, so that a test without a GPU
// walks every thread of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "policy/transfer/layout.hpp"

namespace kvtwin {

enum class IndexType : std::uint8_t { int32, int64 };

// Nothing here is owned. Page source_pages[i] of the source goes to page target_pages[i] of the target; the source is
// the host pool if to_device, else the device pool. A pair of which either index lies outside its pool is left out
// (engines pad with -1). Target pages are distinct, source pages need not be, and nobody else touches them meanwhile.
struct RowTransfer {
  KvShape shape;
  std::byte* device = nullptr;  // [planes][layers][device_pages * page_tokens][heads][head_bytes]
  // If not null: [planes][layers] pointers that a kernel can read, each to [device_pages * page_tokens][heads]
  // [head_bytes] and a multiple of block_alignment (a power of two), in place of `device`.
  std::byte* const* device_blocks = nullptr;
  std::uint32_t block_alignment = 1;  // bytes
  std::uint64_t device_pages = 0;
  std::byte* host = nullptr;  // host_layout's shape, of host_pages pages: mapped pinned memory, or device memory
  std::uint64_t host_pages = 0;
  Layout host_layout = Layout::layer_first;
  bool to_device = true;
  const void* source_pages = nullptr;  // [count] of index_type, memory that a kernel can read
  const void* target_pages = nullptr;  // [count] of index_type
  IndexType index_type = IndexType::int64;
  std::uint64_t count = 0;
  std::uint32_t layer_begin = 0, layer_end = 0;
};

// How RowTransfer is cut up: pieces (PieceGrid) into segments that are copied by one group of lanes each, or by one
// bulk copy.
struct RowPlan {
  PieceGrid grid;
  std::uint64_t piece_segments = 1;  // segments of a piece
  std::uint64_t segment_bytes = 0;   // of all segments of a piece but the last
  std::uint64_t segments = 0;        // of all pages
  std::uint32_t layer_begin = 0, layers = 0;
  std::uint32_t vector_bytes = 0;  // of one access: divides every address, stride and size
  std::uint32_t group_lanes = 1;   // lanes that share a segment: a power of two up to kWarpLanes
  std::uint32_t lane_vectors = 1;  // accesses of one lane in a segment: 1, 2, 4 or 8
};

inline constexpr std::uint32_t kWarpLanes = 32;
inline constexpr std::uint32_t kLaneLoads = 8;  // that a lane has in flight

// The widest access of 16, 8, 4, 2 or 1 bytes that divides all base addresses, strides and piece sizes.
std::uint32_t vector_bytes(const RowTransfer& transfer);

// For the register kernel.
RowPlan row_plan(const RowTransfer& transfer);

// For the ring kernel: segments of up to stage_bytes, each of them one bulk copy.
RowPlan ring_plan(const RowTransfer& transfer, std::uint64_t stage_bytes);

// May bulk copies move it? They need addresses and sizes that are multiples of 16 bytes.
bool ring_fits(const RowTransfer& transfer);

// Do the launchers take it? Memory, if anything is to move; layers in range; a shape that is not empty.
bool valid(const RowTransfer& transfer);

// Nothing to move?
KV_HD constexpr bool empty(const RowTransfer& t) { return t.count == 0 || t.layer_begin == t.layer_end; }

// ---- the same on the CPU and in a kernel ---------------------------------------------------------------------

// rest % count, leaving rest / count. Dividing 64-bit numbers costs a kernel several times what 32-bit ones cost.
KV_HD constexpr std::uint32_t take_digit(std::uint64_t& rest, std::uint64_t count) {
  if (count == 1) return 0;
  if ((rest | count) >> 32 == 0) {
    const auto low = static_cast<std::uint32_t>(rest), divisor = static_cast<std::uint32_t>(count);
    rest = low / divisor;
    return low % divisor;
  }
  const std::uint64_t quotient = rest / count;
  const auto digit = static_cast<std::uint32_t>(rest - quotient * count);
  rest = quotient;
  return digit;
}

struct Segment {
  std::uint64_t pair = 0;    // index into source_pages and target_pages
  std::uint64_t device = 0;  // byte offsets within the page; that of the device from its (plane, layer) only
  std::uint64_t host = 0;
  std::uint64_t block = 0;  // byte offset in the page's block of this plane and layer: [token][head][head_bytes]
  std::uint64_t bytes = 0;
  std::uint32_t plane = 0, layer = 0;
};

// number < plan.segments.
KV_HD constexpr Segment segment_at(const RowPlan& plan, const KvShape& shape, std::uint64_t number) {
  Segment s;
  const std::uint64_t skip = take_digit(number, plan.piece_segments) * plan.segment_bytes;
  const std::uint32_t head = take_digit(number, plan.grid.head.count);
  const std::uint32_t token = take_digit(number, plan.grid.token.count);
  s.layer = plan.layer_begin + take_digit(number, plan.layers);
  s.plane = take_digit(number, plan.grid.plane.count);
  s.pair = number;
  const std::uint64_t left = plan.grid.piece_bytes - skip;
  s.bytes = left < plan.segment_bytes ? left : plan.segment_bytes;
  s.block = token * shape.row_bytes() + std::uint64_t{head} * shape.head_bytes + skip;
  s.device = token * plan.grid.token.device_stride + head * plan.grid.head.device_stride + skip;
  s.host = token * plan.grid.token.host_stride + head * plan.grid.head.host_stride +
           s.layer * plan.grid.layer.host_stride + s.plane * plan.grid.plane.host_stride + skip;
  return s;
}

KV_HD inline std::int64_t index_at(const void* indices, IndexType type, std::uint64_t i) {
  return type == IndexType::int32 ? static_cast<const std::int32_t*>(indices)[i]
                                  : static_cast<const std::int64_t*>(indices)[i];
}

// Where a segment's bytes lie; source is null if its pair is left out.
struct SegmentAddress {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
};

KV_HD inline SegmentAddress address_of(const RowTransfer& t, const RowPlan& plan, const Segment& s) {
  const std::int64_t source = index_at(t.source_pages, t.index_type, s.pair);
  const std::int64_t target = index_at(t.target_pages, t.index_type, s.pair);
  const auto on_device = static_cast<std::uint64_t>(t.to_device ? target : source);
  const auto on_host = static_cast<std::uint64_t>(t.to_device ? source : target);
  if (on_device >= t.device_pages || on_host >= t.host_pages) return {};  // negative ones are large
  std::byte* block = t.device_blocks != nullptr
                         ? t.device_blocks[std::uint64_t{s.plane} * t.shape.layers + s.layer]
                         : t.device + s.plane * plan.grid.plane.device_stride + s.layer * plan.grid.layer.device_stride;
  std::byte* device = block + on_device * plan.grid.device_page + s.device;
  std::byte* host = t.host + on_host * plan.grid.host_page + s.host;
  return t.to_device ? SegmentAddress{host, device} : SegmentAddress{device, host};
}

// Segments that a warp moves at a time.
KV_HD constexpr std::uint32_t warp_segments(const RowPlan& plan) {
  return kWarpLanes / plan.group_lanes * (kLaneLoads / plan.lane_vectors);
}
KV_HD constexpr std::uint64_t warp_batches(const RowPlan& plan) {
  return (plan.segments + warp_segments(plan) - 1) / warp_segments(plan);
}

#if defined(__CUDACC__)
#define KV_DEVICE __device__
#define KV_UNROLL _Pragma("unroll")
#else
#define KV_DEVICE
#define KV_UNROLL
#endif

// One lane's part of moving what warps `warp`, warp + warps, ... move. kVectors == plan.lane_vectors; Access::Vector
// has plan.vector_bytes bytes. Access loads and stores, and is told of each segment's vectors where it counts them:
//   Vector load(const std::byte*)    void store(std::byte*, Vector)
//   void moved(const Segment&, offset in the segment, Vector, sum&)    void finish(pair, sum, group_lanes)
// finish is called by all lanes of a warp at once, as often by each.
template <std::uint32_t kVectors, typename Access>
KV_DEVICE inline void move_rows(const RowTransfer& t, const RowPlan& plan, std::uint64_t warp, std::uint64_t warps,
                                std::uint32_t lane, Access& access) {
  using Vector = typename Access::Vector;
  constexpr std::uint32_t kSlots = kLaneLoads / kVectors;  // segments of a lane
  const std::uint32_t groups = kWarpLanes / plan.group_lanes;
  const std::uint32_t group = lane / plan.group_lanes, in_group = lane % plan.group_lanes;
  const std::uint64_t batches = warp_batches(plan);
  for (std::uint64_t batch = warp; batch < batches; batch += warps) {
    Segment segment[kSlots];
    SegmentAddress at[kSlots];
    Vector value[kSlots][kVectors];
    KV_UNROLL
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
      const std::uint64_t number = (batch * kSlots + slot) * groups + group;
      at[slot] = {};
      segment[slot] = {};
      if (number < plan.segments) {
        segment[slot] = segment_at(plan, t.shape, number);
        at[slot] = address_of(t, plan, segment[slot]);
        if (at[slot].source == nullptr) segment[slot].bytes = 0;
      }
    }
    // All loads before the first store: that many bytes are on their way at once.
    KV_UNROLL
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
      KV_UNROLL
      for (std::uint32_t v = 0; v < kVectors; ++v) {
        const std::uint64_t offset = std::uint64_t{v * plan.group_lanes + in_group} * sizeof(Vector);
        if (offset < segment[slot].bytes) value[slot][v] = access.load(at[slot].source + offset);
      }
    }
    KV_UNROLL
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
      std::uint64_t sum = 0;
      KV_UNROLL
      for (std::uint32_t v = 0; v < kVectors; ++v) {
        const std::uint64_t offset = std::uint64_t{v * plan.group_lanes + in_group} * sizeof(Vector);
        if (offset < segment[slot].bytes) {
          access.store(at[slot].target + offset, value[slot][v]);
          access.moved(segment[slot], offset, value[slot][v], sum);
        }
      }
      access.finish(segment[slot].pair, sum, plan.group_lanes);
    }
  }
}

}  // namespace kvtwin
