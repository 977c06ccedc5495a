// Launchers of the kernels that write and check the bytes of page_pattern.hpp in pages of an index array. As in
// row_kernels.hpp, each launcher checks its arguments, launches on `stream` and returns without waiting.
// Returns: cudaErrorInvalidValue for invalid pages; cudaSuccess without a launch if there is no page.
#pragma once

#include <cuda_runtime_api.h>

#include <bit>
#include <cstdint>

#include "kernels/row_kernels.hpp"

namespace kvtwin {

// Ownership: all pointers are borrowed. Requires: kernels can reach the memory. Pages outside the pool are skipped.
struct PatternPages {
  KvShape shape;              // a block (one plane and layer: page_tokens * row_bytes) has less than 2^32 bytes
  std::byte* pool = nullptr;  // shape of `layout`, with pool_pages pages
  // Used in place of `pool`, as RowTransfer::device_blocks; only for layer_first.
  std::byte* const* blocks = nullptr;
  std::uint32_t block_alignment = 1;
  std::uint64_t pool_pages = 0;
  Layout layout = Layout::layer_first;
  const void* pages = nullptr;          // [count] of index_type
  const std::uint64_t* keys = nullptr;  // [count][4]
  IndexType index_type = IndexType::int64;
  std::uint64_t count = 0;
  std::uint32_t layer_begin = 0, layer_end = 0;
};

// The result of a check.
struct PatternFaults {
  std::uint64_t wrong = 0;           // number of wrong bytes
  std::uint64_t first = UINT64_MAX;  // position of the first one; see wrong_byte()
};

struct WrongByte {
  std::uint64_t index = 0;  // index in PatternPages::pages
  std::uint32_t plane = 0, layer = 0;
  std::uint64_t offset = 0;  // in the block
};

// Decodes PatternFaults::first. Requires: first != UINT64_MAX.
KV_HD constexpr WrongByte wrong_byte(const KvShape& shape, std::uint64_t first) {
  const std::uint64_t block_bytes = shape.row_bytes() * shape.page_tokens;
  const std::uint64_t block = first / block_bytes;
  return {block / shape.layers / shape.planes, static_cast<std::uint32_t>(block / shape.layers % shape.planes),
          static_cast<std::uint32_t>(block % shape.layers), first % block_bytes};
}

// Returns whether the launchers accept the pages.
inline bool valid(const PatternPages& p, const LaunchLimits& limits) {
  if (p.layer_begin > p.layer_end || p.layer_end > p.shape.layers || limits.ctas == 0) return false;
  if (!std::has_single_bit(p.block_alignment) || p.layout > Layout::page_head) return false;
  if (p.index_type != IndexType::int32 && p.index_type != IndexType::int64) return false;
  if (p.count == 0 || p.layer_begin == p.layer_end) return true;
  const std::uint64_t block_bytes = p.shape.row_bytes() * p.shape.page_tokens;
  if (p.blocks != nullptr ? p.layout != Layout::layer_first : p.pool == nullptr) return false;
  return p.shape.page_bytes() > 0 && block_bytes <= UINT32_MAX && p.pool_pages > 0 && p.pages != nullptr &&
         p.keys != nullptr;
}

cudaError_t launch_fill_pattern(const PatternPages& pages, const LaunchLimits& limits, cudaStream_t stream);

// Overwrites `faults` (GPU memory).
cudaError_t launch_check_pattern(const PatternPages& pages, PatternFaults* faults, const LaunchLimits& limits,
                                 cudaStream_t stream);

}  // namespace kvtwin
