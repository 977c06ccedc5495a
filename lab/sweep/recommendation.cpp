#include "lab/sweep/recommendation.hpp"

#include <algorithm>
#include <utility>

#include "lab/engine_flags/flag_text.hpp"
#include "lab/errors/intervals.hpp"
#include "lab/formatted.hpp"
#include "models/json.hpp"

namespace kvtwin {
namespace {

using Better = RunFigure::Better;

constexpr std::size_t kMaxServerNotes = 4;

// The setting's figure, with the sign that makes smaller values better.
double cost_of(const ComparedSetting& setting, std::size_t figure) {
  const double mean = setting.figures[figure]->mean;
  return figures()[figure].better == Better::more ? -mean : mean;
}

// The ends of the interval of a figure.
std::pair<double, double> ends_of(const Estimate& estimate) {
  if (estimate.range) return *estimate.range;
  const double half = estimate.half.value_or(0);
  return {estimate.mean - half, estimate.mean + half};
}

bool is_worse_for_sure(const ComparedSetting& setting, const ComparedSetting& best, std::size_t figure) {
  const auto [low, high] = ends_of(*setting.figures[figure]);
  const auto [best_low, best_high] = ends_of(*best.figures[figure]);
  return figures()[figure].better == Better::more ? high < best_low : low > best_high;
}

std::string settings_text(const SweepPlan& plan, const Comparison& comparison, std::size_t setting) {
  std::string text;
  for (std::size_t axis = 0; axis < comparison.is_choice.size(); ++axis) {
    const SweepAxis& of = plan.axes[axis];
    text +=
        (text.empty() ? "" : ", ") + of.name + "=" + of.values[*comparison.settings[setting].place.indices[axis]].text;
  }
  return text;
}

Json settings_json(const SweepPlan& plan, const Comparison& comparison, std::size_t setting) {
  Json json = Json::object();
  for (std::size_t axis = 0; axis < comparison.is_choice.size(); ++axis) {
    const SweepValue& value = plan.axes[axis].values[*comparison.settings[setting].place.indices[axis]];
    json[plan.axes[axis].name] = value.number ? Json(*value.number) : Json(value.text);
  }
  return json;
}

std::string joined_by_then(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", then ") + word;
  return text;
}

// Returns whether the errors of the two predictions leave open which one is better.
bool is_tie(const ComparedSetting& setting, const ComparedSetting& best, std::size_t figure) {
  return time_kind(figures()[figure].name) != TimeKind::none &&
         setting.figures[figure]->mean <= best.figures[figure]->mean * (1 + kTieShare);
}

// Orders the settings by what they cost, and says which of these costs differ.
class Costs {
 public:
  Costs(const SweepPlan& plan, const Comparison& comparison, std::vector<std::size_t> good, std::size_t figure)
      : plan_(plan), settings_(comparison.settings), good_(std::move(good)), figure_(figure) {
    priced_ = std::ranges::all_of(good_, [&](std::size_t i) { return value(i, price_).has_value(); });
    for (std::size_t axis = 0; axis < comparison.is_choice.size(); ++axis) {
      if (!comparison.is_choice[axis] && is_capacity(plan.axes[axis])) sizes_.push_back(axis);
    }
  }
  std::size_t least() const {
    return *std::ranges::min_element(good_, {}, [&](std::size_t i) { return costs(i); });
  }
  std::vector<std::string> words() const {
    const auto varies = [&](const auto& of) {
      return std::ranges::any_of(good_, [&](std::size_t i) { return of(i) != of(good_.front()); });
    };
    if (priced_ && varies([&](std::size_t i) { return *value(i, price_); })) return {"the lowest price"};
    if (varies([&](std::size_t i) { return value(i, gpus_); })) return {"the fewest GPUs"};
    if (varies([&](std::size_t i) { return sizes(i); })) return {"the smallest tiers"};
    return {};
  }

 private:
  std::optional<double> value(std::size_t i, std::size_t figure) const {
    const auto& own = settings_[i].figures[figure];
    return own ? std::optional(own->mean) : std::nullopt;
  }
  std::vector<double> sizes(std::size_t i) const {
    std::vector<double> list;
    for (const std::size_t axis : sizes_)
      list.push_back(*plan_.axes[axis].values[*settings_[i].place.indices[axis]].number);
    return list;
  }
  std::vector<double> costs(std::size_t i) const {
    std::vector<double> list{priced_ ? *value(i, price_) : 0, value(i, gpus_).value_or(0)};
    for (const double size : sizes(i)) list.push_back(size);
    list.push_back(cost_of(settings_[i], figure_));
    return list;
  }

