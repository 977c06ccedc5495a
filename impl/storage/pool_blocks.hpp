// Where the bytes of a page are in a pool: in equal blocks, which one after another are the page's payload.
#pragma once

#include <cstdint>

#include "impl/storage/page_header.hpp"

namespace kvtwin {

// The blocks of a page: the layers of a plane in layer_first, else the planes.
constexpr std::uint64_t pool_blocks(const PageForm& form) {
  return std::uint64_t{form.shape.planes} * (form.layout == Layout::layer_first ? form.shape.layers : 1);
}
// Returns the offset of a block from the start of the pool.
constexpr std::uint64_t pool_block_offset(const PageForm& form, Pages pool_pages, SlotId slot, std::uint64_t block) {
  const std::uint32_t layers = form.layout == Layout::layer_first ? form.shape.layers : 1;
  return byte_offset(form.layout, form.shape, pool_pages,
                     {.page = slot,
                      .plane = static_cast<std::uint32_t>(block / layers),
                      .layer = static_cast<std::uint32_t>(block % layers)});
}

}  // namespace kvtwin
