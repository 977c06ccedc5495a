#include "lab/plan/confidence.hpp"

#include <algorithm>

#include "lab/errors/intervals.hpp"
#include "models/calibration_fit.hpp"

namespace kvtwin {
namespace {

using Factors = ErrorFactors::Factors;

// Figures that depend on the times in a way that the factors do not tell.
bool is_unknown(std::string_view name) {
  return std::ranges::any_of(
      std::initializer_list<std::string_view>{"good", "hand_over", "requests_per_second", "prompt_tokens_per_second",
                                              "output_tokens_per_second", "saved_s", "price_per_million_tokens"},
      [&](std::string_view begin) { return name.starts_with(begin); });
}

double ttft_of_e2e(const Json& figures) {
  const auto figure = [&](const char* name) -> double {
    const auto at = figures.find(name);
    return at != figures.end() && at->is_number() ? at->get<double>() : 0;
  };
  const double e2e = figure("e2e_mean_s");
  return e2e > 0 ? std::clamp(figure("ttft_mean_s") / e2e, 0.0, 1.0) : 0;
}

}  // namespace

GoalOdds goal_odds(const std::vector<Goal>& goals, const Json& figures_of_run, const ErrorFactors& errors) {
  GoalOdds odds;
  if (errors.runs.empty()) return odds;
  const double ttft_share = ttft_of_e2e(figures_of_run);
  std::vector<Factors> holding = errors.runs;
  for (const Goal& goal : goals) {
    const std::string name(figures()[goal.figure].name);
    if (is_unknown(name)) odds.not_judged.push_back(name);
    const auto at = figures_of_run.find(name);
    if (is_unknown(name) || at == figures_of_run.end() || !at->is_number()) continue;
    const auto value = at->get<double>();
    const TimeKind kind = time_kind(name);
    std::erase_if(holding, [&](const Factors& by) { return !goal.met_by(value * factor_on(kind, by, ttft_share)); });
    if (kind == TimeKind::none) continue;
    odds.any = true;
    const TimeInterval interval = interval_of(errors, kind, value, ttft_share);
    odds.ranges[name] = {interval.low, interval.high};
  }
  odds.probability = static_cast<double>(holding.size() + 1) / static_cast<double>(errors.runs.size() + 2);
  return odds;
}

double value_with_probability(std::string_view figure, double value, const Json& figures, const ErrorFactors& errors,
                              double probability) {
  const TimeKind kind = time_kind(figure);
  if (kind == TimeKind::none) return value;
  std::vector<double> factors;
  for (const Factors& by : errors.runs) factors.push_back(factor_on(kind, by, ttft_of_e2e(figures)));
  std::ranges::sort(factors);
  return value * quantile_of(factors, probability);
}

}  // namespace kvtwin
