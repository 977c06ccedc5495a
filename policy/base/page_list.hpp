// One element per page of an index node: a vector of 16 bytes that can be cut and joined, as nodes are. One or two
// small elements are stored in the place of the pointer: with some traffic most nodes are single pages, and an
// allocation would cost a cache miss.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace kvtwin {

template <typename T>
class PageList {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  using value_type = T;
  using const_iterator = const T*;

  PageList() = default;
  explicit PageList(std::span<const T> elements) { append(elements); }
  PageList(PageList&& other) noexcept { swap(other); }
  PageList& operator=(PageList&& other) noexcept {
    PageList(std::move(other)).swap(*this);
    return *this;
  }
  ~PageList() {
    if (!is_inline()) std::allocator<T>().deallocate(heap_elements(), capacity_);
  }

  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  const T* data() const { return is_inline() ? reinterpret_cast<const T*>(bytes_.data()) : heap_elements(); }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  const T& operator[](std::size_t at) const { return data()[at]; }

  // Requires: the elements are not part of this list.
  void append(std::span<const T> elements) {
    if (elements.empty()) return;
    make_room(elements.size());
    std::memcpy(mutable_data() + size_, elements.data(), elements.size_bytes());
    size_ += static_cast<std::uint32_t>(elements.size());
  }

  // Appends `lower`. Cost: the longer list is moved within its own memory, the shorter one is copied.
  void join(PageList lower) {
    if (lower.size_ <= size_) return append(lower);
    lower.make_room(size_);
    std::memmove(lower.mutable_data() + size_, lower.data(), lower.size_ * sizeof(T));
    if (size_ > 0) std::memcpy(lower.mutable_data(), data(), size_ * sizeof(T));
    lower.size_ += size_;
    swap(lower);
  }

  // Removes the last `count` elements. If the list has become mostly empty, its memory is freed. Cost: O(1) per element
  // removed.
  void drop_tail(std::size_t count) {
    size_ -= static_cast<std::uint32_t>(count);
    if (is_inline()) return;
    if (size_ <= kInlineElements || (capacity_ > 64 && size_ < capacity_ / 4)) move_to(size_);
  }

  // Removes the first `count` elements and returns them. The shorter part is copied, the longer part keeps the memory,
  // unless that is then mostly empty. So to cut one page off a long tail costs one page.
  PageList cut(std::size_t count) {
    PageList rest;
    if (empty()) return rest;
    if (2 * count <= size_) {
      rest.append({data(), count});
      std::memmove(mutable_data(), data() + count, (size_ - count) * sizeof(T));
      drop_tail(count);
      if (!is_inline() && 2 * size_ < capacity_) move_to(size_);
    } else {
      rest.append({data() + count, size_ - count});
      drop_tail(size_ - count);
      swap(rest);
    }
    return rest;
  }

  friend bool operator==(const PageList& a, std::span<const T> b) { return std::ranges::equal(a, b); }

 private:
  static constexpr std::uint32_t kInlineElements = sizeof(T*) / sizeof(T);

  bool is_inline() const { return capacity_ == kInlineElements; }
  T* heap_elements() const {
    T* elements = nullptr;
    std::memcpy(&elements, bytes_.data(), sizeof elements);
    return elements;
  }
  T* mutable_data() { return const_cast<T*>(data()); }
  void swap(PageList& other) {
    std::swap(bytes_, other.bytes_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }
  void make_room(std::size_t more) {
    if (size_ + more > capacity_) move_to(std::max<std::size_t>(size_ + more, 2 * std::size_t{size_}));
  }
  // Moves the elements to memory of exactly this capacity, which is at least size().
  void move_to(std::size_t capacity) {
    PageList moved;
    if (capacity > kInlineElements) {
      T* const elements = std::allocator<T>().allocate(capacity);
      std::memcpy(moved.bytes_.data(), &elements, sizeof elements);
      moved.capacity_ = static_cast<std::uint32_t>(capacity);
    }
    moved.append(*this);
    swap(moved);
  }

  alignas(T*) std::array<std::byte,
                         sizeof(T*)> bytes_{};  // the elements, if they are at most kInlineElements; else the pointer
  std::uint32_t size_ = 0, capacity_ = kInlineElements;
};

}  // namespace kvtwin
