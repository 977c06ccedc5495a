#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "lab/error.hpp"
#include "lab/experiment/engine_word.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/experiment/workload.hpp"
#include "lab/formatted.hpp"
#include "lab/names.hpp"
#include "lab/plan/lattice_search.hpp"
#include "lab/plan/plan.hpp"
#include "lab/plan/questions.hpp"
#include "lab/plan/simulations.hpp"
#include "models/calibration_fit.hpp"
#include "models/hardware_draws.hpp"
#include "models/presets.hpp"
#include "policy/write.hpp"
#include "sim/bounds/hitrate.hpp"
#include "traces/paging.hpp"

namespace kvtwin {
namespace {

std::uint64_t count_in(const Json& counts, std::string_view reason) {
  return counts.value(std::string(reason), std::uint64_t{0});
}

// Returns whether the tier refused work for lack of room: pages, or on the host transfers in flight, which may take a
// share of it.
bool refused_for_room(const Json& report, const Json& tier) {
  if (!tier.at("dropped").empty()) return true;
  const Json& fell_short = report.at("storage").at("fell_short");
  if (tier.at("name") != name_of(Tier::host)) return count_in(fell_short, name_of(Cause::full)) != 0;
  const Json& prefetch = report.at("prefetch");
  std::uint64_t refused = count_in(prefetch.at("declined"), name_of(Reason::rate_limited)) +
                          count_in(prefetch.at("revoked_reasons"), name_of(Reason::capacity)) +
                          prefetch.at("pages_shortened").get<std::uint64_t>();
  for (const Json& other : report.at("tiers")) refused += count_in(other.at("dropped"), name_of(Reason::backlog));
  return refused != 0;
}

constexpr double kAssumedSpread = 10;         // %, of hardware without intervals
constexpr std::size_t kFinalistPolicies = 3;  // policies that are simulated on all requests
constexpr std::int64_t kFirstShare = 8;       // the first round of policies serves 1/8 of the requests
constexpr std::size_t kMaxPolicyRounds = 3, kMaxNeighbourRounds = 8;
constexpr std::size_t kMoreEngines = 2;
constexpr std::size_t kMaxCauses = 8, kMaxTies = 3;
constexpr int kHitSizes = 8;
constexpr double kFullShare = 0.95;
constexpr double kColdLoss = 0.02;  // of the hit ratio, that empty caches at the start cost

class Planner {
 public:
  Planner(const Choices& choices, const PriceList& prices, const PlanArguments& arguments, RowFile* rows,
          const Experiment& base, const Listener& listener, PurchasePlan& plan)
      : base_(base),
        choices_(choices),
        prices_(prices),
        arguments_(arguments),
        listener_(listener),
        plan_(plan),
        simulations_(base, choices, arguments, rows, listener, plan),
        search_(simulations_, prices, plan, {}) {}

  void run() {
    try {
      Setting first{std::vector<std::size_t>(choices_.list().size(), 0), 1};
      first = first_policies(first);
      plan_.winner = search_.find(first);
      if (!plan_.winner) try_other_policies();
      confirm_all();
      if (!plan_.winner) explain_failure();
      finish();
    } catch (const Stopped&) {
      plan_.stopped = true;
      plan_.winner = best_so_far();
      plan_.shown = plan_.winner ? plan_.winner : search_.nearest();
      if (!plan_.winner) plan_.reason = "the search was stopped before a setting met the goals";
    }
    plan_.bounded = search_.bounded();
    if (plan_.winner) find_ties();
  }

 private:
  // From the search in longer runs, if there is one: settings that only met the goals in short runs may be out.
  std::optional<std::size_t> best_so_far() const { return longer_ ? longer_->cheapest() : search_.cheapest(); }

  // Returns whether the trial says if its setting is an answer. Once a winner of the short runs has missed in a longer
  // one, a short run that meets the goals says nothing.
  bool is_judged(std::size_t trial) const {
    const Trial& one = plan_.trials[trial];
    if (one.figures.is_null()) return false;
    if (trial == plan_.winner || (longer_ && longer_->is_of(one))) return true;
    return search_.is_of(one) && !(longer_ && one.meets);
  }

