// The pages that a pass reads and writes, tested with the CPU version of the kernels.
#include "kernels/context.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace kvtwin::test {
namespace {

constexpr std::uint32_t kPages = 6;

// A pool filled with 0xDB, and one sequence that uses all of its pages in reverse order.
struct Pool {
  explicit Pool(const KvShape& s)
      : shape(s),
        bytes(kPages * s.page_bytes(), std::byte{0xDB}),
        pages(kPages),
        folds(kPages * s.planes * kContextFolds) {
    for (std::uint32_t i = 0; i < kPages; ++i) {
      pages[i] = {{i, 7, 0, 0}, kPages - 1 - i, i * s.page_tokens, 0, 0};
    }
  }
  ContextPages step(std::uint32_t context, std::uint32_t fresh, std::uint32_t advance, std::uint32_t layer) {
    for (ContextPage& page : pages) {
      page.context = context;
      page.fresh = fresh;
    }
    now = {pages.data(), folds.data(), kPages, advance};
    return {shape, bytes.data(), kPages, &now, layer, check_every};
  }
  void write(std::uint32_t context, std::uint32_t fresh, std::uint32_t advance = 0) {
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer) write_context(step(context, fresh, advance, layer));
  }
  ContextFaults read(std::uint32_t context, std::uint32_t advance = 0) {
    ContextFaults faults;
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
      read_context(step(context, 0, advance, layer), faults);
    }
    return faults;
  }
  std::byte& at(std::uint32_t page, std::uint32_t plane, std::uint32_t layer, std::uint64_t offset) {
    return bytes[byte_offset(Layout::layer_first, shape, kPages,
                             {.page = pages[page].slot, .plane = plane, .layer = layer}) +
                 offset];
  }

  KvShape shape;
  std::vector<std::byte> bytes;
  std::vector<ContextPage> pages;
  std::vector<std::uint32_t> folds;
  ContextStep now;
  std::uint32_t check_every = 1;
};

std::vector<KvShape> shapes() {
  return {{2, 2, 2, 32, 4}, {3, 1, 1, 20, 1}, {2, 2, 1, 5, 3}, {1, 1, 1, 576, 16}};  // copied by 16, 4, 1 and 16 bytes
}

// Writes the sequence in parts that begin and end at any token. Then all tokens must be there, and no byte after them
// is changed.
TEST(Context, WritesWhatItReads) {
  for (const KvShape& shape : shapes()) {
    Pool pool(shape);
    const std::uint32_t most = kPages * shape.page_tokens - 1;
    std::uint32_t context = 0;
    for (std::uint32_t fresh = 1; context + fresh <= most; ++fresh) {
      pool.write(context, fresh);
      context += fresh;
      EXPECT_EQ(pool.read(context).wrong, 0U);
    }
    const ContextFaults behind = pool.read(context + 1);
    ASSERT_EQ(behind.wrong, shape.layers * shape.planes);
    EXPECT_EQ(behind.kept[0].page, context / shape.page_tokens);
    EXPECT_EQ(behind.kept[0].offset, context % shape.page_tokens * shape.row_bytes());
    EXPECT_EQ(behind.kept[0].got, 0xDBU);
  }
}

// Each step of a burst moves its tokens on by `advance`, with the same page table.
TEST(Context, AdvancesWithTheSteps) {
  for (const KvShape& shape : shapes()) {
    Pool pool(shape);
    const std::uint32_t steps = kPages * shape.page_tokens;
    for (std::uint32_t step = 0; step < steps; ++step) {
      EXPECT_EQ(pool.read(0, step).wrong, 0U);
      pool.write(0, 1, step);
      EXPECT_EQ(pool.read(0, step + 1).wrong, 0U);
    }
  }
}

TEST(Context, FindsEachWrongByte) {
  for (const KvShape& shape : shapes()) {
    Pool pool(shape);
    const std::uint32_t tokens = kPages * shape.page_tokens;
    pool.write(0, tokens);
    const std::uint64_t block = shape.row_bytes() * shape.page_tokens;
    for (std::uint64_t offset = 0; offset < block; ++offset) {
      const auto page = static_cast<std::uint32_t>(offset % kPages);
      const auto layer = static_cast<std::uint32_t>(offset % shape.layers);
      const auto plane = static_cast<std::uint32_t>(offset % shape.planes);
      pool.at(page, plane, layer, offset) ^= std::byte{0x40};
      const ContextFaults faults = pool.read(tokens);
      ASSERT_EQ(faults.wrong, 1U);
      EXPECT_EQ(faults.kept[0].page, page);
      EXPECT_EQ(faults.kept[0].layer, layer);
      EXPECT_EQ(faults.kept[0].plane, plane);
      EXPECT_EQ(faults.kept[0].offset, offset);
      EXPECT_EQ(faults.kept[0].got, static_cast<std::uint32_t>(pool.at(page, plane, layer, offset)));
      pool.at(page, plane, layer, offset) ^= std::byte{0x40};
    }
  }
}

