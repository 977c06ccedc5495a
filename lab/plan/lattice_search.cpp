#include "lab/plan/lattice_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "lab/error.hpp"
#include "models/error.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kLatticesAtOnce = 4;  // fixed, so that the results do not depend on the number of processes
constexpr double kBoundShare = 0.75;        // share of the work that must end by the last arrival and the goal's time
constexpr double kAmountTolerance = 1.05;   // figure / limit: the largest change by another amount of a tier
constexpr double kFar = 2;                  // figure / limit, of a queue that no KV tier makes short

// By more than the noise between runs of different lengths.
bool clearly_missed(const Trial& trial) { return !trial.meets && (trial.starves || trial.worst > 1 + kTieShare); }

}  // namespace

LatticeSearch::LatticeSearch(Simulations& simulations, const PriceList& prices, PurchasePlan& plan, Scope scope)
    : simulations_(simulations),
      choices_(simulations.choices()),
      prices_(prices),
      plan_(plan),
      scope_(std::move(scope)),
      amounts_(choices_.of_kind(ChoiceKind::amount)) {}

// Returns what a trial rules out. A queue grows with fewer engines. Without a queue, a missed latency or hit ratio
// may get better with fewer engines, because each has more of the traffic and so more hits. Written bytes and the
// price of a token fall with fewer parts.
TestResult LatticeSearch::result_of(const Trial& trial) const {
  if (trial.meets) return TestResult::passes;
  if (trial.figures.is_null()) return TestResult::fails_alone;
  const Json &queue = trial.figures.at("ttft_queue_s"), &ttft = trial.figures.at("ttft_mean_s");
  const bool queues = queue.is_number() && ttft.is_number() && 2 * queue.get<double>() >= ttft.get<double>();
  if (queues && trial.worst > kFar) return TestResult::fails_clearly;
  if (trial.starves) return TestResult::fails;
  if (queues) return trial.worst <= kAmountTolerance ? TestResult::fails_by_little : TestResult::fails;
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

double LatticeSearch::duration() const {
  return plan_.work.duration_seconds * simulations_.base().number("workload.time_scale");
}

// Returns the least number of engines that can compute the work in time.
std::int64_t LatticeSearch::least_engines(const Setup& setup) const {
  const Experiment& base = simulations_.base();
  if (base.text("workload.loop") == "closed" || base.integer("workload.generate.users") != 0) {
    return 1;  // the work takes as long as the engines need
  }
  if (!base.text("cluster.decode_set").empty()) return 1;  // decode engines may be faster
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
  const double seconds = scope_.load * static_cast<double>(roofline.spread_ns(shape, 1)) / 1e9;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(kBoundShare * seconds / (duration() + 2 * slack)));
}

