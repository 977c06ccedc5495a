// A machine's link.csv (tests/gpu/bench): the rates of the copy kernels by their number of thread blocks and stages,
// and of staged copies by the size of a portion; and the sizes for real runs that follow.
//
// Comma-separated values with one line of column names. Columns: kind, direction ("h2d", "d2h"), ctas, gbps; and, in
// tables from 2026-11-26 on, stages and portion_bytes. Lines that begin with "#" and rows of other kinds are skipped.
// Errors: ModelError with the line, for an incomplete row or a field that is no number or direction.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/error.hpp"
#include "policy/base/types.hpp"
#include "policy/transfer/plan.hpp"

namespace kvtwin {

struct CopyRate {
  std::string kind;  // kernel, ring, ring_stages or staged
  Direction direction = Direction::host_to_device;
  std::uint64_t ctas = 0, stages = 0;
  Bytes portion = 0;
  double rate = 0;  // GB/s
};

std::vector<CopyRate> parse_copy_rates(std::string_view csv, const std::string& file);

// Sizes that rates determine; none if the table lacks the rows. Each is the smallest one that reaches 95 % of the best
// rate in both directions: smaller ones leave more of the GPU to passes.
struct MeasuredSizes {
  std::optional<std::uint64_t> kernel_blocks, ring_blocks, ring_stages;
  std::optional<Bytes> staging_bytes;
};
MeasuredSizes sizes_from(const std::vector<CopyRate>& rates);

}  // namespace kvtwin