TEST(Context, CountsAllAndKeepsTheFirst) {
  const KvShape shape{40, 2, 1, 8, 2};
  Pool pool(shape);
  const ContextFaults faults = pool.read(kPages * shape.page_tokens);
  EXPECT_EQ(faults.wrong, 40U * 2 * kPages);
}

// Pages outside the pool are neither read nor written.
TEST(Context, LeavesOutPagesOutsideThePool) {
  const KvShape shape{2, 2, 1, 8, 2};
  Pool pool(shape);
  for (ContextPage& page : pool.pages) page.slot += kPages;
  pool.write(0, kPages * shape.page_tokens);
  EXPECT_EQ(pool.read(kPages * shape.page_tokens).wrong, 0U);
  EXPECT_EQ(std::ranges::count(pool.bytes, std::byte{0xDB}), static_cast<std::ptrdiff_t>(pool.bytes.size()));
}

// A step that checks nothing still reads every byte: each byte has its effect on the folds.
TEST(Context, FoldsEveryByteThatItReads) {
  for (const KvShape& shape : shapes()) {
    Pool pool(shape);
    const std::uint32_t tokens = kPages * shape.page_tokens - 1;
    for (ContextPage& page : pool.pages) page.reads = 1;
    pool.check_every = kMostCheckEvery;
    ContextFaults faults;
    const std::uint64_t block = shape.row_bytes() * shape.page_tokens;
    for (std::uint64_t offset = 0; offset < block; ++offset) {
      const auto page = static_cast<std::uint32_t>(offset % kPages);
      read_context(pool.step(tokens, 0, 0, 0), faults);
      const std::vector<std::uint32_t> before = pool.folds;
      pool.at(page, 0, 0, offset) ^= std::byte{0x10};
      read_context(pool.step(tokens, 0, 0, 0), faults);
      const bool in_context = page * shape.page_tokens + offset / shape.row_bytes() < tokens;
      EXPECT_EQ(pool.folds != before, in_context) << "byte " << offset;
    }
    EXPECT_EQ(faults.checked, 0U);
    EXPECT_EQ(faults.wrong, 0U);
  }
}

// In any `check_every` steps that read a page, each block is checked at least once, and each step checks about the same
// share. The first step that reads a page checks all.
TEST(Context, ChecksEachBlockOnceInSoManySteps) {
  const KvShape shape{16, 2, 1, 16, 2};
  Pool pool(shape);
  pool.check_every = 8;
  const std::uint64_t block = shape.row_bytes() * shape.page_tokens;
  const std::uint64_t blocks = std::uint64_t{kPages} * shape.planes * shape.layers;
  EXPECT_EQ(pool.read(kPages * shape.page_tokens).checked, blocks * block);
  for (std::uint32_t i = 0; i < kPages; ++i) pool.pages[i].key[0] = 0x9E3779B97F4A7C15u * (i + 1);
  std::vector<std::uint32_t> last(blocks);  // the read that checked the block last
  for (std::uint32_t read = 1; read <= 40; ++read) {
    std::uint64_t checked = 0;
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
      const ContextPages pages = pool.step(kPages * shape.page_tokens, 0, read % 2, layer);
      for (ContextPage& page : pool.pages) page.reads = read - read % 2;  // the sum counts
      for (ContextBlocks at(0, 1, shape.planes); at.page < kPages; at.next()) {
        if (!checks_block(pages, pool.pages[at.page], at.plane, read % 2)) continue;
        std::uint32_t& before = last[(at.page * shape.planes + at.plane) * shape.layers + layer];
        EXPECT_LE(read - before, 8U);
        before = read;
        ++checked;
      }
    }
    EXPECT_NEAR(static_cast<double>(checked), static_cast<double>(blocks) / 8, static_cast<double>(blocks) / 16);
  }
  for (const std::uint32_t read : last) EXPECT_GT(read, 40U - 8);
}

TEST(Context, RefusesWhatMakesNoSense) {
  Pool pool({2, 2, 1, 8, 2});
  EXPECT_TRUE(valid(pool.step(1, 1, 0, 1)));
  EXPECT_FALSE(valid(pool.step(1, 1, 0, 2)));
  ContextPages pages = pool.step(1, 1, 0, 0);
  pages.pool = nullptr;
  EXPECT_FALSE(valid(pages));
  pages = pool.step(1, 1, 0, 0);
  pages.step = nullptr;
  EXPECT_FALSE(valid(pages));
  for (const std::uint32_t every : {0U, kMostCheckEvery + 1}) {
    pages = pool.step(1, 1, 0, 0);
    pages.check_every = every;
    EXPECT_FALSE(valid(pages));
  }
}

}  // namespace
}  // namespace kvtwin::test
