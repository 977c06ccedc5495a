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
  explicit Pool(const KvShape& s) : shape(s), bytes(kPages * s.page_bytes(), std::byte{0xDB}), pages(kPages) {
    for (std::uint32_t i = 0; i < kPages; ++i) {
      pages[i] = {{i, 7, 0, 0}, kPages - 1 - i, i * s.page_tokens, 0, 0};
    }
  }
  ContextPages step(std::uint32_t context, std::uint32_t fresh, std::uint32_t advance, std::uint32_t layer) {
    for (ContextPage& page : pages) {
      page.context = context;
      page.fresh = fresh;
    }
    return {shape, bytes.data(), kPages, pages.data(), pages.size(), layer, advance};
  }
  void write(std::uint32_t context, std::uint32_t fresh, std::uint32_t advance = 0) {
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer) write_context(step(context, fresh, advance, layer));
  }
  ContextFaults read(std::uint32_t context, std::uint32_t advance = 0) {
    ContextFaults faults;
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
      read_context(step(context, 0, advance, layer), nullptr, nullptr, faults);
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

// All elements are 1 in bf16, so each score is the number of elements of a row.
TEST(Context, MultipliesRowsByTheQuery) {
  const KvShape shape{1, 2, 1, 32, 4};
  Pool pool(shape);
  const std::uint16_t one = 0x3F80;
  for (std::size_t i = 0; i < pool.bytes.size(); i += 2) std::memcpy(&pool.bytes[i], &one, 2);
  alignas(16) std::byte query[32];
  for (std::size_t i = 0; i < sizeof query; i += 2) std::memcpy(&query[i], &one, 2);
  std::vector<float> scores(kPages * 2);
  ContextFaults faults;
  read_context(pool.step(4 * kPages - 1, 0, 0, 0), query, scores.data(), faults);
  for (std::size_t i = 0; i < scores.size(); ++i) EXPECT_EQ(scores[i], i / 2 < kPages - 1 ? 64.0F : 48.0F);
}

TEST(Context, RefusesWhatMakesNoSense) {
  Pool pool({2, 2, 1, 8, 2});
  EXPECT_TRUE(valid(pool.step(1, 1, 0, 1)));
  EXPECT_FALSE(valid(pool.step(1, 1, 0, 2)));
  ContextPages pages = pool.step(1, 1, 0, 0);
  pages.pool = nullptr;
  EXPECT_FALSE(valid(pages));
  pages = pool.step(1, 1, 0, 0);
  pages.pages = nullptr;
  EXPECT_FALSE(valid(pages));
  pages.count = 0;
  EXPECT_TRUE(valid(pages));
}

}  // namespace
}  // namespace kvtwin::test
