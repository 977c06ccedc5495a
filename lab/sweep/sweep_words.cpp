#include "lab/sweep/sweep_words.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "lab/sweep/sweep_cell.hpp"
#include "models/json.hpp"

namespace kvtwin {
namespace {

constexpr double kMaxEqualRatio = 1.01;  // ratio of mean TTFTs that counts as equal

std::string short_number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, value >= 100 ? "%.0f" : "%.2g", value);
  return text;
}

// Returns the ratio with enough digits to be on the same side of kMaxEqualRatio as the number.
std::string ratio_text(double ratio) {
  std::string text = short_number(ratio);
  for (int digits = 3; (std::strtod(text.c_str(), nullptr) > kMaxEqualRatio) != (ratio > kMaxEqualRatio); ++digits) {
    char longer[40];
    std::snprintf(longer, sizeof longer, "%.*g", digits, ratio);
    text = longer;
  }
  return text;
}

// Finds a cell by its case and the indices of the axes. A case may set the keys of some axes.
class Index {
 public:
  explicit Index(const SweepPlan& plan) : plan_(plan), cells_(plan.cells()) {
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      numbers_[{cells_[i].of_case, cells_[i].indices}] = i;
      if (first_.size() <= cells_[i].of_case) first_.resize(cells_[i].of_case + 1, i);
    }
  }
  bool pins(std::size_t of_case, std::size_t axis) const { return !cells_[first_[of_case]].indices[axis]; }
  std::size_t at(std::size_t of_case, std::vector<std::optional<std::size_t>> indices) const {
    for (std::size_t axis = 0; axis < indices.size(); ++axis) {
      if (pins(of_case, axis)) indices[axis] = std::nullopt;
    }
    return numbers_.at({of_case, indices});
  }
  // Returns all combinations of the values of these axes. The other axes have index 0.
  std::vector<std::vector<std::optional<std::size_t>>> combinations(const std::vector<std::size_t>& axes) const {
    std::vector<std::vector<std::optional<std::size_t>>> list{
        std::vector<std::optional<std::size_t>>(plan_.axes.size(), 0)};
    for (const std::size_t axis : axes) {
      std::vector<std::vector<std::optional<std::size_t>>> longer;
      for (const auto& one : list) {
        for (std::size_t value = 0; value < plan_.axes[axis].values.size(); ++value) {
          longer.push_back(one);
          longer.back()[axis] = value;
        }
      }
      list = std::move(longer);
    }
    return list;
  }

 private:
  const SweepPlan& plan_;
  std::vector<SweepCell> cells_;
  std::map<std::pair<std::size_t, std::vector<std::optional<std::size_t>>>, std::size_t> numbers_;
  std::vector<std::size_t> first_;  // first cell of each case
};

// Returns the ratio of two cells' mean TTFTs; nothing if the cells are not compared.
std::optional<double> ttft_ratio(const SweepRows& rows, std::size_t a, std::size_t b, double min_served) {
  if (has_failed(rows[a]) || has_failed(rows[b])) return std::nullopt;
  const double share_a = served_share(rows[a]), share_b = served_share(rows[b]);
  const Json &ttft_a = rows[a].at("ttft_mean_s"), &ttft_b = rows[b].at("ttft_mean_s");
  if (ttft_a.is_null() || ttft_b.is_null() || std::min(share_a, share_b) < min_served * std::max(share_a, share_b)) {
    return std::nullopt;
  }
  const double base = ttft_b;
  return base > 0 ? ttft_a.get<double>() / base : 1;
}

std::string percent_text(double share) {
  char text[40];
  std::snprintf(text, sizeof text, "%.4g %%", 100 * share);
  return text;
}

// Returns x where the line between two points (log x, log ratio) crosses log(kMaxEqualRatio).
double crossing(double x0, double ratio0, double x1, double ratio1) {
  const double a = std::log(ratio0 / kMaxEqualRatio), b = std::log(ratio1 / kMaxEqualRatio);
  if (x0 <= 0) return x1;  // no logarithm
  return std::exp(std::log(x0) + (std::log(x1) - std::log(x0)) * a / (a - b));
}