// Returns the engines that the work keeps busy without any hit.
double LatticeSearch::busy_engines(const Setup& setup) const {
  const TraceInfo& work = plan_.work;
  ForwardShape prefill, decode;
  prefill.prefill_tokens = work.input.total;
  prefill.prefill_pairs = static_cast<std::uint64_t>(static_cast<double>(work.input.total) * work.input.mean / 2);
  prefill.prefill_sequences = 1;
  decode.decode_sequences = static_cast<std::uint32_t>(std::min<Tokens>(work.output.total, 4'000'000'000));
  decode.decode_context_tokens = static_cast<Tokens>(static_cast<double>(work.output.total) * work.input.mean);
  return scope_.load * static_cast<double>(setup.cost->spread_ns(prefill, 1) + setup.cost->spread_ns(decode, 1)) / 1e9 /
         std::max(duration(), 1.0);
}

// Returns the numbers of engines to try if the caller gave none: all from `least` on, then in steps of 15 %, up to
// several times what the work needs without any hit.
std::vector<std::int64_t> LatticeSearch::default_engines(std::int64_t least, double busy) const {
  const std::int64_t wanted = engine_factor_ * (static_cast<std::int64_t>(4 * busy) + 4);
  const auto most = std::clamp<std::int64_t>(wanted, least + 4, std::max(least + 4, kMaxEngines));
  std::vector<std::int64_t> values;
  for (std::int64_t n = least; n <= most; n = n < least + 16 ? n + 1 : std::max(n + 1, n * 115 / 100)) {
    values.push_back(n);
  }
  return values;
}

LatticeSearch::Cost LatticeSearch::cost_of(const Priced& parts, std::int64_t engines) const {
  Setting setting = parts.setting;
  setting.engines = engines;
  if (!choices_.has_roles(setting)) return parts.fewest + static_cast<double>(engines - 1) * parts.prefill;
  const auto [prefill, decode] = choices_.roles(setting);
  return parts.fewest + static_cast<double>(prefill - 1) * parts.prefill +
         static_cast<double>(decode - 1) * parts.decode;
}

// Returns the setup with these engines instead of the setting's number. Errors: InputError, ModelError.
Setup LatticeSearch::setup_with(const Setting& setting, const RoleCounts& roles) const {
  Experiment experiment = simulations_.experiment(job(setting));
  set_roles(roles, experiment);
  return make_setup(experiment);
}

// Sets the costs of `parts`. Returns the setup with the fewest engines. Errors: InputError, ModelError.
Setup LatticeSearch::price(Priced& parts) const {
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

Bill LatticeSearch::bill_for(const Setup& setup) const {
  if (setup.bill) return *setup.bill;
  bill_of(setup, prices_);  // throws if the list lacks a part
  throw InputError("the price list has no price for " + setup.hardware.name +
                   "; give a list with hour or price in [gpu." + setup.hardware.name + "] (--prices)");
}
Setup LatticeSearch::setup_of(const Setting& setting) const {
  return make_setup(simulations_.experiment(job(setting)));
}

// Returns whether the goals on price, GPUs and power allow this cost.
bool LatticeSearch::affordable(const Cost& cost) const {
  return std::ranges::all_of(plan_.goals, [&](const Goal& goal) {
    const std::string_view name = figures()[goal.figure].name;
    if (name == "price_per_month") return goal.met_by(cost.per_month);
    if (name == "power_kw") return goal.met_by(cost.watts / 1000);
    return name != "gpus" || goal.met_by(cost.gpus);
  });
}

// Adds the points of one combination of parts.
void LatticeSearch::fill(Lattice& lattice) {
  std::vector<bool> none_first{false};
  for (const std::size_t amount : amounts_) none_first.push_back(choices_.list()[amount].none_first);
  std::vector<Priced> priced;
  std::int64_t least = 1;
  std::vector<std::int64_t> engines = choices_.engines();
  for_each_setting(choices_, amounts_, lattice.base, [&](const Setting& setting) {
    if (scope_.holds && !scope_.holds(setting)) return;
    Priced parts{setting, {}, {}, {}, {}};
    try {
      const Setup setup = price(parts);
      if (priced.empty()) {
        least = std::max(least_engines(setup), choices_.fewest_engines(setting));
        lattice.busy_engines = busy_engines(setup);
        if (engines.empty()) engines = default_engines(least, lattice.busy_engines);
      }
    } catch (const InputError& error) {
      ++left_out_[error.what()];
      return;
    } catch (const ModelError& error) {
      ++left_out_[error.what()];
      return;
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
      if (scope_.from && cost.per_month < *scope_.from) continue;
      if (engines[i] < least || !affordable(cost)) {
        ++bounded_;
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

// `first`: has the policies of all lattices.
void LatticeSearch::make_lattices(const Setting& first) {
  contradictions_ = contradictions();
  lattices_.clear();
  left_out_.clear();
  bounded_ = 0;
  for_each_setting(choices_, choices_.of_kind(ChoiceKind::part), first, [&](const Setting& setting) {
    if (!choices_.offers(setting)) return;
    Lattice lattice;
    lattice.base = setting;
    fill(lattice);
    if (!lattice.search) return;
    for (std::size_t i = 0; i < lattice.settings.size(); ++i) {
      if (const auto known = simulations_.known(job(lattice.settings[i]), scope_.stage)) {
        put(lattice, i, plan_.trials[*known]);
      } else if (scope_.knows_full) {
        const auto full = simulations_.known({lattice.settings[i], {}}, kFullStage);
        if (full && clearly_missed(plan_.trials[*full])) put(lattice, i, plan_.trials[*full]);
      }
    }
    lattices_.push_back(std::move(lattice));
  });
  std::ranges::stable_sort(lattices_, {}, &Lattice::cheapest);
}

void LatticeSearch::put(Lattice& lattice, std::size_t point, const Trial& trial) const {
  lattice.search->put(point, result_of(trial), trial.per_month > 0 ? std::optional(trial.per_month) : std::nullopt);
}

bool LatticeSearch::is_of(const Trial& trial) const {
  return trial.stage == scope_.stage && trial.sets == scope_.sets && (!scope_.holds || scope_.holds(trial.setting));
}

bool LatticeSearch::preferred(const Trial& a, const Trial& b) const {
  const auto amounts = [&](const Trial& trial) {
    std::size_t places = 0;
    for (const std::size_t amount : amounts_) places += trial.setting.values[amount];
    return places;
  };
  const auto order = [&](const Trial& one) {
    return std::tuple(one.per_month, choices_.format_place(one.setting), amounts(one), one.worst);
  };
  return order(a) < order(b);
}

std::optional<std::size_t> LatticeSearch::cheapest() const {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < plan_.trials.size(); ++i) {
    const Trial& one = plan_.trials[i];
    if (!is_of(one) || !one.meets) continue;
    if (!best || preferred(one, plan_.trials[*best])) best = i;
  }
  return best;
}

std::tuple<bool, bool, double> LatticeSearch::distance(std::size_t trial) const {
  const Trial& one = plan_.trials[trial];
  return {one.starves, !one.meets, one.worst};
}

std::optional<std::size_t> LatticeSearch::nearest() const {
  std::optional<std::size_t> near;
  for (std::size_t i = 0; i < plan_.trials.size(); ++i) {
    if (!is_of(plan_.trials[i]) || plan_.trials[i].figures.is_null()) continue;
    if (!near || distance(i) < distance(*near)) near = i;
  }
  return near;
}

// About as many tests as the lattices still need: half of the open points fall out with each.
std::size_t LatticeSearch::tests_left(double below) const {
  double tests = 0;
  for (const Lattice& lattice : lattices_) {
    const auto open = static_cast<double>(lattice.search->open(below));
    if (open > 0) tests += std::log2(open + 1);
  }
  return static_cast<std::size_t>(std::ceil(tests));
}

std::optional<std::size_t> LatticeSearch::search() {
  for (;;) {
    const std::optional<std::size_t> best = cheapest();
    const double dear = scope_.below.value_or(std::numeric_limits<double>::infinity());
    const double below = best ? std::min(dear, plan_.trials[*best].per_month) : dear;
    std::vector<PlanJob> likely;
    std::vector<Point> points;
    for (Lattice& lattice : lattices_) {
      const std::optional<std::size_t> point = lattice.search->next(below);
      if (!point) continue;
      if (points.size() == kLatticesAtOnce) {
        likely.push_back(first_job(lattice.settings[*point]));
        continue;
      }
      points.emplace_back(&lattice, *point);
    }
    if (points.empty()) return best;
    for (const TestResult result : {TestResult::fails_clearly, TestResult::passes}) {
      for (const auto& [lattice, tested] : points) {
        CheapestSearch guess = *lattice->search;
        guess.put(tested, result);
        const double price = result == TestResult::passes ? lattice->search->points()[tested].price : below;
        if (const auto point = guess.next(std::min(below, price))) {
          likely.push_back(first_job(lattice->settings[*point]));
        }
      }
    }
    simulations_.expect(tests_left(below));
    if (scope_.knows_full) {  // a short run is enough to see that a setting clearly misses
      const std::vector<std::size_t> trials = simulations_.trials_of(jobs_of(points, {}), kFullStage, likely);
      std::vector<Point> open;
      for (std::size_t i = 0; i < points.size(); ++i) {
        const Trial& full = plan_.trials[trials[i]];
        if (!clearly_missed(full)) {
          open.push_back(points[i]);
        } else {
          put(*points[i].first, points[i].second, full);
        }
      }
      points = std::move(open);
    }
    const std::vector<std::size_t> trials = simulations_.trials_of(jobs_of(points, scope_.sets), scope_.stage, likely);
    for (std::size_t i = 0; i < points.size(); ++i) {
      put(*points[i].first, points[i].second, plan_.trials[trials[i]]);
    }
  }
}

// The first simulation of a setting.
PlanJob LatticeSearch::first_job(const Setting& setting) const {
  return scope_.knows_full ? PlanJob{setting, {}} : job(setting);
}

std::vector<PlanJob> LatticeSearch::jobs_of(const std::vector<Point>& points, const std::vector<std::string>& sets) {
  std::vector<PlanJob> jobs;
  for (const auto& [lattice, point] : points) jobs.push_back({lattice->settings[point], sets});
  return jobs;
}

std::optional<std::size_t> LatticeSearch::find(const Setting& policies) {
  for (;;) {
    make_lattices(policies);
    if (lattices_.empty() && !left_out_.empty()) {
      throw InputError("plan: no combination of parts can be set up: " + left_out_.begin()->first);
    }
    const std::optional<std::size_t> found = search();
    const bool can_grow = choices_.engines().empty() && !lattices_.empty() && most_engines_ < kMaxEngines;
    if (found || !can_grow || engine_factor_ >= kMaxEngines) return found;
    engine_factor_ *= 4;  // even the largest number of engines is too small
  }
}

std::optional<std::size_t> LatticeSearch::find_again() { return search(); }

void LatticeSearch::rule_out(const Setting& setting) {
  for (Lattice& lattice : lattices_) {
    const auto at = std::ranges::find(lattice.settings, setting);
    if (at == lattice.settings.end()) continue;
    lattice.search->put(static_cast<std::size_t>(at - lattice.settings.begin()), TestResult::fails);
  }
}

std::vector<Setting> LatticeSearch::typical(const Setting& policies) {
  make_lattices(policies);
  const auto amounts = [&](const Setting& setting) {
    std::size_t places = 0;
    for (const std::size_t amount : amounts_) places += setting.values[amount];
    return places;
  };
  std::vector<Setting> settings;
  for (const Lattice& lattice : lattices_) {
    if (settings.size() == kLatticesAtOnce) break;
    const auto wanted = static_cast<std::int64_t>(std::ceil(lattice.busy_engines));
    const auto short_of = [&](const Setting& setting) { return std::abs(setting.engines - wanted); };
    settings.push_back(*std::ranges::min_element(lattice.settings, [&](const Setting& a, const Setting& b) {
      return std::tuple(short_of(a), amounts(b)) < std::tuple(short_of(b), amounts(a));
    }));
  }
  return settings;
}

std::vector<std::string> LatticeSearch::contradictions() const {
  std::vector<std::string> sentences = contradictions_;
  for (const Lattice& lattice : lattices_) {
    const auto pairs = lattice.search->contradictions();
    if (pairs.empty()) continue;
    const auto& [a, b] = pairs.front();
    sentences.push_back("More is not always better here: " + choices_.text(lattice.settings[a]) +
                        " meets the goals, and " + choices_.text(lattice.settings[b]) + " does not");
  }
  return sentences;
}

void for_each_setting(const Choices& choices, const std::vector<std::size_t>& which, const Setting& setting,
                      const std::function<void(const Setting&)>& use) {
  Setting now = setting;
  for (const std::size_t choice : which) now.values[choice] = 0;
  for (;;) {
    use(now);
    std::size_t i = which.size();
    while (i-- > 0) {
      if (++now.values[which[i]] < choices.list()[which[i]].values.size()) break;
      now.values[which[i]] = 0;
    }
    if (i == static_cast<std::size_t>(-1)) return;
  }
}

}  // namespace kvtwin
