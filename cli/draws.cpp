#include "cli/draws.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/error.hpp"
#include "cli/setup.hpp"
#include "cli/sweep_run.hpp"
#include "models/calibration_fit.hpp"
#include "models/hardware_draws.hpp"

namespace kvtwin {
namespace {

using Json = nlohmann::ordered_json;

SweepRows rows_of(const Experiment& experiment, SweepPlan& plan, int jobs) {
  SweepArguments arguments;
  arguments.jobs = jobs;
  plan.check();
  return run_sweep(arguments, plan, experiment).rows;
}

Draws::Figure drawn_figure(const std::string& name, const SweepRows& rows) {
  Draws::Figure figure{name, rows.front().at(name), 0, 0, 0};
  std::vector<double> values;
  for (std::size_t i = 1; i < rows.size(); ++i) values.push_back(rows[i].at(name));
  std::ranges::sort(values);
  figure.low = quantile_of(values, 0.025);
  figure.median = quantile_of(values, 0.5);
  figure.high = quantile_of(values, 0.975);
  return figure;
}

std::vector<Draws::Cause> causes_of(const Experiment& experiment, const std::vector<UncertainNumber>& numbers,
                                    int jobs) {
  SweepPlan plan;
  std::string ends;
  for (const UncertainNumber& number : numbers) {
    ends += (ends.empty() ? "" : ",") + number.key + ":low," + number.key + ":high";
  }
  plan.vary("hardware.end=" + ends);
  const SweepRows rows = rows_of(experiment, plan, jobs);
  std::vector<Draws::Cause> causes;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const UncertainNumber& number = numbers[i];
    const Draws::Cause cause{number.key, number.low / number.value, number.high / number.value,
                             rows[2 * i].at("ttft_mean_s"), rows[2 * i + 1].at("ttft_mean_s")};
    if (cause.at_low != cause.at_high) causes.push_back(cause);
  }
  std::ranges::stable_sort(causes, std::greater<>(),
                           [](const Draws::Cause& cause) { return std::abs(cause.at_high - cause.at_low); });
  return causes;
}

}  // namespace

Draws simulate_draws(const Experiment& experiment, std::size_t draws, int jobs) {
  for (const char* key : {"hardware.draw", "hardware.end"}) {
    if (experiment.origin(key) == "default") continue;
    throw InputError("--draws: " + experiment.where(key) + " is set; leave it out, --draws goes through all of them");
  }
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
  const SweepRows rows = rows_of(experiment, plan, jobs);
  for (const char* name : {"ttft_mean_s", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "tpot_mean_s", "hit_ratio",
                           "saved_s", "prompt_tokens_per_second", "output_tokens_per_second"}) {
    found.figures.push_back(drawn_figure(name, rows));
  }
  found.hangs_on = causes_of(experiment, numbers, jobs);
  return found;
}

std::string draws_text(const Draws& draws) {
  char line[256];
  std::snprintf(line, sizeof line,
                "draws      of %zu machines that this one may be (%zu of its figures moved) 95 %% have", draws.count,
                draws.numbers);
  std::string text = line;
  const char* const shown[][2] = {{"ttft_mean_s", "mean TTFT"}, {"ttft_p90_s", "p90"}, {"ttft_p99_s", "p99"}};
  for (const auto& [name, words] : shown) {
    const auto figure = std::ranges::find(draws.figures, name, &Draws::Figure::name);
    std::snprintf(line, sizeof line, "%s %s %.4g to %.4g s", text.ends_with("have") ? " a" : ",", words, figure->low,
                  figure->high);
    text += line;
  }
  text += "\n";
  if (draws.hangs_on.empty()) return text + "hangs on   none of them, as far as the mean TTFT goes\n";
  constexpr std::size_t kShown = 3;
  text += "hangs on  ";
  for (std::size_t i = 0; i < std::min(kShown, draws.hangs_on.size()); ++i) {
    const Draws::Cause& cause = draws.hangs_on[i];
    std::snprintf(line, sizeof line, "%s %s (%+.0f to %+.0f %%: mean TTFT %.4g to %.4g s)", i == 0 ? "" : ";",
                  cause.number.c_str(), 100 * (cause.low - 1), 100 * (cause.high - 1), cause.at_low, cause.at_high);
    text += line;
  }
  return text + "\n";
}

}  // namespace kvtwin