  // Settings that nothing sets apart from the winner but differences below the error of comparisons: cheaper ones that
  // miss by little, and ones of the same price that are as near to the goals.
  void find_ties() {
    const Trial& best = plan_.trials[*plan_.winner];
    std::vector<std::size_t> ties;
    for (std::size_t i = 0; i < plan_.trials.size(); ++i) {
      const Trial& one = plan_.trials[i];
      if (!is_judged(i) || one.starves || one.setting == best.setting || is_same(i, *plan_.winner)) continue;
      const bool near_goals = one.per_month < best.per_month && one.worst <= 1 + kTieShare;
      const bool near_winner =
          one.per_month == best.per_month && one.meets && std::abs(one.worst - best.worst) <= kTieShare * best.worst;
      if (near_goals || near_winner) ties.push_back(i);
    }
    std::ranges::stable_sort(
        ties, {}, [&](std::size_t i) { return std::pair(plan_.trials[i].per_month, plan_.trials[i].worst); });
    if (ties.size() > kMaxTies) ties.resize(kMaxTies);
    plan_.ties = std::move(ties);
  }

  // ---- policies

  // Returns `setting` with the policies that are best at the nearest of some typical settings.
  Setting first_policies(const Setting& setting) {
    if (choices_.of_kind(ChoiceKind::policy).empty()) return setting;
    std::vector<std::size_t> trials = simulations_.trials_of(search_.typical(setting));
    if (trials.empty()) return setting;
    sort_by_worst(trials);
    const Setting nearest = plan_.trials[trials.front()].setting;
    return with_policies(setting, plan_.trials[best_policies(nearest)].setting);
  }

  Setting with_policies(Setting setting, const Setting& from) const {
    for (const std::size_t policy : choices_.of_kind(ChoiceKind::policy)) setting.values[policy] = from.values[policy];
    return setting;
  }

  // Without a winner, other policies may meet the goals at the setting that comes nearest; then also at a cheaper one.
  void try_other_policies() {
    const std::optional<std::size_t> near = search_.nearest();
    if (!near || choices_.of_kind(ChoiceKind::policy).empty()) return;
    const Setting before = plan_.trials[*near].setting;
    const Setting best = plan_.trials[best_policies(before)].setting;
    if (best != before) plan_.winner = search_.find(best);
  }

  // Returns the setting that serves 1/share of the requests after those of the warm-up.
  std::string first_requests(std::int64_t share) const {
    const std::int64_t warm_up = base_.integer("workload.warmup_requests");
    const auto requests = static_cast<std::int64_t>(plan_.work.requests) - warm_up;
    return "workload.limit=" + std::to_string(warm_up + std::max<std::int64_t>(1, requests / share));
  }

  // Returns the trial with the best combination of policies at the setting's amounts and parts.
  std::size_t best_policies(const Setting& setting) {
    std::vector<Setting> left;
    for_each_setting(choices_, choices_.of_kind(ChoiceKind::policy), setting, [&](const Setting& one) {
      if (one.engines > 1 || same_route(one, setting)) left.push_back(one);
    });
    std::vector<std::size_t> trials;
    for (std::int64_t share = kFirstShare; left.size() > kFinalistPolicies && share > 1; share /= 2) {
      std::vector<PlanJob> jobs;
      for (const Setting& one : left) jobs.push_back({one, {first_requests(share)}});
      trials = simulations_.trials_of(jobs, "1/" + std::to_string(share));
      sort_by_worst(trials);
      left.clear();
      for (std::size_t i = 0; i < std::max(kFinalistPolicies, (trials.size() + 2) / 3); ++i) {
        left.push_back(plan_.trials[trials[i]].setting);
      }
    }
    if (std::ranges::find(left, setting) == left.end()) left.push_back(setting);
    trials = simulations_.trials_of(left);
    sort_by_worst(trials);
    return trials.front();
  }
  // One engine has no choice of a route.
  bool same_route(const Setting& a, const Setting& b) const {
    const auto at = std::ranges::find(choices_.list(), "cluster.route", &PlanChoice::name);
    if (at == choices_.list().end()) return true;
    const auto choice = static_cast<std::size_t>(at - choices_.list().begin());
    return a.values[choice] == b.values[choice];
  }
  void sort_by_worst(std::vector<std::size_t>& trials) const {
    std::ranges::stable_sort(trials, {}, [&](std::size_t i) { return search_.distance(i); });
  }

