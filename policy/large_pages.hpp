// Memory for tables that are far larger than any cache and are read at random: from the kernel's large pages of 2 MiB
// where it has them to give, since with small ones almost each access is also a miss in the TLB. Small tables are
// allocated as ever.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace kvtwin {

constexpr std::size_t kLargePage = std::size_t{2} << 20;
// A wish: it is only slower where it isn't granted. `memory` begins where a large page may.
void ask_for_large_pages(void* memory, std::size_t bytes);

template <typename T>
struct LargePages {
  using value_type = T;

  LargePages() = default;
  template <typename U>
  LargePages(const LargePages<U>&) {}

  T* allocate(std::size_t count) {
    if (count > kMost) throw std::bad_array_new_length();
    void* const memory = ::operator new(count * sizeof(T), alignment(count));
    if (is_large(count)) ask_for_large_pages(memory, count * sizeof(T));
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t count) { ::operator delete(memory, alignment(count)); }
  friend bool operator==(LargePages, LargePages) { return true; }

 private:
  static constexpr std::size_t kMost = ~std::size_t{0} / 4 / sizeof(T);
  static bool is_large(std::size_t count) { return count * sizeof(T) >= 2 * kLargePage; }
  static std::align_val_t alignment(std::size_t count) {
    return std::align_val_t{is_large(count) ? kLargePage : alignof(T)};
  }
};

template <typename T>
using LargeVector = std::vector<T, LargePages<T>>;

}  // namespace kvtwin
