// The work of the copy kernels, and its division: pages of index arrays, between a layer_first device pool and a host
// pool in any of the four layouts (policy/transfer/layout.hpp), for a range of layers. CPU and kernels use the same
// arithmetic, and move_rows is the body in both, so a test without a GPU runs every thread of the kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "policy/transfer/layout.hpp"

namespace kvtwin {

enum class IndexType : std::uint8_t { int32, int64 };

// Page source_pages[i] of the source is copied to page target_pages[i] of the target. The source is the host pool if
// to_device, else the device pool. A pair with an index outside its pool is skipped, because engines pad with -1.
// Ownership: all pointers are borrowed. Requires: target pages are distinct (source pages need not be), and nothing
// else uses them during the copy.
struct RowTransfer {
  KvShape shape;
  std::byte* device = nullptr;  // [planes][layers][device_pages * page_tokens][heads][head_bytes]
  // If not null, used in place of `device`: [planes][layers] pointers that a kernel can read. Each points to
  // [device_pages * page_tokens][heads][head_bytes] and is a multiple of block_alignment (a power of two).
  std::byte* const* device_blocks = nullptr;
  std::uint32_t block_alignment = 1;  // bytes
  std::uint64_t device_pages = 0;
  std::byte* host = nullptr;  // host_pages pages in host_layout: mapped pinned memory, or device memory
  std::uint64_t host_pages = 0;
  Layout host_layout = Layout::layer_first;
  // If not 0, the host pool is host_pages pools of one page each, this many bytes apart; at least a page's bytes. Not
  // for launch_warp_per_row.
  std::uint64_t host_page_stride = 0;
  bool to_device = true;
  const void* source_pages = nullptr;  // [count] of index_type; memory that a kernel can read
  const void* target_pages = nullptr;  // [count] of index_type
  IndexType index_type = IndexType::int64;
  std::uint64_t count = 0;
  std::uint32_t layer_begin = 0, layer_end = 0;
};

// The division of a RowTransfer: pieces (PieceGrid) are cut into segments. One group of lanes, or one bulk copy, copies
// a segment.
struct RowPlan {
  PieceGrid grid;
  std::uint64_t piece_segments = 1;  // segments per piece
  std::uint64_t segment_bytes = 0;   // bytes of each segment of a piece except the last
  std::uint64_t segments = 0;        // segments of all pages
  std::uint32_t layer_begin = 0, layers = 0;
  std::uint32_t vector_bytes = 0;  // bytes of one access; divides every address, stride and size
  std::uint32_t group_lanes = 1;   // lanes that share a segment; a power of two up to kWarpLanes
  std::uint32_t lane_vectors = 1;  // accesses of one lane per segment: 1, 2, 4 or 8
};

inline constexpr std::uint32_t kWarpLanes = 32;
inline constexpr std::uint32_t kLaneLoads = 8;  // loads that a lane has in flight

// Returns the largest access size of 16, 8, 4, 2 or 1 bytes that divides all base addresses, strides and piece sizes.
std::uint32_t vector_bytes(const RowTransfer& transfer);

// Returns the plan for the register kernel.
RowPlan row_plan(const RowTransfer& transfer);

// Returns the plan for the ring kernel: segments of at most stage_bytes, each of them one bulk copy.
RowPlan ring_plan(const RowTransfer& transfer, std::uint64_t stage_bytes);

// Returns whether bulk copies can move the transfer: all addresses and sizes must be multiples of 16 bytes.
bool ring_fits(const RowTransfer& transfer);

// Returns whether the launchers accept the transfer: non-null memory if there is work, layers in range, a non-empty
// shape.
bool valid(const RowTransfer& transfer);

// Returns whether there is nothing to move.
KV_HD constexpr bool empty(const RowTransfer& t) { return t.count == 0 || t.layer_begin == t.layer_end; }

// CPU twin of the kernels: copies each segment of a plan with memcpy. Requires: valid(transfer); the CPU can reach all
// memory.
void copy_segments(const RowTransfer& transfer, const RowPlan& plan);

// ---- used on the CPU and in kernels --------------------------------------------------------------------------

// Divides `rest` by `count`; returns the remainder. In a kernel, a 64-bit division costs several times a 32-bit
// division, so small numbers use 32 bits.
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

struct RowSegment {
  std::uint64_t pair = 0;    // index in source_pages and target_pages
  std::uint64_t device = 0;  // byte offset in the page; on the device, from the start of its (plane, layer)
  std::uint64_t host = 0;
  std::uint64_t block = 0;  // byte offset in the page's block of this plane and layer: [token][head][head_bytes]
  std::uint64_t bytes = 0;
  std::uint32_t plane = 0, layer = 0;
};

// Returns a segment. Requires: number < plan.segments.
KV_HD constexpr RowSegment segment_at(const RowPlan& plan, const KvShape& shape, std::uint64_t number) {
  RowSegment s;
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

// The addresses of a segment; `source` is null if the pair is skipped.
struct SegmentAddress {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
};

KV_HD inline SegmentAddress address_of(const RowTransfer& t, const RowPlan& plan, const RowSegment& s) {
  const std::int64_t source = index_at(t.source_pages, t.index_type, s.pair);
  const std::int64_t target = index_at(t.target_pages, t.index_type, s.pair);
  const auto on_device = static_cast<std::uint64_t>(t.to_device ? target : source);
  const auto on_host = static_cast<std::uint64_t>(t.to_device ? source : target);
  if (on_device >= t.device_pages || on_host >= t.host_pages) return {};  // a negative index becomes a large one
  std::byte* block = t.device_blocks != nullptr
                         ? t.device_blocks[std::uint64_t{s.plane} * t.shape.layers + s.layer]
                         : t.device + s.plane * plan.grid.plane.device_stride + s.layer * plan.grid.layer.device_stride;
  std::byte* device = block + on_device * plan.grid.device_page + s.device;
  std::byte* host = t.host + on_host * plan.grid.host_page + s.host;
  return t.to_device ? SegmentAddress{host, device} : SegmentAddress{device, host};
}

// Where a segment is. No bytes: the segment is past the last one, or its pair is skipped.
struct SegmentPlace {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::uint32_t bytes = 0;
};

// Requires: segments of less than 2^32 bytes.
KV_HD inline SegmentPlace place_of(const RowTransfer& t, const RowPlan& plan, std::uint64_t number) {
  if (number >= plan.segments) return {};
  const RowSegment segment = segment_at(plan, t.shape, number);
  const SegmentAddress at = address_of(t, plan, segment);
  if (at.source == nullptr) return {};
  return {at.source, at.target, static_cast<std::uint32_t>(segment.bytes)};
}

// Returns the number of segments that a warp moves at a time. A power of two.
KV_HD constexpr std::uint32_t warp_segments(const RowPlan& plan) {
  return kWarpLanes / plan.group_lanes * (kLaneLoads / plan.lane_vectors);
}
KV_HD constexpr std::uint64_t warp_batches(const RowPlan& plan) {
  return (plan.segments + warp_segments(plan) - 1) / warp_segments(plan);
}
// Returns the number of neighbouring segments that are one warp's: a whole number of batches. The 32 lanes find the
// places of 32 segments in the time in which one lane finds one, so a warp takes 32 if enough are left for the others.
KV_HD constexpr std::uint32_t strip_segments(const RowPlan& plan, std::uint64_t warps) {
  std::uint32_t strip = warp_segments(plan);
  while (strip < kWarpLanes && 2 * strip * warps <= plan.segments) strip *= 2;
  return strip;
}

// Calls each(v, offset) for the vectors of one lane that are in a segment of `bytes` bytes. A whole segment needs one
// comparison for all of them.
template <std::uint32_t kVectors, typename Each>
KV_DEVICE inline void each_vector(std::uint32_t bytes, std::uint32_t whole, std::uint32_t first_byte,
                                  std::uint32_t next_vector, const Each& each) {
  if (kVectors > 1 && bytes == whole) {
    KV_UNROLL
    for (std::uint32_t v = 0; v < kVectors; ++v) each(v, first_byte + v * next_vector);
  } else {
    KV_UNROLL
    for (std::uint32_t v = 0; v < kVectors; ++v) {
      if (first_byte + v * next_vector < bytes) each(v, first_byte + v * next_vector);
    }
  }
}

// The part of one lane. Warp `warp` of `warps` moves the strips warp, warp + warps, ... Requires: kVectors ==
// plan.lane_vectors; Access::Vector has plan.vector_bytes bytes. Access finds places, loads, stores, and if
// kNeedsSegments receives each moved vector:
//   void find(t, plan, first)        finds the places of segments first to first + 31
//   SegmentPlace place(i)            returns the place of segment first + i
//   Vector load(const std::byte* segment, offset)    void store(std::byte* segment, offset, Vector)
//   void moved(const RowSegment&, offset in the segment, Vector, sum&)    void finish(pair, sum, group_lanes)
// All lanes of a warp call find, place and finish at the same time and equally often, find and place with the same
// arguments except that a lane's i is its group's.
template <std::uint32_t kVectors, typename Access>
KV_DEVICE inline void move_rows(const RowTransfer& t, const RowPlan& plan, std::uint64_t warp, std::uint64_t warps,
                                std::uint32_t lane, Access& access) {
  using Vector = typename Access::Vector;
  constexpr std::uint32_t kSlots = kLaneLoads / kVectors;  // segments per lane
  const std::uint32_t groups = kWarpLanes / plan.group_lanes;
  const std::uint32_t group = lane / plan.group_lanes, in_group = lane % plan.group_lanes;
  const std::uint32_t strip = strip_segments(plan, warps);
  const auto first_byte = static_cast<std::uint32_t>(in_group * sizeof(Vector));
  const auto next_vector = static_cast<std::uint32_t>(plan.group_lanes * sizeof(Vector));
  const std::uint32_t whole = kVectors * next_vector;
  for (std::uint64_t first = warp * strip; first < plan.segments; first += warps * strip) {
    for (std::uint32_t done = 0; done < strip && first + done < plan.segments; done += kSlots * groups) {
      SegmentPlace at[kSlots];
      Vector value[kSlots][kVectors];
      KV_UNROLL
      for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
        const std::uint32_t i = done + slot * groups;
        if (i % kWarpLanes == 0) access.find(t, plan, first + i);
        at[slot] = access.place(i % kWarpLanes + group);
      }
      // All loads come before the first store, so that all these bytes are in flight at the same time.
      KV_UNROLL
      for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
        each_vector<kVectors>(
            at[slot].bytes, whole, first_byte, next_vector,
            [&](std::uint32_t v, std::uint32_t offset) { value[slot][v] = access.load(at[slot].source, offset); });
      }
      KV_UNROLL
      for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
        RowSegment segment;
        if constexpr (Access::kNeedsSegments) {
          const std::uint64_t number = first + done + slot * groups + group;
          if (number < plan.segments) segment = segment_at(plan, t.shape, number);
        }
        std::uint64_t sum = 0;
        each_vector<kVectors>(at[slot].bytes, whole, first_byte, next_vector,
                              [&](std::uint32_t v, std::uint32_t offset) {
                                access.store(at[slot].target, offset, value[slot][v]);
                                if constexpr (Access::kNeedsSegments)
                                  access.moved(segment, offset, value[slot][v], sum);
                              });
        if constexpr (Access::kNeedsSegments) access.finish(segment.pair, sum, plan.group_lanes);
      }
    }
  }
}

// find and place of an Access on the CPU, where no lane can ask another.
struct CpuPlaces {
  void find(const RowTransfer& t, const RowPlan& plan, std::uint64_t first) {
    transfer_ = &t;
    plan_ = &plan;
    first_ = first;
  }
  SegmentPlace place(std::uint32_t i) const { return place_of(*transfer_, *plan_, first_ + i); }

 private:
  const RowTransfer* transfer_ = nullptr;
  const RowPlan* plan_ = nullptr;
  std::uint64_t first_ = 0;
};

}  // namespace kvtwin
