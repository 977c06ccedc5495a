// Coefficients of cost models as integers: each is rounded once, from doubles computed only with + - * /.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvtwin {

constexpr std::uint64_t kFsPerNs = 1'000'000;

// Rounds half up. Not libm's rounding, which may differ in the last bit between machines.
inline std::uint64_t round_half_up(double value) {
  constexpr double kMaxInteger = 9.0e18;
  if (!(value > 0)) return 0;
  return static_cast<std::uint64_t>(std::min(value, kMaxInteger) + 0.5);
}

inline std::uint64_t femtoseconds(double work, double rate) {
  if (work <= 0 || rate <= 0) return 0;
  return std::max<std::uint64_t>(1, round_half_up(work * 1e15 / rate));
}

// At least 1.
inline std::uint64_t whole_rate(double rate) { return std::max<std::uint64_t>(1, round_half_up(rate)); }

}  // namespace kvtwin
