#include "lab/sweep/compare_settings.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/experiment/workload.hpp"
#include "lab/names.hpp"
#include "lab/report/counting_terms.hpp"
#include "lab/report/warnings.hpp"
#include "lab/sweep/comparison.hpp"
#include "lab/sweep/recommendation.hpp"
#include "lab/sweep/sweep.hpp"
#include "lab/sweep/sweep_cell.hpp"
#include "lab/version.hpp"
#include "models/json.hpp"

namespace kvtwin {
namespace {

bool any_draws(const SweepPlan& plan, const Experiment& base) {
  const std::vector<SweepCell> cells = plan.cells();
  return std::ranges::any_of(cells,
                             [&](const SweepCell& cell) { return seed_changes_work(plan.experiment(base, cell)); });
}

Json about(const CompareSettingsArguments& arguments, const SweepPlan& plan, const Comparison& comparison,
           const Experiment& base, const Repeats& repeats) {
  Json json{{"schema_version", 1},      {"kvtwin_version", kVersion},
            {"git_commit", kGitCommit}, {"experiment", arguments.experiment},
            {"seeds", repeats.seeds},   {"eviction", base.text("cache.eviction")},
            {"axes", Json::array()},    {"min_served_percent", arguments.min_served}};
  if (!arguments.command.empty()) json["command"] = arguments.command;
  json["better"] = better_json();
  if (repeats.draws != 0) json["draws"] = repeats.draws;
  if (!base.notes().empty()) json["notes"] = base.notes();
  for (std::size_t a = 0; a < comparison.is_choice.size(); ++a) {
    const SweepAxis& axis = plan.axes[a];
    Json values = Json::array();
    for (const SweepValue& value : axis.values) values.push_back(value.number ? Json(*value.number) : Json(value.text));
    json["axes"].push_back({{"name", axis.name},
                            {"unit", unit_of(axis.name)},
                            {"choice", static_cast<bool>(comparison.is_choice[a])},
                            {"capacity", is_capacity(axis)},
                            {"values", values}});
  }
  return json;
}

// Refuses a goal for good requests without a limit that tells which requests are good.
void check_goal(const Goal& goal, const SweepPlan& plan, const Experiment& base) {
  const std::string_view name = figures()[goal.figure].name;
  if (name != "good_share" && name != "goodput_per_second") return;
  for (const SweepCell& cell : plan.cells()) {
    if (counting_terms(plan.experiment(base, cell)).level.set()) continue;
    throw InputError("--goal " + std::string(name) + ": " + plan.name_of(cell) +
                     " has no limit for a good request; set slo.ttft_s, slo.tpot_s or slo.e2e_s");
  }
}

// The sizes that meet the goal.
Json goal_json(const SweepPlan& plan, const Goal& goal, const GoalLines& lines) {
  Json json{
      {"figure", figures()[goal.figure].name}, {"value", goal.value}, {"along", nullptr}, {"lines", Json::array()}};
  if (lines.along) json["along"] = plan.axes[*lines.along].name;
  const auto shown = [](const SweepValue& value) { return value.number ? Json(*value.number) : Json(value.text); };
  for (const GoalLine& line : lines.lines) {
    Json settings = Json::object();
    for (const auto& [axis, index] : line.others) settings[plan.axes[axis].name] = shown(plan.axes[axis].values[index]);
    const auto from = [&](const std::optional<std::size_t>& index) -> Json {
      if (!index) return nullptr;
      return lines.along ? shown(plan.axes[*lines.along].values[*index]) : Json(true);
    };
    json["lines"].push_back(
        {{"settings", settings}, {"from", from(line.from)}, {"surely_from", from(line.surely_from)}});
  }
  return json;
}

// Returns the warnings of each setting, over all its runs.
std::vector<std::string> warnings_of_settings(const SweepRows& rows, std::size_t runs) {
  std::vector<std::string> settings;
  for (std::size_t first = 0; first < rows.size(); first += runs) {
    std::string all;
    for (std::size_t run = 0; run < runs; ++run) all += " " + rows[first + run].value("warnings", "") + " ";
    std::string names;
    for (const WarningKind kind : kWarningKinds) {
      const std::string name(name_of(kind));
      if (all.find(" " + name + " ") != std::string::npos) names += (names.empty() ? "" : " ") + name;
    }
    settings.push_back(names);
  }
  return settings;
}

// A line per simulation has no marks, intervals or goals.
void refuse_terms_of_comparisons(const CompareSettingsArguments& arguments) {
  const char* const option = arguments.seeds > 1       ? "--seeds"
                             : arguments.draws != 0    ? "--draws"
                             : !arguments.goal.empty() ? "--goal"
                                                       : nullptr;
  if (option == nullptr) return;
  throw InputError(std::string(option) + ": " + (arguments.cells ? "--cells" : arguments.experiment + ": [sweep]") +
                   " has a line per simulation, without a comparison of settings; leave " + option +
                   " out, or vary it: --vary seed=1,2,3");
}

}  // namespace

SweepOutcome compare_settings(const CompareSettingsArguments& arguments, const Listener& listener) {
  Experiment base = Experiment::from_file(arguments.experiment);  // first: its errors explain what is no experiment
  if (arguments.cells || !arguments.cases.empty() || has_sweep_section(arguments.experiment)) {
    refuse_terms_of_comparisons(arguments);
    return sweep(arguments, listener);
  }
  SweepPlan plan;
  finish_plan(arguments, plan, base, listener);
  if (!base.is_given("report.bounds")) base.set("report.bounds=true", "kvtwin compare");
  if (!base.flag("report.bounds")) {
    listener.tell(base.where("report.bounds") + ": is false, so that nothing is known of the distance to optimal");
  }
  const bool drawn = any_draws(plan, base);
  std::optional<Goal> goal;
  if (!arguments.goal.empty()) goal = Goal::from_text(arguments.goal);
  if (goal) check_goal(*goal, plan, base);
  Repeats repeats{static_cast<std::size_t>(arguments.seeds), static_cast<std::size_t>(arguments.draws)};
  if (repeats.seeds > 1 && !drawn) {
    listener.tell("--seeds " + std::to_string(repeats.seeds) +
                  ": nothing is drawn in this work, its trace tells every request; each setting is run once, and there "
                  "is no noise");
    repeats.seeds = 1;
  }
  if (repeats.seeds > 1) plan.repeat("seed", base.integer("seed"), repeats.seeds, "--seeds");
  if (repeats.draws != 0 && base.integer("hardware.draw") != 0) {
    throw InputError("--draws: " + base.where("hardware.draw") +
                     " is set; leave it out, --draws goes through all of them");
  }
  if (repeats.draws != 0) plan.repeat("hardware.draw", 0, repeats.runs(), "--draws");
  SweptRows swept = run_sweep(arguments, plan, base, listener);
  SweepOutcome outcome;
  if (swept.shard) {
    outcome.text = shard_text(arguments, swept);
  } else {
    const double min_served = arguments.min_served / 100;
    const Comparison comparison = compare_rows(plan, swept.rows, repeats, goal, min_served);
    SweepRows rows = comparison_rows(plan, comparison, repeats, goal);
    const std::vector<std::string> warnings = warnings_of_settings(swept.rows, repeats.runs());
    const Recommendation recommendation = recommend(plan, comparison, goal, min_served);
    std::vector<EngineCommand> commands;
    if (recommendation.setting) {
      commands = engine_commands(plan.experiment(base, comparison.settings[*recommendation.setting].place));
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i]["recommended"] = recommendation.setting == i;
      rows[i]["warnings"] = warnings[i];
    }
    Json about_it = about(arguments, plan, comparison, base, repeats);
    if (goal) about_it["goal"] = goal_json(plan, *goal, goal_lines(plan, comparison));
    about_it["recommendation"] = recommendation_json(plan, comparison, recommendation, commands);
    if (swept.folder) {
      swept.folder->write_rows(swept.rows);
      swept.folder->write("compare.csv", csv_of(rows));
      swept.folder->write("compare.jsonl", json_lines(rows));
      swept.folder->write("compare.json", about_it.dump(2) + "\n");
      outcome.folder = arguments.out;
    }
    outcome.text = arguments.json ? json_lines(rows)
                                  : swept.engines + measured_line(swept.rows) + intervals_line(swept.rows) +
                                        comparison_text(plan, comparison, repeats, drawn, goal, min_served);
    if (goal && !arguments.json) outcome.text += goal_text(plan, comparison, *goal, repeats);
    if (!arguments.json) {
      outcome.text += recommendation_text(plan, comparison, recommendation, commands, goal) + warnings_text(warnings);
    }
  }
  outcome.failures = failures_sentence(plan, swept);
  return outcome;
}

}  // namespace kvtwin
