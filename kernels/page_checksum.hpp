// A 64-bit checksum of a page's bytes. The checksum does not depend on the order of reading or on the layout: the sum,
// modulo 2^64, of word * checksum_weight(position of the word), over the little-endian 32-bit words of each block (one
// plane and layer, [token][head][head_bytes]; the last word is cut off at the end of the block). The weights are odd,
// so every change of a single word changes the sum. The sum of a page is the sum of its layer ranges. The checksum
// detects faults, not forgery.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/page_pattern.hpp"
#include "policy/transfer/layout.hpp"

namespace kvtwin {

// `word`: index of the word in the block.
KV_HD constexpr std::uint64_t checksum_weight(std::uint32_t plane, std::uint32_t layer, std::uint64_t word) {
  return pattern_mix((((std::uint64_t{plane} << 24) | layer) << 32 | word) + 1) | 1;
}

// Returns the part of the sum of `bytes` (1, 2 or 4) bytes at `offset` of a block. Requires: `bytes` divides `offset`.
KV_HD constexpr std::uint64_t checksum_part(std::uint32_t plane, std::uint32_t layer, std::uint64_t offset,
                                            std::uint32_t value) {
  return (std::uint64_t{value} << (8 * (offset % 4))) * checksum_weight(plane, layer, offset / 4);
}

// CPU twin: the checksum of page `page` of a pool of `pool_pages` pages, for layers [layer_begin, layer_end).
std::uint64_t page_checksum(Layout layout, const KvShape& shape, const std::byte* pool, std::uint64_t pool_pages,
                            std::uint64_t page, std::uint32_t layer_begin, std::uint32_t layer_end);

}  // namespace kvtwin
