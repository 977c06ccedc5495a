#include <algorithm>
#include <cmath>
#include <map>

#include "lab/decision_text.hpp"
#include "lab/engine_commands.hpp"
#include "lab/engine_flags/flag_text.hpp"
#include "lab/errors/intervals.hpp"
#include "lab/experiment/engine_word.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/experiment/workload.hpp"
#include "lab/formatted.hpp"
#include "lab/or_null.hpp"
#include "lab/plan/plan.hpp"
#include "lab/plan/plan_text.hpp"
#include "lab/shell_word.hpp"
#include "lab/version.hpp"

namespace kvtwin {
std::string money(double amount, const std::string& currency) {
  const double whole = std::round(amount);
  if (std::abs(amount) < 100) return currency + formatted(" %.3g", amount);
  return currency + " " + (whole < 0 ? "-" : "") + grouped(static_cast<std::uint64_t>(std::abs(whole)));
}

std::string currency_of(const Trial& trial) {
  const Json* const price = price_of(trial);
  return price == nullptr ? std::string() : price->at("currency").get<std::string>();
}

std::string goal_values(const PurchasePlan& plan, const Trial& trial) {
  std::string text;
  for (const Goal& goal : plan.goals) {
    const RunFigure& figure = figures()[goal.figure];
    text += text.empty() ? "" : ", ";
    text += figure.name;
    const auto at = trial.figures.is_null() ? trial.figures.end() : trial.figures.find(figure.name);
    if (trial.figures.is_null() || at == trial.figures.end() || at->is_null()) {
      text += " -";
      continue;
    }
    text += formatted(" %.4g (at %s %.4g", at->get<double>(),
                      figure.better == RunFigure::Better::less ? "most" : "least", goal.value);
    if (plan.probability > 0 && time_kind(figure.name) != TimeKind::none) {
      text += formatted(" with %.0f %%", 100 * plan.probability);
    }
    text += ")";
  }
  return text;
}

namespace {

constexpr std::size_t kMaxBusyKinds = 8;
constexpr std::size_t kMaxServerNotes = 4;
constexpr std::size_t kMaxOut = 3;

struct BoundLane {
  std::string name;
  double busy = 0, busy_p99 = 0;  // means over the lanes of this kind
  std::size_t lanes = 0;
};

// The lanes of all engines and ranks by kind, busiest first.
std::vector<BoundLane> lane_kinds(const Json& report) {
  std::map<std::string, BoundLane> kinds;
  for (const Json& lane : report.at("lanes")) {
    std::string name = lane.at("name");
    name.erase(0, name.rfind('.') + 1);
    BoundLane& kind = kinds[name];
    kind.name = name;
    kind.busy += lane.at("busy_fraction").get<double>();
    kind.busy_p99 += lane.at("busy_fraction_p99").get<double>();
    ++kind.lanes;
  }
  std::vector<BoundLane> list;
  for (auto& [name, kind] : kinds) {
    kind.busy /= static_cast<double>(kind.lanes);
    kind.busy_p99 /= static_cast<double>(kind.lanes);
    list.push_back(kind);
  }
  std::ranges::stable_sort(list, std::greater<>(), &BoundLane::busy);
  return list;
}

// The largest part of the mean TTFT, and its share.
std::pair<std::string, double> largest_part(const Json& report) {
  std::string largest;
  double most = 0, sum = 0;
  for (const auto& [name, value] : report.at("ttft_parts_seconds").items()) {
    if (!value.is_number()) continue;
    const auto seconds = value.get<double>();
    sum += seconds;
    if (seconds > most) {
      most = seconds;
      largest = name;
    }
  }
  std::ranges::replace(largest, '_', ' ');
  return {largest, sum > 0 ? most / sum : 0};
}

std::string binds_sentence(const Json& report) {
  const std::vector<BoundLane> kinds = lane_kinds(report);
  std::string text;
  if (!kinds.empty()) {
    text = kinds.front().name + formatted(" is busy %.0f %% of the time (%.0f %% in its busiest moments)",
                                          100 * kinds.front().busy, 100 * kinds.front().busy_p99);
    if (kinds.size() > 1) text += formatted("; next: %s, %.0f %%", kinds[1].name.c_str(), 100 * kinds[1].busy);
  }
  const auto [part, share] = largest_part(report);
  if (!part.empty()) text += formatted("; %.0f %% of the mean TTFT is %s", 100 * share, part.c_str());
  return text;
}

Json settings_json(const Choices& choices, const Setting& setting) {
  Json json = Json::object();
  for (const auto& [name, text] : choices.texts(setting)) {
    const Json parsed = Json::parse_or_discard(text);
    json[name] = parsed.is_number() ? parsed : Json(text);
  }
  return json;
}

Json figures_json(const Trial& trial) {
  Json json = Json::object();
  if (trial.figures.is_null()) return json;
  for (const RunFigure& figure : figures()) {
    const auto at = trial.figures.find(figure.name);
    if (at != trial.figures.end() && !at->is_null()) json[std::string(figure.name)] = *at;
  }
  return json;
}

Json trial_json(const Trial& trial, const Choices& choices) {
  Json json{{"settings", settings_json(choices, trial.setting)}, {"stage", trial.stage}, {"meets", trial.meets}};
  if (!trial.sets.empty()) json["with"] = trial.sets;
  if (!trial.why_not.empty()) json["why_not"] = trial.why_not;
  json["figures"] = figures_json(trial);
  if (const Json* const price = price_of(trial)) {
    json["gpus"] = trial.figures.at("gpus");
    json["price_month"] = trial.per_month;
    json["power_kw"] = price->at("power_kw");
  }
  return json;
}

Json setting_json(const Trial& trial, const Choices& choices, const std::string& because) {
  Json json = trial_json(trial, choices);
  json["because"] = because;
  if (const auto warm = trial.report.find("warm"); warm != trial.report.end()) {
    for (const char* name : {"from_s", "to_s", "flat", "not_flat"}) json["warm"][name] = warm->at(name);
  }
  const Json* const price = price_of(trial);
  if (price == nullptr) return json;
  json["price_per_million_tokens"] = price->at("per_million_tokens");
  json["parts"] = Json::array();
  for (const Json& part : price->at("parts")) {
    json["parts"].push_back({{"name", part.at("name")},
                             {"count", part.at("count")},
                             {"price_month", part.at("per_month")},
                             {"power_w", part.at("watts")}});
  }
  return json;
}

std::string parts_text(const Trial& trial) {
  std::string text;
  const Json* const price = price_of(trial);
  if (price == nullptr) return text;
  for (const Json& part : price->at("parts")) {
    text += (text.empty() ? "" : ", ") +
            grouped(static_cast<std::uint64_t>(std::round(part.at("count").get<double>()))) + " " +
            part.at("name").get<std::string>();
  }
  return text;
}

// The figures that the price list marks as assumed, of the winner's bill.
std::vector<std::string> assumed_of(const Trial& trial) {
  const Json* const price = price_of(trial);
  return price == nullptr ? std::vector<std::string>() : price->at("assumed").get<std::vector<std::string>>();
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

Json prices_json(const PurchasePlan& plan, const Experiment& base, const Choices& choices) {
  if (!plan.shown) return Json::object();
  const Setup setup = make_setup(choices.experiment(base, plan.trials[*plan.shown].setting));
  if (!setup.bill) return Json::object();
  Json json{{"file", setup.bill->origin}, {"currency", setup.bill->currency}, {"used", Json::array()}};
  for (const PriceFigure& figure : setup.bill->used) {
    json["used"].push_back({{"name", figure.name},
                            {"value", figure.value},
                            {"unit", figure.unit},
                            {"source", figure.source},
                            {"date", figure.date}});
  }
  json["assumed"] = setup.bill->assumed();
  return json;
}

// Providers differ in price by factors, so the source of a GPU's price stands on the screen.
std::vector<std::string> gpu_prices(const PurchasePlan& plan, const Experiment& base, const Choices& choices) {
  const Setup setup = make_setup(choices.experiment(base, plan.trials[*plan.shown].setting));
  std::vector<std::string> sources;
  for (const PriceFigure& figure : setup.bill ? setup.bill->used : std::vector<PriceFigure>()) {
    if (!figure.name.starts_with("gpu.") || figure.name.ends_with(".watts")) continue;
    sources.push_back(figure.name + formatted(" = %.4g ", figure.value) + figure.unit + ": " + figure.source + ", " +
                      figure.date);
  }
  return sources;
}

Json binds_json(const Json& report) {
  Json lanes = Json::array();
  for (const BoundLane& kind : lane_kinds(report)) {
    if (lanes.size() == kMaxBusyKinds) break;
    lanes.push_back({{"name", kind.name}, {"busy_fraction", kind.busy}, {"busy_fraction_p99", kind.busy_p99}});
  }
  return {
      {"sentence", binds_sentence(report)}, {"lanes", lanes}, {"ttft_parts_seconds", report.at("ttft_parts_seconds")}};
}

Json odds_json(const GoalOdds& odds) {
  Json json{{"probability", or_null(odds.any ? std::optional(odds.probability) : std::nullopt)}};
  json["ranges"] = Json::object();
  for (const auto& [name, range] : odds.ranges) json["ranges"][name] = {range.first, range.second};
  json["not_judged"] = odds.not_judged;
  return json;
}

// Without runs if the trial completed no request.
ErrorFactors errors_of(const Trial& trial) {
  return trial.report.is_null() ? ErrorFactors{} : errors_of_report(trial.report).value_or(ErrorFactors{});
}

Json confidence_json(const PurchasePlan& plan) {
  const PurchasePlan::Confidence& sure = plan.confidence;
  Json json{{"seeds", sure.seeds}, {"seeds_meeting", sure.seeds_meeting}, {"duration_s", or_null(sure.duration_s)}};
  json["ranges_of_seeds"] = Json::object();
  for (const auto& [name, range] : sure.of_seeds) json["ranges_of_seeds"][name] = {range.first, range.second};
  if (plan.shown) {
    const Trial& shown = plan.trials[*plan.shown];
    const ErrorFactors errors = errors_of(shown);
    json.update(odds_json(goal_odds(plan.goals, shown.figures, errors)));
    json["errors_of"] = errors.of;
    json["errors_widened"] = errors.widened;
  }
  json["draws"] = sure.draws;
  if (sure.draws != 0) {
    json["draws_meeting"] = sure.draws_meeting;
    if (sure.spread_percent != 0) json["assumed_spread_percent"] = sure.spread_percent;
  }
  json["ranges_of_draws"] = Json::object();
  for (const auto& [name, range] : sure.ranges) json["ranges_of_draws"][name] = {range.first, range.second};
  json["hangs_on"] = Json::array();
  for (const PurchasePlan::Confidence::Cause& cause : sure.hangs_on) {
    json["hangs_on"].push_back({{"number", cause.number},
                                {"figure", figures()[plan.goals.front().figure].name},
                                {"at_low", cause.at_low},
                                {"as_given", sure.hangs_on_base},
                                {"at_high", cause.at_high}});
  }
  return json;
}

Json follow_up_json(const PurchasePlan& plan, const FollowUp& one, const Choices& choices) {
  Json json{{"name", one.name}, {"answer", one.words}};
  if (one.load_meets) json["load_meets"] = *one.load_meets;
  if (one.load_misses) json["load_misses"] = *one.load_misses;
  if (one.trial) {
    json.update(trial_json(plan.trials[*one.trial], choices));
    if (plan.winner) json["more_a_month"] = plan.trials[*one.trial].per_month - plan.trials[*plan.winner].per_month;
  }
  return json;
}

// "87 %", with the odds of a setting.
std::string odds_text(const GoalOdds& odds) {
  return odds.any ? formatted("%.0f %%", 100 * odds.probability) : std::string();
}

std::string confidence_text(const PurchasePlan& plan, const Experiment& base) {
  const PurchasePlan::Confidence& sure = plan.confidence;
  const Trial& shown = plan.trials[*plan.shown];
  const ErrorFactors errors = errors_of(shown);
  const GoalOdds odds = goal_odds(plan.goals, shown.figures, errors);
  std::string words;
  if (odds.any) {
    words = formatted("the goals hold with %.0f %%, by the errors of ", 100 * odds.probability) + errors.of;
    for (const std::string& sentence : errors.widened) words += "; " + sentence;
    for (const auto& [name, range] : odds.ranges) {
      words += formatted("; %s between %.3g and %.3g with 80 %%", name.c_str(), range.first, range.second);
    }
  } else {
    words = "no goal depends on TTFT or TPOT, whose errors are known";
  }
  for (const std::string& name : odds.not_judged) words += "; " + name + " not judged: no measured run has it";
  words += sure.seeds > 1 || sure.duration_s
               ? formatted("; meets the goals with %.0f of %.0f seeds", static_cast<double>(sure.seeds_meeting),
                           static_cast<double>(sure.seeds))
               : std::string(seed_changes_work(base) ? "; one seed" : "; one trace");
  if (sure.duration_s) {
    words += formatted(" in runs of %.0f s", *sure.duration_s);
    for (const auto& [name, range] : sure.of_seeds) {
      words += formatted(", %s %.3g to %.3g", name.c_str(), range.first, range.second);
    }
  }
  if (sure.draws != 0) {
    words += formatted("; on %.0f of %.0f drawn machines", static_cast<double>(sure.draws_meeting),
                       static_cast<double>(sure.draws));
    if (sure.spread_percent != 0)
      words += formatted(" (%.0f %% of error assumed for each figure)", sure.spread_percent);
    for (const auto& [name, range] : sure.ranges) {
      words += formatted(", %s %.3g to %.3g", name.c_str(), range.first, range.second);
    }
  }
  return words;
}

// Which part of the run the figures are of.
std::string measured_text(const Trial& trial, const Experiment& base) {
  const auto warm = trial.report.find("warm");
  if (warm == trial.report.end()) {
    return base.text("workload.trace").empty()
               ? "all requests, from empty caches on"
               : "all requests of the trace, from empty caches on; report.warm=true measures where hits and waits are "
                 "steady";
  }
  std::string text =
      formatted("the requests from %.0f to %.0f s", warm->at("from_s").get<double>(), warm->at("to_s").get<double>());
  text += warm->at("flat") ? ", where hits and waits are steady"
                           : ", not steady: " + warm->at("not_flat").get<std::string>();
  if (base.text("workload.trace").empty() && base.text("workload.generate.kind") == "sessions") {
    const SessionsConfig config = sessions_config(base);
    const auto prompt = static_cast<double>(config.prompt_tokens);
    if (config.new_tokens == 0) {
      text += formatted("; %.0f %% of the prompt tokens would hit in an infinite cache in the long run",
                        100 * (prompt - config.mean_new_tokens()) / prompt);
    }
  }
  return text;
}

// Of each combination of parts that never met the goals its nearest trial, the nearest first.
std::vector<std::size_t> nearest_out(const PurchasePlan& plan) {
  std::vector<std::size_t> out = plan.out;
  std::ranges::stable_sort(out, {},
                           [&](std::size_t i) { return std::pair(plan.trials[i].starves, plan.trials[i].worst); });
  return out;
}

// Requests per second, after scaling.
double rate_of(const PurchasePlan& plan, const Experiment& base) {
  return plan.work.requests_per_second / base.number("workload.time_scale");
}

std::string load_text(const PurchasePlan& plan, const Experiment& base) {
  if (const std::int64_t users = base.integer("workload.generate.users"); users != 0) {
    return formatted("%.0f users", static_cast<double>(users));
  }
  return formatted("%.3g requests per second", rate_of(plan, base));
}

}  // namespace

std::vector<std::string> PurchasePlan::confirming_sets() const {
  if (!confidence.duration_s) return {};
  return {formatted("workload.generate.duration_s=%.0f", *confidence.duration_s)};
}

const Json* price_of(const Trial& trial) {
  const auto price = trial.report.find("price");
  return price == trial.report.end() ? nullptr : &*price;
}

const Json* drives_of(const Trial& trial) {
  const Json* const price = price_of(trial);
  return price == nullptr || !price->contains("drives") ? nullptr : &price->at("drives");
}

Json plan_json(const PurchasePlan& plan, const Experiment& base, const Choices& choices,
               const PlanArguments& arguments) {
  Json json{{"schema_version", 1},
            {"kind", "plan"},
            {"kvtwin_version", kVersion},
            {"git_commit", kGitCommit},
            {"command", arguments.command}};
  const std::string trace = base.text("workload.trace");
  const std::string model = base.text("model.config").empty() ? base.text("model.name") : base.text("model.config");
  json["title"] = model + ", " + load_text(plan, base);
  json["model"] = model;
  json["workload"] = {{"source", trace.empty() ? "generated: " + base.text("workload.generate.kind") : trace},
                      {"requests", plan.work.requests},
                      {"duration_s", plan.work.duration_seconds * base.number("workload.time_scale")},
                      {"requests_per_second", rate_of(plan, base)},
                      {"prompt_tokens_mean", plan.work.input.mean},
                      {"output_tokens_mean", plan.work.output.mean},
                      {"ideal_hit_ratio", plan.work.ideal_token_hit_ratio}};
  json["better"] = better_json();
  json["goals"] = Json::array();
  if (plan.probability > 0) json["probability_of_goals"] = plan.probability;
  for (const Goal& goal : plan.goals) {
    const RunFigure& figure = figures()[goal.figure];
    json["goals"].push_back({{"figure", figure.name},
                             {"limit", goal.value},
                             {"better", figure.better == RunFigure::Better::less ? "less" : "more"}});
  }
  json["prices"] = prices_json(plan, base, choices);
  json["assumed"] = choices.assumed();
  if (plan.winner) {
    json["recommendation"] = setting_json(plan.trials[*plan.winner], choices, "lowest price that meets the goals");
    json["recommendation"]["experiment"] = "recommended.toml";
    json["recommendation"]["servers"] = Json::object();
    for (const EngineCommand& command : engine_commands(choices.experiment(base, plan.trials[*plan.winner].setting))) {
      json["recommendation"]["servers"][command.engine] = {{"command", command.line.line},
                                                           {"notes", command.line.notes}};
    }
  } else {
    json["recommendation"] = nullptr;
    json["reason"] = plan.reason;
    if (plan.shown) json["nearest"] = setting_json(plan.trials[*plan.shown], choices, "nearest to the goals");
  }
  json["stopped"] = plan.stopped;
  json["alternatives"] = Json::array();
  for (const auto& [trial, because] : plan.alternatives) {
    const Trial& one = plan.trials[trial];
    json["alternatives"].push_back(setting_json(one, choices, because));
    json["alternatives"].back().update(odds_json(goal_odds(plan.goals, one.figures, errors_of(one))));
  }
  json["out"] = plan.out;
  json["tried"] = Json::array();
  for (const Trial& trial : plan.trials) json["tried"].push_back(trial_json(trial, choices));
  json["front"] = plan.front;
  if (plan.shown) json["binds"] = binds_json(plan.trials[*plan.shown].report);
  json["margins"] = Json::array();
  for (const Margin& margin : plan.margins) {
    Json one = trial_json(plan.trials[margin.trial], choices);
    one["change"] = margin.change;
    json["margins"].push_back(std::move(one));
  }
  json["drives"] = Json::array();
  for (const DriveLife& life : plan.drives) {
    const Json* const drives = drives_of(plan.trials[life.trial]);
    if (drives == nullptr) continue;
    json["drives"].push_back({{"write_policy", life.write_policy},
                              {"settings", settings_json(choices, plan.trials[life.trial].setting)},
                              {"written_tb_per_day", drives->at("written_bytes_per_day").get<double>() / 1e12},
                              {"dwpd", drives->at("writes_per_day")},
                              {"years", drives->at("years")}});
  }
  json["follow_ups"] = Json::array();
  for (const FollowUp& one : plan.follow_ups) json["follow_ups"].push_back(follow_up_json(plan, one, choices));
  json["ties"] = Json::array();
  for (const std::size_t trial : plan.ties) json["ties"].push_back(setting_json(plan.trials[trial], choices, "a tie"));
  json["hits_by_capacity"] = Json::array();
  for (const PurchasePlan::HitsAt& at : plan.hits) {
    json["hits_by_capacity"].push_back({{"capacity_tokens", at.tokens},
                                        {"eviction", plan.eviction},
                                        {"hit_ratio", at.hit_ratio},
                                        {"hit_opt", at.optimal}});
  }
  json["confidence"] = confidence_json(plan);
  json["search"] = {{"simulations", plan.simulations}, {"bounded", plan.bounded}};
  json["warnings"] = plan.warnings;
  json["reproduce"] = Json::array();
  if (plan.winner && !arguments.out.empty()) {
    const std::string file = shell_word(arguments.out + "/recommended.toml");
    json["reproduce"].push_back("kvtwin simulate " + file);
    json["reproduce"].push_back("kvtwin simulate " + file + " --to-sglang-flags");
  }
  return json;
}

std::string plan_text(const PurchasePlan& plan, const Experiment& base, const Choices& choices) {
  std::string text;
  const auto line = [&](const char* head, const std::string& words) {
    text += formatted("%-12s", head) + words + "\n";
  };
  const std::string engine =
      engine_line(plan.shown ? choices.experiment(base, plan.trials[*plan.shown].setting) : base);
  if (!engine.empty()) line("engine", engine);
  line("work", load_text(plan, base) + formatted("; %.0f prompt and %.0f output tokens on average",
                                                 plan.work.input.mean, plan.work.output.mean));
  if (plan.stopped)
    line("stopped", "before the search ended; this is the best so far. With --out, the same command goes on from here");
  if (!plan.winner) line("buy", "nothing: " + plan.reason);
  const auto tell_assumed = [&] {
    for (const std::string& sentence : choices.assumed()) line("assumed", sentence);
  };
  if (!plan.shown) {
    tell_assumed();
    return text;
  }
  const Trial& best = plan.trials[*plan.shown];
  const std::string currency = currency_of(best);
  if (!plan.winner) line("nearest", choices.text(best.setting));
  if (plan.winner) line("buy", parts_text(best));
  if (plan.winner) line("as", choices.text(best.setting));
  if (plan.winner) {
    for (const EngineCommand& command : engine_commands(choices.experiment(base, best.setting))) {
      line(command.engine, command.line.line);
      if (!command.line.notes.empty()) {
        line("", "without, as no flag says it: " + joined_words(command.line.notes, kMaxServerNotes));
      }
    }
  }
  const Setup setup = make_setup(choices.experiment(base, best.setting));
  if (setup.memory) line("memory", (setup.decode ? "prefill engines: " : "") + device_memory_text(*setup.memory));
  if (setup.decode && setup.decode->memory) {
    line("memory", "decode engines: " + device_memory_text(*setup.decode->memory));
  }
  const Json& per_token = price_of(best)->at("per_million_tokens");
  line("price",
       money(best.per_month, currency) + " a month" +
           (per_token.is_null() ? "" : ", " + money(per_token.get<double>(), currency) + " per million tokens") +
           formatted(", %.3g kW", price_of(best)->at("power_kw").get<double>()));
  for (const std::string& source : gpu_prices(plan, base, choices)) line("", source);
  line("measured", measured_text(best, base));
  const auto share_text = [&](const char* figure) {
    const Json& share = best.figures.at(figure);
    return share.is_number() ? formatted("%.1f %%", 100 * share.get<double>()) : std::string("-");
  };
  const Json& rate = best.figures.at("requests_per_second");
  line("gets", goal_values(plan, best) + "; " + share_text("hit_ratio") + " of the prompt tokens hit, and " +
                   share_text("infinite_hit_ratio") + " in an infinite cache" +
                   (rate.is_number() ? formatted("; %.3g requests per second", rate.get<double>()) : std::string()));
  line("binds", binds_sentence(best.report));
  for (const auto& [trial, because] : plan.alternatives) {
    const Trial& one = plan.trials[trial];
    const std::string odds = odds_text(goal_odds(plan.goals, one.figures, errors_of(one)));
    line("or", choices.difference(one.setting, best.setting) + ": " + money(one.per_month, currency) + " a month; " +
                   (one.meets ? goal_values(plan, one) + (odds.empty() ? "" : ", " + odds) + "; " : std::string()) +
                   because);
  }
  const std::vector<std::size_t> out = nearest_out(plan);
  for (std::size_t i = 0; i < std::min(out.size(), kMaxOut); ++i) {
    const Trial& one = plan.trials[out[i]];
    line("out", choices.text(one.setting) + ": " + money(one.per_month, currency) +
                    " a month; nearest with these parts: " + one.why_not);
  }
  if (out.size() > kMaxOut) {
    line("out",
         formatted("and the nearest of %zu more combinations of parts: plan.json has them", out.size() - kMaxOut));
  }
  for (const Margin& margin : plan.margins) {
    const Trial& one = plan.trials[margin.trial];
    if (one.figures.is_null()) continue;
    const double more = one.per_month - best.per_month;
    line("step", margin.change + ": " + (more < 0 ? "" : "+") + money(more, currency) + " a month; " +
                     goal_values(plan, one) + (one.meets ? "" : "; out: " + one.why_not));
  }
  for (const DriveLife& life : plan.drives) {
    const Json* const drives = drives_of(plan.trials[life.trial]);
    if (drives == nullptr) continue;
    const Json& years = drives->at("years");
    line("drives",
         (drives_of(best) == nullptr ? "if bought, " : "") + life.write_policy +
             formatted(": %.0f drives take %.3g TB a day, %.3g writes a day each", drives->at("count").get<double>(),
                       drives->at("written_bytes_per_day").get<double>() / 1e12,
                       drives->at("writes_per_day").get<double>()) +
             (years.is_null() ? std::string() : formatted(", and last %.2g years", years.get<double>())));
  }
  for (const FollowUp& one : plan.follow_ups) line("then", one.words);
  const PurchasePlan::Confidence& sure = plan.confidence;
  line("confidence", confidence_text(plan, base));
  for (const std::size_t trial : plan.ties) {
    const Trial& one = plan.trials[trial];
    line("tie",
         choices.difference(one.setting, best.setting) + ": " + money(one.per_month, currency) + " a month; " +
             goal_values(plan, one) +
             formatted("; differs by less than the %.0f %% by which choices between settings err", 100 * kTieShare));
  }
  if (!sure.hangs_on.empty()) {
    std::string words;
    for (std::size_t i = 0; i < std::min<std::size_t>(3, sure.hangs_on.size()); ++i) {
      const PurchasePlan::Confidence::Cause& cause = sure.hangs_on[i];
      words += (i == 0 ? "" : "; ") + cause.number + formatted(" (%.3g to %.3g)", cause.at_low, cause.at_high);
    }
    line("hangs on",
         words + formatted(": %s on 1/8 of the requests, at the ends of the interval; as given %.3g",
                           std::string(figures()[plan.goals.front().figure].name).c_str(), sure.hangs_on_base));
  }
  const std::vector<std::string> assumed = assumed_of(best);
  line("assumed", assumed.empty() ? "none of the prices" : "prices: " + joined(assumed));
  tell_assumed();
  for (const std::string& warning : plan.warnings) line("warning", warning);
  line("search", formatted("%.0f simulations; %.0f settings left out by the bound on engines or a goal on parts",
                           static_cast<double>(plan.simulations), static_cast<double>(plan.bounded)));
  return text;
}

}  // namespace kvtwin
