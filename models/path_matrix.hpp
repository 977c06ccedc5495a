// A machine's matrix.csv (tests/gpu/bench): how fast each way of moving pages was, by direction, piece size and number
// of pieces; and what a planner makes of it.
//
// Comma-separated values with one line of column names, of which path, direction ("h2d", "d2h"), chunk_bytes, chunks
// and r_median are needed; lines that begin with "#" are skipped. Errors: ModelError, with the line, for a missing
// column, a row that isn't whole, and a field that is no number, or no direction.
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
  std::string path;  // as the table names it
  Direction direction = Direction::host_to_device;
  Bytes chunk = 0;           // of a piece
  std::uint64_t chunks = 0;  // pieces
  double rate = 0;           // over that of one big copy of as many bytes
};

std::vector<PathRate> parse_path_matrix(std::string_view csv, const std::string& file);

// Those of a planner's limits that a matrix tells; none where it lacks the cells.
//   copy_engine_min  the piece size from which on a batch of pieces is as good as anything, in transfers of as many
//                    pieces as were measured; twice the largest piece if it never is
//   box_min          the same of boxes' rows, in both directions
//   kernel_min_pieces  the number from which on a kernel is faster than a batch of pieces that are smaller than that
// As good as: within 5 % of it, since copy engines leave the multiprocessors alone. What others do (a loop of copies, a
// warp a row) counts for nothing: there is no such path to choose.
struct MeasuredLimits {
  std::optional<Bytes> copy_engine_min_h2d, copy_engine_min_d2h, box_min;
  std::optional<std::uint64_t> kernel_min_pieces;

  bool any() const { return copy_engine_min_h2d || copy_engine_min_d2h || box_min || kernel_min_pieces; }
};

MeasuredLimits limits_from(std::span<const PathRate> matrix);

}  // namespace kvtwin