  const SweepPlan& plan_;
  const std::vector<ComparedSetting>& settings_;
  std::vector<std::size_t> good_;
  std::size_t figure_, price_ = figure_index("price_per_month"), gpus_ = figure_index("gpus");
  bool priced_ = false;
  std::vector<std::size_t> sizes_;  // axes
};

std::string figure_text(const Comparison& comparison, std::size_t setting, std::size_t figure) {
  return std::string(figures()[figure].name) + formatted(" %.4g", comparison.settings[setting].figures[figure]->mean);
}

}  // namespace

Recommendation recommend(const SweepPlan& plan, const Comparison& comparison, const std::optional<Goal>& goal,
                         double min_served) {
  Recommendation found;
  found.figure = goal ? goal->figure : figure_index("ttft_mean_s");
  const std::vector<ComparedSetting>& settings = comparison.settings;
  double most = 0;
  for (const ComparedSetting& setting : settings) most = std::max(most, setting.served_share);
  std::vector<std::size_t> able, good;
  for (std::size_t i = 0; i < settings.size(); ++i) {
    if (settings[i].figures[found.figure] && settings[i].served_share >= min_served * most) able.push_back(i);
  }
  if (able.empty()) return found;
  const std::size_t best =
      *std::ranges::min_element(able, {}, [&](std::size_t i) { return cost_of(settings[i], found.figure); });
  found.nearest = best;
  bool ties = false;
  for (const std::size_t i : able) {
    if (goal) {
      if (settings[i].meets_goal) good.push_back(i);
      continue;
    }
    const bool worse = is_worse_for_sure(settings[i], settings[best], found.figure);
    const bool tie = worse && is_tie(settings[i], settings[best], found.figure);
    ties |= tie;
    if (!worse || tie) good.push_back(i);
  }
  if (good.empty()) return found;
  const Costs costs(plan, comparison, good, found.figure);
  found.setting = costs.least();
  std::vector<std::string> less = costs.words();
  const std::string name(figures()[found.figure].name);
  if (goal) {
    less.push_back("the best " + name);
    found.reason = good.size() == 1 ? "only this setting meets the goal"
                                    : std::to_string(good.size()) + " of " + std::to_string(settings.size()) +
                                          " settings meet the goal; this one has " + joined_by_then(less);
  } else if (good.size() == 1) {
    found.reason = "it has the best " + name + "; no goal was given, so that price and sizes do not count";
  } else {
    found.reason = std::to_string(good.size()) + " settings have the best " + name +
                   ", or cannot be told from the best" +
                   (ties ? formatted(" (choices err by %.0f %%)", 100 * kTieShare) : std::string()) + "; this one " +
                   (less.empty() ? "is the first" : "has " + joined_by_then(less));
  }
  return found;
}

Json recommendation_json(const SweepPlan& plan, const Comparison& comparison, const Recommendation& recommendation,
                         const std::vector<EngineCommand>& commands) {
  Json json{{"figure", figures()[recommendation.figure].name}, {"row", nullptr}, {"nearest_row", nullptr}};
  if (recommendation.nearest) json["nearest_row"] = *recommendation.nearest;
  if (!recommendation.setting) return json;
  json["row"] = *recommendation.setting;
  json["settings"] = settings_json(plan, comparison, *recommendation.setting);
  json["reason"] = recommendation.reason;
  json["servers"] = Json::object();
  for (const EngineCommand& command : commands) {
    json["servers"][command.engine] = {{"command", command.line.line}, {"notes", command.line.notes}};
  }
  return json;
}

std::string recommendation_text(const SweepPlan& plan, const Comparison& comparison,
                                const Recommendation& recommendation, const std::vector<EngineCommand>& commands,
                                const std::optional<Goal>& goal) {
  const auto line = [](const std::string& head, const std::string& words) {
    return formatted("%-11s", head.c_str()) + words + "\n";
  };
  const auto gets = [&](std::size_t setting) {
    return settings_text(plan, comparison, setting) + ": " + figure_text(comparison, setting, recommendation.figure);
  };
  if (!recommendation.setting) {
    return line("recommend",
                goal ? "nothing: no setting meets the goal" +
                           (recommendation.nearest ? "; nearest: " + gets(*recommendation.nearest) : std::string())
                     : std::string("nothing: no setting completes enough requests"));
  }
  std::string text = line("recommend", gets(*recommendation.setting) + "; " + recommendation.reason);
  for (const EngineCommand& command : commands) {
    text += line(command.engine, command.line.line);
    if (command.line.notes.empty()) continue;
    text += line("", "without, as no flag says it: " + joined_words(command.line.notes, kMaxServerNotes));
  }
  return text;
}

}  // namespace kvtwin
