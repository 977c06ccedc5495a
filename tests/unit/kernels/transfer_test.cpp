#include "kernels/transfer.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/page_pattern.hpp"
#include "policy/base/types.hpp"

namespace kvtwin {
namespace {

constexpr Layout kLayouts[] = {Layout::layer_first, Layout::page_first, Layout::page_first_direct, Layout::page_head};

struct Way {
  const char* name;
  std::function<void(const TransferParams&)> copy;
};

// Returns the copy functions that support the layout. The staged copy gets a buffer of two pages.
std::vector<Way> ways(Layout layout, const KvShape& shape) {
  std::vector<Way> list{{"copy_pieces", copy_pieces}, {"copy_rows", copy_rows}};
  if (layout != Layout::layer_first) {
    list.push_back({"copy_staged", [bytes = shape.page_bytes()](const TransferParams& params) {
                      std::vector<std::byte> staging(2 * bytes);
                      copy_staged(params, staging.data(), 2);
                    }});
  }
  return list;
}

// Address space that takes physical memory only where it is accessed.
class Sparse {
 public:
  explicit Sparse(std::uint64_t bytes) : bytes_(bytes) {
    void* const mapped =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return;
    madvise(mapped, bytes, MADV_NOHUGEPAGE);
    data_ = static_cast<std::byte*>(mapped);
  }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  ~Sparse() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_;
};

// Calls visit(seed, token, head) for each head row of a page, with its place in the pool.
template <typename Visit>
void for_rows(Layout layout, const KvShape& s, std::uint64_t pool_pages, SlotId slot, std::uint64_t key_word,
              const Visit& visit) {
  const std::uint64_t key[4] = {key_word, 1, 2, 3};
  for (std::uint32_t plane = 0; plane < s.planes; ++plane) {
    for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
      for (std::uint32_t token = 0; token < s.page_tokens; ++token) {
        for (std::uint32_t head = 0; head < s.heads; ++head) {
          visit(byte_offset(layout, s, pool_pages, {slot, plane, layer, token, head}), pattern_seed(key, layer, plane),
                token * s.row_bytes() + head * s.head_bytes);
        }
      }
    }
  }
}

void write_page(std::byte* pool, Layout layout, const KvShape& s, std::uint64_t pool_pages, SlotId slot,
                std::uint64_t key) {
  for_rows(layout, s, pool_pages, slot, key, [&](std::uint64_t at, std::uint64_t seed, std::uint64_t offset) {
    for (std::uint32_t i = 0; i < s.head_bytes; ++i)
      pool[at + i] = static_cast<std::byte>(pattern_byte(seed, offset + i));
  });
}

bool page_is(const std::byte* pool, Layout layout, const KvShape& s, std::uint64_t pool_pages, SlotId slot,
             std::uint64_t key) {
  bool equal = true;
  for_rows(layout, s, pool_pages, slot, key, [&](std::uint64_t at, std::uint64_t seed, std::uint64_t offset) {
    for (std::uint32_t i = 0; i < s.head_bytes; ++i) {
      equal = equal && pool[at + i] == static_cast<std::byte>(pattern_byte(seed, offset + i));
    }
  });
  return equal;
}

// Pools of 12 GiB: offsets on both sides exceed 2^31 and 2^32, also within a plane.
TEST(Transfer, ReachesPagesBehindFourGiB) {
  constexpr KvShape kShape{2, 2, 2, 48, 16};  // 6 KiB a page
  constexpr SlotId kPages = 2u << 20;
  const Sparse device(kPages * kShape.page_bytes()), host(kPages * kShape.page_bytes());
  ASSERT_TRUE(device.data() != nullptr && host.data() != nullptr) << "24 GiB of addresses, hardly any of memory";
  // Runs of adjacent pages at both ends of the pool, and in the middle, where offsets pass the limits of signed and
  // unsigned 32-bit numbers.
  const std::vector<PageRun> runs{{0, kPages - 3, 3}, {kPages - 1, 0, 1}, {kPages / 2 - 1, kPages / 2 - 2, 4}};
  std::vector<PageRun> back;
  for (const PageRun& run : runs) back.push_back({run.target_first, run.source_first, run.pages});
  std::uint64_t key = 1;
  for (const Layout layout : kLayouts) {
    for (const Way& way : ways(layout, kShape)) {
      SCOPED_TRACE(std::string(way.name) + ", layout " + std::to_string(static_cast<int>(layout)));
      TransferParams params;
      params.shape = kShape;
      params.device = device.data();
      params.device_pages = kPages;
      params.host = host.data();
      params.host_pages = kPages;
      params.host_layout = layout;
      params.layer_end = kShape.layers;
      params.run_count = runs.size();

      const std::uint64_t first_key = key;
      for (const PageRun& run : runs) {
        for (std::uint32_t i = 0; i < run.pages; ++i) {
          write_page(device.data(), Layout::layer_first, kShape, kPages, run.source_first + i, key++);
        }
      }
      params.to_device = false;
      params.runs = runs.data();
      way.copy(params);
      std::uint64_t expected = first_key;
      for (const PageRun& run : runs) {
        for (std::uint32_t i = 0; i < run.pages; ++i, ++expected) {
          EXPECT_TRUE(page_is(host.data(), layout, kShape, kPages, run.target_first + i, expected))
              << "host slot " << run.target_first + i;
          write_page(device.data(), Layout::layer_first, kShape, kPages, run.source_first + i, 0);
        }
      }
      params.to_device = true;
      params.runs = back.data();
      way.copy(params);
      expected = first_key;
      for (const PageRun& run : runs) {
        for (std::uint32_t i = 0; i < run.pages; ++i, ++expected) {
          EXPECT_TRUE(page_is(device.data(), Layout::layer_first, kShape, kPages, run.source_first + i, expected))
              << "device slot " << run.source_first + i;
        }
      }
    }
  }
}

TEST(Transfer, NoRunsNoBytes) {
  constexpr KvShape kShape{2, 2, 1, 8, 4};
  for (const Layout layout : kLayouts) {
    for (const Way& way : ways(layout, kShape)) {
      TransferParams params;
      params.shape = kShape;
      params.device_pages = params.host_pages = 4;
      params.host_layout = layout;
      params.layer_end = kShape.layers;
      way.copy(params);  // if it accessed memory, it would read a null pointer
      const PageRun empty{1, 1, 0};
      params.runs = &empty;
      params.run_count = 1;
      way.copy(params);
    }
  }
}

TEST(Transfer, LayersThatArentAskedForStayAsTheyAre) {
  constexpr KvShape kShape{3, 2, 2, 5, 3};
  constexpr std::uint64_t kPages = 4;
  const PageRun run{1, 2, 2};
  for (const Layout layout : kLayouts) {
    for (const bool by_rows : {false, true}) {
      std::vector<std::byte> device(kPages * kShape.page_bytes()), host(kPages * kShape.page_bytes());
      for (SlotId page = 0; page < kPages; ++page) write_page(host.data(), layout, kShape, kPages, page, page);
      TransferParams params;
      params.shape = kShape;
      params.device = device.data();
      params.host = host.data();
      params.device_pages = params.host_pages = kPages;
      params.host_layout = layout;
      params.runs = &run;
      params.run_count = 1;
      for (std::uint32_t layer = 0; layer < kShape.layers; ++layer) {
        EXPECT_FALSE(page_is(device.data(), Layout::layer_first, kShape, kPages, 2, 1));
        params.layer_begin = layer;
        params.layer_end = layer + 1;
        by_rows ? copy_rows(params) : copy_pieces(params);
      }
      EXPECT_TRUE(page_is(device.data(), Layout::layer_first, kShape, kPages, 2, 1));
      EXPECT_TRUE(page_is(device.data(), Layout::layer_first, kShape, kPages, 3, 2));
    }
  }
}

}  // namespace
}  // namespace kvtwin