  // Chooses the policies at the winner, and searches all lattices with them for something cheaper, until the winner has
  // the best policies.
  void choose_policies() {
    for (std::size_t round = 0; round < kMaxPolicyRounds; ++round) {
      const Setting before = plan_.trials[*plan_.winner].setting;
      const std::size_t better = best_policies(before);
      if (!plan_.trials[better].meets || plan_.trials[better].setting == before) return;
      plan_.winner = search_.find(Setting(plan_.trials[better].setting));
    }
  }

  // ---- neighbours

  struct Neighbour {
    std::string change;
    Setting setting;
  };

  // Sets the next number of engines, upwards (step = 1) or downwards (-1). Returns false if there is none.
  bool step_engines(Setting& setting, std::int64_t step) const {
    const std::vector<std::int64_t>& given = choices_.engines();
    if (given.empty()) {
      setting.engines += step;
    } else {
      const auto at = std::ranges::find(given, setting.engines) - given.begin() + step;
      if (at < 0 || at >= static_cast<std::ptrdiff_t>(given.size())) return false;
      setting.engines = given[static_cast<std::size_t>(at)];
    }
    return setting.engines >= choices_.fewest_engines(setting) && setting.engines <= kMaxEngines;
  }

  std::vector<Neighbour> neighbours(const Setting& setting) const {
    std::vector<Neighbour> found;
    for (const std::int64_t step : {-1, 1}) {
      Setting other = setting;
      if (!step_engines(other, step)) continue;
      const std::int64_t more = other.engines - setting.engines;
      found.push_back({std::to_string(std::abs(more)) + (std::abs(more) == 1 ? " engine " : " engines ") +
                           (more < 0 ? "less" : "more"),
                       std::move(other)});
    }
    for (const std::size_t choice : choices_.in_steps()) {
      const PlanChoice& of = choices_.list()[choice];
      for (const int step : {-1, 1}) {
        std::optional<Setting> other = choices_.stepped(setting, choice, step);
        if (!other) continue;
        found.push_back({of.name + " " + of.values[other->values[choice]].text + " instead of " +
                             of.values[setting.values[choice]].text,
                         std::move(*other)});
      }
    }
    return found;
  }

  void go_to_cheaper_neighbours() {
    for (std::size_t round = 0; round < kMaxNeighbourRounds; ++round) {
      const std::size_t before = *plan_.winner;
      std::vector<Setting> settings;
      for (Neighbour& one : neighbours(plan_.trials[before].setting)) settings.push_back(std::move(one.setting));
      for (const std::size_t trial : simulations_.trials_of(settings)) {
        const Trial& one = plan_.trials[trial];
        if (one.meets && search_.preferred(one, plan_.trials[*plan_.winner])) plan_.winner = trial;
      }
      if (*plan_.winner == before) return;
    }
  }

  // ---- confirmation

  // Improves and confirms winners until one holds with all seeds.
  void confirm_all() {
    while (plan_.winner) {
      if (!longer_ && !choices_.of_kind(ChoiceKind::policy).empty()) choose_policies();
      if (!longer_) go_to_cheaper_neighbours();
      if (holds_with_seeds()) {
        draw();
        return;
      }
      const Trial& out = plan_.trials[*plan_.winner];
      listener_.begin(choices_.text(out.setting) + " " + out.why_not);
      find_after(Setting(out.setting));
    }
  }

