#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <tuple>

#include "lab/child_processes.hpp"
#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/formatted.hpp"
#include "lab/names.hpp"
#include "lab/plan/cheapest_search.hpp"
#include "lab/plan/plan.hpp"
#include "lab/report/warnings.hpp"
#include "lab/simulate.hpp"
#include "models/calibration_fit.hpp"
#include "models/error.hpp"
#include "models/hardware_draws.hpp"
#include "policy/write.hpp"
#include "sim/bounds/hitrate.hpp"
#include "traces/paging.hpp"

namespace kvtwin {
namespace {

using Json = nlohmann::ordered_json;

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

constexpr double kAssumedSpread = 10;       // %, of hardware without intervals
constexpr std::size_t kLatticesAtOnce = 4;  // fixed, so that the results do not depend on the number of processes
constexpr double kBoundShare = 0.75;        // share of the work that must end by the last arrival and the goal's time
constexpr std::size_t kFewPolicies = 3;     // so many are simulated on all requests
constexpr double kLittle = 1.05;            // figure / limit; differences between amounts may be of this size
constexpr std::int64_t kFirstShare = 8;     // the first round of policies serves 1/8 of the requests
constexpr std::size_t kMaxPolicyRounds = 3, kMaxNeighbourRounds = 8;
constexpr std::size_t kMaxCauses = 8;
constexpr int kHitSizes = 8;
constexpr double kFullShare = 0.95;
constexpr double kColdLoss = 0.02;  // of the hit ratio, that empty caches at the start cost
constexpr WarningKind kStarving[] = {WarningKind::host_not_larger, WarningKind::backups_dropped,
                                     WarningKind::prefetches_declined, WarningKind::saturated,
                                     WarningKind::drives_worn_out};

// One combination of parts.
struct Lattice {
  Setting base;                   // amounts and engines: first values
  std::vector<Setting> settings;  // by point
  std::optional<CheapestSearch> search;
  double cheapest = 0;  // of its points
};

struct Job {
  Setting setting;
  std::vector<std::string> sets;  // in addition to the setting
};

struct Answer {
  Json report;          // null if it failed
  std::string failure;  // of bad input
};

class Planner {
 public:
  Planner(const Experiment& base, const Choices& choices, const PriceList& prices, const PlanArguments& arguments,
          const Listener& listener, PurchasePlan& plan)
      : base_(base), choices_(choices), prices_(prices), arguments_(arguments), listener_(listener), plan_(plan) {}

  void run() {
    for (;;) {
      search_with({std::vector<std::size_t>(choices_.list().size(), 0), 1});
      if (plan_.winner || !choices_.engines().empty() || lattices_.empty() || most_engines_ >= kMaxEngines) break;
      if (engine_factor_ >= kMaxEngines) break;  // the numbers of engines grow no more
      engine_factor_ *= 4;                       // even the largest number of engines is too small
    }
    if (!plan_.winner) try_other_policies();
    confirm_all();
    if (!plan_.winner) explain_failure();
    finish();
  }

 private:
  // ---- simulations

  Experiment experiment_of(const Job& job) const {
    Experiment experiment = choices_.experiment(base_, job.setting);
    for (const std::string& set : job.sets) experiment.set(set, "plan");
    return experiment;
  }

  // Simulates all jobs, several at the same time. Errors: WorkError if a simulation fails for another reason than bad
  // input.
  std::vector<Answer> simulate_all(const std::vector<Job>& jobs) {
    std::vector<Answer> answers(jobs.size());
    const auto simulate_one = [&](std::size_t number) { return simulate(experiment_of(jobs[number])).report; };
    run_children(jobs.size(), children_at_once(arguments_.jobs), simulate_one, [&](const ChildEnd& end) {
      ++plan_.simulations;
      if (end.failure.code == 0) {
        answers[end.number].report = Json::parse(end.text);
      } else if (end.failure.code == 2) {
        answers[end.number].failure = end.failure.sentence;
      } else {
        throw WorkError(choices_.text(jobs[end.number].setting) + ": " + end.failure.sentence);
      }
    });
    return answers;
  }

