#include "lab/validate/validate_errors.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "lab/sweep/comparison.hpp"

namespace kvtwin {
namespace {

std::optional<ComparedFigure> figure_error(const FigureKind& kind, const ValidationCell& cell) {
  const auto predicted = cell.predicted.figures.find(kind.name);
  std::vector<double> values;
  for (const RunFigures& run : cell.measured) {
    const auto at = run.figures.find(kind.name);
    if (at != run.figures.end()) values.push_back(at->second);
  }
  if (predicted == cell.predicted.figures.end() || values.empty()) return std::nullopt;
  ComparedFigure error;
  error.kind = &kind;
  error.predicted = predicted->second;
  std::tie(error.measured, error.spread) = mean_and_spread(values, kind.share);
  if (const auto at = cell.predicted.intervals.find(kind.name); at != cell.predicted.intervals.end()) {
    error.interval = at->second;
  }
  if (kind.share) {
    error.error = error.predicted - error.measured;
  } else if (error.measured != 0) {
    error.error = error.predicted / error.measured - 1;
  }
  return error;
}

// Returns the TTFT of a request in each measured run; empty if a run did not complete the request.
std::vector<double> measured_ttfts(const ValidationCell& cell, std::uint64_t number,
                                   const RunFigures::Request& predicted, bool& other_prompt) {
  std::vector<double> ttfts;
  for (const RunFigures& run : cell.measured) {
    if (run.requests.empty()) continue;  // a source without requests
    const auto at = run.requests.find(number);
    if (at == run.requests.end()) return {};
    other_prompt = other_prompt || at->second.prompt_tokens != predicted.prompt_tokens;
    ttfts.push_back(at->second.ttft_s);
  }
  return ttfts;
}

std::optional<RequestErrors> request_errors(const ValidationCell& cell) {
  RequestErrors errors;
  std::vector<double> seconds, relative, spreads;
  for (const auto& [number, predicted] : cell.predicted.requests) {
    bool other_prompt = false;
    const std::vector<double> ttfts = measured_ttfts(cell, number, predicted, other_prompt);
    if (ttfts.empty()) {
      ++errors.one_side_only;
      continue;
    }
    if (other_prompt) {
      ++errors.other_prompts;
      continue;
    }
    ++errors.joined;
    const auto [mean, spread] = mean_and_spread(ttfts, false);
    seconds.push_back(std::abs(predicted.ttft_s - mean));
    if (mean > 0) relative.push_back(std::abs(predicted.ttft_s - mean) / mean);
    if (spread) spreads.push_back(*spread);
  }
  std::set<std::uint64_t> unpredicted;
  for (const RunFigures& run : cell.measured) {
    for (const auto& [number, measured] : run.requests) {
      if (!cell.predicted.requests.contains(number)) unpredicted.insert(number);
    }
  }
  if (errors.joined + errors.other_prompts == 0 && unpredicted.empty()) return std::nullopt;
  errors.one_side_only += unpredicted.size();
  errors.seconds = quantiles_of(std::move(seconds));
  errors.relative = quantiles_of(std::move(relative));
  if (!spreads.empty()) errors.spreads = quantiles_of(std::move(spreads));
  return errors;
}

double lane_time(const RunFigures& run, const LaneTime& lane) {
  const double units = lane.bytes != 0 ? lane.bytes : run.completed;
  return units == 0 ? 0 : lane.busy_s / units;
}

std::optional<LaneError> lane_error(const ValidationCell& cell, const std::string& name, const LaneTime& predicted) {
  LaneError error;
  error.lane = name;
  if (predicted.bytes == 0) error.unit = "request";
  std::vector<double> times;
  double bytes = 0, operations = 0;
  for (const RunFigures& run : cell.measured) {
    const auto at = run.lanes.find(name);
    if (at == run.lanes.end() || (at->second.bytes == 0) != (predicted.bytes == 0)) continue;
    times.push_back(lane_time(run, at->second));
    bytes += at->second.bytes;
    operations += at->second.operations;
  }
  if (times.empty()) return std::nullopt;
  std::tie(error.measured_s, error.spread) = mean_and_spread(times, false);
  error.predicted_s = lane_time(cell.predicted, predicted);
  if (error.measured_s <= 0 || error.predicted_s <= 0) return std::nullopt;
  error.ratio = error.predicted_s / error.measured_s;
  error.measured_bytes_an_operation = bytes / operations;
  error.predicted_bytes_an_operation = predicted.bytes / predicted.operations;
  error.off = std::max(error.ratio, 1 / error.ratio) - 1 > std::max(kLaneError, 2 * error.spread.value_or(0));
  return error;
}

void add_lanes(const ValidationCell& cell, CellErrors& errors) {
  bool has_lanes = false;
  for (const RunFigures& run : cell.measured) {
    has_lanes = has_lanes || !run.lanes.empty();
    for (const auto& [name, lane] : run.lanes) {
      const std::string words = name + ": used in the measured runs, not in the prediction";
      if (!cell.predicted.lanes.contains(name) &&
          std::ranges::find(errors.one_side_only, words) == errors.one_side_only.end()) {
        errors.one_side_only.push_back(words);
      }
    }
  }
  if (!has_lanes) return;
  for (const auto& [name, lane] : cell.predicted.lanes) {
    if (const auto error = lane_error(cell, name, lane)) {
      errors.lanes.push_back(*error);
    } else {
      errors.one_side_only.push_back(name + ": used in the prediction, not in the measured runs");
    }
  }
  std::ranges::stable_sort(errors.lanes, std::greater<>{},
                           [](const LaneError& lane) { return std::max(lane.ratio, 1 / lane.ratio); });
}

// Returns the cells that complete enough requests, measured and predicted, for a fair comparison.
std::vector<std::size_t> cells_that_serve_enough(std::span<const Ranked> ranked,
                                                 const std::vector<std::size_t>& cells) {
  double most_measured = 0, most_predicted = 0;
  for (const std::size_t cell : cells) {
    most_measured = std::max(most_measured, ranked[cell].measured_served);
    most_predicted = std::max(most_predicted, ranked[cell].predicted_served);
  }
  std::vector<std::size_t> serving;
  for (const std::size_t cell : cells) {
    if (ranked[cell].measured_served >= kMinServedShare * most_measured &&
        ranked[cell].predicted_served >= kMinServedShare * most_predicted) {
      serving.push_back(cell);
    }
  }
  return serving;
}

// Returns whether the repeats separate two cells. The interval of the difference is a little wider than Welch's.
bool are_separate(const Ranked& a, const Ranked& b) {
  const double half_a = estimate(a.measured).half.value_or(0), half_b = estimate(b.measured).half.value_or(0);
  return std::abs(a.mean() - b.mean()) > std::hypot(half_a, half_b);
}

Choice choice_of(std::span<const Ranked> ranked, const std::vector<std::size_t>& cells) {
  Choice choice;
  choice.cells = cells;
  const std::size_t best = *std::ranges::min_element(cells, {}, [&](std::size_t cell) { return ranked[cell].mean(); });
  choice.best.push_back(best);
  std::vector<std::pair<double, double>> pairs;
  for (const std::size_t cell : cells) {
    pairs.emplace_back(ranked[cell].mean(), ranked[cell].predicted);
    choice.has_repeats = choice.has_repeats || ranked[cell].measured.size() > 1;
    if (cell != best && !are_separate(ranked[cell], ranked[best])) choice.best.push_back(cell);
  }
  if (choice.best.size() == cells.size()) return choice;
  choice.tau = kendall_tau(pairs);
  choice.chosen = *std::ranges::min_element(cells, {}, [&](std::size_t cell) { return ranked[cell].predicted; });
  const bool among_best = std::ranges::find(choice.best, *choice.chosen) != choice.best.end();
  if (!among_best || choice.best.size() == 1) {
    const double least = ranked[best].mean();
    choice.regret = least == 0 ? 0 : ranked[*choice.chosen].mean() / least - 1;
  }
  return choice;
}

// The reason why the prediction lacks a figure that was measured.
std::string why_not_predicted(const RunFigures& predicted) {
  if (predicted.arrived == 0) {
    return predicted.planned == 0 ? "the prediction has no request"
                                  : "workload.limit ends before this stage, which should have " +
                                        std::to_string(predicted.planned) + " requests";
  }
  if (predicted.completed == 0) {
    return "the prediction completed no counted request, of " + std::to_string(predicted.arrived) + " that arrived";
  }
  return "the prediction does not have the figure";
}

}  // namespace

std::pair<double, std::optional<double>> mean_and_spread(std::span<const double> values, bool share) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  if (values.size() < 2) return {mean, std::nullopt};
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double deviation = std::sqrt(squares / (count - 1));
  if (share) return {mean, deviation};
  return {mean, mean == 0 ? std::nullopt : std::optional(deviation / std::abs(mean))};
}

