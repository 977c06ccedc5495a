#include "lab/plan/confidence.hpp"

#include <algorithm>

#include "lab/experiment/engine_word.hpp"
#include "models/calibration_fit.hpp"
#include "models/json.hpp"
#include "models/presets.hpp"

namespace kvtwin {
namespace {

using Factors = PublishedErrors::Factors;

constexpr std::size_t kLeastRuns = 40, kLeastModels = 3;
constexpr double kLow = 0.05, kHigh = 0.95;

struct Group {
  std::string times, engine, gpu;
  std::size_t models = 0;
  std::vector<Factors> runs;
};

const std::vector<Group>& groups() {
  static const std::vector<Group> all = [] {
    std::vector<Group> read;
    const Json table = Json::parse(errors_preset_text());
    for (const Json& json : table.at("groups")) {
      Group group{json.at("times"), json.at("engine"), json.at("gpu"), json.at("models"), {}};
      const Json &ttft = json.at("ttft"), &tpot = json.at("tpot");
      for (std::size_t i = 0; i < ttft.size(); ++i) group.runs.push_back({ttft[i], tpot[i]});
      read.push_back(std::move(group));
    }
    return read;
  }();
  return all;
}

// Adds the runs of the groups with these times, and with this engine and GPU if they are not empty. Returns the number
// of models, at least.
std::size_t add_runs(const std::string& times, const std::string& engine, const std::string& gpu,
                     std::vector<Factors>& runs) {
  std::size_t models = 0;
  for (const Group& group : groups()) {
    if (group.times != times || (!engine.empty() && group.engine != engine) || (!gpu.empty() && group.gpu != gpu)) {
      continue;
    }
    runs.insert(runs.end(), group.runs.begin(), group.runs.end());
    models = std::max(models, group.models);
  }
  return models;
}

// What the factors do to a figure.
enum class FigureKind : std::uint8_t { exact, ttft, tpot, e2e, unknown };

FigureKind kind_of(std::string_view name) {
  if (name.starts_with("ttft_")) return FigureKind::ttft;
  if (name.starts_with("tpot_")) return FigureKind::tpot;
  if (name.starts_with("e2e_")) return FigureKind::e2e;
  for (const std::string_view rate : {"good", "hand_over", "requests_per_second", "prompt_tokens_per_second",
                                      "output_tokens_per_second", "saved_s", "price_per_million_tokens"}) {
    if (name.starts_with(rate)) return FigureKind::unknown;
  }
  return FigureKind::exact;
}

}  // namespace

PublishedErrors published_errors(const std::string& engine, const std::string& gpu, const std::string& times) {
  PublishedErrors errors;
  const std::string by = times == "table" ? "with measured operator times" : "with times of the roofline";
  const std::string known = engine == "none" ? std::string() : engine;
  const auto enough = [&](std::size_t models) { return models >= kLeastModels && errors.runs.size() >= kLeastRuns; };
  const auto take = [&](const std::string& of_engine, const std::string& of_gpu, const std::string& words) {
    errors.runs.clear();
    const std::size_t models = add_runs(times, of_engine, of_gpu, errors.runs);
    errors.of = std::to_string(errors.runs.size()) + " published runs" + words + ", " + by;
    return enough(models);
  };
  if (!known.empty() && take(known, gpu, " of " + known + " on " + gpu)) return errors;
  if (known.empty() && take("", gpu, " on " + gpu)) return errors;
  const std::size_t own = errors.runs.size();
  const std::string few = " (" + gpu + " has " + (own == 0 ? "none" : "too few: " + std::to_string(own)) + ")";
  if (!known.empty() && take(known, "", " of " + known + " on all GPUs" + few)) return errors;
  take("", "", " of all engines on all GPUs" + few);
  return errors;
}

PublishedErrors published_errors(const Experiment& experiment) {
  const bool table =
      experiment.text("hardware.operators") != "none" || !experiment.text("hardware.operators_file").empty();
  const EngineWord word = engine_word(experiment.text(kEngineKey), experiment.where(kEngineKey));
  return published_errors(std::string(name_of(word.engine)), gpu_of(experiment), table ? "table" : "roofline");
}

GoalOdds goal_odds(const std::vector<Goal>& goals, const Json& figures_of_run, const PublishedErrors& errors) {
  GoalOdds odds;
  const auto figure = [&](const std::string& name) -> double {
    const auto at = figures_of_run.find(name);
    return at != figures_of_run.end() && at->is_number() ? at->get<double>() : 0;
  };
  const double e2e = figure("e2e_mean_s");
  const double ttft_share = e2e > 0 ? std::clamp(figure("ttft_mean_s") / e2e, 0.0, 1.0) : 0;
  const auto scaled = [&](FigureKind kind, double value, const Factors& by) {
    switch (kind) {
      case FigureKind::ttft: return value * by.ttft;
      case FigureKind::tpot: return value * by.tpot;
      case FigureKind::e2e: return value * (ttft_share * by.ttft + (1 - ttft_share) * by.tpot);
      case FigureKind::exact:
      case FigureKind::unknown: break;
    }
    return value;
  };
  std::vector<Factors> holding = errors.runs;
  for (const Goal& goal : goals) {
    const std::string name(figures()[goal.figure].name);
    const FigureKind kind = kind_of(name);
    if (kind == FigureKind::unknown) odds.not_judged.push_back(name);
    const auto at = figures_of_run.find(name);
    if (kind == FigureKind::unknown || at == figures_of_run.end() || !at->is_number()) continue;
    const auto value = at->get<double>();
    std::erase_if(holding, [&](const Factors& by) { return !goal.met_by(scaled(kind, value, by)); });
    if (kind == FigureKind::exact) continue;
    odds.any = true;
    std::vector<double> values;
    for (const Factors& by : errors.runs) values.push_back(scaled(kind, value, by));
    std::ranges::sort(values);
    odds.ranges[name] = {quantile_of(values, kLow), quantile_of(values, kHigh)};
  }
  odds.probability = static_cast<double>(holding.size() + 1) / static_cast<double>(errors.runs.size() + 2);
  return odds;
}

}  // namespace kvtwin
