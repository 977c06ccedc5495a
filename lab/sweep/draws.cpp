#include "lab/sweep/draws.hpp"

#include <algorithm>
#include <cmath>

#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/report/figures.hpp"
#include "lab/sweep/sweep_run.hpp"
#include "models/calibration_fit.hpp"
#include "models/hardware_draws.hpp"
#include "models/json.hpp"

namespace kvtwin {
namespace {

SweepRows rows_of(const Experiment& experiment, SweepPlan& plan, int jobs, const Listener& listener) {
  SweepArguments arguments;
  arguments.jobs = jobs;
  plan.check();
  return run_sweep(arguments, plan, experiment, listener).rows;
}

std::optional<double> figure_of(const Json& row, const std::string& name) {
  const Json& figure = row.at(name);
  return figure.is_null() ? std::nullopt : std::optional(figure.get<double>());
}

Draws::Figure drawn_figure(const std::string& name, const SweepRows& rows) {
  Draws::Figure figure{name, figure_of(rows.front(), name), {}, {}, {}};
  std::vector<double> values;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const std::optional<double> value = figure_of(rows[i], name);
    if (!value) return figure;
    values.push_back(*value);
  }
  std::ranges::sort(values);
  figure.low = quantile_of(values, 0.025);
  figure.median = quantile_of(values, 0.5);
  figure.high = quantile_of(values, 0.975);
  return figure;
}

std::vector<Draws::Cause> causes_of(const Experiment& experiment, const std::vector<UncertainNumber>& numbers, int jobs,
                                    const Listener& listener) {
  SweepPlan plan;
  std::string ends;
  for (const UncertainNumber& number : numbers) {
    ends += (ends.empty() ? "" : ",") + number.key + ":low," + number.key + ":high";
  }
  plan.vary("hardware.end=" + ends);
  const SweepRows rows = rows_of(experiment, plan, jobs, listener);
  std::vector<Draws::Cause> causes;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const UncertainNumber& number = numbers[i];
    const auto at_low = figure_of(rows[2 * i], "ttft_mean_s"), at_high = figure_of(rows[2 * i + 1], "ttft_mean_s");
    if (!at_low || !at_high || *at_low == *at_high) continue;
    causes.push_back({number.key, number.low / number.value, number.high / number.value, *at_low, *at_high});
  }
  std::ranges::stable_sort(causes, std::greater<>(),
                           [](const Draws::Cause& cause) { return std::abs(cause.at_high - cause.at_low); });
  return causes;
}

}  // namespace

Draws simulate_draws(const Experiment& experiment, std::size_t draws, int jobs, const Listener& listener) {
  // A resolved experiment names both keys with their defaults.
  const auto refuse = [&](const char* key) {
    throw InputError("--draws: " + experiment.where(key) + " is set; leave it out, --draws goes through all of them");
  };
  if (experiment.integer("hardware.draw") != 0) refuse("hardware.draw");
  if (!experiment.text("hardware.end").empty()) refuse("hardware.end");
  Draws found;
  found.count = draws;
  found.spread_percent = experiment.number("hardware.spread_percent");
  const Setup setup = make_setup(experiment);
  const std::vector<UncertainNumber> numbers = uncertain_numbers(setup.hardware, found.spread_percent / 100);
  if (numbers.empty()) {
    throw InputError("--draws " + std::to_string(draws) + ": " + without_intervals(setup.hardware));
  }
  found.numbers = numbers.size();
  SweepPlan plan;
  plan.repeat("hardware.draw", 0, draws + 1, "--draws");
  const SweepRows rows = rows_of(experiment, plan, jobs, listener);
  for (const RunFigure& one : figures()) {
    if (one.better == RunFigure::Better::neither) continue;
    Draws::Figure figure = drawn_figure(std::string(one.name), rows);
    if (figure.value || one.column == RunFigure::Column::always) found.figures.push_back(std::move(figure));
  }
  found.hangs_on = causes_of(experiment, numbers, jobs, listener);
  return found;
}

}  // namespace kvtwin
