#include "kernels/row_transfer.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvtwin {
namespace {

std::uint64_t rounded_up(std::uint64_t value, std::uint64_t step) { return (value + step - 1) / step * step; }

PieceGrid grid_of(const RowTransfer& t) {
  if (t.host_page_stride == 0) return piece_grid(t.host_layout, t.shape, t.device_pages, t.host_pages);
  PieceGrid grid = piece_grid(t.host_layout, t.shape, t.device_pages, 1);
  grid.host_page = t.host_page_stride;
  return grid;
}

// Returns the plan without the cut of pieces into segments.
RowPlan uncut_plan(const RowTransfer& t) {
  RowPlan plan;
  plan.grid = grid_of(t);
  plan.layer_begin = t.layer_begin;
  plan.layers = t.layer_end - t.layer_begin;
  plan.vector_bytes = vector_bytes(t);
  return plan;
}

// Cuts pieces into equal segments of at most `max_bytes` bytes, in multiples of `step`; the last segment may be
// shorter. Requires: `step` divides `max_bytes`.
void cut_into_segments(RowPlan& plan, std::uint64_t count, std::uint64_t max_bytes, std::uint64_t step) {
  const std::uint64_t piece = plan.grid.piece_bytes;
  const std::uint64_t min_segments = (piece + max_bytes - 1) / max_bytes;
  plan.segment_bytes = rounded_up((piece + min_segments - 1) / min_segments, step);
  plan.piece_segments = (piece + plan.segment_bytes - 1) / plan.segment_bytes;
  plan.segments =
      count * plan.grid.plane.count * plan.layers * plan.grid.token.count * plan.grid.head.count * plan.piece_segments;
}

}  // namespace

std::uint32_t vector_bytes(const RowTransfer& t) {
  const PieceGrid grid = grid_of(t);
  std::uint64_t bits = 16 | grid.piece_bytes | grid.device_page | grid.host_page;
  const auto add = [&](const PieceGrid::Axis& axis, bool in_one_block) {
    if (axis.count > 1) bits |= axis.host_stride | (in_one_block ? axis.device_stride : 0);
  };
  add(grid.head, true);
  add(grid.token, true);
  add(grid.layer, t.device_blocks == nullptr);
  add(grid.plane, t.device_blocks == nullptr);
  bits |= reinterpret_cast<std::uintptr_t>(t.host);
  bits |= t.device_blocks != nullptr ? t.block_alignment : reinterpret_cast<std::uintptr_t>(t.device);
  return 1u << std::countr_zero(bits);
}

RowPlan row_plan(const RowTransfer& t) {
  RowPlan plan = uncut_plan(t);
  const std::uint64_t vectors = plan.grid.piece_bytes / plan.vector_bytes;
  const std::uint64_t lanes = std::bit_ceil(std::min<std::uint64_t>(vectors, kWarpLanes));
  plan.group_lanes = static_cast<std::uint32_t>(lanes);
  const std::uint64_t accesses = std::bit_ceil(std::min((vectors + lanes - 1) / lanes, std::uint64_t{kLaneLoads}));
  plan.lane_vectors = static_cast<std::uint32_t>(accesses);
  // Narrow vectors are rare, so there are only two kernels for them.
  if (plan.vector_bytes < 16 && plan.lane_vectors > 1) plan.lane_vectors = kLaneLoads;
  cut_into_segments(plan, t.count, lanes * plan.lane_vectors * plan.vector_bytes, lanes * plan.vector_bytes);
  return plan;
}

RowPlan ring_plan(const RowTransfer& t, std::uint64_t stage_bytes) {
  RowPlan plan = uncut_plan(t);
  cut_into_segments(plan, t.count, stage_bytes, 16);
  return plan;
}

bool ring_fits(const RowTransfer& t) { return vector_bytes(t) == 16; }

bool valid(const RowTransfer& t) {
  const KvShape& s = t.shape;
  if (t.layer_begin > t.layer_end || t.layer_end > s.layers) return false;
  if (!std::has_single_bit(t.block_alignment)) return false;
  if (t.index_type != IndexType::int32 && t.index_type != IndexType::int64) return false;
  if (t.host_layout > Layout::page_head) return false;
  if (empty(t)) return true;
  if (t.host_page_stride != 0 && t.host_page_stride < s.page_bytes()) return false;
  return s.page_bytes() > 0 && t.device_pages > 0 && t.host_pages > 0 && t.host != nullptr &&
         (t.device != nullptr || t.device_blocks != nullptr) && t.source_pages != nullptr && t.target_pages != nullptr;
}

void copy_segments(const RowTransfer& t, const RowPlan& plan) {
  for (std::uint64_t number = 0; number < plan.segments; ++number) {
    const RowSegment segment = segment_at(plan, t.shape, number);
    const SegmentAddress at = address_of(t, plan, segment);
    if (at.source != nullptr) std::memcpy(at.target, at.source, segment.bytes);
  }
}

}  // namespace kvtwin