  // Goes on after the winner is out: in longer runs with the seed that ruled it out. All that costs less has missed in
  // runs that were no harder. A few more engines often meet the goals, and so leave little to search.
  void find_after(const Setting& out) {
    if (!plan_.confidence.duration_s) {
      search_.rule_out(out);
      plan_.winner = search_.find_again();
      return;
    }
    ruled_out_.insert(out);
    const std::vector<std::string> sets = confirming_job(out, hard_seed_).sets;
    const auto holds = [this](const Setting& setting) { return !ruled_out_.contains(setting); };
    const double price = plan_.trials[*plan_.winner].per_month;
    longer_.emplace(simulations_, prices_, plan_, Scope{kConfirmingStage, sets, 1, {}, holds, true, price});
    std::vector<PlanJob> more;
    for (Setting next = out; more.size() < kMoreEngines && step_engines(next, 1);) more.push_back({next, sets});
    simulations_.trials_of(more, kConfirmingStage);
    const std::optional<std::size_t> found = longer_->find(out);
    plan_.winner.reset();
    if (!found) return;
    // The winner is a trial of the search as asked, with the figures of the longer run.
    const std::size_t winner = simulations_.trials_of({plan_.trials[*found].setting}).front();
    take_figures(plan_.trials[*found], winner);
    plan_.winner = winner;
  }

  PlanJob confirming_job(const Setting& setting, std::size_t seed) const {
    PlanJob job{setting, {"seed=" + std::to_string(base_.integer("seed") + static_cast<std::int64_t>(seed))}};
    for (std::string& set : plan_.confirming_sets()) job.sets.push_back(std::move(set));
    return job;
  }

  void take_figures(Trial from, std::size_t to) {
    from.sets.clear();
    from.stage = plan_.trials[to].stage;
    plan_.trials[to] = std::move(from);
  }

  // Simulates the winner with all seeds, in longer runs where there are any. The seed that ruled out the last winner
  // comes first.
  bool holds_with_seeds() {
    PurchasePlan::Confidence& sure = plan_.confidence;
    const Setting setting = plan_.trials[*plan_.winner].setting;
    sure.seeds = seed_changes_work(base_) ? static_cast<std::size_t>(arguments_.seeds) : 1;
    sure.duration_s = confirming_duration_s(choices_.experiment(base_, setting));
    sure.seeds_meeting = sure.duration_s ? 0 : 1;
    sure.of_seeds.clear();
    std::vector<std::size_t> seeds;
    for (std::size_t i = sure.duration_s ? 0 : 1; i < sure.seeds; ++i) seeds.push_back(i);
    std::stable_partition(seeds.begin(), seeds.end(), [&](std::size_t seed) { return seed == hard_seed_; });
    std::vector<PlanJob> jobs;
    for (const std::size_t seed : seeds) jobs.push_back(confirming_job(setting, seed));
    std::optional<Trial> confirmed;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const std::vector<PlanJob> later(jobs.begin() + static_cast<std::ptrdiff_t>(i) + 1, jobs.end());
      const Trial trial = simulations_.simulate({jobs[i]}, later).front();
      if (!trial.meets) {
        hard_seed_ = seeds[i];
        Trial& out = plan_.trials[*plan_.winner];
        if (!trial.figures.is_null()) take_figures(trial, *plan_.winner);
        out.meets = false;
        out.why_not = miss_text(jobs[i].sets.front(), trial.why_not);
        return false;
      }
      ++sure.seeds_meeting;
      if (sure.duration_s && seeds[i] == 0) confirmed = trial;
      for (const Goal& goal : plan_.goals) {
        const std::string name(figures()[goal.figure].name);
        if (!trial.figures.at(name).is_number()) continue;
        const double value = trial.figures.at(name);
        const auto [at, first] = sure.of_seeds.try_emplace(name, value, value);
        if (!first) at->second = {std::min(at->second.first, value), std::max(at->second.second, value)};
      }
    }
    if (confirmed) take_figures(std::move(*confirmed), *plan_.winner);
    return true;
  }

