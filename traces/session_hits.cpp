#include "traces/session_hits.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "traces/random.hpp"

namespace kvtwin {
namespace {

constexpr double kLongestTime = 1e15;  // seconds; above every gap that this traffic can have

// The distribution function of the standard normal distribution. Source: Abramowitz and Stegun, Handbook of
// Mathematical Functions, 26.2.17; the absolute error is below 7.5e-8.
double normal_below(double z) {
  if (z < -37.0) return 0.0;
  if (z > 37.0) return 1.0;
  const double x = z < 0 ? -z : z;
  const double t = 1.0 / (1.0 + 0.2316419 * x);
  const double sum = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))));
  const double above = 0.3989422804014327 * exp_of(-0.5 * x * x) * sum;
  return z < 0 ? above : 1.0 - above;
}

// The time from a request to the follow-up: a constant and a log-normal time.
class Gap {
 public:
  explicit Gap(const SessionsConfig& config)
      : service_(config.service_s), think_(config.visible_think_s()), spread_(config.think_spread) {}

  // P(gap <= time)
  double ends_within(double time) const {
    if (time > kLongestTime) return 1.0;
    const double rest = time - service_;
    if (rest < 0) return 0.0;
    if (think_ == 0 || spread_ == 0) return rest >= think_ ? 1.0 : 0.0;
    return rest == 0 ? 0.0 : normal_below(score(rest));
  }
  // E[min(gap, time)]
  double mean_up_to(double time) const {
    const double rest = time - service_;
    if (rest <= 0) return time;
    if (think_ == 0 || spread_ == 0) return service_ + std::min(think_, rest);
    const double z = score(rest);
    return service_ + think_ * normal_below(z - spread_) + rest * (1.0 - normal_below(z));
  }

 private:
  double score(double think) const { return (log_of(think) - log_of(think_)) / spread_ + spread_ / 2.0; }

  double service_, think_, spread_;
};

}  // namespace

SessionHits estimate_session_hits(const SessionsConfig& config, double capacity_tokens, Tokens page_tokens,
                                  bool answers_cached) {
  const auto prompt = static_cast<double>(config.prompt_tokens), prefix = static_cast<double>(config.prefix_tokens);
  const auto answer = static_cast<double>(config.output_tokens);
  const double shared = static_cast<double>(config.prefix_tokens / page_tokens * page_tokens);
  if (capacity_tokens <= prefix) return {std::min(shared, capacity_tokens) / prompt, 0.0};
  const double left = prompt - prefix + (answers_cached ? answer : 0.0);
  const double p = config.follow_up_share();
  const Gap gap(config);

  const auto used_within = [&](double time) {
    return config.requests_per_second * left * ((1.0 - p) * time + p * gap.mean_up_to(time));
  };
  // The time in which other requests use `room` tokens.
  const auto residence = [&](double room) {
    if (room <= 0) return 0.0;
    if (used_within(kLongestTime) <= room) return std::numeric_limits<double>::infinity();
    double below = 0.0, above = 1e-9;
    while (used_within(above) < room) above *= 2.0;
    for (int i = 0; i < 60; ++i) {
      const double middle = below + (above - below) / 2.0;
      (used_within(middle) < room ? below : above) = middle;
    }
    return below;
  };

  // The variance of a sum of geometrically many terms.
  const double turns = config.turns, new_tokens = config.mean_new_tokens(),
               terms = turns - (answers_cached ? 0.0 : 1.0);
  const double spread = exp_of(config.length_spread * config.length_spread) - 1.0;
  const double variance = spread * (turns * new_tokens * new_tokens + terms * answer * answer) +
                          turns * (turns - 1.0) * (new_tokens + answer) * (new_tokens + answer);
  const double sigma2 = log_of(1.0 + variance / (left * left)), sigma = std::sqrt(sigma2);
  double returns = 0, weights = 0;
  constexpr double kStep = 0.5, kEnd = 5.0;  // in standard deviations of the logarithm of the prompt
  constexpr int kDepths = 4;
  for (double z = -kEnd; z <= kEnd; z += kStep) {
    const double weight = exp_of(-0.5 * z * z);
    const double own = left * exp_of(sigma2 / 2.0 + sigma * z);  // a token is in a longer prompt more likely
    for (int i = 0; i < kDepths; ++i) {
      const double depth = own * (i + 0.5) / kDepths;
      returns += weight * gap.ends_within(residence(capacity_tokens - prefix - depth));
      weights += weight;
    }
  }
  // A follow-up loses half a page on average. It never hits less than the shared prefix.
  const double own = std::max(0.0, prefix + left - static_cast<double>(page_tokens) / 2.0 - shared);
  return {std::min(1.0, (shared + p * returns / weights * own) / prompt), residence(capacity_tokens - prefix)};
}

}  // namespace kvtwin