std::string figure_text(const Json& row, const std::string& name) {
  if (has_failed(row)) return "failed";
  if (!row.contains(name) || !row.at(name).is_number()) return "-";
  const double value = row.at(name).get<double>();
  char text[40];
  const bool whole = row.at(name).is_number_integer();
  std::snprintf(text, sizeof text, whole ? "%.0f" : value >= 100 ? "%.1f" : "%.4f", value);
  return text;
}

// Shares of requests that the figures leave out, and their labels in tables.
constexpr std::pair<const char*, const char*> kLeftOut[] = {{"rejected_share", " rejected"},
                                                            {"failed_share", " failed"}};

std::string left_out_text(const Json& row) {
  std::string text;
  for (const auto& [share, words] : kLeftOut) {
    if (has_failed(row) || !row.at(share).is_number() || row.at(share) == 0) continue;
    text += (text.empty() ? " (" : ", ") + percent_text(row.at(share)) + words;
  }
  return text.empty() ? "" : text + ")";
}

std::string padded(std::string text, std::size_t width) {
  text.insert(0, width > text.size() ? width - text.size() : 0, ' ');
  return text;
}

std::string cases_table(const SweepPlan& plan, const SweepRows& rows, const Index& index, const std::string& figure,
                        std::vector<std::optional<std::size_t>> combination) {
  const std::size_t along = *plan.along_axis();
  const std::size_t values = plan.axes[along].values.size();
  std::vector<std::vector<std::string>> columns;
  for (std::size_t c = 0; c < plan.cases.size(); ++c) {
    std::vector<std::string>& column = columns.emplace_back(1, plan.cases[c].name);
    for (std::size_t value = 0; value < values; ++value) {
      combination[along] = value;
      const Json& row = rows[index.at(c, combination)];
      column.push_back(figure_text(row, figure) + left_out_text(row));
    }
  }
  const std::size_t first = std::max<std::size_t>(plan.along.size(), 8);
  std::string text;
  for (std::size_t line = 0; line <= values; ++line) {
    std::string head = line == 0 ? plan.along : padded(plan.axes[along].values[line - 1].text, first);
    head.resize(first, ' ');
    text += head;
    for (const std::vector<std::string>& column : columns) {
      std::size_t width = 10;
      for (const std::string& cell : column) width = std::max(width, cell.size());
      text += "  " + padded(column[line], width);
    }
    text += "\n";
  }
  return text;
}

std::string cells_table(const SweepPlan& plan, const SweepRows& rows) {
  constexpr std::size_t kMaxLines = 60;
  const std::vector<SweepCell> cells = plan.cells();
  std::size_t width = 10;
  for (const SweepCell& cell : cells) width = std::max(width, plan.name_of(cell).size());
  std::vector<std::string> figures = plan.show;
  for (const auto& [share, words] : kLeftOut) {
    if (std::ranges::find(figures, share) == figures.end()) figures.emplace_back(share);
  }
  std::string text(width, ' ');
  for (const std::string& figure : figures) text += "  " + padded(figure, 12);
  text += "\n";
  for (std::size_t i = 0; i < cells.size() && i < kMaxLines; ++i) {
    std::string name = plan.name_of(cells[i]);
    name.resize(width, ' ');
    text += name;
    for (const std::string& figure : figures) {
      text += "  " + padded(figure_text(rows[i], figure), std::max<std::size_t>(12, figure.size()));
    }
    text += "\n";
  }
  if (cells.size() > kMaxLines) text += "and " + std::to_string(cells.size() - kMaxLines) + " more cells\n";
  return text;
}

// Returns where the first case is slower, over all crossovers of a group, e.g. "below about 1.5 to 2.3 GB/s" or
// "nowhere or above about 50 GB/s".
std::string range_text(const std::vector<const Crossover*>& group, const SweepPlan& plan) {
  const std::string unit = unit_of(plan.along).empty() ? "" : " " + unit_of(plan.along);
  std::string text;
  for (const auto& [where, word] : {std::pair{Slower::below, "below about "},
                                    {Slower::above, "above about "},
                                    {Slower::everywhere, "everywhere"},
                                    {Slower::nowhere, "nowhere"}}) {
    double least = 1e300, most = 0;
    for (const Crossover* one : group) {
      if (one->slower != where) continue;
      least = std::min(least, one->at);
      most = std::max(most, one->at);
    }
    if (least > most) continue;  // no crossover of this kind
    text += (text.empty() ? "" : " or ") + std::string(word);
    if (where == Slower::everywhere || where == Slower::nowhere) continue;
    text += short_number(least);
    if (short_number(most) != short_number(least)) text += " to " + short_number(most);
    text += unit;
  }
  return text;
}

