// The bytes that a real run writes into KV pages in place of a model's keys and values: a function of (page key, layer,
// plane). So every byte that is read later can be checked, wherever the page has been in the meantime.
//
// The block of one page, layer and plane has page_tokens * row_bytes bytes, [token][head][head_bytes]: little-endian
// 32-bit words, word i = pattern_word(seed, i), cut off at the end of the block. CPU and kernels compute the same
// bytes. Blocks with different seeds differ in nearly every word.
#pragma once

#include <cstddef>
#include <cstdint>

#include "policy/transfer/layout.hpp"

namespace kvtwin {

KV_HD constexpr std::uint64_t pattern_mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// `key`: the four words of the page key.
KV_HD constexpr std::uint64_t pattern_seed(const std::uint64_t* key, std::uint32_t layer, std::uint32_t plane) {
  const std::uint64_t block = (std::uint64_t{layer} << 32) | plane;
  return pattern_mix(pattern_mix(key[0] ^ pattern_mix(key[1] + 1)) ^ pattern_mix(key[2] ^ pattern_mix(key[3] + 2)) ^
                     pattern_mix(block + 3));
}

KV_HD constexpr std::uint32_t pattern_word(std::uint64_t seed, std::uint32_t index) {
  std::uint32_t x = static_cast<std::uint32_t>(seed) + index * 0x9E3779B9u;
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x ^= x >> 15;
  return x ^ static_cast<std::uint32_t>(seed >> 32);
}

KV_HD constexpr std::uint8_t pattern_byte(std::uint64_t seed, std::uint64_t offset) {
  return static_cast<std::uint8_t>(pattern_word(seed, static_cast<std::uint32_t>(offset / 4)) >> (8 * (offset % 4)));
}

// ---- CPU twins ---------------------------------------------------------------------------------------------

// Writes the bytes [begin, end) of a block. `block`: address of its first byte.
void fill_pattern(std::byte* block, std::uint64_t seed, std::uint64_t begin, std::uint64_t end);

// Returns the offset of the first byte in [begin, end) that differs from the pattern, or `end`.
std::uint64_t check_pattern(const std::byte* block, std::uint64_t seed, std::uint64_t begin, std::uint64_t end);

}  // namespace kvtwin
