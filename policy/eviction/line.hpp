// First in, first out, and out of the middle too: what is taken from there leaves a gap, until the front gets to it or
// the line is closed up. A ring; entries have numbers in order, modulo 2^32, which they keep when the line grows.
// T: bool is_gap() const; a T{} is one.
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
  std::uint32_t front() const { return first_; }   // of a line that isn't empty: never a gap
  std::uint32_t back() const { return end_ - 1; }  // of what was pushed last, which may be a gap now
  // Was it pushed no earlier than what is the front now? Then it is still there, or a gap.
  bool reaches(std::uint32_t number) const { return number - first_ < end_ - first_; }

  // If it must be closed up for that, moved(entry, before, now) tells each one's new number.
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
  // An entry where one was taken from since the line was closed up last; false if the front has passed there.
  bool put_back(std::uint32_t number, const T& entry) {
    if (!reaches(number)) return false;
    at(number) = entry;
    ++entries_;
    return true;
  }
  void take(std::uint32_t number) {
    at(number) = T{};
    --entries_;
    while (first_ != end_ && at(first_).is_gap()) ++first_;
  }

  // Of a line that is empty: gives its memory back. Numbers go on.
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

  std::pmr::vector<T> ring_;  // of 0 or 2^k places
  std::uint32_t mask_ = 0, first_ = 0, end_ = 0;
  std::size_t entries_ = 0;
};

}  // namespace kvtwin
