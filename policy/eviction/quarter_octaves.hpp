// Histogram bins of a quarter octave. Bin 4 k + j, with k > 0 and j < 4, holds the numbers from (4 + j) 2^(k-1) to
// below (5 + j) 2^(k-1). The first 8 bins hold one number each.
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
// Returns the first number of the bin.
constexpr std::uint64_t quarter_octave_start(std::size_t bin) { return bin < 8 ? bin : (4 + bin % 4) << (bin / 4 - 1); }

}  // namespace kvtwin
