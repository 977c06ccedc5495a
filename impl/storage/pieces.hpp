// The memory of one page as a list of spans. One after another, the spans are the payload of the page. A page of a host
// pool has one span per object, or a few.
//
// Ownership: the spans refer to memory of the caller. All functions are pure.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "policy/base/types.hpp"

namespace kvtwin {

using Pieces = std::vector<std::span<std::byte>>;

inline Bytes bytes_of(const Pieces& pieces) {
  Bytes bytes = 0;
  for (const std::span<std::byte> piece : pieces) bytes += piece.size();
  return bytes;
}
// Copies the pieces to `payload`. Requires: bytes_of(pieces) == payload.size().
inline void gather(const Pieces& pieces, std::span<std::byte> payload) {
  std::byte* at = payload.data();
  for (const std::span<std::byte> piece : pieces) {
    std::memcpy(at, piece.data(), piece.size());
    at += piece.size();
  }
}
// Copies `payload` to the pieces. Requires: bytes_of(pieces) == payload.size().
inline void scatter(std::span<const std::byte> payload, const Pieces& pieces) {
  const std::byte* at = payload.data();
  for (const std::span<std::byte> piece : pieces) {
    std::memcpy(piece.data(), at, piece.size());
    at += piece.size();
  }
}

}  // namespace kvtwin
