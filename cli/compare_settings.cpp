#include "cli/compare_settings.hpp"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/comparison.hpp"
#include "cli/error.hpp"
#include "cli/trace_options.hpp"
#include "kvtwin_version.hpp"
#include "traces/trace.hpp"

namespace kvtwin {
namespace {

using Json = nlohmann::ordered_json;

// Does another seed make other work of it? A trace tells every request, but for agentic ones' starts of sessions.
bool draws(const Experiment& experiment) {
  if (experiment.number("sim.storage_stall_share") > 0 || experiment.text("workload.trace").empty()) return true;
  TraceOptions options;
  options.format = trace_format_named(experiment.text("workload.format"), experiment.where("workload.format"));
  return TraceReader(experiment.path("workload.trace").string(), options).format() == TraceFormat::agentic;
}

bool any_draws(const SweepPlan& plan, const Experiment& base) {
  const std::vector<SweepCell> cells = plan.cells();
  return std::ranges::any_of(cells, [&](const SweepCell& cell) { return draws(plan.experiment(base, cell)); });
}

// A key of a tier's size, whose values are numbers: the figure's x axis.
bool is_capacity(const SweepAxis& axis) {
  const bool tiers = std::ranges::all_of(axis.keys, [](const std::string& key) {
    return key.starts_with("tiers.") && (key.ends_with(".tokens") || key.ends_with(".gib"));
  });
  return tiers && std::ranges::all_of(axis.values, [](const SweepValue& value) { return value.number.has_value(); });
}

Json about(const CompareSettingsArguments& arguments, const SweepPlan& plan, const Comparison& comparison,
           const Experiment& base, std::size_t seeds) {
  Json json{{"schema_version", 1},      {"kvtwin_version", kVersion},
            {"git_commit", kGitCommit}, {"experiment", arguments.experiment},
            {"seeds", seeds},           {"eviction", base.text("cache.eviction")},
            {"axes", Json::array()}};
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

}  // namespace

void compare_settings(const CompareSettingsArguments& arguments) {
  Experiment base = sweep_base(arguments);
  SweepPlan plan;  // the file's [sweep] asks another question
  finish_plan(arguments, plan);
  if (base.origin("report.bounds") == "default") base.set("report.bounds=true", "kvtwin compare");
  if (!base.flag("report.bounds")) {
    std::fprintf(stderr, "kvtwin: note: %s: is false, so that nothing is known of the distance to optimal\n",
                 base.where("report.bounds").c_str());
  }
  const bool drawn = any_draws(plan, base);
  auto seeds = static_cast<std::size_t>(arguments.seeds);
  if (seeds > 1 && !drawn) {
    std::fprintf(stderr,
                 "kvtwin: note: --seeds %zu: nothing is drawn in this work, its trace tells every request; each "
                 "setting is run once, and there is no noise\n",
                 seeds);
    seeds = 1;
  }
  if (seeds > 1) plan.repeat(base.integer("seed"), seeds);
  SweptRows swept = run_sweep(arguments, plan, base);
  std::string text;
  if (swept.shard) {
    text = shard_text(arguments, swept);
  } else {
    const Comparison comparison = compare_rows(plan, swept.rows, seeds);
    const SweepRows rows = comparison_rows(plan, comparison, seeds);
    if (swept.folder) {
      swept.folder->write_rows(swept.rows);
      swept.folder->write("compare.csv", csv_of(rows));
      swept.folder->write("compare.jsonl", json_lines(rows));
      swept.folder->write("compare.json", about(arguments, plan, comparison, base, seeds).dump(2) + "\n");
      std::fprintf(stderr, "compare folder: %s\n", arguments.out.c_str());
    }
    text = arguments.json ? json_lines(rows) : comparison_text(plan, comparison, seeds, drawn);
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace kvtwin