  // Returns the trials of the settings, in this order. A setting is simulated once per `sets` and stage.
  std::vector<std::size_t> trials_of(const std::vector<Setting>& settings, const std::vector<std::string>& sets = {},
                                     const std::string& stage = "full") {
    std::string variant = stage;
    for (const std::string& set : sets) variant += " " + set;
    std::vector<Job> jobs;
    std::vector<std::size_t> numbers;
    for (const Setting& setting : settings) {
      const auto [at, fresh] = known_.try_emplace({setting, variant}, plan_.trials.size() + jobs.size());
      numbers.push_back(at->second);
      if (fresh) jobs.push_back({setting, sets});
    }
    std::vector<Answer> answers = simulate_all(jobs);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      Trial trial = judged(std::move(answers[i]), jobs[i].setting);
      trial.stage = stage;
      if (stage == "full" && sets.empty()) tell(trial);
      plan_.trials.push_back(std::move(trial));
    }
    return numbers;
  }

  void tell(const Trial& trial) const {
    std::string line = "simulated " + choices_.text(trial.setting) + ": ";
    listener_.begin(line + (trial.meets ? "meets the goals" : trial.why_not));
  }

  Trial judged(Answer answer, const Setting& setting) const {
    Trial trial;
    trial.setting = setting;
    trial.worst = std::numeric_limits<double>::infinity();
    if (answer.report.is_null()) {
      trial.why_not = answer.failure;
      return trial;
    }
    trial.figures = report_figures(answer.report);
    trial.report = std::move(answer.report);
    if (const Json* const price = price_of(trial)) trial.per_month = price->at("per_month");
    trial.worst = 0;
    const auto miss = [&](const std::string& why) {
      if (trial.why_not.empty()) trial.why_not = why;
    };
    for (const char* what : {"rejected", "failed"}) {
      if (trial.figures.at(what) == 0) continue;
      trial.starves = true;
      miss(what + formatted(" %.0f requests", trial.figures.at(what).get<double>()));
    }
    if (const Json warm = trial.report.value("warm", Json()); !warm.is_null() && warm.at("overloaded")) {
      trial.starves = true;
      miss("is overloaded: " + warm.at("not_flat").get<std::string>());
    }
    for (const Goal& goal : plan_.goals) {
      const RunFigure& figure = figures()[goal.figure];
      const Json& value = trial.figures.at(figure.name);
      if (value.is_null()) {
        if (figure.name == "drive_years") continue;  // no drives, or nothing written: they do not wear out
        miss(std::string(figure.name) + " has no value");
        trial.worst = std::numeric_limits<double>::infinity();
        continue;
      }
      const auto number = value.get<double>();
      const bool less = figure.better == RunFigure::Better::less;
      constexpr double kTiny = 1e-12;
      const double ratio = less ? number / std::max(goal.value, kTiny) : goal.value / std::max(number, kTiny);
      trial.worst = std::max(trial.worst, ratio);
      if (!goal.met_by(number)) {
        miss(std::string(figure.name) +
             formatted(" is %.4g, not at %s %.4g", number, less ? "most" : "least", goal.value));
      }
    }
    const Json warnings = trial.report.value("warnings", Json::array());
    for (const WarningKind kind : kStarving) {
      if (std::ranges::find(warnings, name_of(kind)) == warnings.end()) continue;
      trial.starves = true;
      miss("warning " + std::string(name_of(kind)));
    }
    trial.meets = trial.why_not.empty();
    return trial;
  }

  // Returns what a trial rules out. A queue grows with fewer engines. Without a queue, a missed latency or hit ratio
  // may get better with fewer engines, because each has more of the traffic and so more hits. Written bytes and the
  // price of a token fall with fewer parts.
  TestResult result_of(const Trial& trial) const {
    if (trial.meets) return TestResult::passes;
    if (trial.figures.is_null()) return TestResult::fails_alone;
    const Json &queue = trial.figures.at("ttft_queue_s"), &ttft = trial.figures.at("ttft_mean_s");
    const bool queues = queue.is_number() && ttft.is_number() && 2 * queue.get<double>() >= ttft.get<double>();
    if (trial.starves) return TestResult::fails;
    if (queues) return trial.worst <= kLittle ? TestResult::fails_by_little : TestResult::fails;
    TestResult result = TestResult::fails_alone;
    for (const Goal& goal : plan_.goals) {
      const RunFigure& figure = figures()[goal.figure];
      const Json& value = trial.figures.at(figure.name);
      if (value.is_number() && goal.met_by(value.get<double>())) continue;
      if (figure.name.starts_with("written_") || figure.name == "disk_writes_per_day" ||
          figure.name == "price_per_million_tokens") {
        continue;
      }
      if (figure.name.starts_with("tpot_")) return TestResult::fails;
      result = TestResult::fails_near;
    }
    return result;
  }

