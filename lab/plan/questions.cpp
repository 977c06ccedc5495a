#include "lab/plan/questions.hpp"

#include <algorithm>
#include <cmath>

#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/formatted.hpp"
#include "lab/names.hpp"
#include "lab/plan/default_parts.hpp"
#include "lab/plan/lattice_search.hpp"
#include "lab/plan/plan_text.hpp"
#include "models/presets.hpp"

namespace kvtwin {
namespace {

constexpr double kLoads[] = {1.1, 1.25, 1.5, 2, 3, 4, 6, 8};
constexpr std::size_t kLoadsAtOnce = 4;
constexpr std::size_t kParts = 4;  // the interval between two loads is cut into so many
constexpr double kGibOfPool = 1024;
constexpr std::size_t kMaxConfirmed = 4;  // settings of short runs that are tried in a longer one

class FollowUps {
 public:
  FollowUps(Simulations& simulations, const PriceList& prices, PurchasePlan& plan)
      : simulations_(simulations),
        choices_(simulations.choices()),
        base_(simulations.base()),
        prices_(prices),
        plan_(plan),
        best_(plan.trials[*plan.winner].setting),
        price_(plan.trials[*plan.winner].per_month),
        chosen_(choices_.experiment(base_, best_)) {}

  void ask() {
    simulations_.listener().begin("answers the questions that follow");
    highest_load();
    spare_engine();
    for (const double times : {2.0, 4.0}) more_load(times);
    no_tiers();
    pool();
    mixed_chunks();
    other_gpus();
  }

 private:
  const Trial& trial(std::size_t number) const { return plan_.trials[number]; }
  std::string currency() const { return currency_of(trial(*plan_.winner)); }
  std::string price_of_trial(std::size_t number) const {
    const double more = trial(number).per_month - price_;
    return money(trial(number).per_month, currency()) + " a month (" + (more < 0 ? "" : "+") + money(more, currency()) +
           ")";
  }

  // With the keys of the runs that confirm the recommendation.
  std::vector<std::string> longer(std::vector<std::string> sets) const {
    for (std::string& set : plan_.confirming_sets()) sets.push_back(std::move(set));
    return sets;
  }

  void highest_load() {
    FollowUp answer{"load", "", {}, 1.0, {}};
    const auto look = [&](const std::vector<double>& loads) {
      std::vector<PlanJob> jobs;
      for (const double times : loads) jobs.push_back({best_, longer(load_settings(base_, times))});
      const std::vector<std::size_t> trials = simulations_.trials_of(jobs, "load");
      for (std::size_t i = 0; i < loads.size(); ++i) {
        if (!trial(trials[i]).meets) {
          answer.load_misses = loads[i];
          return;
        }
        answer.load_meets = loads[i];
        answer.trial = trials[i];
      }
    };
    for (std::size_t i = 0; i < std::size(kLoads) && !answer.load_misses; i += kLoadsAtOnce) {
      look({kLoads + i, kLoads + std::min(std::size(kLoads), i + kLoadsAtOnce)});
    }
    if (answer.load_misses) {
      const double low = *answer.load_meets, step = (*answer.load_misses - low) / kParts;
      std::vector<double> loads;
      for (std::size_t i = 1; i < kParts; ++i) loads.push_back(low + static_cast<double>(i) * step);
      const double misses = *answer.load_misses;
      answer.load_misses.reset();
      look(loads);
      if (!answer.load_misses) answer.load_misses = misses;
    }
    answer.words = "meets the goals up to " + load_text(*answer.load_meets);
    answer.words +=
        answer.load_misses ? "; misses them at " + load_text(*answer.load_misses) : ", the most that was tried";
    plan_.follow_ups.push_back(std::move(answer));
  }

  // "1.3 x the traffic (520 users)"
  std::string load_text(double times) const {
    std::string text = formatted("%.3g x the traffic", times);
    if (const auto users = static_cast<double>(base_.integer("workload.generate.users")); users != 0) {
      text += formatted(" (%.0f users)", std::round(users * times));
    } else {
      text += formatted(" (%.3g requests per second)",
                        times * plan_.work.requests_per_second / base_.number("workload.time_scale"));
    }
    return text;
  }

