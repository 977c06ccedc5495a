#include "kernels/page_checksum.hpp"

#include <bit>
#include <cstring>

namespace kvtwin {
namespace {

// Returns the sum of `bytes` bytes at `offset` of a block. Reads whole words where possible.
std::uint64_t sum_of_row(std::uint32_t plane, std::uint32_t layer, std::uint64_t offset, const std::byte* row,
                         std::uint32_t bytes) {
  std::uint64_t sum = 0;
  std::uint32_t at = 0;
  const auto add_byte = [&] {
    sum += checksum_part(plane, layer, offset + at, static_cast<std::uint32_t>(row[at]));
    ++at;
  };
  while (at < bytes && (offset + at) % 4 != 0) add_byte();
  if constexpr (std::endian::native == std::endian::little) {
    for (; bytes - at >= 4; at += 4) {
      std::uint32_t word = 0;
      std::memcpy(&word, row + at, 4);
      sum += checksum_part(plane, layer, offset + at, word);
    }
  }
  while (at < bytes) add_byte();
  return sum;
}

}  // namespace

std::uint64_t page_checksum(Layout layout, const KvShape& shape, const std::byte* pool, std::uint64_t pool_pages,
                            std::uint64_t page, std::uint32_t layer_begin, std::uint32_t layer_end) {
  std::uint64_t sum = 0;
  KvIndex at{.page = page};
  for (at.plane = 0; at.plane < shape.planes; ++at.plane) {
    for (at.layer = layer_begin; at.layer < layer_end; ++at.layer) {
      std::uint64_t offset = 0;  // in the block
      for (at.token = 0; at.token < shape.page_tokens; ++at.token) {
        for (at.head = 0; at.head < shape.heads; ++at.head, offset += shape.head_bytes) {
          const std::byte* row = pool + byte_offset(layout, shape, pool_pages, at);
          sum += sum_of_row(at.plane, at.layer, offset, row, shape.head_bytes);
        }
      }
    }
  }
  return sum;
}

}  // namespace kvtwin
