// 128-bit integers of the cost model. Sums and products saturate at the largest number instead of wrapping, so results
// are monotone for any input.
#pragma once

#include <cstdint>

namespace kvtwin {

__extension__ using Wide128 = unsigned __int128;

constexpr Wide128 kMaxWide128 = ~Wide128{0};

constexpr Wide128 saturated_sum(Wide128 a, Wide128 b) { return a > kMaxWide128 - b ? kMaxWide128 : a + b; }

constexpr Wide128 saturated_product(Wide128 a, Wide128 b) {
  Wide128 result = 0;
  return __builtin_mul_overflow(a, b, &result) ? kMaxWide128 : result;
}

// Returns a * b / divisor, rounded down (coarser if a * b exceeds 128 bits). Requires: divisor > 0.
constexpr Wide128 scaled_by(Wide128 a, Wide128 b, Wide128 divisor) {
  Wide128 result = 0;
  if (!__builtin_mul_overflow(a, b, &result)) return result / divisor;
  return a > b ? saturated_product(a / divisor, b) : saturated_product(b / divisor, a);
}

}  // namespace kvtwin