Quantiles quantiles_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto rank = [&](std::size_t per_cent) { return values[(values.size() * per_cent + 99) / 100 - 1]; };
  return {rank(50), rank(90), rank(99), values.back()};
}

const ComparedFigure* CellErrors::figure(std::string_view name) const {
  const auto at = std::ranges::find_if(figures, [&](const ComparedFigure& error) { return error.kind->name == name; });
  return at == figures.end() ? nullptr : &*at;
}

CellErrors errors_of(const ValidationCell& cell) {
  CellErrors errors;
  for (const FigureKind& kind : figure_kinds()) {
    const auto has = [&](const RunFigures& run) { return run.figures.contains(kind.name); };
    const std::optional<ComparedFigure> error = figure_error(kind, cell);
    if (error) errors.figures.push_back(*error);
    if ((error && error->error) || std::ranges::none_of(cell.measured, has)) continue;
    errors.not_compared.push_back(kind.name);
    errors.why_not =
        error ? "the measured figure is 0, of which no error is a share" : why_not_predicted(cell.predicted);
  }
  const RunFigures& predicted = cell.predicted;
  if (predicted.arrived != 0 && predicted.arrived < predicted.planned) {
    errors.other_load = "workload.limit ends in this stage: the prediction has " + std::to_string(predicted.arrived) +
                        " of its " + std::to_string(predicted.planned) + " requests";
  }
  errors.requests = request_errors(cell);
  add_lanes(cell, errors);
  return errors;
}