  void draw() {
    PurchasePlan::Confidence& sure = plan_.confidence;
    sure.draws = static_cast<std::size_t>(arguments_.draws);
    if (sure.draws == 0) return;
    const Setting setting = plan_.trials[*plan_.winner].setting;
    std::vector<std::string> sets;
    const Setup setup = make_setup(choices_.experiment(base_, setting));
    double spread = base_.number("hardware.spread_percent");
    if (uncertain_numbers(setup.hardware, spread / 100).empty()) {
      sure.spread_percent = spread = kAssumedSpread;
      sets.push_back(formatted("hardware.spread_percent=%g", kAssumedSpread));
    }
    listener_.begin("simulates " + std::to_string(sure.draws) + " hardware variants");
    std::vector<PlanJob> jobs;
    for (std::size_t i = 1; i <= sure.draws; ++i) {
      jobs.push_back({setting, sets});
      jobs.back().sets.push_back("hardware.draw=" + std::to_string(i));
    }
    std::map<std::string, std::vector<double>> values;
    for (const Trial& trial : simulations_.simulate(jobs)) {
      if (trial.meets) ++sure.draws_meeting;
      for (const Goal& goal : plan_.goals) {
        const std::string name(figures()[goal.figure].name);
        if (!trial.figures.is_null() && trial.figures.at(name).is_number())
          values[name].push_back(trial.figures.at(name));
      }
    }
    for (auto& [name, list] : values) {
      std::ranges::sort(list);
      sure.ranges[name] = {quantile_of(list, 0.025), quantile_of(list, 0.975)};
    }
    find_causes(setting, uncertain_numbers(setup.hardware, spread / 100), sets);
  }

  // Moves each hardware figure to both ends of its interval. On a share of the requests, because there are many
  // figures.
  void find_causes(const Setting& setting, const std::vector<UncertainNumber>& numbers, std::vector<std::string> sets) {
    sets.push_back(first_requests(kFirstShare));
    std::vector<PlanJob> jobs{{setting, sets}};
    for (const UncertainNumber& number : numbers) {
      for (const char* end : {":low", ":high"}) {
        jobs.push_back({setting, sets});
        jobs.back().sets.push_back("hardware.end=" + number.key + end);
      }
    }
    std::vector<std::optional<double>> values;
    const std::string name(figures()[plan_.goals.front().figure].name);
    for (const Trial& trial : simulations_.simulate(jobs)) {
      values.emplace_back();
      if (trial.figures.is_null()) continue;
      const Json& value = trial.figures.at(name);
      if (value.is_number()) values.back() = value.get<double>();
    }
    PurchasePlan::Confidence& sure = plan_.confidence;
    if (!values.front()) return;
    sure.hangs_on_base = *values.front();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto &low = values[1 + 2 * i], &high = values[2 + 2 * i];
      if (low && high && *low != *high) sure.hangs_on.push_back({numbers[i].key, *low, *high});
    }
    std::ranges::stable_sort(sure.hangs_on, std::greater<>(), [](const PurchasePlan::Confidence::Cause& cause) {
      return std::abs(cause.at_high - cause.at_low);
    });
    if (sure.hangs_on.size() > kMaxCauses) sure.hangs_on.resize(kMaxCauses);
  }

  // ---- the answer

  void explain_failure() {
    const std::optional<std::size_t> near = search_.nearest();
    if (!near) {
      plan_.reason = plan_.trials.empty()
                         ? std::string("the goals on price, GPUs and power, and the bound on engines, leave no setting")
                         : "no setting can be simulated: " + plan_.trials.front().why_not;
      return;
    }
    const Trial& trial = plan_.trials[*near];
    plan_.reason = "none of " + std::to_string(plan_.trials.size()) + " simulated settings of up to " +
                   std::to_string(search_.most_engines()) + " engines meets the goals; nearest is " +
                   choices_.text(trial.setting) + ": " + trial.why_not;
  }

  void finish() {
    const std::optional<std::size_t> shown = plan_.winner ? plan_.winner : search_.nearest();
    if (!shown) return;
    const Setting setting = plan_.trials[*shown].setting;
    plan_.shown = shown;
    if (plan_.winner) {
      std::vector<Neighbour> steps = neighbours(setting);
      std::vector<PlanJob> jobs;
      for (const Neighbour& one : steps) jobs.push_back({one.setting, plan_.confirming_sets()});
      const std::vector<std::size_t> trials =
          simulations_.trials_of(jobs, plan_.confidence.duration_s ? kConfirmingStage : kFullStage);
      for (const std::size_t trial : trials) recall_miss(plan_.trials[trial]);
      for (std::size_t i = 0; i < steps.size(); ++i) {
        if (!is_same(trials[i], *shown)) plan_.margins.push_back({std::move(steps[i].change), trials[i]});
      }
      find_alternatives();
      explain_other_parts();
    }
    find_front();
    measure_drives(setting);
    find_hits(setting);
    warn(*shown);
    warn_of_cold_start(*shown);
    if (plan_.winner && arguments_.questions) ask_follow_ups(simulations_, prices_, plan_);
  }