// hardware.name becomes hardware, cache.page_tokens becomes page_tokens.
std::string short_name(std::string name) {
  if (name.ends_with(".name")) name.erase(name.size() - 5);
  return name.substr(name.rfind('.') + 1);
}

}  // namespace

double served_share(const Json& row) {
  if (has_failed(row)) return 0;
  const double requests = row.at("requests");
  return requests == 0 ? 0 : row.at("completed").get<double>() / requests;
}

std::string unit_of(std::string_view key) {
  const ExperimentKey* const known = find_key_of_experiment(key);
  if (known != nullptr && !known->unit.empty()) return std::string(known->unit);
  key = key.substr(0, key.find('+'));
  for (const auto& [end, unit] : {std::pair{"_gbps", "GB/s"},
                                  {"_us", "us"},
                                  {"_s", "s"},
                                  {".gib", "GiB"},
                                  {"tokens", "tokens"},
                                  {"per_second", "a second"}}) {
    if (key.ends_with(end)) return unit;
  }
  return "";
}

std::string_view name_of(Slower slower) {
  switch (slower) {
    case Slower::nowhere: return "nowhere";
    case Slower::everywhere: return "everywhere";
    case Slower::below: return "below";
    case Slower::above: return "above";
    case Slower::not_compared: return "not compared";
  }
  return "unknown";
}

std::vector<Crossover> crossovers_of(const SweepPlan& plan, const SweepRows& rows, double min_served) {
  std::vector<Crossover> list;
  const auto along = plan.along_axis();
  if (!along) return list;
  const Index index(plan);
  for (std::size_t pair = 0; pair < plan.pairs.size(); ++pair) {
    const std::size_t a = plan.case_named(plan.pairs[pair].first), b = plan.case_named(plan.pairs[pair].second);
    std::vector<std::size_t> others;
    for (std::size_t axis = 0; axis < plan.axes.size(); ++axis) {
      if (axis != *along && !(index.pins(a, axis) && index.pins(b, axis))) others.push_back(axis);
    }
    for (auto combination : index.combinations(others)) {
      Crossover one;
      one.pair = pair;
      one.settings.resize(plan.axes.size());
      for (const std::size_t axis : others) one.settings[axis] = combination[axis];
      const std::vector<SweepValue>& values = plan.axes[*along].values;
      std::vector<std::pair<double, double>> ratios;  // x value and ratio of each compared pair of cells
      for (std::size_t value = 0; value < values.size(); ++value) {
        combination[*along] = value;
        const auto ratio = ttft_ratio(rows, index.at(a, combination), index.at(b, combination), min_served);
        if (ratio) ratios.emplace_back(*values[value].number, *ratio);
      }
      one.left_out = values.size() - ratios.size();
      if (ratios.empty()) {
        one.slower = Slower::not_compared;
        list.push_back(std::move(one));
        continue;
      }
      one.first_ratio = ratios.front().second;
      one.last_ratio = ratios.back().second;
      // If there are several crossings, the one at the largest x counts.
      const bool slower_last = ratios.back().second > kMaxEqualRatio;
      one.slower = slower_last ? Slower::everywhere : Slower::nowhere;
      for (std::size_t i = ratios.size() - 1; i-- > 0;) {
        if ((ratios[i].second > kMaxEqualRatio) == slower_last) continue;
        one.slower = slower_last ? Slower::above : Slower::below;
        one.at = crossing(ratios[i].first, ratios[i].second, ratios[i + 1].first, ratios[i + 1].second);
        break;
      }
      list.push_back(std::move(one));
    }
  }
  return list;
}

