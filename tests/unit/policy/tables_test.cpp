// The memory resource from which the policy allocates its tables, and that all of them are freed.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <string_view>
#include <vector>

#include "policy/eviction/line.hpp"
#include "policy/index/radix_tree.hpp"
#include "tests/policy_test_support.hpp"

namespace kvtwin {
namespace {

// A memory resource that counts bytes. It is the default resource while it exists.
class Counting final : public std::pmr::memory_resource {
 public:
  Counting() : before_(std::pmr::set_default_resource(this)) {}
  ~Counting() override { std::pmr::set_default_resource(before_); }

  std::size_t bytes = 0;  // allocated and not yet freed

 private:
  void* do_allocate(std::size_t size, std::size_t alignment) override {
    bytes += size;
    return before_->allocate(size, alignment);
  }
  void do_deallocate(void* memory, std::size_t size, std::size_t alignment) override {
    bytes -= size;
    before_->deallocate(memory, size, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

  std::pmr::memory_resource* const before_;
};

struct Entry {
  std::uint32_t value = 0;
  bool is_gap() const { return value == 0; }
};

TEST(Tables, ALineThatShrinksKeepsNoMemory) {
  Counting memory;
  Line<Entry> line;
  for (std::uint32_t i = 1; i <= 1000; ++i) line.push({i}, [](auto, auto, auto) {});
  EXPECT_GE(memory.bytes, 1000 * sizeof(Entry));
  while (line.size() > 0) line.take(line.front());
  line.shrink();
  EXPECT_EQ(memory.bytes, 0U);
  line.push({7}, [](auto, auto, auto) {});
  EXPECT_EQ(line.at(line.front()).value, 7U);
}

TEST(Tables, TheIndexesAreTheProgramsChoiceUnderEachPolicy) {
  constexpr SlotId kPages = 2000;
  Counting memory;
  for (const std::string_view name : eviction_names()) {
    {
      RadixTree tree(make_eviction(name), nullptr);
      for (SlotId i = 0; i < kPages; ++i) {
        tree.insert(tree.root(), test::chain({i + 1}), test::slots(i, 1), {}, tree.next_stamp(), 0);
      }
      EXPECT_GE(memory.bytes, kPages * sizeof(Node)) << name;
    }
    EXPECT_EQ(memory.bytes, 0U) << name;
  }
}

}  // namespace
}  // namespace kvtwin
