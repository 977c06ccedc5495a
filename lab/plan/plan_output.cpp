#include <algorithm>
#include <cmath>
#include <map>

#include "lab/decision_text.hpp"
#include "lab/engine_flags/flag_text.hpp"
#include "lab/experiment/engine_word.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/formatted.hpp"
#include "lab/or_null.hpp"
#include "lab/plan/plan.hpp"
#include "lab/sglang/sglang_flags.hpp"
#include "lab/shell_word.hpp"
#include "lab/version.hpp"
#include "lab/vllm/vllm_flags.hpp"

namespace kvtwin {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxBusyKinds = 8;
constexpr std::size_t kMaxServerNotes = 4;

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
    const Json parsed = Json::parse(text, nullptr, false);
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

std::string money(double amount, const std::string& currency) {
  const double whole = std::round(amount);
  if (std::abs(amount) < 100) return currency + formatted(" %.3g", amount);
  return currency + " " + (whole < 0 ? "-" : "") + grouped(static_cast<std::uint64_t>(std::abs(whole)));
}

std::string currency_of(const Trial& trial) {
  const Json* const price = price_of(trial);
  return price == nullptr ? std::string() : price->at("currency").get<std::string>();
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
    text += formatted(" %.4g (at %s %.4g)", at->get<double>(),
                      figure.better == RunFigure::Better::less ? "most" : "least", goal.value);
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

Json binds_json(const Json& report) {
  Json lanes = Json::array();
  for (const BoundLane& kind : lane_kinds(report)) {
    if (lanes.size() == kMaxBusyKinds) break;
    lanes.push_back({{"name", kind.name}, {"busy_fraction", kind.busy}, {"busy_fraction_p99", kind.busy_p99}});
  }
  return {
      {"sentence", binds_sentence(report)}, {"lanes", lanes}, {"ttft_parts_seconds", report.at("ttft_parts_seconds")}};
}

Json confidence_json(const PurchasePlan& plan) {
  const PurchasePlan::Confidence& sure = plan.confidence;
  Json json{{"seeds", sure.seeds}, {"draws", sure.draws}};
  if (sure.draws != 0) {
    json["share_meeting"] = static_cast<double>(sure.draws_meeting) / static_cast<double>(sure.draws);
    if (sure.spread_percent != 0) json["assumed_spread_percent"] = sure.spread_percent;
  }
  json["figures"] = Json::object();
  for (const auto& [name, range] : sure.ranges) json["figures"][name] = {range.first, range.second};
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

// The recommended setting as the command of a server of each engine.
struct ServerCommand {
  const char* engine;
  ServerLine line;
};
std::vector<ServerCommand> server_commands(const Experiment& setting) {
  const Setup setup = make_setup(setting);
  std::vector<ServerCommand> commands{{"sglang", to_sglang_flags(setting, setup)},
                                      {"vllm", to_vllm_line(setting, setup)}};
  commands.front().line.line.insert(0, "python -m sglang.launch_server ");
  return commands;
}

// Requests per second, after scaling.
double rate_of(const PurchasePlan& plan, const Experiment& base) {
  return plan.work.requests_per_second / base.number("workload.time_scale");
}

}  // namespace

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
  json["title"] = model + formatted(", %.3g requests per second", rate_of(plan, base));
  json["model"] = model;
  json["workload"] = {{"source", trace.empty() ? "generated: " + base.text("workload.generate.kind") : trace},
                      {"requests", plan.work.requests},
                      {"duration_s", plan.work.duration_seconds * base.number("workload.time_scale")},
                      {"requests_per_second", rate_of(plan, base)},
                      {"prompt_tokens_mean", plan.work.input.mean},
                      {"output_tokens_mean", plan.work.output.mean},
                      {"ideal_hit_ratio", plan.work.ideal_token_hit_ratio}};
  json["goals"] = Json::array();
  for (const Goal& goal : plan.goals) {
    const RunFigure& figure = figures()[goal.figure];
    json["goals"].push_back({{"figure", figure.name},
                             {"limit", goal.value},
                             {"better", figure.better == RunFigure::Better::less ? "less" : "more"}});
  }
  json["prices"] = prices_json(plan, base, choices);
  if (plan.winner) {
    json["recommendation"] = setting_json(plan.trials[*plan.winner], choices, "lowest price that meets the goals");
    json["recommendation"]["experiment"] = "recommended.toml";
    json["recommendation"]["servers"] = Json::object();
    for (const ServerCommand& command : server_commands(choices.experiment(base, plan.trials[*plan.winner].setting))) {
      json["recommendation"]["servers"][command.engine] = {{"command", command.line.line},
                                                           {"notes", command.line.notes}};
    }
  } else {
    json["recommendation"] = nullptr;
    json["reason"] = plan.reason;
  }
  json["alternatives"] = Json::array();
  for (const auto& [trial, because] : plan.alternatives) {
    json["alternatives"].push_back(setting_json(plan.trials[trial], choices, because));
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
  line("work", formatted("%.0f requests, %.3g/s, %.0f prompt and %.0f output tokens on average; %.0f %% of the prompt "
                         "tokens are hits of an infinite cache that starts empty",
                         static_cast<double>(plan.work.requests), rate_of(plan, base), plan.work.input.mean,
                         plan.work.output.mean, 100 * plan.work.ideal_token_hit_ratio));
  if (!plan.winner) line("buy", "nothing: " + plan.reason);
  if (!plan.shown) return text;
  const Trial& best = plan.trials[*plan.shown];
  const std::string currency = currency_of(best);
  if (!plan.winner) line("nearest", choices.text(best.setting));
  if (plan.winner) line("buy", parts_text(best));
  if (plan.winner) line("as", choices.text(best.setting));
  if (plan.winner) {
    for (const ServerCommand& command : server_commands(choices.experiment(base, best.setting))) {
      line(command.engine, command.line.line);
      if (!command.line.notes.empty()) {
        line("", "without, as no flag says it: " + joined_words(command.line.notes, kMaxServerNotes));
      }
    }
  }
  const Json& per_token = price_of(best)->at("per_million_tokens");
  line("price",
       money(best.per_month, currency) + " a month" +
           (per_token.is_null() ? "" : ", " + money(per_token.get<double>(), currency) + " per million tokens") +
           formatted(", %.3g kW", price_of(best)->at("power_kw").get<double>()));
  line("measured", measured_text(best, base));
  line("gets", goal_values(plan, best) +
                   formatted("; %.1f %% of the prompt tokens hit", 100 * best.figures.at("hit_ratio").get<double>()));
  line("binds", binds_sentence(best.report));
  for (const auto& [trial, because] : plan.alternatives) {
    const Trial& one = plan.trials[trial];
    line("or", choices.text(one.setting) + ": " + money(one.per_month, currency) + " a month; " +
                   (one.meets ? goal_values(plan, one) + "; " : std::string()) + because);
  }
  for (const std::size_t trial : plan.out) {
    const Trial& one = plan.trials[trial];
    line("out", choices.text(one.setting) + ": " + money(one.per_month, currency) +
                    " a month; nearest with these parts: " + one.why_not);
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
  const PurchasePlan::Confidence& sure = plan.confidence;
  if (plan.winner) {
    std::string words = sure.seeds > 1
                            ? formatted("meets the goals with %.0f of %.0f seeds",
                                        static_cast<double>(sure.seeds_meeting), static_cast<double>(sure.seeds))
                            : std::string(seed_changes_work(base) ? "one seed" : "one trace");
    if (sure.draws != 0) {
      words += formatted(", and on %.0f of %.0f hardware variants", static_cast<double>(sure.draws_meeting),
                         static_cast<double>(sure.draws));
      if (sure.spread_percent != 0) {
        words += formatted(" (%.0f %% of error assumed for each figure)", sure.spread_percent);
      }
      for (const auto& [name, range] : sure.ranges)
        words += formatted(", %s %.3g to %.3g", name.c_str(), range.first, range.second);
    }
    if (sure.draws != 0 &&
        (base.text("hardware.operators") != "none" || !base.text("hardware.operators_file").empty())) {
      words += "; measured operator times do not vary";
    }
    line("confidence", words);
    if (!sure.hangs_on.empty()) {
      words.clear();
      for (std::size_t i = 0; i < std::min<std::size_t>(3, sure.hangs_on.size()); ++i) {
        const PurchasePlan::Confidence::Cause& cause = sure.hangs_on[i];
        words += (i == 0 ? "" : "; ") + cause.number + formatted(" (%.3g to %.3g)", cause.at_low, cause.at_high);
      }
      line("hangs on",
           words + formatted(": %s on 1/8 of the requests, at the ends of the interval; as given %.3g",
                             std::string(figures()[plan.goals.front().figure].name).c_str(), sure.hangs_on_base));
    }
  }
  const std::vector<std::string> assumed = assumed_of(best);
  line("assumed", assumed.empty() ? "no price" : joined(assumed));
  for (const std::string& warning : plan.warnings) line("warning", warning);
  line("search", formatted("%.0f simulations; %.0f settings left out by the bound on engines or a goal on parts",
                           static_cast<double>(plan.simulations), static_cast<double>(plan.bounded)));
  return text;
}

}  // namespace kvtwin
