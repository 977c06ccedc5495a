// A first-in-first-out queue that also gives up entries from its middle. Such an entry leaves a gap, until the front
// reaches the gap or the line is closed up. The memory is a ring. Entries have consecutive numbers, modulo 2^32, which
// they keep when the ring grows.
// Requires of T: `bool is_gap() const`; T{} is a gap.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <utility>
#include <vector>

namespace kvtwin {

template <typename T>
class Line {
 public:
  std::size_t size() const { return entries_; }  // without the gaps
  const T& at(std::uint32_t number) const { return ring_[number & mask_]; }
  T& at(std::uint32_t number) { return ring_[number & mask_]; }
  std::uint32_t front() const { return first_; }   // requires a line that is not empty; never a gap
  std::uint32_t back() const { return end_ - 1; }  // of the entry that was pushed last, which may be a gap now
  // Returns whether the number lies between front() and back(): the entry is still there, or has left a gap there.
  bool in_range(std::uint32_t number) const { return number - first_ < end_ - first_; }

  // Appends the entry and returns its number. If the ring is full and half of it is gaps, the line is closed up first,
  // and moved(entry, before, now) gets the old and the new number of each entry.
  template <typename Moved>
  std::uint32_t push(const T& entry, Moved moved) {
    if (end_ - first_ == ring_.size()) {
      if (entries_ <= ring_.size() / 2) close_up(moved);
      if (end_ - first_ == ring_.size()) grow();
    }
    at(end_) = entry;
    ++entries_;
    return end_++;
  }
  // Puts an entry into the gap with this number. Requires: the line was not closed up since the gap was made. Returns
  // false if the front has passed the gap.
  bool put_back(std::uint32_t number, const T& entry) {
    if (!in_range(number)) return false;
    at(number) = entry;
    ++entries_;
    return true;
  }
  void take(std::uint32_t number) {
    at(number) = T{};
    --entries_;
    while (first_ != end_ && at(first_).is_gap()) ++first_;
  }

  // Requires an empty line. Frees the memory. The numbers continue.
  void shrink() {
    ring_ = std::pmr::vector<T>();
    mask_ = 0;
    first_ = end_;
  }

 private:
  template <typename Moved>
  void close_up(Moved moved) {
    std::uint32_t to = first_;
    for (std::uint32_t from = first_; from != end_; ++from) {
      if (at(from).is_gap()) continue;
      const T entry = std::exchange(at(from), T{});
      at(to) = entry;
      moved(entry, from, to++);
    }
    end_ = to;
  }
  void grow() {
    std::pmr::vector<T> ring(std::max<std::size_t>(16, 2 * ring_.size()));
    const auto mask = static_cast<std::uint32_t>(ring.size() - 1);
    for (std::uint32_t number = first_; number != end_; ++number) ring[number & mask] = at(number);
    ring_ = std::move(ring);
    mask_ = mask;
  }

  std::pmr::vector<T> ring_;  // 0 or 2^k places
  std::uint32_t mask_ = 0, first_ = 0, end_ = 0;
  std::size_t entries_ = 0;
};

}  // namespace kvtwin
