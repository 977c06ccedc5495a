#include "lab/validate/scoreboard.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "lab/formatted.hpp"
#include "lab/or_null.hpp"
#include "models/json.hpp"

namespace kvtwin {
namespace {

// The cost of a figure, for choices that take the least.
double cost_of(const FigureKind& kind, double figure) { return kind.more_is_better() ? 1 / figure : figure; }

void add_choices(const std::vector<const ValidatedCell*>& cells, FigureScore& score) {
  std::vector<Ranked> ranked;
  for (const ValidatedCell* cell : cells) {
    const ComparedFigure& figure = *cell->errors.figure(score.kind->name);
    if (figure.measured <= 0 || figure.predicted <= 0) continue;
    Ranked one{cell->cell.work, {}, cost_of(*score.kind, figure.predicted)};
    for (const RunFigures& run : cell->cell.measured) {
      const auto at = run.figures.find(score.kind->name);
      if (at != run.figures.end() && at->second > 0) one.measured.push_back(cost_of(*score.kind, at->second));
    }
    if (!one.measured.empty()) ranked.push_back(std::move(one));
  }
  double sum = 0, most = 0;
  for (const Choice& choice : choices_of(ranked)) {
    if (!choice.regret) continue;
    ++score.choices;
    sum += *choice.regret;
    most = std::max(most, *choice.regret);
  }
  if (score.choices == 0) return;
  score.regret_mean = sum / static_cast<double>(score.choices);
  score.regret_max = most;
}

// Returns the least sum of |error| that one prediction for all of these measured figures can have. The sum is convex
// and piecewise linear in the prediction, so it is least at one of the figures.
double least_error_sum(const std::vector<double>& measured, bool share) {
  double least = 0;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    double sum = 0;
    for (const double one : measured) sum += share ? std::abs(measured[i] - one) : std::abs(measured[i] / one - 1);
    least = i == 0 ? sum : std::min(least, sum);
  }
  return least;
}

void add_repeated(const std::vector<const ValidatedCell*>& cells, FigureScore& score) {
  std::map<std::string_view, std::vector<const ComparedFigure*>> by_setting;
  for (const ValidatedCell* cell : cells) {
    if (!cell->cell.setting.empty()) by_setting[cell->cell.setting].push_back(cell->errors.figure(score.kind->name));
  }
  double floor = 0;
  for (const auto& [setting, figures] : by_setting) {
    std::vector<double> measured;
    for (const ComparedFigure* figure : figures) measured.push_back(figure->measured);
    if (std::ranges::min(measured) == std::ranges::max(measured)) continue;  // once, or one run under several names
    ++score.settings;
    score.repeated += figures.size();
    floor += least_error_sum(measured, score.kind->share);
    for (const ComparedFigure* figure : figures) score.repeated_mean_abs += std::abs(*figure->error);
  }
  if (score.repeated == 0) return;
  score.floor = floor / static_cast<double>(score.repeated);
  score.repeated_mean_abs /= static_cast<double>(score.repeated);
}

std::optional<FigureScore> score_of(const std::vector<ValidatedCell>& cells, const FigureKind& kind,
                                    const std::string& group) {
  FigureScore score{group, &kind};
  std::vector<const ValidatedCell*> with;
  std::vector<double> errors;
  std::vector<std::pair<double, double>> pairs;
  for (const ValidatedCell& cell : cells) {
    if (!group.empty() && cell.cell.group != group) continue;
    const ComparedFigure* figure = cell.errors.figure(kind.name);
    if (figure == nullptr || !figure->error) {
      const std::vector<std::string>& not_compared = cell.errors.not_compared;
      if (std::ranges::find(not_compared, kind.name) != not_compared.end()) ++score.left_out;
      continue;
    }
    with.push_back(&cell);
    score.with_interval += figure->interval ? 1 : 0;
    score.inside += figure->inside() ? 1 : 0;
    score.bias += *figure->error;
    score.mean_abs += std::abs(*figure->error);
    errors.push_back(std::abs(*figure->error));
    pairs.emplace_back(figure->measured, figure->predicted);
  }
  constexpr std::size_t kFewest = 2;
  if (with.size() < kFewest) return std::nullopt;
  score.cells = with.size();
  score.bias /= static_cast<double>(with.size());
  score.mean_abs /= static_cast<double>(with.size());
  score.p90 = quantiles_of(std::move(errors)).p90;
  score.tau = kendall_tau(pairs);
  add_repeated(with, score);
  add_choices(with, score);
  return score;
}

// Returns the share of the cells whose measured figure is in the interval, in %.
std::string inside_text(const FigureScore& score) {
  if (score.with_interval == 0) return "-";
  return formatted("%.0f", 100 * static_cast<double>(score.inside) / static_cast<double>(score.with_interval));
}

std::string percent(const std::optional<double>& value) { return value ? formatted("%.1f", *value * 100) : "-"; }

}  // namespace