std::optional<double> kendall_tau(std::span<const std::pair<double, double>> pairs) {
  std::int64_t agree = 0, first_differs = 0, second_differs = 0;
  const auto sign = [](double a, double b) { return (a > b) - (a < b); };
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const int first = sign(pairs[i].first, pairs[j].first), second = sign(pairs[i].second, pairs[j].second);
      agree += first * second;
      first_differs += first != 0;
      second_differs += second != 0;
    }
  }
  if (first_differs == 0 || second_differs == 0) return std::nullopt;
  // One root of the product, because two roots would make full agreement only nearly 1.
  return static_cast<double>(agree) /
         std::sqrt(static_cast<double>(first_differs) * static_cast<double>(second_differs));
}

double Ranked::mean() const { return mean_and_spread(measured, false).first; }

std::vector<Choice> choices_of(std::span<const Ranked> ranked) {
  std::map<std::string_view, std::vector<std::size_t>> by_work;
  for (std::size_t cell = 0; cell < ranked.size(); ++cell) by_work[ranked[cell].work].push_back(cell);
  std::vector<Choice> choices;
  for (const auto& entry : by_work) {
    const std::vector<std::size_t> cells = cells_that_serve_enough(ranked, entry.second);
    if (cells.size() > 1) choices.push_back(choice_of(ranked, cells));
  }
  std::ranges::sort(choices, {}, [](const Choice& choice) { return choice.cells.front(); });
  return choices;
}

}  // namespace kvtwin
