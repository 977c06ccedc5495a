#include "lab/sweep/comparison.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>

#include "lab/error.hpp"
#include "lab/experiment/keys.hpp"
#include "lab/sweep/sweep_cell.hpp"
#include "models/calibration_fit.hpp"
#include "models/json.hpp"
#include "models/names.hpp"

namespace kvtwin {
namespace {

using Better = RunFigure::Better;
using Column = RunFigure::Column;

constexpr double kSureShare = 0.975;  // share of the runs that must meet a goal

// Returns the 97.5 % quantile of Student's t. Between two listed degrees of freedom: the value of the lower one, which
// gives a wider interval.
double student_t(std::size_t freedom) {
  static constexpr std::array<double, 30> kFirst{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                                 2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                                                 2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  if (freedom <= kFirst.size()) return kFirst[freedom - 1];
  return freedom < 40 ? 2.042 : freedom < 60 ? 2.021 : freedom < 120 ? 2.000 : 1.980;
}

// Returns a figure of one run; nothing if the run does not have the figure.
std::optional<double> figure_of(const Json& row, std::size_t figure) {
  if (has_failed(row)) return std::nullopt;
  const auto value = row.find(figures()[figure].name);
  if (value == row.end() || !value->is_number()) return std::nullopt;
  return value->get<double>();
}

// Returns the figure of each run; empty if a run does not have the figure.
std::vector<double> values_of(const SweepRows& rows, std::size_t setting, std::size_t runs, std::size_t figure) {
  std::vector<double> values;
  for (std::size_t run = 0; run < runs; ++run) {
    const auto value = figure_of(rows[setting * runs + run], figure);
    if (!value) return {};
    values.push_back(*value);
  }
  return values;
}

bool is_choice(const SweepAxis& axis) { return std::ranges::all_of(axis.keys, is_policy_key); }

std::vector<std::vector<std::size_t>> groups_of(const Comparison& comparison) {
  const bool any_choice = std::ranges::find(comparison.is_choice, true) != comparison.is_choice.end();
  std::map<std::vector<std::size_t>, std::vector<std::size_t>> by_circumstances;
  for (std::size_t i = 0; i < comparison.settings.size(); ++i) {
    std::vector<std::size_t> circumstances;
    for (std::size_t axis = 0; any_choice && axis < comparison.is_choice.size(); ++axis) {
      if (!comparison.is_choice[axis]) circumstances.push_back(*comparison.settings[i].place.indices[axis]);
    }
    by_circumstances[circumstances].push_back(i);
  }
  std::vector<std::vector<std::size_t>> groups;
  for (auto& [circumstances, group] : by_circumstances) groups.push_back(std::move(group));
  return groups;
}

Estimate estimate_of(const std::vector<double>& values, const Repeats& repeats) {
  if (repeats.draws == 0) return estimate(values);
  std::vector<double> drawn(values.begin() + 1, values.end());
  std::ranges::sort(drawn);
  return {values.front(), std::nullopt, std::pair(quantile_of(drawn, 0.025), quantile_of(drawn, 0.975))};
}

bool includes_zero(const std::vector<double>& a, const std::vector<double>& b, const Repeats& repeats) {
  std::vector<double> differences;
  for (std::size_t run = 0; run < a.size(); ++run) differences.push_back(a[run] - b[run]);
  const Estimate difference = estimate_of(differences, repeats);
  if (difference.range) return difference.range->first <= 0 && difference.range->second >= 0;
  return std::abs(difference.mean) <= difference.half.value_or(0);
}

void mark_best(const SweepRows& rows, const Repeats& repeats, std::size_t figure, const std::vector<std::size_t>& group,
               std::vector<ComparedSetting>& settings) {
  const Better better = figures()[figure].better;
  if (better == Better::neither || group.size() < 2) return;
  std::optional<std::size_t> best;
  for (const std::size_t i : group) {
    if (!settings[i].serves_enough) continue;
    const auto& own = settings[i].figures[figure];
    if (!own) return;
    const double ahead = best ? own->mean - settings[*best].figures[figure]->mean : 1;
    if (!best || (better == Better::more ? ahead > 0 : ahead < 0)) best = i;
  }
  if (!best) return;
  const std::vector<double> of_best = values_of(rows, *best, repeats.runs(), figure);
  bool any_separate = false;
  for (const std::size_t i : group) {
    if (i == *best) continue;
    if (settings[i].serves_enough && includes_zero(values_of(rows, i, repeats.runs(), figure), of_best, repeats)) {
      settings[i].standing[figure] = Standing::equal;
    } else {
      any_separate = true;
    }
  }
  settings[*best].standing[figure] = any_separate ? Standing::best : Standing::equal;
}

// Sets the shares of served, rejected and failed requests: over all runs; with draws, on the hardware as given.
void set_served(const SweepRows& rows, std::size_t setting, const Repeats& repeats, ComparedSetting& served) {
  double requests = 0, completed = 0, rejected = 0, failed = 0;
  for (std::size_t run = 0; run < (repeats.draws == 0 ? repeats.seeds : 1); ++run) {
    const Json& row = rows[setting * repeats.runs() + run];
    if (has_failed(row)) return;
    requests += row.at("requests").get<double>();
    completed += row.at("completed").get<double>();
    rejected += row.at("rejected").get<double>();
    failed += row.at("failed").get<double>();
  }
  if (requests == 0) return;
  served.served_share = completed / requests;
  served.rejected_share = rejected / requests;
  served.failed_share = failed / requests;
}

void set_serves_enough(const std::vector<std::size_t>& group, double min_served,
                       std::vector<ComparedSetting>& settings) {
  double most = 0;
  for (const std::size_t i : group) most = std::max(most, settings[i].served_share);
  for (const std::size_t i : group) {
    settings[i].serves_enough = settings[i].served_share > 0 && settings[i].served_share >= min_served * most;
  }
}

// `served`: true for each run that completes enough requests.
void set_goal(const Goal& goal, const std::vector<double>& values, const std::vector<bool>& served,
              const Repeats& repeats, ComparedSetting& setting) {
  const std::size_t first = repeats.draws == 0 ? 0 : 1;
  std::size_t met = 0;
  for (std::size_t run = first; run < values.size(); ++run) met += goal.met_by(values[run]) && served[run] ? 1 : 0;
  setting.goal_share = static_cast<double>(met) / static_cast<double>(values.size() - first);
  const bool all_served = repeats.draws == 0 ? std::ranges::find(served, false) == served.end() : served.front();
  const bool figure_meets = goal.met_by(setting.figures[goal.figure]->mean);
  setting.meets_goal = figure_meets && all_served;
  setting.only_figure_meets = figure_meets && !all_served;
}

// Returns the shortest text that is exactly this number.
std::string exact_number(double value) {
  std::array<char, 40> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

// ---- the table ---------------------------------------------------------------------------------------

std::string decimal(double value, int decimals) {
  char text[400];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

// Returns whether the printed figures lead to the same judgement as the exact ones: the same side of the goal, and
// different from the best figure if the mark is different.
bool printed_like_exact(const Comparison& comparison, std::size_t figure, int decimals,
                        const std::optional<Goal>& goal) {
  const double scale = figures()[figure].scale;
  const auto printed = [&](const ComparedSetting& setting) {
    return decimal(setting.figures[figure]->mean * scale, decimals);
  };
  for (const std::vector<std::size_t>& group : comparison.groups) {
    const ComparedSetting* best = nullptr;
    for (const std::size_t i : group) {
      if (comparison.settings[i].standing[figure] == Standing::best) best = &comparison.settings[i];
    }
    for (const std::size_t i : group) {
      const ComparedSetting& setting = comparison.settings[i];
      if (!setting.figures[figure]) continue;
      const double mean = setting.figures[figure]->mean;
      const double read = std::strtod(printed(setting).c_str(), nullptr) / scale;
      if (goal && goal->figure == figure && goal->met_by(read) != goal->met_by(mean)) return false;
      const bool marked_apart = best != nullptr && setting.serves_enough && setting.standing[figure] == Standing::none;
      if (marked_apart && mean != best->figures[figure]->mean && printed(setting) == printed(*best)) return false;
    }
  }
  return true;
}

// Returns the decimals of a column: four digits of the largest figure (shares: two decimals), or more if the rounded
// figures would lead to another judgement.
int decimals_of(const Comparison& comparison, std::size_t figure, const std::optional<Goal>& goal) {
  constexpr int kMaxDecimals = 17;
  double most = 0;
  for (const ComparedSetting& setting : comparison.settings) {
    if (setting.figures[figure])
      most = std::max(most, std::abs(setting.figures[figure]->mean) * figures()[figure].scale);
  }
  int decimals = most >= 100 ? 1 : most >= 10 ? 2 : most >= 1 ? 3 : 4;
  if (figures()[figure].scale == 100 || figures()[figure].name == "gap_closed") decimals = 2;
  while (decimals < kMaxDecimals && !printed_like_exact(comparison, figure, decimals, goal)) ++decimals;
  return decimals;
}

using Line = std::vector<std::string>;

// Aligns the columns: the first `text_columns` and the last column to the left, the others to the right.
std::string aligned(const std::vector<Line>& lines, std::size_t text_columns) {
  std::vector<std::size_t> widths;
  const auto width_of = [](const std::string& cell) {  // "±" takes one place
    return static_cast<std::size_t>(std::ranges::count_if(cell, [](char c) { return (c & 0xC0) != 0x80; }));
  };
  for (const Line& line : lines) {
    widths.resize(std::max(widths.size(), line.size()));
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], width_of(line[i]));
  }
  std::string text;
  for (const Line& line : lines) {
    std::string row;
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::string blank(widths[i] - width_of(line[i]), ' ');
      const bool left = i < text_columns || i + 1 == line.size();
      row += (i == 0 ? "" : "  ") + (left ? line[i] + blank : blank + line[i]);
    }
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  }
  return text;
}

std::vector<std::size_t> shown_axes(const Comparison& comparison, std::size_t axes) {
  std::vector<std::size_t> order;
  for (const bool choice : {false, true}) {
    for (std::size_t axis = 0; axis < axes; ++axis) {
      if (comparison.is_choice[axis] == choice) order.push_back(axis);
    }
  }
  return order;
}

// Returns the figures that are columns of the table. The first three are those of the line "(optimal)".
std::vector<std::size_t> columns_of(const Comparison& comparison, const std::optional<Goal>& goal) {
  std::vector<std::size_t> columns;
  for (std::size_t figure = 0; figure < figures().size(); ++figure) {
    const Column column = figures()[figure].column;
    const bool present = std::ranges::any_of(
        comparison.settings, [&](const ComparedSetting& setting) { return setting.figures[figure].has_value(); });
    const bool of_goal = goal && goal->figure == figure && column != Column::never;
    if (column == Column::always || of_goal || (column == Column::if_present && present)) columns.push_back(figure);
  }
  return columns;
}

std::string cell_text(const ComparedSetting& setting, std::size_t figure, int decimals, bool noisy) {
  const auto& own = setting.figures[figure];
  if (!own) return "-  ";
  const double scale = figures()[figure].scale;
  std::string text = decimal(own->mean * scale, decimals);
  if (noisy && own->half) text += " ±" + decimal(*own->half * scale, decimals);
  if (noisy && own->range) {
    text += " (" + decimal(own->range->first * scale, decimals) + " to " +
            decimal(own->range->second * scale, decimals) + ")";
  }
  static constexpr const char* kMarks[] = {"  ", " *", " ="};
  return text + kMarks[static_cast<std::size_t>(setting.standing[figure])];
}

std::string setting_name(const SweepPlan& plan, const Comparison& comparison, std::size_t setting) {
  std::string name;
  for (std::size_t axis = 0; axis < comparison.is_choice.size(); ++axis) {
    if (!comparison.is_choice[axis] && std::ranges::find(comparison.is_choice, true) != comparison.is_choice.end()) {
      continue;
    }
    const SweepAxis& of = plan.axes[axis];
    name += (name.empty() ? "" : ", ") + of.values[*comparison.settings[setting].place.indices[axis]].text;
  }
  return name;
}

// Returns the meaning of the marks if a setting rejects or fails requests; else empty.
std::string served_legend(const Comparison& comparison, double min_served) {
  const auto sends_away = [](const ComparedSetting& setting) {
    return setting.failure.empty() && setting.served_share < 1;
  };
  if (!std::ranges::any_of(comparison.settings, sends_away)) return "";
  std::string text =
      "Some settings reject or fail requests, which all other figures leave out. A setting that completes less than " +
      exact_number(100 * min_served) + " % of the highest number of completed requests is not marked";
  const auto few = std::ranges::count(comparison.settings, false, &ComparedSetting::serves_enough);
  return text + ": " + std::to_string(few) + " of " + std::to_string(comparison.settings.size()) + ".\n";
}

std::string legend(const Comparison& comparison, const Repeats& repeats, bool drawn) {
  const std::size_t seeds = repeats.seeds;
  std::string text = "* the best";
  const bool circumstances = comparison.groups.size() > 1;
  if (circumstances) text += " under equal circumstances";
  text += " (none if all are equal)";
  if (repeats.draws != 0) {
    return text +
           "; = as good: its differences from the best, variant by variant, include 0; in brackets: the range of 95 % "
           "of " +
           std::to_string(repeats.draws) + " hardware variants\n";
  }
  if (seeds > 1 && comparison.has_noise) {
    return text + "; = as good: its differences from the best, seed by seed, have a 95 % interval that includes 0 (" +
           std::to_string(seeds) + " seeds); ± half of a mean's 95 % interval\n";
  }
  text += "; = the same figure. ";
  if (!drawn) return text + "This work has no random draws: a seed changes nothing, and there is no noise.\n";
  if (seeds > 1) return text + "All " + std::to_string(seeds) + " seeds give the same figures.\n";
  return text + "One seed: nothing is known of noise; --seeds 5 shows the noise.\n";
}

}  // namespace

Estimate estimate(std::span<const double> values) {
  const auto count = static_cast<double>(values.size());
  Estimate result;
  for (const double value : values) result.mean += value / count;
  if (values.size() < 2) return result;
  double squares = 0;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  result.half = student_t(values.size() - 1) * std::sqrt(squares / (count - 1) / count);
  return result;
}

Comparison compare_rows(const SweepPlan& plan, const SweepRows& rows, const Repeats& repeats,
                        const std::optional<Goal>& goal, double min_served) {
  Comparison comparison;
  const std::size_t runs = repeats.runs();
  const std::size_t axes = plan.axes.size() - (runs > 1 ? 1 : 0);
  for (std::size_t axis = 0; axis < axes; ++axis) comparison.is_choice.push_back(is_choice(plan.axes[axis]));
  const std::vector<SweepCell> cells = plan.cells();
  for (std::size_t i = 0; i * runs < rows.size(); ++i) {
    ComparedSetting setting;
    setting.place = cells[i * runs];
    setting.figures.resize(figures().size());
    setting.standing.resize(figures().size());
    set_served(rows, i, repeats, setting);
    std::vector<bool> served;
    for (std::size_t run = 0; run < runs; ++run) {
      const Json& row = rows[i * runs + run];
      if (has_failed(row) && setting.failure.empty()) setting.failure = row.at("failure").get<std::string>();
      served.push_back(served_share(row) >= min_served);
    }
    for (std::size_t figure = 0; figure < figures().size(); ++figure) {
      const std::vector<double> values = values_of(rows, i, runs, figure);
      if (values.empty()) continue;
      setting.figures[figure] = estimate_of(values, repeats);
      if (goal && goal->figure == figure) set_goal(*goal, values, served, repeats, setting);
      comparison.has_noise |= std::ranges::adjacent_find(values, std::ranges::not_equal_to{}) != values.end();
    }
    for (std::size_t run = 0; run < runs && setting.failure.empty(); ++run) {
      setting.digests.push_back(rows[i * runs + run].at("decisions_digest"));
    }
    comparison.settings.push_back(std::move(setting));
  }
  comparison.groups = groups_of(comparison);
  for (const std::vector<std::size_t>& group : comparison.groups) {
    set_serves_enough(group, min_served, comparison.settings);
    for (std::size_t figure = 0; figure < figures().size(); ++figure) {
      mark_best(rows, repeats, figure, group, comparison.settings);
    }
    for (const std::size_t i : group) {
      if (!comparison.settings[i].failure.empty()) continue;
      const auto first = std::ranges::find(group, comparison.settings[i].digests,
                                           [&](std::size_t other) { return comparison.settings[other].digests; });
      if (*first != i) comparison.settings[i].same_decisions = *first;
    }
  }
  return comparison;
}

bool is_capacity(const SweepAxis& axis) {
  const bool tiers = std::ranges::all_of(axis.keys, [](const std::string& key) {
    return key.starts_with("tiers.") &&
           (key.ends_with(".tokens") || key.ends_with(".gib") || key == "tiers.host.ratio");
  });
  return tiers && std::ranges::all_of(axis.values, [](const SweepValue& value) { return value.number.has_value(); });
}

GoalLines goal_lines(const SweepPlan& plan, const Comparison& comparison) {
  GoalLines found;
  found.only_figure_meets =
      static_cast<std::size_t>(std::ranges::count(comparison.settings, true, &ComparedSetting::only_figure_meets));
  for (std::size_t axis = 0; axis < comparison.is_choice.size(); ++axis) {
    const std::size_t values = plan.axes[axis].values.size();
    if (values < 2 || !is_capacity(plan.axes[axis])) continue;
    if (!found.along || values > plan.axes[*found.along].values.size()) found.along = axis;
  }
  // The settings of a line, by size, smallest first.
  std::map<std::vector<std::pair<std::size_t, std::size_t>>, std::map<double, const ComparedSetting*>> by_others;
  for (const ComparedSetting& setting : comparison.settings) {
    std::vector<std::pair<std::size_t, std::size_t>> others;
    for (std::size_t axis = 0; axis < comparison.is_choice.size(); ++axis) {
      if (axis != found.along) others.emplace_back(axis, *setting.place.indices[axis]);
    }
    const double size =
        found.along ? *plan.axes[*found.along].values[*setting.place.indices[*found.along]].number : 0.0;
    by_others[others][size] = &setting;
  }
  for (const auto& entry : by_others) {
    const auto& settings = entry.second;
    GoalLine line{entry.first, {}, {}};
    const auto first_of = [&](const auto& meets) -> std::optional<std::size_t> {
      std::optional<std::size_t> first;
      for (const auto& [size, setting] : settings) {
        if (!meets(*setting))
          first.reset();
        else if (!first)
          first = found.along ? *setting->place.indices[*found.along] : 0;
      }
      return first;
    };
    line.from = first_of([](const ComparedSetting& setting) { return setting.meets_goal; });
    line.surely_from = first_of([](const ComparedSetting& setting) { return setting.goal_share >= kSureShare; });
    found.lines.push_back(std::move(line));
  }
  return found;
}

std::string goal_text(const SweepPlan& plan, const Comparison& comparison, const Goal& goal, const Repeats& repeats) {
  const GoalLines lines = goal_lines(plan, comparison);
  const RunFigure& figure = figures()[goal.figure];
  std::string text = "goal: " + std::string(figure.name) +
                     (figure.better == Better::less ? " at most " : " at least ") + exact_number(goal.value) +
                     (lines.along ? ", by " + plan.axes[*lines.along].name : "") + "\n";
  for (const GoalLine& line : lines.lines) {
    std::string words;
    for (const auto& [axis, index] : line.others) {
      words += (words.empty() ? "" : ", ") + plan.axes[axis].name + "=" + plan.axes[axis].values[index].text;
    }
    const auto from = [&](const std::optional<std::size_t>& index) -> std::string {
      if (!lines.along) return index ? "met" : "not met";
      if (!index) return "not even at the largest";
      return "from " + plan.axes[*lines.along].values[*index].text + " on";
    };
    text += "  " + words + (words.empty() ? "" : ": ") + from(line.from);
    if (repeats.runs() > 1 && line.surely_from != line.from) {
      text += std::string("; in 97.5 % of the ") + (repeats.draws != 0 ? "machines" : "seeds") + ": " +
              from(line.surely_from);
    }
    text += "\n";
  }
  const bool any = std::ranges::any_of(
      comparison.settings, [&](const ComparedSetting& setting) { return setting.figures[goal.figure].has_value(); });
  if (!any) text += "  no setting has this figure\n";
  if (lines.only_figure_meets != 0) {
    text += "  of " + std::to_string(lines.only_figure_meets) +
            " settings the figure would do, but they complete too few of the requests (--min-served)\n";
  }
  return text;
}

SweepRows comparison_rows(const SweepPlan& plan, const Comparison& comparison, const Repeats& repeats,
                          const std::optional<Goal>& goal) {
  SweepRows rows;
  for (const ComparedSetting& setting : comparison.settings) {
    Json row;
    for (std::size_t axis = 0; axis < comparison.is_choice.size(); ++axis) {
      const SweepValue& value = plan.axes[axis].values[*setting.place.indices[axis]];
      row[plan.axes[axis].name] = value.number ? Json(*value.number) : Json(value.text);
    }
    row["seeds"] = repeats.seeds;
    if (repeats.draws != 0) row["draws"] = repeats.draws;
    row["rejected_share"] = setting.rejected_share;
    row["failed_share"] = setting.failed_share;
    if (goal) {
      row["meets_goal"] = setting.meets_goal;
      row["goal_share"] = setting.goal_share;
    }
    for (std::size_t figure = 0; figure < figures().size(); ++figure) {
      const std::string name(figures()[figure].name);
      if (row.contains(name)) continue;  // a share of the requests, over all runs
      const auto& own = setting.figures[figure];
      row[name] = own ? Json(own->mean) : Json();
      if (figures()[figure].column == Column::never) continue;
      row[name + "_ci95"] = own && own->half ? Json(*own->half) : Json();
      if (repeats.draws != 0) {
        row[name + "_low"] = own ? Json(own->range->first) : Json();
        row[name + "_high"] = own ? Json(own->range->second) : Json();
      }
      static constexpr const char* kStandings[] = {"", "best", "equal"};
      const auto standing = static_cast<std::size_t>(setting.standing[figure]);
      if (figures()[figure].better != Better::neither) {
        row[name + "_standing"] = standing == 0 ? Json() : Json(kStandings[standing]);
      }
    }
    row["same_decisions_as"] =
        setting.same_decisions ? Json(setting_name(plan, comparison, *setting.same_decisions)) : Json();
    if (!setting.failure.empty()) row["failure"] = setting.failure;
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string comparison_text(const SweepPlan& plan, const Comparison& comparison, const Repeats& repeats, bool drawn,
                            const std::optional<Goal>& goal, double min_served) {
  const std::vector<std::size_t> axes = shown_axes(comparison, comparison.is_choice.size());
  std::vector<Line> lines(1);
  for (const std::size_t axis : axes) lines[0].push_back(plan.axes[axis].name);
  const std::vector<std::size_t> columns = columns_of(comparison, goal);
  std::vector<int> decimals(figures().size());
  for (const std::size_t figure : columns) {
    decimals[figure] = decimals_of(comparison, figure, goal);
    lines[0].push_back(std::string(figures()[figure].heading) + "  ");
  }
  lines[0].insert(lines[0].end(), {"rejected %", "failed %", ""});
  bool optimal = false;
  const std::size_t of_opt = figure_index("opt_hit_ratio"), saved_by_opt = figure_index("opt_saved_s");
  for (const std::vector<std::size_t>& group : comparison.groups) {
    double opt_ratio = -1, opt_saved = 0;
    for (const std::size_t i : group) {
      const ComparedSetting& setting = comparison.settings[i];
      Line line;
      for (const std::size_t axis : axes) line.push_back(plan.axes[axis].values[*setting.place.indices[axis]].text);
      for (const std::size_t figure : columns) {
        line.push_back(cell_text(setting, figure, decimals[figure], repeats.runs() > 1 && comparison.has_noise));
      }
      for (const double share : {setting.rejected_share, setting.failed_share}) {
        line.push_back(setting.failure.empty() ? decimal(100 * share, 2) : "-");
      }
      line.push_back(setting.same_decisions
                         ? "decided as " + setting_name(plan, comparison, *setting.same_decisions) + " did"
                         : (setting.failure.empty() ? "" : "failed"));
      lines.push_back(std::move(line));
      if (setting.figures[of_opt]) opt_ratio = std::max(opt_ratio, setting.figures[of_opt]->mean);
      if (setting.figures[saved_by_opt]) opt_saved = std::max(opt_saved, setting.figures[saved_by_opt]->mean);
    }
    const bool one_bound = std::ranges::find(comparison.is_choice, true) != comparison.is_choice.end();
    if (opt_ratio < 0 || !one_bound) continue;
    optimal = true;
    Line line;
    for (const std::size_t axis : axes) {
      const bool choice = comparison.is_choice[axis];
      const auto& place = comparison.settings[group.front()].place;
      line.push_back(choice ? (axis == axes.back() ? "(optimal)" : "")
                            : plan.axes[axis].values[*place.indices[axis]].text);
    }
    for (const auto& [name, value] :
         {std::pair("hit_ratio", opt_ratio * 100), {"saved_s", opt_saved}, {"gap_closed", 1.0}}) {
      line.push_back(decimal(value, decimals[figure_index(name)]) + "  ");
    }
    lines.push_back(std::move(line));
  }
  return aligned(lines, axes.size()) + legend(comparison, repeats, drawn) + served_legend(comparison, min_served) +
         (optimal ? "(optimal): the hits of an optimal cache as large as all tiers together, on the same requests, and "
                    "what "
                    "those hits save\n"
                  : "") +
         (std::ranges::find(columns, figure_index("infinite_hit_ratio")) != columns.end()
              ? "infinite %: the hits of an infinite cache, on the same requests\n"
              : "");
}

}  // namespace kvtwin