std::vector<FigureScore> scoreboard(const std::vector<ValidatedCell>& cells) {
  std::vector<std::string> groups{""};
  for (const ValidatedCell& cell : cells) {
    if (std::ranges::find(groups, cell.cell.group) == groups.end()) groups.push_back(cell.cell.group);
  }
  std::vector<FigureScore> scores;
  for (const FigureKind& kind : figure_kinds()) {
    for (const std::string& group : groups) {
      if (std::optional<FigureScore> score = score_of(cells, kind, group)) scores.push_back(std::move(*score));
    }
  }
  return scores;
}

std::string scoreboard_text(const std::vector<FigureScore>& scores) {
  std::size_t width = 9;
  for (const FigureScore& score : scores) width = std::max(width, score.group.size());
  const int w = static_cast<int>(width);
  std::string text =
      formatted("%-22s %-*s %6s %8s %9s %8s %8s %8s %9s %8s %8s %8s %8s\n", "score", w, "group", "cells", "left out",
                "|error| %", "floor %", "bias %", "p90 %", "in 80 %", "tau", "choices", "regret %", "most %");
  for (const FigureScore& score : scores) {
    text += formatted("%-22s %-*s %6zu %8zu %9.1f %8s %+8.1f %8.1f %9s %8s %8zu %8s %8s\n", score.kind->label.c_str(),
                      w, score.group.empty() ? "all" : score.group.c_str(), score.cells, score.left_out,
                      score.mean_abs * 100, percent(score.floor).c_str(), score.bias * 100, score.p90 * 100,
                      inside_text(score).c_str(), score.tau ? formatted("%.3f", *score.tau).c_str() : "-",
                      score.choices, percent(score.regret_mean).c_str(), percent(score.regret_max).c_str());
  }
  for (const FigureScore& score : scores) {
    if (!score.group.empty() || !score.floor) continue;
    text += "repeats    " + score.kind->label +
            formatted(
                ": %zu cells of %zu settings that were published again with another figure; there |error| is "
                "%.1f %%, and no prediction is below %.1f (floor)\n",
                score.repeated, score.settings, score.repeated_mean_abs * 100, *score.floor * 100);
  }
  return text;
}

Json scoreboard_json(const std::vector<FigureScore>& scores) {
  Json list = Json::array();
  for (const FigureScore& score : scores) {
    list.push_back({{"figure", score.kind->name},
                    {"group", score.group.empty() ? Json() : Json(score.group)},
                    {"cells", score.cells},
                    {"left_out", score.left_out},
                    {"mean_abs_error", score.mean_abs},
                    {"bias", score.bias},
                    {"p90_abs_error", score.p90},
                    {"with_interval", score.with_interval},
                    {"inside", score.inside},
                    {"repeats",
                     {{"cells", score.repeated},
                      {"settings", score.settings},
                      {"floor", or_null(score.floor)},
                      {"mean_abs_error", score.floor ? Json(score.repeated_mean_abs) : Json()}}},
                    {"kendall_tau", or_null(score.tau)},
                    {"choices", score.choices},
                    {"regret_mean", or_null(score.regret_mean)},
                    {"regret_max", or_null(score.regret_max)}});
  }
  return list;
}

}  // namespace kvtwin
