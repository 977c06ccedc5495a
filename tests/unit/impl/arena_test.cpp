#include "impl/runtime/arena.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/program.hpp"

namespace kvtwin {
namespace {

using test::Folder;
using test::write_text;

TEST(Arena, HoldsPoisonAndGoes) {
  const Arena arena(100'000);
  EXPECT_EQ(arena.bytes(), 100'000u);
  EXPECT_TRUE(std::all_of(arena.data(), arena.data() + arena.bytes(),
                          [](std::byte b) { return b == std::byte{Arena::kPoison}; }));
  EXPECT_EQ(Arena(0).data(), nullptr);
}

TEST(MemoryAvailable, IsTheLesserOfMachineAndControlGroup) {
  const Folder folder;
  write_text(folder.path() / "meminfo", "MemTotal: 9000000 kB\nMemAvailable: 4000 kB\n");
  const auto available = [&] { return memory_available(folder.path(), folder.path()); };
  EXPECT_EQ(available(), 4000u * 1024);  // no control group
  write_text(folder.path() / "memory.max", "max\n");
  write_text(folder.path() / "memory.current", "1000000\n");
  EXPECT_EQ(available(), 4000u * 1024);
  write_text(folder.path() / "memory.max", "3000000\n");
  EXPECT_EQ(available(), 2'000'000u);
  // Cached files are given back when memory is wanted.
  write_text(folder.path() / "memory.stat",
             "anon 5\ninactive_file 300000\nactive_file 200000\nslab_reclaimable 50000\n");
  EXPECT_EQ(available(), 2'550'000u);
  write_text(folder.path() / "memory.stat", "inactive_file 99999999\n");
  EXPECT_EQ(available(), 3'000'000u);
  write_text(folder.path() / "memory.stat", "anon 1\n");
  write_text(folder.path() / "memory.current", "3000001\n");
  EXPECT_EQ(available(), 0u);  // none left, which isn't the same as not known
  const Folder empty;
  EXPECT_EQ(memory_available(empty.path(), empty.path()), std::nullopt);
}

// Past the limit, the kernel ends a process that touches its huge pages.
TEST(HugePagesAllowed, IsWhatTheControlGroupLeaves) {
  constexpr Bytes kMiB = Bytes{1} << 20;
  const Folder folder;
  const auto allowed = [&](Bytes bytes) { return huge_pages_allowed(bytes, folder.path()); };
  EXPECT_TRUE(allowed(Bytes{1} << 40)) << "no control group";
  write_text(folder.path() / "hugetlb.2MB.max", "max\n");
  write_text(folder.path() / "hugetlb.2MB.current", "4194304\n");
  EXPECT_TRUE(allowed(Bytes{1} << 40)) << "no limit";
  write_text(folder.path() / "hugetlb.2MB.max", "8388608\n");
  EXPECT_TRUE(allowed(4 * kMiB));
  EXPECT_FALSE(allowed(6 * kMiB));
  write_text(folder.path() / "hugetlb.2MB.max", "0\n");
  EXPECT_FALSE(allowed(2 * kMiB));
  write_text(folder.path() / "hugetlb.2MB.max", "max\n");
  write_text(folder.path() / "hugetlb.2MB.rsvd.max", "2097152\n");
  EXPECT_TRUE(allowed(2 * kMiB));
  EXPECT_FALSE(allowed(4 * kMiB)) << "a limit of reservations";
  // Version 1 of control groups.
  const Folder first;
  std::filesystem::create_directory(first.path() / "hugetlb");
  write_text(first.path() / "hugetlb/hugetlb.2MB.limit_in_bytes", "9223372036852678656\n");
  EXPECT_TRUE(huge_pages_allowed(Bytes{1} << 40, first.path())) << "no limit";
  write_text(first.path() / "hugetlb/hugetlb.2MB.limit_in_bytes", "0\n");
  EXPECT_FALSE(huge_pages_allowed(2 * kMiB, first.path()));
}

}  // namespace
}  // namespace kvtwin
