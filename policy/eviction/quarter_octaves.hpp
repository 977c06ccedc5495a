// Numbers in bins a quarter of an octave wide: bin 4 k + j, k > 0, holds [(4 + j) 2^(k-1), (5 + j) 2^(k-1)), the first
// 8 one number each.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace kvtwin {

constexpr std::size_t quarter_octave_of(std::uint64_t number) {
  if (number < 8) return static_cast<std::size_t>(number);
  const unsigned octave = static_cast<unsigned>(std::bit_width(number)) - 3;
  return 4 * octave + static_cast<std::size_t>(number >> octave);
}
// The first number in it; that of the next bin is the first one behind it.
constexpr std::uint64_t quarter_octave_start(std::size_t bin) { return bin < 8 ? bin : (4 + bin % 4) << (bin / 4 - 1); }

}  // namespace kvtwin
