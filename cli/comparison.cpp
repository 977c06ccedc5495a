#include "cli/comparison.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <utility>

namespace kvtwin {
namespace {

using Json = nlohmann::ordered_json;
using Better = ComparedFigure::Better;

constexpr std::array<ComparedFigure, kComparedFigures> kFigures{{
    {"hit_ratio", "hit %", 100, Better::more},
    {"saved_s", "saved s", 1, Better::more},
    {"gap_closed", "gap closed", 1, Better::neither},
    {"ttft_mean_s", "TTFT mean s", 1, Better::less},
    {"ttft_p99_s", "TTFT p99 s", 1, Better::less},
    {"opt_hit_ratio", "", 1, Better::neither},
    {"opt_saved_s", "", 1, Better::neither},
    {"lru_hit_ratio", "", 1, Better::neither},
    {"lru_saved_s", "", 1, Better::neither},
}};
constexpr std::size_t kOptHitRatio = 5, kOptSaved = 6;

// 97.5 % of Student's t lie below, by degrees of freedom; between two of the list the lower one's, which is wider.
double student_t(std::size_t freedom) {
  static constexpr std::array<double, 30> kFirst{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                                 2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                                                 2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  if (freedom <= kFirst.size()) return kFirst[freedom - 1];
  return freedom < 40 ? 2.042 : freedom < 60 ? 2.021 : freedom < 120 ? 2.000 : 1.980;
}

std::optional<double> number(const Json& row, const char* name) {
  if (!row.contains(name) || !row.at(name).is_number()) return std::nullopt;
  return row.at(name).get<double>();
}

// A figure of one run; none if it has none.
std::optional<double> figure_of(const Json& row, std::size_t figure) {
  const double prompt = std::max(1.0, row.at("prompt_tokens").get<double>());
  const auto ratio = [&](const char* name) -> std::optional<double> {
    const auto tokens = number(row, name);
    return tokens ? std::optional(*tokens / prompt) : std::nullopt;
  };
  switch (figure) {
    case 0: {
      double hits = 0;
      for (const char* name : {"hit_device", "hit_host", "hit_disk", "hit_remote"}) hits += row.at(name).get<double>();
      return hits / prompt;
    }
    case kOptHitRatio: return ratio("hit_opt");
    case kOptSaved: return number(row, "saved_opt_s");
    case 7: return ratio("hit_lru");
    case 8: return number(row, "saved_lru_s");
    default: return number(row, kFigures[figure].name);
  }
}

// By seed; empty if a run has none.
std::vector<double> values_of(const SweepRows& rows, std::size_t setting, std::size_t seeds, std::size_t figure) {
  std::vector<double> values;
  for (std::size_t seed = 0; seed < seeds; ++seed) {
    const auto value = figure_of(rows[setting * seeds + seed], figure);
    if (!value) return {};
    values.push_back(*value);
  }
  return values;
}

bool is_choice(const SweepAxis& axis) {
  return std::ranges::all_of(axis.keys, [](const std::string& key) {
    return key.starts_with("cache.") || key.starts_with("scheduler.") || key == "cluster.route";
  });
}

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

bool includes_zero(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> differences;
  for (std::size_t seed = 0; seed < a.size(); ++seed) differences.push_back(a[seed] - b[seed]);
  const Estimate difference = estimate(differences);
  return std::abs(difference.mean) <= difference.half.value_or(0);
}

void mark_best(const SweepRows& rows, std::size_t seeds, std::size_t figure, const std::vector<std::size_t>& group,
               std::vector<ComparedSetting>& settings) {
  const Better better = kFigures[figure].better;
  if (better == Better::neither || group.size() < 2) return;
  std::optional<std::size_t> best;
  for (const std::size_t i : group) {
    const auto& own = settings[i].figures[figure];
    if (!own) return;
    const double ahead = best ? own->mean - settings[*best].figures[figure]->mean : 1;
    if (!best || (better == Better::more ? ahead > 0 : ahead < 0)) best = i;
  }
  const std::vector<double> of_best = values_of(rows, *best, seeds, figure);
  for (const std::size_t i : group) {
    if (i != *best && includes_zero(values_of(rows, i, seeds, figure), of_best)) {
      settings[i].standing[figure] = Standing::equal;
    }
  }
  settings[*best].standing[figure] = Standing::best;
}

// ---- the table ---------------------------------------------------------------------------------------

// As many digits for all of a column: four of its largest, or what a hundredth takes.
int decimals_of(const Comparison& comparison, std::size_t figure) {
  double most = 0;
  for (const ComparedSetting& setting : comparison.settings) {
    if (setting.figures[figure])
      most = std::max(most, std::abs(setting.figures[figure]->mean) * kFigures[figure].scale);
  }
  if (figure == 0 || figure == 2) return 2;
  return most >= 100 ? 1 : most >= 10 ? 2 : most >= 1 ? 3 : 4;
}

std::string decimal(double value, int decimals) {
  char text[40];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

using Line = std::vector<std::string>;

// Text columns to the left, `numbers` last ones to the right.
std::string laid_out(const std::vector<Line>& lines, std::size_t text_columns) {
  std::vector<std::size_t> widths;
  const auto width_of = [](const std::string& cell) {  // of "±" one place
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

std::string cell_text(const ComparedSetting& setting, std::size_t figure, int decimals, bool noisy) {
  const auto& own = setting.figures[figure];
  if (!own) return "-  ";
  const double scale = kFigures[figure].scale;
  std::string text = decimal(own->mean * scale, decimals);
  if (noisy && own->half) text += " ±" + decimal(*own->half * scale, decimals);
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

std::string legend(const Comparison& comparison, std::size_t seeds, bool drawn) {
  std::string text = "* the best";
  const bool circumstances = comparison.groups.size() > 1;
  if (circumstances) text += " under equal circumstances";
  if (seeds > 1 && comparison.has_noise) {
    return text + "; = as good: its differences from the best, seed by seed, have a 95 % interval that includes 0 (" +
           std::to_string(seeds) + " seeds); ± half of a mean's 95 % interval\n";
  }
  text += "; = the same figure. ";
  if (!drawn || seeds > 1)
    return text + "Nothing is drawn in this work: a seed changes nothing, and there is no noise.\n";
  return text + "One seed: nothing is known of noise; --seeds 5 would tell.\n";
}

}  // namespace

std::span<const ComparedFigure, kComparedFigures> compared_figures() { return kFigures; }

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

Comparison compare_rows(const SweepPlan& plan, const SweepRows& rows, std::size_t seeds) {
  Comparison comparison;
  const std::size_t axes = plan.axes.size() - (seeds > 1 ? 1 : 0);
  for (std::size_t axis = 0; axis < axes; ++axis) comparison.is_choice.push_back(is_choice(plan.axes[axis]));
  const std::vector<SweepCell> cells = plan.cells();
  for (std::size_t i = 0; i * seeds < rows.size(); ++i) {
    ComparedSetting setting{cells[i * seeds], {}, {}, {}, {}};
    for (std::size_t figure = 0; figure < kComparedFigures; ++figure) {
      const std::vector<double> values = values_of(rows, i, seeds, figure);
      if (values.empty()) continue;
      setting.figures[figure] = estimate(values);
      comparison.has_noise |= std::ranges::adjacent_find(values, std::ranges::not_equal_to{}) != values.end();
    }
    for (std::size_t seed = 0; seed < seeds; ++seed) {
      setting.digests.push_back(rows[i * seeds + seed].at("decisions_digest"));
    }
    comparison.settings.push_back(std::move(setting));
  }
  comparison.groups = groups_of(comparison);
  for (const std::vector<std::size_t>& group : comparison.groups) {
    for (std::size_t figure = 0; figure < kComparedFigures; ++figure) {
      mark_best(rows, seeds, figure, group, comparison.settings);
    }
    for (const std::size_t i : group) {
      const auto first = std::ranges::find(group, comparison.settings[i].digests,
                                           [&](std::size_t other) { return comparison.settings[other].digests; });
      if (*first != i) comparison.settings[i].same_decisions = *first;
    }
  }
  return comparison;
}

SweepRows comparison_rows(const SweepPlan& plan, const Comparison& comparison, std::size_t seeds) {
  SweepRows rows;
  for (const ComparedSetting& setting : comparison.settings) {
    Json row;
    for (std::size_t axis = 0; axis < comparison.is_choice.size(); ++axis) {
      const SweepValue& value = plan.axes[axis].values[*setting.place.indices[axis]];
      row[plan.axes[axis].name] = value.number ? Json(*value.number) : Json(value.text);
    }
    row["seeds"] = seeds;
    for (std::size_t figure = 0; figure < kComparedFigures; ++figure) {
      const std::string name = kFigures[figure].name;
      const auto& own = setting.figures[figure];
      row[name] = own ? Json(own->mean) : Json();
      if (figure >= kShownFigures) continue;
      row[name + "_ci95"] = own && own->half ? Json(*own->half) : Json();
      static constexpr const char* kStandings[] = {"", "best", "equal"};
      const auto standing = static_cast<std::size_t>(setting.standing[figure]);
      if (kFigures[figure].better != Better::neither) {
        row[name + "_standing"] = standing == 0 ? Json() : Json(kStandings[standing]);
      }
    }
    row["same_decisions_as"] =
        setting.same_decisions ? Json(setting_name(plan, comparison, *setting.same_decisions)) : Json();
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string comparison_text(const SweepPlan& plan, const Comparison& comparison, std::size_t seeds, bool drawn) {
  const std::vector<std::size_t> axes = shown_axes(comparison, comparison.is_choice.size());
  std::vector<Line> lines(1);
  for (const std::size_t axis : axes) lines[0].push_back(plan.axes[axis].name);
  std::array<int, kShownFigures> decimals{};
  for (std::size_t figure = 0; figure < kShownFigures; ++figure) {
    decimals[figure] = decimals_of(comparison, figure);
    lines[0].push_back(std::string(kFigures[figure].heading) + "  ");
  }
  lines[0].emplace_back();
  bool optimal = false;
  for (const std::vector<std::size_t>& group : comparison.groups) {
    double opt_ratio = -1, opt_saved = 0;
    for (const std::size_t i : group) {
      const ComparedSetting& setting = comparison.settings[i];
      Line line;
      for (const std::size_t axis : axes) line.push_back(plan.axes[axis].values[*setting.place.indices[axis]].text);
      for (std::size_t figure = 0; figure < kShownFigures; ++figure) {
        line.push_back(cell_text(setting, figure, decimals[figure], seeds > 1 && comparison.has_noise));
      }
      line.push_back(setting.same_decisions
                         ? "decided as " + setting_name(plan, comparison, *setting.same_decisions) + " did"
                         : "");
      lines.push_back(std::move(line));
      if (setting.figures[kOptHitRatio]) opt_ratio = std::max(opt_ratio, setting.figures[kOptHitRatio]->mean);
      if (setting.figures[kOptSaved]) opt_saved = std::max(opt_saved, setting.figures[kOptSaved]->mean);
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
    line.push_back(decimal(opt_ratio * 100, decimals[0]) + "  ");
    line.push_back(decimal(opt_saved, decimals[1]) + "  ");
    line.push_back(decimal(1, decimals[2]) + "  ");
    lines.push_back(std::move(line));
  }
  return laid_out(lines, axes.size()) + legend(comparison, seeds, drawn) +
         (optimal ? "(optimal): the most that can be hit in one cache of all tiers, and what those hits save\n" : "");
}

}  // namespace kvtwin
