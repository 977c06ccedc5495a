#include "policy/transfer/layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace kvtwin {
namespace {

constexpr Layout kLayouts[] = {Layout::layer_first, Layout::page_first, Layout::page_first_direct, Layout::page_head};

// Layers, planes, heads, head bytes, page tokens: MHA and MLA, every dimension also degenerate.
std::vector<KvShape> small_shapes() {
  std::vector<KvShape> shapes;
  for (const std::uint32_t layers : {1u, 2u, 3u}) {
    for (const std::uint32_t planes : {1u, 2u}) {
      for (const std::uint32_t heads : {1u, 2u, 3u}) {
        for (const std::uint32_t tokens : {1u, 2u, 4u}) shapes.push_back({layers, planes, heads, 6, tokens});
      }
    }
  }
  return shapes;
}

template <typename Visit>
void for_each_row(const KvShape& s, std::uint64_t first_page, std::uint64_t pages, Visit visit) {
  for (std::uint64_t page = first_page; page < first_page + pages; ++page) {
    for (std::uint32_t plane = 0; plane < s.planes; ++plane) {
      for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
        for (std::uint32_t token = 0; token < s.page_tokens; ++token) {
          for (std::uint32_t head = 0; head < s.heads; ++head) visit(KvIndex{page, plane, layer, token, head});
        }
      }
    }
  }
}

TEST(Layout, OffsetsFillThePoolWithoutOverlap) {
  constexpr std::uint64_t kPoolPages = 3;
  for (const Layout layout : kLayouts) {
    for (const KvShape& shape : small_shapes()) {
      std::vector<std::uint64_t> offsets;
      for_each_row(shape, 0, kPoolPages,
                   [&](const KvIndex& i) { offsets.push_back(byte_offset(layout, shape, kPoolPages, i)); });
      std::sort(offsets.begin(), offsets.end());
      ASSERT_EQ(offsets.size() * shape.head_bytes, shape.page_bytes() * kPoolPages);
      for (std::size_t i = 0; i < offsets.size(); ++i) ASSERT_EQ(offsets[i], i * shape.head_bytes);
    }
  }
}

struct Piece {
  std::uint64_t device = 0, host = 0, bytes = 0;
};

// The pieces that `pages` neighbouring pages fall into: rows joined while they are neighbours on both sides.
std::vector<Piece> pieces(Layout host, const KvShape& shape, std::uint64_t pages) {
  constexpr std::uint64_t kDevicePool = 11, kHostPool = 13;  // neither is filled: no joins by accident at its ends
  std::vector<Piece> rows;
  for_each_row(shape, 0, pages, [&](const KvIndex& i) {
    KvIndex on_device = i, on_host = i;
    on_device.page += 2;
    on_host.page += 5;
    rows.push_back({byte_offset(Layout::layer_first, shape, kDevicePool, on_device),
                    byte_offset(host, shape, kHostPool, on_host), shape.head_bytes});
  });
  std::sort(rows.begin(), rows.end(), [](const Piece& a, const Piece& b) { return a.device < b.device; });
  std::vector<Piece> joined;
  for (const Piece& row : rows) {
    if (!joined.empty() && joined.back().device + joined.back().bytes == row.device &&
        joined.back().host + joined.back().bytes == row.host) {
      joined.back().bytes += row.bytes;
    } else {
      joined.push_back(row);
    }
  }
  return joined;
}

TEST(Layout, PieceIsWhatIsContiguousOnBothSides) {
  for (const Layout layout : kLayouts) {
    for (const KvShape& shape : small_shapes()) {
      for (const Piece& piece : pieces(layout, shape, 1))
        ASSERT_EQ(piece.bytes, piece_grid(layout, shape, 16, 16).piece_bytes);
    }
  }
}

TEST(Layout, PiecesJoinAcrossPagesWherePromised) {
  for (const Layout layout : kLayouts) {
    for (const KvShape& shape : small_shapes()) {
      const bool joins = piece_grid(layout, shape, 16, 16).joins_pages();
      // With one layer, page_head's last row of a page happens to adjoin the next page's first on both sides.
      if (layout == Layout::page_head && shape.layers == 1 && !joins) continue;
      const std::uint64_t factor = joins ? 3 : 1;
      for (const Piece& piece : pieces(layout, shape, 3))
        ASSERT_EQ(piece.bytes, factor * piece_grid(layout, shape, 16, 16).piece_bytes);
    }
  }
}

// The same arithmetic runs in kernels and at compile time.
constexpr KvShape kShape{2, 2, 4, 128, 16};
static_assert(kShape.page_bytes() == 2u * 2 * 4 * 128 * 16);
static_assert(byte_offset(Layout::layer_first, kShape, 8, {3, 1, 1, 5, 2}) == ((1u * 2 + 1) * 128 + 53) * 512 + 256);
static_assert(byte_offset(Layout::page_first, kShape, 8, {3, 1, 1, 5, 2}) == ((128u + 53) * 2 + 1) * 512 + 256);
static_assert(byte_offset(Layout::page_first_direct, kShape, 8, {3, 1, 1, 5, 2}) ==
              ((11u * 2 + 1) * 16 + 5) * 512 + 256);
static_assert(byte_offset(Layout::page_head, kShape, 8, {3, 1, 1, 5, 2}) == (((11u * 4 + 2) * 16 + 5) * 2 + 1) * 128);
static_assert(piece_grid(Layout::page_first, kShape, 8, 8).piece_bytes == 512);
static_assert(!piece_grid(Layout::page_first_direct, kShape, 8, 8).joins_pages());

TEST(Layout, OffsetsOfLargePoolsDoNotOverflow) {
  constexpr KvShape kLarge{80, 2, 8, 256, 64};
  constexpr std::uint64_t kPages = 1u << 20;  // 20 TiB and more
  for (const Layout layout : kLayouts) {
    const KvIndex last{kPages - 1, 1, 79, 63, 7};
    EXPECT_EQ(byte_offset(layout, kLarge, kPages, last), kLarge.page_bytes() * kPages - kLarge.head_bytes);
  }
}

}  // namespace
}  // namespace kvtwin
