#include "kernels/page_checksum.hpp"

namespace kvtwin {

std::uint64_t page_checksum(Layout layout, const KvShape& shape, const std::byte* pool, std::uint64_t pool_pages,
                            std::uint64_t page, std::uint32_t layer_begin, std::uint32_t layer_end) {
  std::uint64_t sum = 0;
  KvIndex at{.page = page};
  for (at.plane = 0; at.plane < shape.planes; ++at.plane) {
    for (at.layer = layer_begin; at.layer < layer_end; ++at.layer) {
      std::uint64_t offset = 0;  // in the block
      for (at.token = 0; at.token < shape.page_tokens; ++at.token) {
        for (at.head = 0; at.head < shape.heads; ++at.head) {
          const std::byte* row = pool + byte_offset(layout, shape, pool_pages, at);
          for (std::uint32_t byte = 0; byte < shape.head_bytes; ++byte, ++offset) {
            sum += checksum_part(at.plane, at.layer, offset, static_cast<std::uint32_t>(row[byte]));
          }
        }
      }
    }
  }
  return sum;
}

}  // namespace kvtwin
