// What generators of workloads draw.
#pragma once

#include "policy/base/types.hpp"
#include "traces/random.hpp"

namespace kvtwin {

// Given as mean and deviation of the logarithm.
struct LogNormal {
  double mu, sigma;
  double draw(Random& random) const { return random.lognormal(mu, sigma); }
};

// `value` in whole tokens, from `least` to `most`. Not a number: `least`.
inline Tokens clipped(double value, Tokens least, Tokens most) {
  if (!(value > static_cast<double>(least))) return least;
  return value >= static_cast<double>(most) ? most : static_cast<Tokens>(value);
}

// `time` and `gap` nanoseconds more. What no clock can tell any more is as late as it can.
inline TimeNs later_by(TimeNs time, double gap) {
  constexpr TimeNs kEndOfTime = 9'000'000'000'000'000'000;
  return gap < static_cast<double>(kEndOfTime - time) ? time + static_cast<TimeNs>(gap) : kEndOfTime;
}

}  // namespace kvtwin
