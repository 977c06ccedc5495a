#include <filesystem>

#include "lab/error.hpp"
#include "lab/formatted.hpp"
#include "lab/plan/plan.hpp"
#include "lab/plan/plan_text.hpp"
#include "lab/plan/simulations.hpp"
#include "models/text_file.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kMaxPlanBytes = std::size_t{1} << 28;

std::string number_text(const Json& value) { return value.is_number() ? formatted("%.4g", value.get<double>()) : "-"; }

}  // namespace

PlanOutcome ask_what_if(const PlanArguments& arguments, const Listener& listener) {
  const std::filesystem::path folder = arguments.experiment;
  const std::string where = "--what-if: " + arguments.experiment;
  if (arguments.experiment.empty() || !std::filesystem::is_regular_file(folder / "plan.json")) {
    throw InputError(
        "--what-if: needs the folder of a finished plan, e.g. kvtwin plan out/plan --what-if tiers.host.gib=512");
  }
  if (!arguments.sets.empty() || !arguments.lists.empty() || !arguments.goals.empty() || arguments.rate > 0) {
    throw InputError(
        "--what-if: changes a finished plan, which has its goals and settings; give each change as --what-if "
        "key=value, and leave out --goal, --set, --vary and the options of the workload");
  }
  const Json json =
      Json::parse_or_discard(read_text_file(folder / "plan.json", "give the folder of a plan", kMaxPlanBytes));
  if (!json.is_object() || json.value("kind", "") != "plan") throw InputError(where + "/plan.json: is not a plan");
  if (!json.contains("recommendation") || json["recommendation"].is_null()) {
    throw InputError(where + ": this plan recommends nothing; change the goals or the choices, and plan again");
  }
  const Json& before = json["recommendation"];
  PurchasePlan plan;
  for (const Json& goal : json.at("goals")) {
    plan.goals.push_back({figure_index(goal.at("figure").get<std::string>()), goal.at("limit")});
  }
  plan.probability = json.value("probability_of_goals", 0.0);
  const Experiment base = Experiment::from_file((folder / "recommended.toml").string());
  const PriceList prices =
      base.text("prices.file").empty() ? PriceList::built_in() : PriceList::from_file(base.path("prices.file"));
  Experiment changed = base;
  for (const std::string& set : arguments.what_if) changed.set(set, "--what-if");
  const Choices choices({}, changed, prices, false);
  Simulations simulations(changed, choices, arguments, nullptr, listener, plan);
  Setting setting = choices.largest();
  setting.engines = changed.integer("cluster.engines");
  const Trial trial = simulations.simulate({{setting, {}}}).front();
  if (trial.figures.is_null()) throw InputError("--what-if: " + trial.why_not);
  PlanOutcome outcome;
  outcome.found = trial.meets;
  Json out{{"kind", "what_if"}, {"plan", arguments.experiment}, {"what_if", arguments.what_if}, {"meets", trial.meets}};
  if (!trial.why_not.empty()) out["why_not"] = trial.why_not;
  std::string changes;
  for (const std::string& set : arguments.what_if) changes += (changes.empty() ? "" : " ") + set;
  std::string text = formatted("%-28s %16s %16s %16s\n", "", "recommended", "what if", "goal");
  const auto row = [&](const std::string& name, const Json& a, const Json& b, const std::string& goal) {
    text +=
        formatted("%-28s %16s %16s %16s\n", name.c_str(), number_text(a).c_str(), number_text(b).c_str(), goal.c_str());
    out["figures"][name] = {{"recommended", a}, {"what_if", b}};
  };
  for (const Goal& goal : plan.goals) {
    const RunFigure& figure = figures()[goal.figure];
    const std::string name(figure.name);
    const char* const bound = figure.better == RunFigure::Better::less ? "at most" : "at least";
    row(name, before.at("figures").value(name, Json()), trial.figures.at(name),
        formatted("%s %.4g", bound, goal.value));
  }
  row("hit_ratio", before.at("figures").value("hit_ratio", Json()), trial.figures.at("hit_ratio"), "");
  const double was = before.value("price_month", 0.0);
  row("price_per_month", Json(was), Json(trial.per_month), "");
  text += "with " + changes + ": " + (trial.meets ? "meets the goals" : "misses: " + trial.why_not) + "; " +
          money(trial.per_month - was, currency_of(trial)) + " a month more\n";
  outcome.text = arguments.json ? out.dump() + "\n" : text;
  return outcome;
}

}  // namespace kvtwin
