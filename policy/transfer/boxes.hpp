// A run of pages as strided copies ("boxes": 3-D copies of a copy engine). If the grid of pieces (layout.hpp) has
// regular strides, one descriptor replaces many. The planner counts boxes. The CPU twin and the CUDA copy lists of
// kernels/ iterate over them.
#pragma once

#include <cstdint>

#include "policy/transfer/layout.hpp"

namespace kvtwin {

// `depth` slices of `height` rows of `width` contiguous bytes. Pitches and slices are in bytes, from the start of one
// row or slice to the start of the next. A slice is a whole number of pitches, at least `height`.
struct Box {
  std::uint64_t device_at = 0, host_at = 0;  // offset of the first byte in each pool
  std::uint64_t width = 0, height = 1, depth = 1;
  std::uint64_t device_pitch = 0, host_pitch = 0;
  std::uint64_t device_slice = 0, host_slice = 0;
};

// The largest pitch that a device takes (cudaDeviceProp::memPitch).
constexpr std::uint64_t kMaxPitchBytes = (std::uint64_t{1} << 31) - 1;

// How the pieces of a run form boxes: one axis becomes the rows, one the slices; every combination of the other axes is
// one box.
struct BoxGrid {
  static constexpr int kAxes = 5;
  static constexpr int kNone = kAxes;
  std::uint64_t width = 0;
  struct Axis {
    std::uint64_t count = 1, device_stride = 0, host_stride = 0;
  };
  Axis axes[kAxes];  // head, token, page, layer, plane
  int height = kNone, depth = kNone;

  KV_HD constexpr std::uint64_t rows_of(int axis) const { return axis == kNone ? 1 : axes[axis].count; }
  KV_HD constexpr std::uint64_t boxes() const {
    std::uint64_t all = 1;
    for (int axis = 0; axis < kAxes; ++axis) {
      if (axis != height && axis != depth) all *= axes[axis].count;
    }
    return all;
  }
  // Returns box number `index` < boxes() of a run that begins at these offsets.
  KV_HD constexpr Box box(std::uint64_t index, std::uint64_t device_at, std::uint64_t host_at) const {
    Box b{device_at, host_at, width};
    for (int axis = 0; axis < kAxes; ++axis) {
      if (axis == height || axis == depth) continue;
      const std::uint64_t i = index % axes[axis].count;
      index /= axes[axis].count;
      b.device_at += i * axes[axis].device_stride;
      b.host_at += i * axes[axis].host_stride;
    }
    b.height = rows_of(height);
    b.depth = rows_of(depth);
    b.device_pitch = height == kNone ? width : axes[height].device_stride;
    b.host_pitch = height == kNone ? width : axes[height].host_stride;
    b.device_slice = depth == kNone ? b.device_pitch * b.height : axes[depth].device_stride;
    b.host_slice = depth == kNone ? b.host_pitch * b.height : axes[depth].host_stride;
    return b;
  }
};

// Returns whether axis `height` can be the rows and axis `depth` the slices. BoxGrid::kNone: no such axis.
KV_HD constexpr bool makes_boxes(const BoxGrid& grid, int height, int depth) {
  if (height == BoxGrid::kNone) return depth == BoxGrid::kNone;
  const BoxGrid::Axis& rows = grid.axes[height];
  const auto fits = [&](std::uint64_t pitch) { return pitch >= grid.width && pitch <= kMaxPitchBytes; };
  if (!fits(rows.device_stride) || !fits(rows.host_stride)) return false;
  if (depth == BoxGrid::kNone) return true;
  const BoxGrid::Axis& slices = grid.axes[depth];
  return depth != height && slices.device_stride % rows.device_stride == 0 &&
         slices.host_stride % rows.host_stride == 0 && slices.device_stride / rows.device_stride >= rows.count &&
         slices.host_stride / rows.host_stride >= rows.count;
}

// Returns the grid with the fewest boxes for neighbouring pages and a range of layers.
KV_HD constexpr BoxGrid box_grid(const PieceGrid& pieces, std::uint64_t pages, std::uint32_t layers) {
  BoxGrid grid;
  grid.width = pieces.piece_bytes;
  const auto axis_of = [](const PieceGrid::Axis& a, std::uint64_t count) {
    return BoxGrid::Axis{count, a.device_stride, a.host_stride};
  };
  grid.axes[0] = axis_of(pieces.head, pieces.head.count);
  grid.axes[1] = axis_of(pieces.token, pieces.token.count);
  grid.axes[2] = {pages, pieces.device_page, pieces.host_page};
  grid.axes[3] = axis_of(pieces.layer, layers);
  grid.axes[4] = axis_of(pieces.plane, pieces.plane.count);
  if (pieces.joins_pages()) {
    grid.width *= pages;
    grid.axes[2].count = 1;
  }
  // If the tokens of neighbouring pages continue with the same strides, token and page are one axis.
  BoxGrid::Axis& token = grid.axes[1];
  if (token.count > 1 && pieces.device_page == token.count * token.device_stride &&
      pieces.host_page == token.count * token.host_stride) {
    token.count *= grid.axes[2].count;
    grid.axes[2].count = 1;
  }
  BoxGrid best = grid;
  for (int height = 0; height < BoxGrid::kAxes; ++height) {
    if (grid.axes[height].count == 1) continue;
    for (int depth = 0; depth <= BoxGrid::kAxes; ++depth) {
      if (depth != BoxGrid::kNone && grid.axes[depth].count == 1) continue;
      if (!makes_boxes(grid, height, depth)) continue;
      grid.height = height;
      grid.depth = depth;
      if (grid.boxes() < best.boxes()) best = grid;
    }
  }
  return best;
}

// Returns how many bytes of one layer are contiguous within a page: of a token, of a page, or of a head and token, by
// the layout. 0 for layer_first, which does not keep a page together.
KV_HD constexpr std::uint64_t layer_slice_bytes(Layout layout, const KvShape& s) {
  switch (layout) {
    case Layout::layer_first: return 0;
    case Layout::page_first: return s.row_bytes();
    case Layout::page_first_direct: return s.row_bytes() * s.page_tokens;
    case Layout::page_head: return s.head_bytes;
  }
  return 0;
}

// Neighbouring whole pages in a staging buffer and in the host pool. Both have the same layout.
struct StagedPages {
  std::uint64_t pages = 0;
  std::uint64_t staging_first = 0, staging_pages = 0;  // the buffer as a pool
  std::uint64_t host_first = 0, host_pages = 0;
};

// Returns layers [begin, end) of these pages as one box, with the staging buffer as the device side. Requires: not
// layer_first.
KV_HD constexpr Box layer_slices(Layout layout, const KvShape& s, const StagedPages& at, std::uint32_t begin,
                                 std::uint32_t end) {
  const std::uint64_t slice = layer_slice_bytes(layout, s), pitch = s.layers * slice;
  const std::uint64_t plane = s.page_bytes() / s.planes;  // bytes of a page in one plane
  Box b;
  b.device_at = at.staging_first * plane + begin * slice;
  b.host_at = at.host_first * plane + begin * slice;
  b.width = (end - begin) * slice;
  b.height = at.pages * plane / pitch;
  b.depth = s.planes;
  b.device_pitch = b.host_pitch = pitch;
  b.device_slice = at.staging_pages * plane;
  b.host_slice = at.host_pages * plane;
  return b;
}

}  // namespace kvtwin
