#include "cli/large_pages.hpp"

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>

namespace kvtwin {
namespace {

constexpr std::size_t kLargePageBytes = std::size_t{2} << 20;
constexpr std::size_t kMinMappedBytes = 2 * kLargePageBytes;  // smaller blocks come from operator new

std::size_t whole_pages(std::size_t bytes) { return (bytes + kLargePageBytes - 1) / kLargePageBytes * kLargePageBytes; }

class LargePages final : public std::pmr::memory_resource {
  // Uses mmap(), so that freed memory, and the wish for huge pages, goes back to the kernel.
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (bytes < kMinMappedBytes) return ::operator new (bytes, std::align_val_t{alignment});
    if (bytes > std::numeric_limits<std::size_t>::max() / 2) throw std::bad_alloc();
    const std::size_t length = whole_pages(bytes), mapped = length + kLargePageBytes;
    void* const map = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) throw std::bad_alloc();
    auto* const start = static_cast<std::byte*>(map);
    const std::size_t before =
        whole_pages(reinterpret_cast<std::uintptr_t>(start)) - reinterpret_cast<std::uintptr_t>(start);
    if (before > 0) munmap(start, before);
    if (before < kLargePageBytes) munmap(start + before + length, kLargePageBytes - before);
    madvise(start + before, length, MADV_HUGEPAGE);  // may fail: then access is slower, and nothing else changes
    return start + before;
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    if (bytes < kMinMappedBytes) return ::operator delete (memory, std::align_val_t{alignment});
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
