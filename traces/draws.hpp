// Random draws of the trace generators.
#pragma once

#include "policy/base/types.hpp"
#include "traces/random.hpp"

namespace kvtwin {

// mu and sigma: mean and standard deviation of the logarithm.
struct LogNormal {
  double mu, sigma;
  double draw(Random& random) const { return random.lognormal(mu, sigma); }
};

// Rounds `value` down to whole tokens and limits the result to `least` .. `most`. Returns `least` for NaN.
inline Tokens clipped(double value, Tokens least, Tokens most) {
  if (!(value > static_cast<double>(least))) return least;
  return value >= static_cast<double>(most) ? most : static_cast<Tokens>(value);
}

// Returns `time` + `gap`, both in ns, and at most kEndOfTime (285 years), so that the sum cannot overflow.
inline TimeNs later_by(TimeNs time, double gap) {
  constexpr TimeNs kEndOfTime = 9'000'000'000'000'000'000;
  return gap < static_cast<double>(kEndOfTime - time) ? time + static_cast<TimeNs>(gap) : kEndOfTime;
}

}  // namespace kvtwin
