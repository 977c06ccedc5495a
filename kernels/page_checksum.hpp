// A 64-bit checksum of a page's bytes that does not hang on the order in which they are read, nor on the layout that
// they lie in: the sum, modulo 2^64, over the little-endian 32-bit words of each block of one plane and layer
// ([token][head][head_bytes], the last word cut off at the block's end) of word * checksum_weight(its position). The
// weights are odd, so no change of one word goes unseen. Layer ranges add up: the page's sum is that of its parts.
// It guards against faults, not against forgery.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/page_pattern.hpp"
#include "policy/transfer/layout.hpp"

namespace kvtwin {

// word: within the block.
KV_HD constexpr std::uint64_t checksum_weight(std::uint32_t plane, std::uint32_t layer, std::uint64_t word) {
  return pattern_mix((((std::uint64_t{plane} << 24) | layer) << 32 | word) + 1) | 1;
}

// What `bytes` (1, 2 or 4) bytes at `offset` of a block, a multiple of `bytes`, add to the sum.
KV_HD constexpr std::uint64_t checksum_part(std::uint32_t plane, std::uint32_t layer, std::uint64_t offset,
                                            std::uint32_t value) {
  return (std::uint64_t{value} << (8 * (offset % 4))) * checksum_weight(plane, layer, offset / 4);
}

// CPU twin: page `page` of a pool of pool_pages pages, layers [layer_begin, layer_end).
std::uint64_t page_checksum(Layout layout, const KvShape& shape, const std::byte* pool, std::uint64_t pool_pages,
                            std::uint64_t page, std::uint32_t layer_begin, std::uint32_t layer_end);

}  // namespace kvtwin