  // ---- lattices

  // Returns the least number of engines that can compute the work in time.
  std::int64_t least_engines(const Setup& setup) const {
    if (base_.text("workload.loop") == "closed") return 1;    // the work takes as long as the engines need
    if (!base_.text("cluster.decode_set").empty()) return 1;  // decode engines may be faster
    double slack = 0;
    bool has_time = false;
    for (const Goal& goal : plan_.goals) {
      const std::string_view name = figures()[goal.figure].name;
      if (!name.starts_with("ttft_") && !name.starts_with("e2e_")) continue;
      has_time = true;
      slack = std::max(slack, goal.value);
    }
    if (!has_time) return 1;
    const TraceInfo& work = plan_.work;
    // Answers may be hits too.
    const double all = static_cast<double>(work.input.total);
    const double computed = all - static_cast<double>(work.ideal_hit_tokens) - static_cast<double>(work.output.total);
    ForwardShape shape;
    shape.prefill_tokens = static_cast<Tokens>(std::max(0.0, computed)) + work.output.total;
    shape.prefill_sequences = 1;
    const RooflineCost roofline(setup.model, setup.hardware, setup.engine_gpus(),
                                setup.attention_dp);  // without measured operators
    const double seconds = static_cast<double>(roofline.spread_ns(shape, 1)) / 1e9;
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(kBoundShare * seconds / (duration() + 2 * slack)));
  }

