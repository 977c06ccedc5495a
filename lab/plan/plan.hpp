// Plans what to buy: finds the cheapest setting that meets goals, by simulating settings of an experiment.
//
// The search. The choices are lab/plan/choices.hpp. Each combination of parts (for example a GPU and a tensor
// parallelism) is a lattice of numbers of engines and amounts, with a price for each point (lab/experiment/bill.hpp).
//   1. Policies: all combinations at a setting with about as many engines as the work needs. Steps 2 to 5 have the
//   best.
//   2. Bound: an engine must compute every token that no cache can have at the rate of the roofline. Fewer engines than
//      that need at the rate of the workload are left out.
//   3. lab/plan/cheapest_search.hpp in all lattices at once, cheapest lattices first (lab/plan/lattice_search.hpp). A
//      lattice whose open points cost more than a setting that meets the goals is left. Settings whose parts miss a
//      goal on price, GPUs or power are no points. If no number of engines is enough, the search goes on with four
//      times as many.
//   4. Policies again: all combinations at the winner. Many combinations: by successive halving on growing shares of
//   the
//      requests, with the same requests for all. If another one does better, step 3 searches again with it.
//   5. Neighbours: one step more and less of each amount, and the neighbouring formats of the weights. A cheaper one
//   that
//      meets the goals replaces the winner, and of equal prices one that is nearer to the model's own format.
//   6. Confirmation: other seeds, if the workload is generated, and for traffic without a given duration in runs of
//   three
//      conversations. A winner that misses a goal with a seed is out, and the search goes on; after a longer run from
//      its price on, in runs as long, with the seed that ruled it out. On demand hardware variants.
//   7. Questions that follow from the answer (lab/plan/questions.hpp), and the probability that the goals hold
//      (lab/plan/confidence.hpp).
// All simulations serve all requests, except the first rounds of step 4. The results do not depend on `jobs`.
//
// A setting meets the goals if it meets each of them, completes every request, and has none of the warnings
// host_not_larger, backups_dropped, prefetches_declined, saturated and drives_worn_out.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lab/engine_arguments.hpp"
#include "lab/listener.hpp"
#include "lab/plan/choices.hpp"
#include "lab/plan/confidence.hpp"
#include "lab/report/figures.hpp"
#include "models/json.hpp"
#include "traces/info.hpp"

namespace kvtwin {

class RowFile;

struct PlanArguments {
  std::string experiment;  // path of an experiment file; empty = only defaults and `sets`
  std::string out;         // folder for plan.json; empty = none
  std::string command;     // the command line, for plan.json
  std::string prices;      // path of a price list; empty = prices.file, or the built-in list
  double rate = 0;         // requests per second: scales the times of a trace; 0 = as they are
  std::vector<std::string> sets, lists, goals;
  EngineArguments server;
  std::vector<std::string> what_if;  // key=value: only this change to the plan in `out` is simulated
  int seeds = 3, draws = 0, jobs = 0;
  double probability = 0;  // with which each goal on a time must hold; 0: as simulated
  bool questions = true;   // also answer the questions that follow
  bool force = false, json = false;
};

inline constexpr const char* kFullStage = "full";
inline constexpr const char* kConfirmingStage = "confirming";

// A setting that was simulated.
struct Trial {
  Setting setting;
  std::vector<std::string> sets;  // keys in addition to the setting, of the questions that follow
  Json report;                    // report.json; null if the setting cannot be simulated
  Json figures;                   // report_figures()
  bool meets = false;
  std::string why_not;   // empty if it meets the goals
  bool starves = false;  // rejects or fails requests, or has a warning that rules it out
  double worst = 0;      // largest figure / limit of all goals (limit / figure where more is better); above 1 = missed
  double per_month = 0;
  // full: served all requests; 1/8: served this share, to compare policies; drives: for the wear under a write policy;
  // confirming: in a run as long as those that confirm the recommendation; others: of a question that follows.
  std::string stage = kFullStage;
};

struct Margin {
  std::string change;  // for example "one engine less"
  std::size_t trial = 0;
};

// A question that follows from the recommendation, and its answer.
struct FollowUp {
  std::string name;                  // "load", "load x 2", "no tiers", "pool", "GPU b200-sxm"
  std::string words;                 // the answer, for the screen
  std::optional<std::size_t> trial;  // the cheapest setting that meets the goals; nothing if there is none
  // load: the largest load that was simulated and met the goals, and the smallest that missed them, as multiples.
  std::optional<double> load_meets, load_misses;
};

struct DriveLife {
  std::string write_policy;
  std::size_t trial = 0;
};

struct PurchasePlan {
  std::vector<Goal> goals;
  double probability = 0;  // of PlanArguments
  TraceInfo work;
  std::vector<Trial> trials;  // in the order of the simulations
  std::optional<std::size_t> winner;
  std::string reason;                                             // why there is no winner
  std::vector<std::pair<std::size_t, std::string>> alternatives;  // trial, and why it is shown
  std::vector<std::size_t>
      out;  // for each combination of parts that was simulated and never met the goals: its nearest
  std::vector<std::size_t> front;
  std::vector<Margin> margins;
  std::vector<FollowUp> follow_ups;
  std::vector<std::size_t> ties;  // settings that differ from the winner by less than the error of comparisons
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
    std::optional<double> duration_s;  // of the runs with these seeds, if longer than the others
    std::map<std::string, std::pair<double, double>> of_seeds;  // of the goals' figures in these runs
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
  std::optional<double> cheapest;  // price per month of the cheapest setting so far that meets the goals
  bool stopped = false;            // the caller ended the search; the winner is the best until then
  // The keys of the longer runs that confirm the recommendation; empty if its runs are as long as the others.
  std::vector<std::string> confirming_sets() const;
  std::size_t bounded = 0;      // settings left out by the bound, or by a goal on price, GPUs or power
  std::size_t simulations = 0;  // of settings, seeds, draws and write policies
};

struct PlanOutcome {
  std::string text;      // the screen, or plan.json
  std::string folder;    // empty without `out`
  bool found = false;    // a setting meets the goals
  bool stopped = false;  // the caller ended the search
};

// A plan in `out` that was interrupted goes on: simulations that are in its simulations.jsonl are not repeated.
// Errors: InputError, TraceError, ModelError; WorkError if `out` cannot be written.
PlanOutcome make_plan(const PlanArguments& arguments, const Listener& listener);

// Simulates the recommendation of a finished plan, whose folder is `experiment`, with the changes of `what_if`, and
// compares both. Errors: those of make_plan().
PlanOutcome ask_what_if(const PlanArguments& arguments, const Listener& listener);

// Searches. `base` has the workload at its rate; `work` are its statistics. `rows`: where results are kept; may be
// null. If the caller stops, the plan has what was found until then. Errors: InputError.
PurchasePlan find_plan(const Experiment& base, const TraceInfo& work, const Choices& choices, const PriceList& prices,
                       const std::vector<Goal>& goals, const PlanArguments& arguments, RowFile* rows,
                       const Listener& listener);

// Returns `price` of the trial's report; null if the setting was not simulated.
const Json* price_of(const Trial& trial);
// Returns `price.drives`; null without a disk tier.
const Json* drives_of(const Trial& trial);

Json plan_json(const PurchasePlan& plan, const Experiment& base, const Choices& choices,
               const PlanArguments& arguments);
// Returns one screen.
std::string plan_text(const PurchasePlan& plan, const Experiment& base, const Choices& choices);

}  // namespace kvtwin