  // A setting that meets the goals with one seed may have missed them with another one.
  void recall_miss(Trial& trial) const {
    for (const Trial& other : plan_.trials) {
      if (!trial.meets) return;
      if (other.stage != kConfirmingStage || other.meets || other.figures.is_null() || other.setting != trial.setting) {
        continue;
      }
      trial.meets = false;
      trial.why_not = miss_text(other.sets.front(), other.why_not);
    }
  }

  // "misses with seed=2 in a run of 4389 s: ..."
  std::string miss_text(const std::string& seed, const std::string& why_not) const {
    const std::optional<double>& duration = plan_.confidence.duration_s;
    return "misses with " + seed + (duration ? formatted(" in a run of %.0f s", *duration) : std::string()) + ": " +
           why_not;
  }

  // The change had no effect, for example of a pool's bandwidth without a pool.
  bool is_same(std::size_t a, std::size_t b) const {
    const Trial &x = plan_.trials[a], &y = plan_.trials[b];
    return !x.figures.is_null() && x.per_month == y.per_month &&
           x.figures.at("decisions_digest") == y.figures.at("decisions_digest") &&
           x.figures.at("ttft_mean_s") == y.figures.at("ttft_mean_s");
  }

  bool same_parts(const Setting& a, const Setting& b) const {
    return std::ranges::all_of(choices_.of_kind(ChoiceKind::part),
                               [&](std::size_t i) { return a.values[i] == b.values[i]; });
  }

  // More reserve by 5 % or more; or no less, at a lower price.
  static bool roomier(const Trial& a, const Trial& b) {
    if (a.worst < 0.95 * b.worst) return true;
    return a.worst <= 1.05 * b.worst && a.per_month < b.per_month;
  }

  // Why no setting of some parts is an answer.
  void explain_other_parts() {
    for_each_setting(choices_, choices_.of_kind(ChoiceKind::part), plan_.trials.front().setting,
                     [&](const Setting& parts) {
                       std::optional<std::size_t> near;
                       for (std::size_t i = 0; i < plan_.trials.size(); ++i) {
                         const Trial& one = plan_.trials[i];
                         if (!is_judged(i) || !same_parts(one.setting, parts)) continue;
                         if (!near || search_.distance(i) < search_.distance(*near)) near = i;
                       }
                       if (near && !plan_.trials[*near].meets) plan_.out.push_back(*near);
                     });
  }

  // The cheapest of other parts; the one with the most reserve for at most a quarter more; the nearest below the price.
  void find_alternatives() {
    const std::size_t winner = *plan_.winner;
    const Trial& best = plan_.trials[winner];
    std::optional<std::size_t> other, roomy, cheaper;
    for (std::size_t i = 0; i < plan_.trials.size(); ++i) {
      const Trial& one = plan_.trials[i];
      if (!is_judged(i) || one.setting == best.setting) continue;
      if (one.meets && !same_parts(one.setting, best.setting) && !is_same(i, winner) &&
          (!other || one.per_month < plan_.trials[*other].per_month)) {
        other = i;
      }
      const bool near_price = one.meets && one.per_month <= 1.25 * best.per_month && one.worst < best.worst;
      if (near_price && (!roomy || roomier(one, plan_.trials[*roomy]))) roomy = i;
      if (!one.meets && !one.starves && one.per_month < best.per_month &&
          (!cheaper || one.worst < plan_.trials[*cheaper].worst)) {
        cheaper = i;
      }
    }
    if (other) plan_.alternatives.emplace_back(*other, "cheapest simulated setting with other parts");
    if (roomy && roomy != other) {
      plan_.alternatives.emplace_back(*roomy,
                                      "most reserve of the simulated settings that cost at most a quarter more");
    }
    if (cheaper) plan_.alternatives.emplace_back(*cheaper, "cheaper, misses: " + plan_.trials[*cheaper].why_not);
  }

