// kvtwin sweep: an experiment under many settings, a cell each, side by side.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/error.hpp"
#include "cli/sweep_cell.hpp"
#include "cli/sweep_run.hpp"
#include "cli/sweep_words.hpp"
#include "cli/warnings.hpp"
#include "kvtwin_version.hpp"
#include "models/names.hpp"

namespace kvtwin {
namespace {

using Json = nlohmann::ordered_json;

struct SweepCommand : SweepArguments {
  std::vector<std::string> cases;
};

void check_show(const SweepPlan& plan, const Json& row) {
  std::vector<std::string> names;
  for (const auto& [name, value] : row.items()) {
    if (value.is_number() || value.is_null()) names.push_back(name);  // null: a figure that this cell doesn't have
  }
  for (const std::string& figure : plan.show) {
    if (std::ranges::find(names, figure) == names.end()) {
      throw InputError(plan.show_origin() + ": " + unknown_name("figure", figure, names));
    }
  }
}

// For whoever draws it.
Json summary_json(const SweepCommand& arguments, const SweepPlan& plan, const std::vector<Crossover>& crossovers,
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
            {"min_served_percent", arguments.min_served}};
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

void sweep(const SweepCommand& arguments) {
  Experiment base = Experiment::from_file(arguments.experiment);  // first: its sentences say what isn't an experiment
  SweepPlan plan = SweepPlan::from_file(arguments.experiment);
  if (!arguments.cases.empty()) plan.only_cases(arguments.cases);
  finish_plan(arguments, plan, base);
  SweptRows swept = run_sweep(arguments, plan, base);
  std::string text;
  if (swept.shard) {
    text = shard_text(arguments, swept);
  } else {
    check_show(plan, *std::ranges::find_if_not(swept.rows, has_failed));
    const std::vector<Crossover> crossovers = crossovers_of(plan, swept.rows, arguments.min_served / 100);
    const std::string sentence = sweep_sentence(plan, crossovers, arguments.min_served / 100);
    Json summary = summary_json(arguments, plan, crossovers, sentence, swept.rows.size());
    if (!base.notes().empty()) summary["notes"] = base.notes();
    if (swept.folder) {
      swept.folder->write_rows(swept.rows);
      swept.folder->write("sweep.json", summary.dump(2) + "\n");
      std::fprintf(stderr, "sweep folder: %s\n", arguments.out.c_str());
    }
    std::vector<std::string> names;
    for (const Json& row : swept.rows) names.push_back(row.value("warnings", ""));
    text = arguments.json
               ? json_lines(swept.rows) + summary.dump() + "\n"
               : sweep_tables(plan, swept.rows) + warnings_text(names) + (sentence.empty() ? "" : sentence + "\n");
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
  end_with_failures(plan, swept);
}

}  // namespace

void add_sweep(CLI::App& program) {
  static SweepCommand arguments;
  CLI::App* command = program.add_subcommand(
      "sweep", "Simulate an experiment under many settings: its [sweep], or lists given here; a cell each");
  command->footer(
      "Example: kvtwin sweep experiments/termination.toml --out out/termination\n"
      "         kvtwin figures out/termination\n"
      "         kvtwin sweep experiments/quickstart.toml --vary cache.eviction=lru,fifo --vary "
      "tiers.host.tokens=50000,100000\n"
      "         kvtwin sweep experiments/quickstart.toml --from-sglang-flags \"--page-size 32 "
      "--enable-hierarchical-cache\" --vary tiers.host.ratio=1,2,4\n"
      "Folder:  sweep.csv and sweep.jsonl (a row a cell), sweep.json (what varied, crossovers). A sweep that was ended "
      "goes on where it was. A cell that fails is marked (failure: why) and leaves the others as they are; exit code "
      "1, "
      "and the same command runs it again. Shards write sweep.shard-i-of-n.jsonl; those of other machines are copied "
      "here.");
  command->add_option("experiment", arguments.experiment, "Experiment file (TOML)")->required();
  command->add_option("--case", arguments.cases, "Only this case of the file's [sweep]; may be repeated")
      ->allow_extra_args(false);
  add_sweep_options(*command, arguments);
  command->add_flag("--json", arguments.json, "Print the rows as JSON lines, and last what sweep.json holds");
  command->callback([] { sweep(arguments); });
}

}  // namespace kvtwin
