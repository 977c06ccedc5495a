#include "lab/sweep/sweep.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lab/error.hpp"
#include "lab/report/figures.hpp"
#include "lab/report/warnings.hpp"
#include "lab/sweep/sweep_cell.hpp"
#include "lab/sweep/sweep_words.hpp"
#include "lab/version.hpp"
#include "models/json.hpp"
#include "models/names.hpp"

namespace kvtwin {
namespace {

void check_show(const SweepPlan& plan, const Json& row) {
  std::vector<std::string> names;
  for (const auto& [name, value] : row.items()) {
    if (value.is_number() || value.is_null()) names.push_back(name);  // null: this cell does not have the figure
  }
  for (const std::string& figure : plan.show) {
    if (std::ranges::find(names, figure) == names.end()) {
      throw InputError(plan.show_origin() + ": " + unknown_name("figure", figure, names));
    }
  }
}

// compare.json, for drawing.
Json summary_json(const SweepArguments& arguments, const SweepPlan& plan, const std::vector<Crossover>& crossovers,
                  const std::string& sentence, std::size_t cells) {
  Json json{{"schema_version", 1},
            {"kvtwin_version", kVersion},
            {"git_commit", kGitCommit},
            {"experiment", arguments.experiment},
            {"title", plan.title},
            {"along", plan.along},
            {"unit", unit_of(plan.along)},
            {"show", plan.show},
            {"warm_up", plan.warm_up},
            {"cells", cells},
            {"min_served_percent", arguments.min_served},
            {"better", better_json()}};
  json["axes"] = json["cases"] = json["pairs"] = json["crossovers"] = Json::array();
  for (const SweepAxis& axis : plan.axes) {
    Json values = Json::array();
    for (const SweepValue& value : axis.values) values.push_back(value.number ? Json(*value.number) : Json(value.text));
    json["axes"].push_back({{"name", axis.name}, {"unit", unit_of(axis.name)}, {"values", values}});
  }
  for (const SweepCase& one : plan.cases) json["cases"].push_back(one.name);
  for (const auto& [a, b] : plan.pairs) json["pairs"].push_back({a, b});
  for (const Crossover& one : crossovers) {
    Json settings = Json::object();
    for (std::size_t a = 0; a < plan.axes.size(); ++a) {
      if (!one.settings[a]) continue;
      const SweepValue& value = plan.axes[a].values[*one.settings[a]];
      settings[plan.axes[a].name] = value.number ? Json(*value.number) : Json(value.text);
    }
    const bool compared = one.slower != Slower::not_compared;
    const bool bounded = one.slower == Slower::below || one.slower == Slower::above;
    json["crossovers"].push_back({{"slower", plan.pairs[one.pair].first},
                                  {"than", plan.pairs[one.pair].second},
                                  {"settings", settings},
                                  {"where", std::string(name_of(one.slower))},
                                  {"at", bounded ? Json(one.at) : Json()},
                                  {"ratio_first", compared ? Json(one.first_ratio) : Json()},
                                  {"ratio_last", compared ? Json(one.last_ratio) : Json()},
                                  {"not_compared", one.left_out}});
  }
  json["sentence"] = sentence;
  return json;
}

struct PlannedSweep {
  Experiment base;
  SweepPlan plan;
};
PlannedSweep planned(const SweepArguments& arguments, const Listener& listener) {
  Experiment base = Experiment::from_file(
      arguments.experiment);  // read first, because its errors explain a file that is no experiment
  SweepPlan plan = SweepPlan::from_file(arguments.experiment);
  if (!arguments.cases.empty()) plan.only_cases(arguments.cases);
  finish_plan(arguments, plan, base, listener);
  return {std::move(base), std::move(plan)};
}

}  // namespace

bool has_sweep_section(const std::string& experiment) {
  const SweepPlan plan = SweepPlan::from_file(experiment);
  return !plan.axes.empty() || !plan.cases.empty();
}

std::string cell_names(const SweepArguments& arguments, const Listener& listener) {
  const auto [base, plan] = planned(arguments, listener);
  Json names = Json::array();
  for (const CellRun& cell : cell_runs(plan, base)) names.push_back(plan.name_of(cell.place));
  return names.dump() + "\n";
}

SweepOutcome sweep(const SweepArguments& arguments, const Listener& listener) {
  const auto [base, plan] = planned(arguments, listener);
  SweptRows swept = run_sweep(arguments, plan, base, listener);
  SweepOutcome outcome;
  if (swept.shard) {
    outcome.text = shard_text(arguments, swept);
  } else {
    check_show(plan, *std::ranges::find_if_not(swept.rows, has_failed));
    const std::vector<Crossover> crossovers = crossovers_of(plan, swept.rows, arguments.min_served / 100);
    const std::string sentence = sweep_sentence(plan, crossovers, arguments.min_served / 100);
    Json summary = summary_json(arguments, plan, crossovers, sentence, swept.rows.size());
    if (!base.notes().empty()) summary["notes"] = base.notes();
    if (swept.folder) {
      swept.folder->write_rows(swept.rows);
      swept.folder->write("compare.json", summary.dump(2) + "\n");
      outcome.folder = arguments.out;
    }
    std::vector<std::string> names;
    for (const Json& row : swept.rows) names.push_back(row.value("warnings", ""));
    outcome.text = arguments.json ? json_lines(swept.rows) + summary.dump() + "\n"
                                  : swept.engines + measured_line(swept.rows) + intervals_line(swept.rows) +
                                        sweep_tables(plan, swept.rows) + (sentence.empty() ? "" : sentence + "\n") +
                                        warnings_text(names);
  }
  outcome.failures = failures_sentence(plan, swept);
  return outcome;
}

}  // namespace kvtwin