  // Settings that no other simulated setting beats in both price and distance to the goals.
  void find_front() {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < plan_.trials.size(); ++i) {
      const Trial& one = plan_.trials[i];
      if (is_judged(i) && !one.starves) order.push_back(i);
    }
    std::ranges::stable_sort(
        order, {}, [&](std::size_t i) { return std::pair(plan_.trials[i].per_month, plan_.trials[i].worst); });
    double worst = std::numeric_limits<double>::infinity();
    for (const std::size_t i : order) {
      if (plan_.trials[i].worst >= worst) continue;
      worst = plan_.trials[i].worst;
      plan_.front.push_back(i);
    }
  }

  // Hits by capacity, in eight sizes up to that of all blocks of the workload.
  void find_hits(const Setting& setting) {
    const Experiment experiment = choices_.experiment(base_, setting);
    const std::unique_ptr<TraceSource> requests = open_workload(experiment);
    TraceInputOptions options = input_options(experiment);
    options.page_tokens = std::max(options.page_tokens, requests->block_tokens());
    options.last_page = LastPage::partial;
    HitRateConfig config;
    plan_.eviction = experiment.text("cache.eviction");
    config.evictions = {plan_.eviction, "opt"};
    config.block_tokens = options.page_tokens;
    const double all = static_cast<double>(plan_.work.unique_blocks) * static_cast<double>(plan_.work.block_tokens) /
                       static_cast<double>(options.page_tokens);
    for (int i = kHitSizes - 1; i >= 0; --i) {
      const auto pages = static_cast<Pages>(std::ceil(all / std::pow(2, i)));
      if (pages != 0 && (config.capacities.empty() || pages > config.capacities.back()))
        config.capacities.push_back(pages);
    }
    TraceInputSource source(*requests, options);
    try {
      const std::vector<HitRate> rates = replay_hit_rates(source, config);
      const std::size_t sizes = config.capacities.size();
      for (std::size_t i = 0; i < sizes; ++i) {
        plan_.hits.push_back({static_cast<double>(config.capacities[i]) * static_cast<double>(options.page_tokens),
                              rates[i].token_hit_ratio, rates[sizes + i].token_hit_ratio});
      }
    } catch (const HitRateError& error) {
      plan_.warnings.push_back(std::string("no hits by capacity: ") + error.what());
    }
  }

  // The life of the drives under each write policy, at `setting` with at least the fewest drives that were varied.
  void measure_drives(Setting setting) {
    const auto choice = std::ranges::find(choices_.list(), "drives", &PlanChoice::name);
    if (choice != choices_.list().end()) {
      std::size_t& at = setting.values[static_cast<std::size_t>(choice - choices_.list().begin())];
      if (*choice->values[at].number == 0) {
        if (choice->values.size() < 2) return;
        at = 1;
      }
    }
    try {
      const Setup setup = make_setup(choices_.experiment(base_, setting));
      if (!setup.bill || setup.bill->drives == 0) return;
    } catch (const InputError&) {
      return;  // for example drives without a host tier
    }
    listener_.begin("simulates the wear of drives under each write policy");
    std::vector<PlanJob> jobs;
    for (const std::string_view policy : write_policy_names()) {
      jobs.push_back({setting, {"cache.write_policy=" + std::string(policy)}});
    }
    const std::vector<std::size_t> trials = simulations_.trials_of(jobs, "drives");
    for (std::size_t i = 0; i < trials.size(); ++i) {
      plan_.drives.push_back({std::string(write_policy_names()[i]), trials[i]});
    }
  }

  // All requests of a trace count, and its first ones find empty caches.
  void warn_of_cold_start(std::size_t shown) {
    if (base_.text("workload.trace").empty() || base_.is_given("report.warm")) return;
    const std::size_t number =
        simulations_.trials_of({{plan_.trials[shown].setting, {"report.warm=true"}}}, "warm").front();
    const Trial &all = plan_.trials[shown], &warm = plan_.trials[number];
    if (warm.figures.is_null() || all.figures.is_null()) return;
    const double hits = all.figures.at("hit_ratio"), later = warm.figures.at("hit_ratio");
    const Json& window = warm.report.at("warm");
    if (later - hits > kColdLoss) {
      plan_.warnings.push_back(
          formatted("The caches are empty at the start of the trace: from %.0f s on %.1f %% of the prompt tokens hit, "
                    "and %.1f %% "
                    "of all. --set report.warm=true counts that part only",
                    window.at("from_s").get<double>(), 100 * later, 100 * hits));
    } else if (!window.at("flat")) {
      plan_.warnings.push_back("The trace is too short to tell whether hits and waits are steady: " +
                               window.at("not_flat").get<std::string>());
    }
  }

  void warn(std::size_t shown) {
    const Trial& trial = plan_.trials[shown];
    for (std::string& sentence : search_.contradictions()) plan_.warnings.push_back(std::move(sentence));
    for (const auto& [reason, count] : search_.left_out()) {
      plan_.warnings.push_back("Left out " + std::to_string(count) + (count == 1 ? " combination" : " combinations") +
                               " of parts and amounts: " + reason);
    }
    const Setup setup = make_setup(choices_.experiment(base_, trial.setting));
    for (const std::string& note : setup.model.inexact) plan_.warnings.push_back(note);
    if (setup.engine.pools.empty() && !setup.has_block_groups()) {
      for (const std::string& note : setup.model.without_pages) plan_.warnings.push_back(note);
    }
    for (const Json& tier : trial.report.at("tiers")) {
      const auto all = tier.at("capacity_pages").get<double>(), used = tier.at("used_pages_max").get<double>();
      if (tier.at("name") == "device" || all == 0 || tier.at("evicted_pages") != 0 || used > kFullShare * all) continue;
      if (refused_for_room(trial.report, tier)) continue;
      plan_.warnings.push_back(
          "The " + tier.at("name").get<std::string>() +
          formatted(" tier was at most %.0f %% full and evicted and refused nothing: a larger one adds no hits",
                    100 * used / all));
    }
    if (base_.text("workload.trace").empty()) {
      plan_.warnings.emplace_back(
          "The requests are generated from averages: hits depend on reuse that was assumed, not "
          "measured");
    }
    if (plan_.winner && choices_.engines().size() > 1 && trial.setting.engines == choices_.engines().back()) {
      plan_.warnings.emplace_back("The recommendation has the largest number of engines of --vary");
    }
    const Experiment chosen = choices_.experiment(base_, trial.setting);
    if (setup.has_storage() && chosen.text("cache.path") == "direct" && base_.text("cache.path") != "direct") {
      plan_.warnings.emplace_back(
          "The storage tier works without a host tier (cache.path = direct), which SGLang's HiCache does not offer");
    }
    const Json* const drives = drives_of(trial);
    if (drives != nullptr && drives->at("years").is_number() && drives->at("years") < prices_.get("life.years").value) {
      plan_.warnings.push_back(
          formatted("The drives last %.2g years at this rate of writes, and the price has their "
                    "replacements",
                    drives->at("years").get<double>()));
    }
  }

  const Experiment& base_;
  const Choices& choices_;
  const PriceList& prices_;
  const PlanArguments& arguments_;
  const Listener& listener_;
  PurchasePlan& plan_;
  Simulations simulations_;
  LatticeSearch search_;
  std::set<Setting> ruled_out_;          // by a confirming run
  std::optional<LatticeSearch> longer_;  // in confirming runs, once a winner of the short ones missed in one
  std::size_t hard_seed_ = 0;            // ruled out the last winner
};

}  // namespace

PurchasePlan find_plan(const Experiment& base, const TraceInfo& work, const Choices& choices, const PriceList& prices,
                       const std::vector<Goal>& goals, const PlanArguments& arguments, RowFile* rows,
                       const Listener& listener) {
  PurchasePlan plan;
  plan.work = work;
  plan.goals = goals;
  plan.probability = arguments.probability;
  Planner(choices, prices, arguments, rows, base, listener, plan).run();
  return plan;
}

}  // namespace kvtwin