  void spare_engine() {
    if (choices_.has_roles(best_)) return;  // the engines of a role are not alike
    FollowUp answer{"spare", "", {}, {}, {}};
    Setting more = best_, less = best_;
    ++more.engines;
    --less.engines;
    const std::string stage = longer({}).empty() ? kFullStage : kConfirmingStage;
    answer.trial = simulations_.trials_of({{more, longer({})}}, stage).front();
    if (less.engines == 0) {
      answer.words = "one engine out of service is the whole service";
    } else {
      const Trial& one = trial(simulations_.trials_of({{less, longer({})}}, stage).front());
      answer.words = "with one engine out of service " + goal_values(plan_, one);
    }
    answer.words +=
        "; " + std::to_string(more.engines) + " engines keep the goals without one: " + price_of_trial(*answer.trial);
    plan_.follow_ups.push_back(std::move(answer));
  }

  bool same(const Setting& setting, ChoiceKind kind) const {
    return std::ranges::all_of(choices_.of_kind(kind),
                               [&](std::size_t i) { return setting.values[i] == best_.values[i]; });
  }

  // Searches, and adds an answer. `words`: of the answer, before the setting. `without`: if no setting meets the goals.
  void search(const std::string& name, const Scope& scope, const std::string& words, const std::string& without) {
    FollowUp answer{name, words, {}, {}, {}};
    try {
      LatticeSearch search(simulations_, prices_, plan_, scope);
      answer.trial = search.find(best_);
      const bool confirms = !longer({}).empty() && scope.load == 1;
      for (std::size_t tries = 1; confirms && answer.trial; ++tries) {
        const std::size_t found = *answer.trial;
        answer.trial = confirmed(found, scope, name);
        if (answer.trial) break;
        search.rule_out(trial(found).setting);
        if (tries == kMaxConfirmed) {
          answer.words += formatted("not found: the %zu cheapest that meet the goals in short runs miss in longer ones",
                                    kMaxConfirmed);
          plan_.follow_ups.push_back(std::move(answer));
          return;
        }
        answer.trial = search.find_again();
      }
      answer.words +=
          answer.trial ? choices_.difference(trial(*answer.trial).setting, best_) + ": " + price_of_trial(*answer.trial)
                       : without;
      if (answer.trial && !confirms && !longer({}).empty()) answer.words += ", by the short runs of the search";
    } catch (const InputError& error) {
      answer.words += std::string("not possible: ") + error.what();
    }
    plan_.follow_ups.push_back(std::move(answer));
  }

  // Simulates the setting of a short run in a longer one. If it misses the goals there, the short run is out.
  std::optional<std::size_t> confirmed(std::size_t found, const Scope& scope, const std::string& stage) {
    const std::size_t long_run = simulations_.trials_of({{trial(found).setting, longer(scope.sets)}}, stage).front();
    if (trial(long_run).meets) return long_run;
    plan_.trials[found].meets = false;
    plan_.trials[found].why_not = "misses in a longer run: " + trial(long_run).why_not;
    return {};
  }

  void more_load(double times) {
    const std::string name = formatted("load x %g", times);
    const auto same_engine = [this](const Setting& setting) {
      return same(setting, ChoiceKind::part) && same(setting, ChoiceKind::amount);
    };
    search(name, {name, load_settings(base_, times), times, {}, same_engine},
           "the same engines at " + load_text(times) + ": ", "no number of engines meets the goals");
  }

  static bool is_tier(const PlanChoice& choice) { return choice.name == "drives" || choice.name.starts_with("tiers."); }

  // Returns the keys that take away the tiers that are there with the first value of each amount. `only`: one tier.
  std::vector<std::string> without_tiers(std::optional<Tier> only = {}) const {
    Setting least = best_;
    for (std::size_t i = 0; i < least.values.size(); ++i) {
      if (is_tier(choices_.list()[i])) least.values[i] = 0;
    }
    const Experiment experiment = choices_.experiment(base_, least);
    std::vector<std::string> sets;
    for (const TierSpec& spec : kTierSpecs) {
      if (spec.tier == Tier::device || (only && spec.tier != *only) || !has_tier(experiment, spec.tier)) continue;
      const std::string prefix = "tiers." + std::string(name_of(spec.tier));
      for (const char* size : {".gib", ".tokens", ".ratio"}) {
        if (size == std::string_view(".ratio") && spec.tier != Tier::host) continue;
        const std::string key = prefix + size;
        const bool is_count = size == std::string_view(".tokens");
        if ((is_count ? experiment.integer(key) != 0 : experiment.number(key) != 0)) sets.push_back(key + "=0");
      }
    }
    return sets;
  }