  // Returns the numbers of engines to try if the caller gave none: all from `least` on, then in steps of 15 %, up to
  // several times what the work needs without any hit.
  std::vector<std::int64_t> default_engines(std::int64_t least, const Setup& setup) const {
    const TraceInfo& work = plan_.work;
    ForwardShape prefill, decode;
    prefill.prefill_tokens = work.input.total;
    prefill.prefill_pairs = static_cast<std::uint64_t>(static_cast<double>(work.input.total) * work.input.mean / 2);
    prefill.prefill_sequences = 1;
    decode.decode_sequences = static_cast<std::uint32_t>(std::min<Tokens>(work.output.total, 4'000'000'000));
    decode.decode_context_tokens = static_cast<Tokens>(static_cast<double>(work.output.total) * work.input.mean);
    const double busy = static_cast<double>(setup.cost->spread_ns(prefill, 1) + setup.cost->spread_ns(decode, 1)) /
                        1e9 / std::max(duration(), 1.0);
    const std::int64_t wanted = engine_factor_ * (static_cast<std::int64_t>(4 * busy) + 4);
    const auto most = std::clamp<std::int64_t>(wanted, least + 4, std::max(least + 4, kMaxEngines));
    std::vector<std::int64_t> values;
    for (std::int64_t n = least; n <= most; n = n < least + 16 ? n + 1 : std::max(n + 1, n * 115 / 100)) {
      values.push_back(n);
    }
    return values;
  }

  double duration() const { return plan_.work.duration_seconds * base_.number("workload.time_scale"); }

  struct Cost {
    double per_month = 0, watts = 0, gpus = 0;
    friend Cost operator+(const Cost& a, const Cost& b) {
      return {a.per_month + b.per_month, a.watts + b.watts, a.gpus + b.gpus};
    }
    friend Cost operator*(double times, const Cost& a) {
      return {times * a.per_month, times * a.watts, times * a.gpus};
    }
  };

  // The parts of one setting with any number of engines. The bill grows by the same amount with each engine of a role.
  struct Priced {
    Setting setting;  // with the fewest engines
    Cost fewest;
    Cost prefill, decode;  // of one more engine of a role; without roles both are of any engine
    std::vector<std::uint32_t> place;
  };

  Cost cost_of(const Priced& parts, std::int64_t engines) const {
    Setting setting = parts.setting;
    setting.engines = engines;
    if (!choices_.has_roles(setting)) return parts.fewest + static_cast<double>(engines - 1) * parts.prefill;
    const auto [prefill, decode] = choices_.roles(setting);
    return parts.fewest + static_cast<double>(prefill - 1) * parts.prefill +
           static_cast<double>(decode - 1) * parts.decode;
  }

  // Returns the setup with these engines instead of the setting's number. Errors: InputError, ModelError.
  Setup setup_with(const Setting& setting, const RoleCounts& roles) const {
    Experiment experiment = choices_.experiment(base_, setting);
    set_roles(roles, experiment);
    return make_setup(experiment);
  }

  // Sets the costs of `parts`. Returns the setup with the fewest engines. Errors: InputError, ModelError.
  Setup price(Priced& parts) const {
    const auto cost = [&](const Setup& setup) {
      const Bill bill = bill_for(setup);
      return Cost{bill.per_month, bill.watts, static_cast<double>(setup.gpus())};
    };
    Setting setting = parts.setting;
    parts.setting.engines = choices_.fewest_engines(parts.setting);
    if (choices_.has_roles(setting)) {
      Setup setup = setup_with(setting, {1, 1});
      parts.fewest = cost(setup);
      parts.prefill = cost(setup_with(setting, {2, 1})) + -1 * parts.fewest;
      parts.decode = cost(setup_with(setting, {1, 2})) + -1 * parts.fewest;
      return setup;
    }
    setting.engines = 2;
    const Cost two = cost(setup_of(setting));
    Setup setup = setup_of(parts.setting);
    parts.fewest = cost(setup);
    parts.prefill = parts.decode = two + -1 * parts.fewest;
    return setup;
  }

  Bill bill_for(const Setup& setup) const {
    if (setup.bill) return *setup.bill;
    bill_of(setup, prices_);  // throws if the list lacks a part
    throw InputError("the price list has no price for " + setup.hardware.name +
                     "; give a list with hour or price in [gpu." + setup.hardware.name + "] (--prices)");
  }
  Setup setup_of(const Setting& setting) const { return make_setup(choices_.experiment(base_, setting)); }

  // Returns whether the goals on price, GPUs and power allow this cost.
  bool affordable(const Cost& cost) const {
    return std::ranges::all_of(plan_.goals, [&](const Goal& goal) {
      const std::string_view name = figures()[goal.figure].name;
      if (name == "price_per_month") return goal.met_by(cost.per_month);
      if (name == "power_kw") return goal.met_by(cost.watts / 1000);
      return name != "gpus" || goal.met_by(cost.gpus);
    });
  }

  // Adds the points of one combination of parts.
  void fill(Lattice& lattice) {
    std::vector<bool> none_first{false};
    for (const std::size_t amount : amounts_) none_first.push_back(choices_.list()[amount].none_first);
    std::vector<Priced> priced;
    std::int64_t least = 1;
    std::vector<std::int64_t> engines = choices_.engines();
    for_each(amounts_, lattice.base, [&](const Setting& setting) {
      Priced parts{setting, {}, {}, {}, {}};
      try {
        const Setup setup = price(parts);
        if (priced.empty()) {
          least = std::max(least_engines(setup), choices_.fewest_engines(setting));
          if (engines.empty()) engines = default_engines(least, setup);
        }
      } catch (const InputError& error) {
        return leave_out(error.what());
      } catch (const ModelError& error) {
        return leave_out(error.what());
      }
      for (const std::size_t amount : amounts_) {
        parts.place.push_back(static_cast<std::uint32_t>(setting.values[amount]));
      }
      priced.push_back(std::move(parts));
    });
    std::vector<LatticePoint> points;
    for (const Priced& parts : priced) {
      for (std::size_t i = 0; i < engines.size(); ++i) {
        const Cost cost = engines[i] < least ? Cost() : cost_of(parts, engines[i]);
        if (engines[i] < least || !affordable(cost)) {
          ++plan_.bounded;
          continue;
        }
        LatticePoint point{{static_cast<std::uint32_t>(i)}, cost.per_month, static_cast<double>(engines[i])};
        point.place.insert(point.place.end(), parts.place.begin(), parts.place.end());
        points.push_back(std::move(point));
        Setting setting = parts.setting;
        setting.engines = engines[i];
        most_engines_ = std::max(most_engines_, engines[i]);
        lattice.settings.push_back(std::move(setting));
      }
    }
    if (points.size() > kMaxPoints) {
      throw InputError("--vary: " + std::to_string(points.size()) + " settings for one combination of parts; at most " +
                       std::to_string(kMaxPoints) + ", so vary fewer values");
    }
    if (points.empty()) return;
    lattice.cheapest = std::ranges::min(points, {}, &LatticePoint::price).price;
    lattice.search.emplace(std::move(points), std::move(none_first));
  }

  void leave_out(const std::string& reason) { ++left_out_[reason]; }

  // Calls `use` for all combinations of values of these choices, the others as in `setting`.
  void for_each(const std::vector<std::size_t>& which, const Setting& setting,
                const std::function<void(const Setting&)>& use) const {
    Setting now = setting;
    for (const std::size_t choice : which) now.values[choice] = 0;
    for (;;) {
      use(now);
      std::size_t i = which.size();
      while (i-- > 0) {
        if (++now.values[which[i]] < choices_.list()[which[i]].values.size()) break;
        now.values[which[i]] = 0;
      }
      if (i == static_cast<std::size_t>(-1)) return;
    }
  }

  // `first`: has the policies of all lattices.
  void make_lattices(const Setting& first) {
    for (const Lattice& lattice : lattices_) note_contradictions(lattice);
    lattices_.clear();
    left_out_.clear();
    plan_.bounded = 0;
    amounts_ = choices_.of_kind(ChoiceKind::amount);
    for_each(choices_.of_kind(ChoiceKind::part), first, [&](const Setting& setting) {
      Lattice lattice;
      lattice.base = setting;
      fill(lattice);
      if (!lattice.search) return;
      for (std::size_t i = 0; i < lattice.settings.size(); ++i) {
        const auto known = known_.find({lattice.settings[i], "full"});
        if (known != known_.end()) put(lattice, i, plan_.trials[known->second]);
      }
      lattices_.push_back(std::move(lattice));
    });
    if (lattices_.empty() && !left_out_.empty()) {
      throw InputError("plan: no combination of parts can be set up: " + left_out_.begin()->first);
    }
    std::ranges::stable_sort(lattices_, {}, &Lattice::cheapest);
  }

  void put(Lattice& lattice, std::size_t point, const Trial& trial) const {
    lattice.search->put(point, result_of(trial), trial.per_month > 0 ? std::optional(trial.per_month) : std::nullopt);
  }

  // ---- the search

  // The lower price; of equal prices the smaller amounts, and then the better figures.
  bool preferred(const Trial& a, const Trial& b) const {
    const auto amounts = [&](const Trial& trial) {
      std::size_t places = 0;
      for (const std::size_t amount : amounts_) places += trial.setting.values[amount];
      return places;
    };
    return std::tuple(a.per_month, amounts(a), a.worst) < std::tuple(b.per_month, amounts(b), b.worst);
  }

  std::optional<std::size_t> cheapest_trial() const {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < plan_.trials.size(); ++i) {
      const Trial& one = plan_.trials[i];
      if (one.stage != "full" || !one.meets) continue;
      if (!best || preferred(one, plan_.trials[*best])) best = i;
    }
    return best;
  }

  void search() {
    for (;;) {
      const std::optional<std::size_t> best = cheapest_trial();
      const double below = best ? plan_.trials[*best].per_month : std::numeric_limits<double>::infinity();
      std::vector<Setting> settings;
      std::vector<std::pair<Lattice*, std::size_t>> points;
      for (Lattice& lattice : lattices_) {
        if (points.size() == kLatticesAtOnce) break;
        const std::optional<std::size_t> point = lattice.search->next(below);
        if (!point) continue;
        points.emplace_back(&lattice, *point);
        settings.push_back(lattice.settings[*point]);
      }
      if (points.empty()) break;
      if (points.size() == 1) {  // also the point that comes next if this one fails
        CheapestSearch guess = *points.front().first->search;
        guess.put(points.front().second, TestResult::fails);
        if (const std::optional<std::size_t> point = guess.next(below)) {
          points.emplace_back(points.front().first, *point);
          settings.push_back(points.front().first->settings[*point]);
        }
      }
      const std::vector<std::size_t> trials = trials_of(settings);
      for (std::size_t i = 0; i < points.size(); ++i) {
        put(*points[i].first, points[i].second, plan_.trials[trials[i]]);
      }
    }
    plan_.winner = cheapest_trial();
  }

  // Searches with the policies of `policies`.
  void search_with(const Setting& policies) {
    make_lattices(policies);
    search();
  }

  // Without a winner, other policies may meet the goals at the setting that comes nearest; then also at a cheaper one.
  void try_other_policies() {
    const std::optional<std::size_t> near = nearest();
    if (!near || choices_.of_kind(ChoiceKind::policy).empty()) return;
    const Setting& best = plan_.trials[best_policies(*near)].setting;
    if (best != plan_.trials[*near].setting) search_with(Setting(best));
  }

  // Orders trials by their distance to the goals: starving ones last.
  std::tuple<bool, bool, double> distance(std::size_t trial) const {
    const Trial& one = plan_.trials[trial];
    return {one.starves, !one.meets, one.worst};
  }

  // The trial of all requests that comes nearest to the goals.
  std::optional<std::size_t> nearest() const {
    std::optional<std::size_t> near;
    for (std::size_t i = 0; i < plan_.trials.size(); ++i) {
      if (plan_.trials[i].stage != "full" || plan_.trials[i].figures.is_null()) continue;
      if (!near || distance(i) < distance(*near)) near = i;
    }
    return near;
  }

  // Returns the setting that serves 1/share of the requests after those of the warm-up.
  std::string first_requests(std::int64_t share) const {
    const std::int64_t warm_up = base_.integer("workload.warmup_requests");
    const auto requests = static_cast<std::int64_t>(plan_.work.requests) - warm_up;
    return "workload.limit=" + std::to_string(warm_up + std::max<std::int64_t>(1, requests / share));
  }

  // ---- policies

  // Returns the trial with the best combination of policies at the trial's amounts and parts.
  std::size_t best_policies(std::size_t trial) {
    std::vector<Setting> left;
    for_each(choices_.of_kind(ChoiceKind::policy), plan_.trials[trial].setting,
             [&](const Setting& setting) { left.push_back(setting); });
    std::vector<std::size_t> trials;
    for (std::int64_t share = kFirstShare; left.size() > kFewPolicies && share > 1; share /= 2) {
      trials = trials_of(left, {first_requests(share)}, "1/" + std::to_string(share));
      sort_by_worst(trials);
      left.clear();
      for (std::size_t i = 0; i < std::max(kFewPolicies, (trials.size() + 2) / 3); ++i) {
        left.push_back(plan_.trials[trials[i]].setting);
      }
    }
    if (std::ranges::find(left, plan_.trials[trial].setting) == left.end()) left.push_back(plan_.trials[trial].setting);
    trials = trials_of(left);
    sort_by_worst(trials);
    return trials.front();
  }
  void sort_by_worst(std::vector<std::size_t>& trials) const {
    std::ranges::stable_sort(trials, {}, [&](std::size_t i) { return distance(i); });
  }

  // Chooses the policies at the winner, and searches all lattices with them for something cheaper, until the winner has
  // the best policies.
  void choose_policies() {
    for (std::size_t round = 0; round < kMaxPolicyRounds; ++round) {
      const Setting before = plan_.trials[*plan_.winner].setting;
      const std::size_t better = best_policies(*plan_.winner);
      if (!plan_.trials[better].meets || plan_.trials[better].setting == before) return;
      search_with(Setting(plan_.trials[better].setting));
    }
  }

  // ---- neighbours

  struct Neighbour {
    std::string change;
    Setting setting;
  };

  std::vector<Neighbour> neighbours(const Setting& setting) const {
    std::vector<Neighbour> found;
    const std::vector<std::int64_t>& given = choices_.engines();
    for (const std::int64_t step : {-1, 1}) {
      Setting other = setting;
      if (given.empty()) {
        other.engines += step;
      } else {
        const auto at = std::ranges::find(given, setting.engines) - given.begin() + step;
        if (at < 0 || at >= static_cast<std::ptrdiff_t>(given.size())) continue;
        other.engines = given[static_cast<std::size_t>(at)];
      }
      if (other.engines < choices_.fewest_engines(other)) continue;
      const std::int64_t more = other.engines - setting.engines;
      found.push_back({std::to_string(std::abs(more)) + (std::abs(more) == 1 ? " engine " : " engines ") +
                           (more < 0 ? "less" : "more"),
                       std::move(other)});
    }
    for (const std::size_t amount : amounts_) {
      const PlanChoice& choice = choices_.list()[amount];
      for (const int step : {-1, 1}) {
        const auto at = static_cast<std::ptrdiff_t>(setting.values[amount]) + step;
        if (at < 0 || at >= static_cast<std::ptrdiff_t>(choice.values.size())) continue;
        Setting other = setting;
        other.values[amount] = static_cast<std::size_t>(at);
        found.push_back({choice.name + " " + choice.values[other.values[amount]].text + " instead of " +
                             choice.values[setting.values[amount]].text,
                         std::move(other)});
      }
    }
    return found;
  }

  void go_to_cheaper_neighbours() {
    for (std::size_t round = 0; round < kMaxNeighbourRounds; ++round) {
      const std::size_t before = *plan_.winner;
      std::vector<Setting> settings;
      for (Neighbour& one : neighbours(plan_.trials[before].setting)) settings.push_back(std::move(one.setting));
      for (const std::size_t trial : trials_of(settings)) {
        const Trial& one = plan_.trials[trial];
        if (one.meets && preferred(one, plan_.trials[*plan_.winner])) plan_.winner = trial;
      }
      if (*plan_.winner == before) return;
    }
  }

  // ---- confirmation

  // Improves and confirms winners until one holds with all seeds.
  void confirm_all() {
    while (plan_.winner) {
      if (!choices_.of_kind(ChoiceKind::policy).empty()) choose_policies();
      go_to_cheaper_neighbours();
      if (holds_with_seeds()) {
        draw();
        return;
      }
      Trial& out = plan_.trials[*plan_.winner];
      out.meets = false;
      out.why_not = formatted("misses a goal with %.0f of %.0f seeds",
                              static_cast<double>(plan_.confidence.seeds - plan_.confidence.seeds_meeting),
                              static_cast<double>(plan_.confidence.seeds));
      tell(out);
      for (Lattice& lattice : lattices_) {
        const auto at = std::ranges::find(lattice.settings, out.setting);
        if (at != lattice.settings.end()) {
          lattice.search->put(static_cast<std::size_t>(at - lattice.settings.begin()), TestResult::fails);
        }
      }
      search();
    }
  }

  bool holds_with_seeds() {
    PurchasePlan::Confidence& sure = plan_.confidence;
    sure.seeds = seed_changes_work(base_) ? static_cast<std::size_t>(arguments_.seeds) : 1;
    sure.seeds_meeting = 1;
    const Setting setting = plan_.trials[*plan_.winner].setting;
    std::vector<Job> jobs;
    for (std::size_t i = 1; i < sure.seeds; ++i) {
      jobs.push_back({setting, {"seed=" + std::to_string(base_.integer("seed") + static_cast<std::int64_t>(i))}});
    }
    for (Answer& answer : simulate_all(jobs)) {
      if (judged(std::move(answer), setting).meets) ++sure.seeds_meeting;
    }
    return sure.seeds_meeting == sure.seeds;
  }

  void draw() {
    PurchasePlan::Confidence& sure = plan_.confidence;
    sure.draws = static_cast<std::size_t>(arguments_.draws);
    if (sure.draws == 0) return;
    const Setting setting = plan_.trials[*plan_.winner].setting;
    std::vector<std::string> sets;
    const Setup setup = setup_of(setting);
    double spread = base_.number("hardware.spread_percent");
    if (uncertain_numbers(setup.hardware, spread / 100).empty()) {
      sure.spread_percent = spread = kAssumedSpread;
      sets.push_back(formatted("hardware.spread_percent=%g", kAssumedSpread));
    }
    listener_.begin("simulates " + std::to_string(sure.draws) + " hardware variants");
    std::vector<Job> jobs;
    for (std::size_t i = 1; i <= sure.draws; ++i) {
      jobs.push_back({setting, sets});
      jobs.back().sets.push_back("hardware.draw=" + std::to_string(i));
    }
    std::map<std::string, std::vector<double>> values;
    for (Answer& answer : simulate_all(jobs)) {
      const Trial trial = judged(std::move(answer), setting);
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
    std::vector<Job> jobs{{setting, sets}};
    for (const UncertainNumber& number : numbers) {
      for (const char* end : {":low", ":high"}) {
        jobs.push_back({setting, sets});
        jobs.back().sets.push_back("hardware.end=" + number.key + end);
      }
    }
    std::vector<std::optional<double>> values;
    const std::string name(figures()[plan_.goals.front().figure].name);
    for (Answer& answer : simulate_all(jobs)) {
      values.emplace_back();
      if (answer.report.is_null()) continue;
      const Json value = report_figures(answer.report).at(name);
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
    const std::optional<std::size_t> near = nearest();
    if (!near) {
      plan_.reason = plan_.trials.empty()
                         ? std::string("the goals on price, GPUs and power, and the bound on engines, leave no setting")
                         : "no setting can be simulated: " + plan_.trials.front().why_not;
      return;
    }
    const Trial& trial = plan_.trials[*near];
    plan_.reason = "none of " + std::to_string(plan_.trials.size()) + " simulated settings of up to " +
                   std::to_string(most_engines_) + " engines meets the goals; nearest is " +
                   choices_.text(trial.setting) + ": " + trial.why_not;
  }

  void finish() {
    const std::optional<std::size_t> shown = plan_.winner ? plan_.winner : nearest();
    if (!shown) return;
    const Setting setting = plan_.trials[*shown].setting;
    if (plan_.winner) {
      for (Neighbour& one : neighbours(setting)) {
        const std::size_t trial = trials_of({one.setting}).front();
        if (!is_same(trial, *shown)) plan_.margins.push_back({std::move(one.change), trial});
      }
      find_alternatives();
      explain_other_parts();
    }
    find_front();
    measure_drives(setting);
    find_hits(setting);
    warn(*shown);
    warn_of_cold_start(*shown);
    plan_.shown = shown;
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
    for_each(choices_.of_kind(ChoiceKind::part), plan_.trials.front().setting, [&](const Setting& parts) {
      std::optional<std::size_t> near;
      for (std::size_t i = 0; i < plan_.trials.size(); ++i) {
        const Trial& one = plan_.trials[i];
        if (one.stage != "full" || one.figures.is_null() || !same_parts(one.setting, parts)) continue;
        if (!near || distance(i) < distance(*near)) near = i;
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
      if (i == winner || one.stage != "full" || one.figures.is_null()) continue;
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
    if (other) plan_.alternatives.emplace_back(*other, "cheapest of those simulated with other parts");
    if (roomy && roomy != other) {
      plan_.alternatives.emplace_back(*roomy, "most reserve of those simulated for at most a quarter more");
    }
    if (cheaper) plan_.alternatives.emplace_back(*cheaper, "cheaper, misses: " + plan_.trials[*cheaper].why_not);
  }

  // Settings that no other simulated setting beats in both price and distance to the goals.
  void find_front() {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < plan_.trials.size(); ++i) {
      const Trial& one = plan_.trials[i];
      if (one.stage == "full" && !one.figures.is_null() && !one.starves) order.push_back(i);
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
      const Setup setup = setup_of(setting);
      if (!setup.bill || setup.bill->drives == 0) return;
    } catch (const InputError&) {
      return;  // for example drives without a host tier
    }
    listener_.begin("simulates the wear of drives under each write policy");
    for (const std::string_view policy : write_policy_names()) {
      const std::string set = "cache.write_policy=" + std::string(policy);
      plan_.drives.push_back({std::string(policy), trials_of({setting}, {set}, "drives").front()});
    }
  }

  // One sentence per lattice is enough to know that its amounts are not monotone.
  void note_contradictions(const Lattice& lattice) {
    const auto pairs = lattice.search->contradictions();
    if (pairs.empty()) return;
    const auto& [a, b] = pairs.front();
    plan_.warnings.push_back("More is not always better here: " + choices_.text(lattice.settings[a]) +
                             " meets the goals, and " + choices_.text(lattice.settings[b]) + " does not");
  }

  // All requests of a trace count, and its first ones find empty caches.
  void warn_of_cold_start(std::size_t shown) {
    if (base_.text("workload.trace").empty() || base_.is_given("report.warm")) return;
    const std::size_t number = trials_of({plan_.trials[shown].setting}, {"report.warm=true"}, "warm").front();
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
    for (const Lattice& lattice : lattices_) note_contradictions(lattice);
    for (const auto& [reason, count] : left_out_) {
      plan_.warnings.push_back("Left out " + std::to_string(count) + (count == 1 ? " combination" : " combinations") +
                               " of parts and amounts: " + reason);
    }
    const Setup setup = setup_of(trial.setting);
    for (const std::string& note : setup.model.inexact) plan_.warnings.push_back(note);
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
  std::vector<std::size_t> amounts_;
  std::vector<Lattice> lattices_;
  std::int64_t engine_factor_ = 1;                                // of the default numbers of engines
  std::int64_t most_engines_ = 0;                                 // of all settings
  std::map<std::string, std::size_t> left_out_;                   // reason, and the combinations that it keeps out
  std::map<std::pair<Setting, std::string>, std::size_t> known_;  // by setting and variant
};

}  // namespace

PurchasePlan find_plan(const Experiment& base, const TraceInfo& work, const Choices& choices, const PriceList& prices,
                       const std::vector<Goal>& goals, const PlanArguments& arguments, const Listener& listener) {
  PurchasePlan plan;
  plan.work = work;
  plan.goals = goals;
  Planner(base, choices, prices, arguments, listener, plan).run();
  return plan;
}

}  // namespace kvtwin
