// A growing list without moves: elements are in chunks that stay where they are. Growing never holds two copies of the
// list, and wastes at most one chunk; many lists that grow together would else need half of their memory for copies.
// References stay valid until the list is destroyed.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

namespace kvtwin {

template <typename T, std::size_t kChunk = 256>
class ChunkedList {
  static_assert((kChunk & (kChunk - 1)) == 0);

 public:
  std::size_t size() const { return size_; }
  T& operator[](std::size_t at) { return (*chunks_[at / kChunk])[at % kChunk]; }
  const T& operator[](std::size_t at) const { return (*chunks_[at / kChunk])[at % kChunk]; }
  // Appends T{}.
  void grow() {
    if (size_ == kChunk * chunks_.size()) chunks_.push_back(std::make_unique<std::array<T, kChunk>>());
    ++size_;
  }

 private:
  std::vector<std::unique_ptr<std::array<T, kChunk>>> chunks_;
  std::size_t size_ = 0;
};

}  // namespace kvtwin
