// What a node of the index has for each of its pages: a vector that keeps one or two small elements in the place of its
// pointer, since most nodes of some traffic are single pages, and an allocation would cost a cache miss. 16 bytes. It
// takes pages off and puts them together as nodes are split and joined.
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
    if (!is_few()) std::allocator<T>().deallocate(many(), capacity_);
  }

  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  // An address to read ahead, whatever lies there.
  const T* data() const { return is_few() ? reinterpret_cast<const T*>(bytes_.data()) : many(); }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  const T& operator[](std::size_t at) const { return data()[at]; }

  // Not its own.
  void append(std::span<const T> elements) {
    if (elements.empty()) return;
    make_room(elements.size());
    std::memcpy(mutable_data() + size_, elements.data(), elements.size_bytes());
    size_ += static_cast<std::uint32_t>(elements.size());
  }

  // Puts `lower` behind it, at the cost of moving whichever is longer within its own memory.
  void join(PageList lower) {
    if (lower.size_ <= size_) return append(lower);
    lower.make_room(size_);
    std::memmove(lower.mutable_data() + size_, lower.data(), lower.size_ * sizeof(T));
    if (size_ > 0) std::memcpy(lower.mutable_data(), data(), size_ * sizeof(T));
    lower.size_ += size_;
    swap(lower);
  }

  // A list that has become mostly empty is given back, at O(1) an element taken.
  void drop_tail(std::size_t count) {
    size_ -= static_cast<std::uint32_t>(count);
    if (is_few()) return;
    if (size_ <= kFew || (capacity_ > 64 && size_ < capacity_ / 4)) move_to(size_);
  }

  // Takes the first `count` off; returns them. The shorter part is copied and the longer keeps the list's memory,
  // unless that is mostly empty then: taking a page off a long tail costs a page.
  PageList cut(std::size_t count) {
    PageList rest;
    if (empty()) return rest;
    if (2 * count <= size_) {
      rest.append({data(), count});
      std::memmove(mutable_data(), data() + count, (size_ - count) * sizeof(T));
      drop_tail(count);
      if (!is_few() && 2 * size_ < capacity_) move_to(size_);
    } else {
      rest.append({data() + count, size_ - count});
      drop_tail(size_ - count);
      swap(rest);
    }
    return rest;
  }

  friend bool operator==(const PageList& a, std::span<const T> b) { return std::ranges::equal(a, b); }

 private:
  static constexpr std::uint32_t kFew = sizeof(T*) / sizeof(T);

  bool is_few() const { return capacity_ == kFew; }
  T* many() const {
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
  // Its elements to where exactly so many have room; at least as many as there are.
  void move_to(std::size_t capacity) {
    PageList moved;
    if (capacity > kFew) {
      T* const elements = std::allocator<T>().allocate(capacity);
      std::memcpy(moved.bytes_.data(), &elements, sizeof elements);
      moved.capacity_ = static_cast<std::uint32_t>(capacity);
    }
    moved.append(*this);
    swap(moved);
  }

  alignas(T*) std::array<std::byte, sizeof(T*)> bytes_{};  // where many elements are, or a few
  std::uint32_t size_ = 0, capacity_ = kFew;
};

}  // namespace kvtwin
