#include "cli/large_pages.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <new>
#include <span>
#include <vector>

namespace kvtwin {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

bool lies_at(const void* memory, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(memory) % alignment == 0;
}

TEST(LargePages, TablesLieAsAskedAndLargeOnesWhereALargePageMayBegin) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{64}, 4 * kMiB - 64, 4 * kMiB, 7 * kMiB + 64}) {
    void* const memory = large_pages()->allocate(bytes, 64);
    EXPECT_TRUE(lies_at(memory, bytes < 4 * kMiB ? 64 : 2 * kMiB)) << bytes;
    const std::span table(static_cast<std::byte*>(memory), bytes);
    std::ranges::fill(table, std::byte{7});
    EXPECT_EQ(std::ranges::count(table, std::byte{7}), static_cast<std::ptrdiff_t>(bytes));
    large_pages()->deallocate(memory, bytes, 64);
  }
}

TEST(LargePages, WhatIsFreedIsTheKernelsAgain) {
  const std::size_t bytes = 5 * kMiB;
  auto* const memory = static_cast<std::byte*>(large_pages()->allocate(bytes, 64));
  const auto small = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident(6 * kMiB / small);
  EXPECT_EQ(mincore(memory, 6 * kMiB, resident.data()), 0);
  large_pages()->deallocate(memory, bytes, 64);
  for (std::size_t at = 0; at < 6 * kMiB; at += small) {
    ASSERT_EQ(mincore(memory + at, small, resident.data()), -1) << at;
    ASSERT_EQ(errno, ENOMEM);
  }
}

TEST(LargePages, MoreThanThereIsIsRefused) {
  for (const std::size_t bytes :
       {std::numeric_limits<std::size_t>::max() / 4, std::numeric_limits<std::size_t>::max()}) {
    EXPECT_THROW(static_cast<void>(large_pages()->allocate(bytes, 64)), std::bad_alloc);
  }
}

}  // namespace
}  // namespace kvtwin
