// Where the bytes of a page are in a pool, for the four layouts. CPU and kernels use the same arithmetic.
//
// A pool holds `pool_pages` pages of `page_tokens` tokens. Shapes, outermost dimension first
// (T = pool_pages * page_tokens; planes = 2 for K and V (MHA, GQA), 1 for the MLA latent):
//
//   layer_first        [planes][layers][T][heads][head_bytes]                    a page is planes * layers pieces
//   page_first         [planes][T][layers][heads][head_bytes]                    a page is planes pieces, token-major
//   page_first_direct  [planes][pool_pages][layers][page_tokens][heads][head_bytes]
//   page_head          [planes][pool_pages][heads][page_tokens][layers][head_bytes]   each head's slice contiguous
//
// Device pools are always layer_first. Source: SGLang HiCache's host pools. Errors: none. Requires: indices are in
// range.
#pragma once

#include <cstdint>
#include <string_view>

#if defined(__CUDACC__)
#define KV_HD __host__ __device__
#define KV_DEVICE __device__
#define KV_UNROLL _Pragma("unroll")
#else
#define KV_HD
#define KV_DEVICE
#define KV_UNROLL
#endif

namespace kvtwin {

enum class Layout : std::uint8_t { layer_first, page_first, page_first_direct, page_head };
constexpr std::string_view name_of(Layout layout) {
  switch (layout) {
    case Layout::layer_first: return "layer_first";
    case Layout::page_first: return "page_first";
    case Layout::page_first_direct: return "page_first_direct";
    case Layout::page_head: return "page_head";
  }
  return "";
}

// One rank's KV of one token: layers * planes * heads * head_bytes bytes.
struct KvShape {
  std::uint32_t layers = 0;
  std::uint32_t planes = 0;      // 2 = K and V, 1 = MLA latent (rank + rope)
  std::uint32_t heads = 0;       // KV heads of this rank; 1 for MLA
  std::uint32_t head_bytes = 0;  // bytes of one head's row of one token in one plane
  std::uint32_t page_tokens = 0;

  KV_HD constexpr std::uint64_t row_bytes() const { return std::uint64_t{heads} * head_bytes; }
  KV_HD constexpr std::uint64_t token_bytes() const { return row_bytes() * layers * planes; }
  KV_HD constexpr std::uint64_t page_bytes() const { return token_bytes() * page_tokens; }
};

// Pages that are neighbours on both sides of a transfer: slot source_first + i goes to slot target_first + i.
struct PageRun {
  std::uint32_t source_first = 0;
  std::uint32_t target_first = 0;
  std::uint32_t pages = 0;
  friend bool operator==(const PageRun&, const PageRun&) = default;
};

struct KvIndex {
  std::uint64_t page = 0;
  std::uint32_t plane = 0, layer = 0, token = 0, head = 0;  // token: within the page
};

// Byte offset of one head row from the pool's start.
KV_HD constexpr std::uint64_t byte_offset(Layout layout, const KvShape& s, std::uint64_t pool_pages, const KvIndex& i) {
  const std::uint64_t tokens = pool_pages * s.page_tokens;
  const std::uint64_t token = i.page * s.page_tokens + i.token;
  const std::uint64_t paged = i.plane * pool_pages + i.page;
  switch (layout) {
    case Layout::layer_first:
      return ((std::uint64_t{i.plane} * s.layers + i.layer) * tokens + token) * s.row_bytes() +
             std::uint64_t{i.head} * s.head_bytes;
    case Layout::page_first:
      return ((i.plane * tokens + token) * s.layers + i.layer) * s.row_bytes() + std::uint64_t{i.head} * s.head_bytes;
    case Layout::page_first_direct:
      return ((paged * s.layers + i.layer) * s.page_tokens + i.token) * s.row_bytes() +
             std::uint64_t{i.head} * s.head_bytes;
    case Layout::page_head:
      return (((paged * s.heads + i.head) * s.page_tokens + i.token) * s.layers + i.layer) * s.head_bytes;
  }
  return 0;
}

// One page in a layer_first device pool and in a host pool, as a grid of equal pieces that are contiguous in both. All
// paths that move pages iterate over this grid. An axis that lies within a piece has a count of 1.
struct PieceGrid {
  struct Axis {
    std::uint32_t count = 1;
    std::uint64_t device_stride = 0, host_stride = 0;  // bytes
  };
  std::uint64_t piece_bytes = 0;
  Axis head, token, layer, plane;
  std::uint64_t device_page = 0, host_page = 0;  // bytes from a page's first piece to the next page's first piece

  KV_HD constexpr std::uint64_t pieces() const {
    return std::uint64_t{head.count} * token.count * layer.count * plane.count;
  }
  // Returns whether neighbouring pages make one piece for each (plane, layer).
  KV_HD constexpr bool joins_pages() const { return device_page == piece_bytes && host_page == piece_bytes; }
};

// Returns the grid of all layers. The size of a pool only changes the strides.
KV_HD constexpr PieceGrid piece_grid(Layout host, const KvShape& s, std::uint64_t device_pages,
                                     std::uint64_t host_pages) {
  const Layout device = Layout::layer_first;
  PieceGrid grid;
  grid.piece_bytes = s.head_bytes;
  grid.head = {s.heads, byte_offset(device, s, device_pages, {.head = 1}),
               byte_offset(host, s, host_pages, {.head = 1})};
  grid.token = {s.page_tokens, byte_offset(device, s, device_pages, {.token = 1}),
                byte_offset(host, s, host_pages, {.token = 1})};
  grid.layer = {s.layers, byte_offset(device, s, device_pages, {.layer = 1}),
                byte_offset(host, s, host_pages, {.layer = 1})};
  grid.plane = {s.planes, byte_offset(device, s, device_pages, {.plane = 1}),
                byte_offset(host, s, host_pages, {.plane = 1})};
  grid.device_page = byte_offset(device, s, device_pages, {.page = 1});
  grid.host_page = byte_offset(host, s, host_pages, {.page = 1});
  if (s.page_tokens == 1) grid.token = {1, s.row_bytes(), s.row_bytes()};
  // Pieces are joined over heads, then over tokens. (They could be joined over layers only in pools of one page, which
  // is no reason for another plan.)
  if (s.heads == 1 || (grid.head.device_stride == s.head_bytes && grid.head.host_stride == s.head_bytes)) {
    grid.piece_bytes = s.row_bytes();
    grid.head.count = 1;
  }
  if (s.page_tokens == 1 ||
      (grid.head.count == 1 && grid.token.device_stride == s.row_bytes() && grid.token.host_stride == s.row_bytes())) {
    if (grid.head.count == 1) grid.piece_bytes = s.row_bytes() * s.page_tokens;
    grid.token.count = 1;
  }
  return grid;
}

}  // namespace kvtwin
