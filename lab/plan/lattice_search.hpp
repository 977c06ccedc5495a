// Searches the cheapest setting that meets the goals, among all combinations of parts, for one set of policies. A step
// of lab/plan/plan.hpp: the bound on engines, and the lattices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lab/experiment/setup.hpp"
#include "lab/plan/cheapest_search.hpp"
#include "lab/plan/simulations.hpp"

namespace kvtwin {

// What a search is about: the question as asked, or one that follows from its answer.
struct Scope {
  std::string stage = kFullStage;             // of its trials
  std::vector<std::string> sets;              // keys in addition to those of a setting
  double load = 1;                            // the rate of the requests, in multiples of the workload's
  std::optional<double> below;                // price per month; settings that cost as much are of no interest
  std::function<bool(const Setting&)> holds;  // the settings to choose from; empty: all
  bool knows_full = false;                    // settings that clearly missed the goals in stage full miss them here too
  std::optional<double> from = {};            // price per month; settings that cost less miss the goals
};

class LatticeSearch {
 public:
  // All references outlive this object.
  LatticeSearch(Simulations& simulations, const PriceList& prices, PurchasePlan& plan, Scope scope);

  // Searches with the policies of `policies`; returns the number of the cheapest trial that meets the goals. If no
  // number of engines is enough and the caller gave none, the numbers grow. Errors: InputError if no combination of
  // parts can be set up.
  std::optional<std::size_t> find(const Setting& policies);
  // Goes on after rule_out().
  std::optional<std::size_t> find_again();
  void rule_out(const Setting& setting);

  // The trial of this search with the lowest price that meets the goals; of equal prices the model's own format of
  // weights, the smaller amounts, and the better figures.
  std::optional<std::size_t> cheapest() const;
  bool preferred(const Trial& a, const Trial& b) const;
  // The trial of this search that comes nearest to the goals: trials that starve are last.
  std::optional<std::size_t> nearest() const;
  std::tuple<bool, bool, double> distance(std::size_t trial) const;
  bool is_of(const Trial& trial) const;  // this search considers the trial

  // Returns a setting of each of the cheapest combinations of parts, with about as many engines as the work needs
  // without any hit and with most of all amounts, for a first look at policies. Requires: no find() before.
  std::vector<Setting> typical(const Setting& policies);

  std::int64_t most_engines() const { return most_engines_; }
  const std::map<std::string, std::size_t>& left_out() const { return left_out_; }  // reason, and combinations
  // Settings left out by the bound, or by a goal on price, GPUs or power.
  std::size_t bounded() const { return bounded_; }
  // Returns one sentence per lattice whose amounts are not monotone.
  std::vector<std::string> contradictions() const;

 private:
  // One combination of parts.
  struct Lattice {
    Setting base;                   // amounts and engines: first values
    std::vector<Setting> settings;  // by point
    std::optional<CheapestSearch> search;
    double cheapest = 0;      // of its points
    double busy_engines = 0;  // that the work needs without any hit
  };
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

  using Point = std::pair<Lattice*, std::size_t>;
  PlanJob first_job(const Setting& setting) const;
  static std::vector<PlanJob> jobs_of(const std::vector<Point>& points, const std::vector<std::string>& sets);
  PlanJob job(const Setting& setting) const { return {setting, scope_.sets}; }
  Setup setup_of(const Setting& setting) const;
  Setup setup_with(const Setting& setting, const RoleCounts& roles) const;
  Bill bill_for(const Setup& setup) const;
  Setup price(Priced& parts) const;
  Cost cost_of(const Priced& parts, std::int64_t engines) const;
  bool affordable(const Cost& cost) const;
  double duration() const;
  double busy_engines(const Setup& setup) const;
  std::int64_t least_engines(const Setup& setup) const;
  std::vector<std::int64_t> default_engines(std::int64_t least, double busy) const;
  void fill(Lattice& lattice);
  void make_lattices(const Setting& first);
  TestResult result_of(const Trial& trial) const;
  void put(Lattice& lattice, std::size_t point, const Trial& trial) const;
  std::optional<std::size_t> search();
  std::size_t tests_left(double below) const;

  Simulations& simulations_;
  const Choices& choices_;
  const PriceList& prices_;
  PurchasePlan& plan_;
  const Scope scope_;
  std::vector<std::size_t> amounts_;
  std::vector<Lattice> lattices_;
  std::vector<std::string> contradictions_;  // of earlier lattices
  std::int64_t engine_factor_ = 1;           // of the default numbers of engines
  std::int64_t most_engines_ = 0;            // of all settings
  std::map<std::string, std::size_t> left_out_;
  std::size_t bounded_ = 0;
};

// Calls `use` for all combinations of values of these choices, the others as in `setting`.
void for_each_setting(const Choices& choices, const std::vector<std::size_t>& which, const Setting& setting,
                      const std::function<void(const Setting&)>& use);

}  // namespace kvtwin