std::string sweep_tables(const SweepPlan& plan, const SweepRows& rows) {
  constexpr std::size_t kMaxTables = 12;
  const auto along = plan.along_axis();
  if (!along || plan.cases.empty()) return cells_table(plan, rows);
  const Index index(plan);
  std::vector<std::size_t> others;
  for (std::size_t axis = 0; axis < plan.axes.size(); ++axis) {
    if (axis != *along) others.push_back(axis);
  }
  const auto combinations = index.combinations(others);
  std::string text;
  std::size_t tables = 0;
  const bool all = combinations.size() * plan.show.size() <= kMaxTables;  // false: only the first figure
  for (const auto& combination : combinations) {
    for (const std::string& figure : plan.show) {
      if ((!all && figure != plan.show.front()) || ++tables > kMaxTables) continue;
      std::string heading = figure;
      for (const std::size_t axis : others) {
        heading += ", " + plan.axes[axis].name + "=" + plan.axes[axis].values[*combination[axis]].text;
      }
      text += heading + "\n" + cases_table(plan, rows, index, figure, combination) + "\n";
    }
  }
  const bool all_served =
      std::ranges::all_of(rows, [](const Json& row) { return !has_failed(row) && left_out_text(row).empty(); });
  if (all_served) text += "No cell rejects or fails a request.\n";
  return all ? text : text + "All figures of all cells are in sweep.csv.\n\n";
}

// Lists the crossovers by the first axis of the pair. Over the other axes, the sentence has the range.
std::string sweep_sentence(const SweepPlan& plan, const std::vector<Crossover>& crossovers, double min_served) {
  std::string sentence;
  for (std::size_t pair = 0; pair < plan.pairs.size(); ++pair) {
    std::vector<const Crossover*> all;
    std::size_t found = 0, left_out = 0;
    for (const Crossover& one : crossovers) {
      if (one.pair != pair) continue;
      ++found;
      left_out += one.left_out;
      if (one.slower != Slower::not_compared) all.push_back(&one);
    }
    if (found == 0) continue;
    const auto& [a, b] = plan.pairs[pair];
    const std::string why = "one completes less than " + percent_text(min_served) + " of what the other completes";
    if (all.empty()) {
      sentence += (sentence.empty() ? "" : "; ") + a + " and " + b + " are not compared: in each cell " + why +
                  ", or neither completes a request";
      continue;
    }
    std::size_t axis = 0;
    while (axis < plan.axes.size() && !all.front()->settings[axis]) ++axis;
    const std::string whole = range_text(all, plan);
    std::string words = whole + " " + a + " is slower than " + b;
    if (whole == "nowhere" || whole == "everywhere") {
      double least = 1e300, most = 0;
      for (const Crossover* one : all) {
        least = std::min({least, one->first_ratio, one->last_ratio});
        most = std::max({most, one->first_ratio, one->last_ratio});
      }
      words = a + " is " + whole + " slower than " + b + " (its mean TTFT is " + ratio_text(least) + " to " +
              ratio_text(most) + " times the other's)";
    } else if (axis < plan.axes.size() && plan.axes[axis].values.size() > 1) {
      words += " (" + short_name(plan.axes[axis].name);
      for (std::size_t value = 0; value < plan.axes[axis].values.size(); ++value) {
        std::vector<const Crossover*> group;
        for (const Crossover* one : all) {
          if (one->settings[axis] == value) group.push_back(one);
        }
        std::string range = range_text(group, plan);
        // Do not repeat a beginning that all parts have in common.
        for (const std::string_view begin : {"below about ", "above about "}) {
          const bool only = whole.starts_with(begin) && whole.find(" or ") == std::string::npos;
          if (only && range.starts_with(begin)) range.erase(0, begin.size());
        }
        words += (value == 0 ? " " : ", ") + plan.axes[axis].values[value].text + ": " +
                 (group.empty() ? "not compared" : range);
      }
      words += ")";
    }
    if (left_out != 0) {
      const std::size_t cells = found * plan.axes[*plan.along_axis()].values.size();
      words += " (" + std::to_string(left_out) + " of " + std::to_string(cells) +
               " pairs of cells are not compared: " + why + ", or neither completes a request)";
    }
    sentence += (sentence.empty() ? "" : "; ") + words;
  }
  return sentence;
}

}  // namespace kvtwin
