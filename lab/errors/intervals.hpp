// The 80 % intervals of a prediction's times.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/errors/error_model.hpp"
#include "models/json.hpp"

namespace kvtwin {

inline constexpr double kIntervalShare = 0.8;

struct TimeInterval {
  double low = 0, high = 0;  // seconds
};

// What the factors do to a figure (lab/report/figures.hpp).
enum class TimeKind : std::uint8_t { none, ttft, tpot, e2e };
TimeKind time_kind(std::string_view figure);

// `ttft_of_e2e`: share of the TTFT in the time from end to end. 1 for a figure that is no time.
double factor_on(TimeKind kind, const ErrorFactors::Factors& factors, double ttft_of_e2e);

// The interval of one figure with this value, in seconds.
// Requires: the kind is not none.
TimeInterval interval_of(const ErrorFactors& errors, TimeKind kind, double value, double ttft_of_e2e);

// Returns {"ttft_mean_s": [low, high], ...} of the figures that `section` has: ttft_seconds, tpot_seconds and
// e2e_seconds as in report.json.
Json intervals_json(const Json& section, const ErrorFactors& errors);

// Returns e.g. "TTFT mean 0.41 to 0.92 s, TPOT mean 0.0121 to 0.0162 s: 162 measured runs of sglang ...". Both: of
// report.json.
std::string intervals_text(const Json& intervals, const Json& of);

}  // namespace kvtwin