  void no_tiers() {
    if (std::ranges::none_of(kTierSpecs, [&](const TierSpec& spec) {
          return spec.tier != Tier::device && has_tier(chosen_, spec.tier);
        })) {
      plan_.follow_ups.push_back({"no tiers", "the recommendation has no KV tier below the device", {}, {}, {}});
      return;
    }
    const std::vector<std::string> sets = without_tiers();
    const auto smallest = [this](const Setting& setting) {
      for (std::size_t i = 0; i < setting.values.size(); ++i) {
        if (is_tier(choices_.list()[i]) && setting.values[i] != 0) return false;
      }
      return true;
    };
    search("no tiers", {sets.empty() ? kFullStage : "no tiers", sets, 1, {}, smallest},
           "without a KV tier below the device: ", "no setting meets the goals");
    FollowUp& answer = plan_.follow_ups.back();
    if (answer.trial) {
      answer.words +=
          "; so the tiers are worth " + money(trial(*answer.trial).per_month - price_, currency()) + " a month";
    }
  }

  void pool() {
    const auto same_parts = [this](const Setting& setting) { return same(setting, ChoiceKind::part); };
    const bool varies = std::ranges::any_of(
        choices_.list(), [](const PlanChoice& choice) { return choice.name.starts_with("tiers.remote."); });
    if (has_tier(chosen_, Tier::remote)) {
      if (varies) return;  // the search has tried it without
      search("pool", {"pool", without_tiers(Tier::remote), 1, price_, same_parts},
             "without the remote pool: ", "none is cheaper");
      return;
    }
    if (varies) return;
    const double hosts =
        has_tier(chosen_, Tier::host) ? static_cast<double>(best_.engines) * chosen_.number("tiers.host.gib") : 0;
    const double gib = std::max(kGibOfPool, std::exp2(std::ceil(std::log2(std::max(1.0, hosts)))));
    search("pool", {"pool", {formatted("tiers.remote.gib=%.0f", gib)}, 1, price_, same_parts},
           formatted("with a remote pool of %.0f GiB: ", gib), "none is cheaper");
  }

  // Without mixed chunks each prefill pass of SGLang stops all decoding, so they often decide the TPOT. They do not
  // vary by default, because no published run has them.
  void mixed_chunks() {
    const std::string key = "scheduler.mixed_chunks";
    const auto varies = [&](const PlanChoice& choice) {
      return std::ranges::find(choice.keys, key) != choice.keys.end();
    };
    if (chosen_.text("scheduler.style") != "sglang" || chosen_.flag(key) || base_.is_given(key) ||
        choices_.has_roles(best_) || std::ranges::any_of(choices_.list(), varies)) {
      return;
    }
    const auto same_parts = [this](const Setting& setting) { return same(setting, ChoiceKind::part); };
    search("mixed chunks", {"mixed chunks", {key + "=true"}, 1, price_, same_parts},
           "with mixed chunks (--enable-mixed-chunk, which no published run has): ", "none is cheaper");
  }

  void other_gpus() {
    const auto varies = [](const PlanChoice& choice) {
      return std::ranges::find(choice.keys, "hardware.name") != choice.keys.end();
    };
    if (!base_.text("hardware.file").empty() || std::ranges::any_of(choices_.list(), varies)) return;
    const auto same_amounts = [this](const Setting& setting) { return same(setting, ChoiceKind::amount); };
    for (const std::string& gpu : comparable_gpus(base_, prices_)) {
      if (gpu == hardware_preset_name(chosen_.text("hardware.name"))) continue;
      search("GPU " + gpu, {"GPU " + gpu, {"hardware.name=" + gpu}, 1, price_, same_amounts}, "with " + gpu + ": ",
             "none is cheaper");
    }
  }

  Simulations& simulations_;
  const Choices& choices_;
  const Experiment& base_;
  const PriceList& prices_;
  PurchasePlan& plan_;
  const Setting best_;
  const double price_;
  const Experiment chosen_;
};

}  // namespace

std::vector<std::string> load_settings(const Experiment& base, double times) {
  if (const std::int64_t users = base.integer("workload.generate.users"); users != 0) {
    return {formatted("workload.generate.users=%.0f", std::round(static_cast<double>(users) * times))};
  }
  const std::string& kind = base.text("workload.generate.kind");
  const bool generated = base.text("workload.trace").empty();
  if (generated && (kind == "sessions" || kind == "tools" || kind == "groups")) {
    return {formatted("workload.generate.requests_per_second=%.17g",
                      times * base.number("workload.generate.requests_per_second"))};
  }
  return {formatted("workload.time_scale=%.17g", base.number("workload.time_scale") / times)};
}

void ask_follow_ups(Simulations& simulations, const PriceList& prices, PurchasePlan& plan) {
  FollowUps(simulations, prices, plan).ask();
}

}  // namespace kvtwin
