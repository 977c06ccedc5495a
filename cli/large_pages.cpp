#include "cli/large_pages.hpp"

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>

namespace kvtwin {
namespace {

constexpr std::size_t kLargePage = std::size_t{2} << 20, kLeast = 2 * kLargePage;

std::size_t whole_pages(std::size_t bytes) { return (bytes + kLargePage - 1) / kLargePage * kLargePage; }

class LargePages final : public std::pmr::memory_resource {
  // Mapped, so that what is freed goes back to the kernel, and with it that it was to be in large pages.
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (bytes < kLeast) return ::operator new (bytes, std::align_val_t{alignment});
    if (bytes > std::numeric_limits<std::size_t>::max() / 2) throw std::bad_alloc();
    const std::size_t length = whole_pages(bytes), mapped = length + kLargePage;
    void* const map = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) throw std::bad_alloc();
    auto* const start = static_cast<std::byte*>(map);
    const std::size_t before =
        whole_pages(reinterpret_cast<std::uintptr_t>(start)) - reinterpret_cast<std::uintptr_t>(start);
    if (before > 0) munmap(start, before);
    if (before < kLargePage) munmap(start + before + length, kLargePage - before);
    madvise(start + before, length, MADV_HUGEPAGE);  // a wish: it is only slower where it isn't granted
    return start + before;
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    if (bytes < kLeast) return ::operator delete (memory, std::align_val_t{alignment});
    munmap(memory, whole_pages(bytes));
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }
};

}  // namespace

std::pmr::memory_resource* large_pages() {
  static LargePages resource;
  return &resource;
}

}  // namespace kvtwin
