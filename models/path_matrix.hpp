// A machine's matrix.csv (tests/gpu/bench): the speed of each way to move pages, by direction, piece size and number of
// pieces, and the planner limits that follow.
//
// Comma-separated values with one line of column names. Required columns: path, direction ("h2d", "d2h"), chunk_bytes,
// chunks, r_median. Lines that begin with "#" are skipped.
// Errors: ModelError with the line, for a missing column, an incomplete row, or a field that is no number or direction.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/error.hpp"
#include "policy/base/types.hpp"
#include "policy/transfer/plan.hpp"

namespace kvtwin {

struct PathRate {
  std::string path;  // as in the table
  Direction direction = Direction::host_to_device;
  Bytes chunk = 0;           // bytes of a piece
  std::uint64_t chunks = 0;  // number of pieces
  double rate = 0;           // relative to one large copy of the same bytes
};

std::vector<PathRate> parse_path_matrix(std::string_view csv, const std::string& file);

// Planner limits that a matrix determines; none if the matrix lacks the cells.
//   copy_engine_min    smallest piece size from which a batch of pieces is as good as any path, with the largest
//                      measured number of pieces; twice the largest piece size if there is none
//   box_min            the same for rows of boxes, in both directions
//   kernel_min_pieces  number of pieces from which a kernel is faster than a batch, for pieces below copy_engine_min
// "As good" means within 5 %, because the copy engine leaves the multiprocessors free. Other paths of the table (a loop
// of copies, a warp per row) do not count, because the planner cannot choose them.
struct MeasuredLimits {
  std::optional<Bytes> copy_engine_min_h2d, copy_engine_min_d2h, box_min;
  std::optional<std::uint64_t> kernel_min_pieces;

  bool any() const { return copy_engine_min_h2d || copy_engine_min_d2h || box_min || kernel_min_pieces; }
};

MeasuredLimits limits_from(std::span<const PathRate> matrix);

}  // namespace kvtwin
