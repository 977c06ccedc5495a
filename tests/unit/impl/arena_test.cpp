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

}  // namespace
}  // namespace kvtwin
