// A chunk is what vLLM offloads as one: the blocks of one group of layers for a whole number of blocks of tokens.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "policy/base/mix.hpp"
#include "policy/base/types.hpp"

namespace kvtwin {

struct ChunkKey {
  PageKey key;              // of the prefix that ends with the chunk
  std::uint32_t group = 0;  // of layers
  friend auto operator<=>(const ChunkKey&, const ChunkKey&) = default;
};

struct ChunkKeyHash {
  std::size_t operator()(const ChunkKey& key) const noexcept {
    return static_cast<std::size_t>(mixed_bits(key.key.words[0] + key.group * kGoldenRatio64));
  }
};

// A chunk of a request.
struct Chunk {
  ChunkKey key;
  Tokens end = 0;  // tokens of the prefix that ends with the chunk
};

// The answer of a look-up. Pending: the chunk is in a tier and cannot be read yet. Retry: not known yet.
enum class Found : std::uint8_t { miss, retry, pending, hit };
constexpr std::string_view name_of(Found found) {
  switch (found) {
    case Found::miss: return "miss";
    case Found::retry: return "retry";
    case Found::pending: return "pending";
    case Found::hit: return "hit";
  }
  return "";
}

}  // namespace kvtwin
