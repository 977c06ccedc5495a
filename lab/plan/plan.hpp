// Plans what to buy: finds the cheapest setting that meets goals, by simulating settings of an experiment.
//
// The search. The choices are lab/plan/choices.hpp. Each combination of parts (for example a GPU and a tensor
// parallelism) is a lattice of numbers of engines and amounts, with a price for each point (lab/prices/bill.hpp).
//   1. Bound: an engine must compute every token that no cache can have at the rate of the roofline. Fewer engines than
//      that need at the rate of the workload are left out.
//   2. lab/plan/cheapest_search.hpp in all lattices at once, cheapest lattices first. A lattice whose open points cost
//      more than a setting that meets the goals is left. Settings whose parts miss a goal on price, GPUs or power are
//      no points. If no number of engines is enough, the search goes on with four times as many.
//   3. Policies: all combinations at the winner, by successive halving on growing shares of the requests, with the same
//      requests for all. If another combination does better, step 2 searches again with it, for something cheaper.
//   4. Neighbours: one step more and less of each amount. A cheaper one that meets the goals replaces the winner.
//   5. Confirmation: other seeds, if the workload is generated. A winner that misses a goal with a seed is out, and the
//      search goes on. Then hardware variants, for the confidence.
// All simulations serve all requests, except the first rounds of step 3. The results do not depend on `jobs`.
//
// A setting meets the goals if it meets each of them, completes every request, and has none of the warnings
// host_not_larger, backups_dropped, prefetches_declined, saturated and drives_worn_out.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lab/engine_flags/engine_arguments.hpp"
#include "lab/listener.hpp"
#include "lab/plan/choices.hpp"
#include "lab/report/figures.hpp"
#include "traces/info.hpp"

namespace kvtwin {

struct PlanArguments {
  std::string experiment;  // path of an experiment file; empty = only defaults and `sets`
  std::string out;         // folder for plan.json; empty = none
  std::string command;     // the command line, for plan.json
  std::string prices;      // path of a price list; empty = prices.file, or the built-in list
  double rate = 0;         // requests per second: scales the times of a trace; 0 = as they are
  std::vector<std::string> sets, lists, goals;
  EngineArguments server;
  int seeds = 3, draws = 20, jobs = 0;
  bool force = false, json = false;
};

// A setting that was simulated.
struct Trial {
  Setting setting;
  nlohmann::ordered_json report;   // report.json; null if the setting cannot be simulated
  nlohmann::ordered_json figures;  // report_figures()
  bool meets = false;
  std::string why_not;   // empty if it meets the goals
  bool starves = false;  // rejects or fails requests, or has a warning that rules it out
  double worst = 0;      // largest figure / limit of all goals (limit / figure where more is better); above 1 = missed
  double per_month = 0;
  // full: served all requests; 1/8: served this share, to compare policies; drives: for the wear under a write policy.
  std::string stage = "full";
};

struct Margin {
  std::string change;  // for example "one engine less"
  std::size_t trial = 0;
};

struct DriveLife {
  std::string write_policy;
  std::size_t trial = 0;
};

struct PurchasePlan {
  std::vector<Goal> goals;
  TraceInfo work;
  std::vector<Trial> trials;  // in the order of the simulations
  std::optional<std::size_t> winner;
  std::string reason;                                             // why there is no winner
  std::vector<std::pair<std::size_t, std::string>> alternatives;  // trial, and why it is shown
  std::vector<std::size_t>
      out;  // for each combination of parts that was simulated and never met the goals: its nearest
  std::vector<std::size_t> front;
  std::vector<Margin> margins;
  std::vector<DriveLife> drives;
  // Hits of one cache of this size that serves the requests one after another: of the policy, and the most possible.
  struct HitsAt {
    double tokens = 0, hit_ratio = 0, optimal = 0;
  };
  std::vector<HitsAt> hits;
  std::string eviction;  // the policy of `hits`
  std::vector<std::string> warnings;
  std::optional<std::size_t> shown;  // the winner, or the trial that comes nearest
  struct Confidence {
    std::size_t seeds = 1, seeds_meeting = 1;
    std::size_t draws = 0, draws_meeting = 0;
    double spread_percent = 0;  // assumed for figures without an interval; 0 = the hardware has intervals
    std::map<std::string, std::pair<double, double>> ranges;  // of the goals' figures over all draws
    // A hardware figure at the ends of its interval: the first goal's figure on the first eighth of the requests.
    struct Cause {
      std::string number;
      double at_low = 0, at_high = 0;
    };
    std::vector<Cause> hangs_on;  // largest effect first
    double hangs_on_base = 0;     // with the figures as given
  } confidence;
  std::size_t bounded = 0;      // settings left out by the bound, or by a goal on price, GPUs or power
  std::size_t simulations = 0;  // of settings, seeds, draws and write policies
};

struct PlanOutcome {
  std::string text;    // the screen, or plan.json
  std::string folder;  // empty without `out`
  bool found = false;  // a setting meets the goals
};

// Errors: InputError, TraceError, ModelError; WorkError if `out` cannot be written.
PlanOutcome make_plan(const PlanArguments& arguments, const Listener& listener);

// Searches. `base` has the workload at its rate; `work` are its statistics. Errors: InputError.
PurchasePlan find_plan(const Experiment& base, const TraceInfo& work, const Choices& choices, const PriceList& prices,
                       const std::vector<Goal>& goals, const PlanArguments& arguments, const Listener& listener);

// Returns `price` of the trial's report; null if the setting was not simulated.
const nlohmann::ordered_json* price_of(const Trial& trial);
// Returns `price.drives`; null without a disk tier.
const nlohmann::ordered_json* drives_of(const Trial& trial);

nlohmann::ordered_json plan_json(const PurchasePlan& plan, const Experiment& base, const Choices& choices,
                                 const PlanArguments& arguments);
// Returns one screen.
std::string plan_text(const PurchasePlan& plan, const Experiment& base, const Choices& choices);

}  // namespace kvtwin
