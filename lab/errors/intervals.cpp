#include "lab/errors/intervals.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "lab/formatted.hpp"
#include "models/calibration_fit.hpp"

namespace kvtwin {
namespace {

// More digits would say nothing, and depend on the machine's exp().
double three_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return std::strtod(text, nullptr);
}

// The ends of an interval, as factors on the figure.
struct IntervalFactors {
  double low = 1, high = 1;
};

IntervalFactors interval_factors(const ErrorFactors& errors, TimeKind kind, double ttft_of_e2e) {
  std::vector<double> factors;
  for (const ErrorFactors::Factors& of : errors.runs) factors.push_back(factor_on(kind, of, ttft_of_e2e));
  std::ranges::sort(factors);
  const double middle = quantile_of(factors, 0.5), repeat = factor_on(kind, errors.repeat, ttft_of_e2e);
  const double low = quantile_of(factors, (1 - kIntervalShare) / 2),
               high = quantile_of(factors, (1 + kIntervalShare) / 2);
  return {std::min(low, middle / repeat), std::max(high, middle * repeat)};
}

TimeInterval around(double value, const IntervalFactors& factors) {
  return {three_digits(value * factors.low), three_digits(value * factors.high)};
}

}  // namespace

TimeKind time_kind(std::string_view figure) {
  if (figure.starts_with("ttft_")) return TimeKind::ttft;
  if (figure.starts_with("tpot_")) return TimeKind::tpot;
  if (figure.starts_with("e2e_")) return TimeKind::e2e;
  return TimeKind::none;
}

double factor_on(TimeKind kind, const ErrorFactors::Factors& factors, double ttft_of_e2e) {
  switch (kind) {
    case TimeKind::ttft: return factors.ttft;
    case TimeKind::tpot: return factors.tpot;
    case TimeKind::e2e: return ttft_of_e2e * factors.ttft + (1 - ttft_of_e2e) * factors.tpot;
    case TimeKind::none: break;
  }
  return 1;
}

TimeInterval interval_of(const ErrorFactors& errors, TimeKind kind, double value, double ttft_of_e2e) {
  return around(value, interval_factors(errors, kind, ttft_of_e2e));
}

Json intervals_json(const Json& section, const ErrorFactors& errors) {
  const auto mean = [&](const char* times) {
    const Json& value = section.at(times).at("mean");
    return value.is_number() ? value.get<double>() : 0.0;
  };
  const double e2e = mean("e2e_seconds");
  const double ttft_of_e2e = e2e > 0 ? std::clamp(mean("ttft_seconds") / e2e, 0.0, 1.0) : 0;
  Json json = Json::object();
  for (const char* times : {"ttft", "tpot", "e2e"}) {
    const IntervalFactors factors = interval_factors(errors, time_kind(std::string(times) + "_"), ttft_of_e2e);
    for (const auto& [quantile, value] : section.at(std::string(times) + "_seconds").items()) {
      if (!value.is_number() || quantile == "max") continue;
      const std::string name = std::string(times) + "_" + quantile + "_s";
      const TimeInterval interval = around(value, factors);
      json[name] = {interval.low, interval.high};
    }
  }
  return json;
}

std::string intervals_text(const Json& intervals, const Json& of) {
  std::string text;
  for (const auto& [name, words] : {std::pair{"ttft_mean_s", "TTFT mean "}, std::pair{"tpot_mean_s", "TPOT mean "}}) {
    if (!intervals.contains(name)) continue;
    const Json& interval = intervals.at(name);
    text += (text.empty() ? "" : ", ") + std::string(words) +
            formatted("%.3g to %.3g s", interval.at(0).get<double>(), interval.at(1).get<double>());
  }
  text += ": " + of.at("runs").get<std::string>();
  for (const Json& sentence : of.at("widened")) text += "; " + sentence.get<std::string>();
  return text;
}

}  // namespace kvtwin
