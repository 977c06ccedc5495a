// The probability that goals hold, from the errors of published runs.
//
// kvtwin predicted runs that others measured (docs/results/published.md). The factor of a run is its measured TTFT or
// TPOT divided by the predicted one. If the errors of a plan are like those of the published runs of the same engine
// and GPU, with the same source of times (operator table or roofline), a goal holds with the share of the runs whose
// factors keep the plan's figures within it. TTFT and TPOT of one run stay together.
//
// A group with few runs or models says little about other models: the runs of the engine on all GPUs then take its
// place, and after them all runs. With k of n runs the probability is (k + 1) / (n + 2), which is never 0 or 1
// (Laplace).
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "lab/report/figures.hpp"
#include "models/json.hpp"

namespace kvtwin {

struct PublishedErrors {
  struct Factors {
    double ttft = 1, tpot = 1;  // measured / predicted, of one run
  };
  std::vector<Factors> runs;
  std::string of;  // "57 published runs of sglang on h200-sxm"
};

// Returns the runs to judge by. `engine`: "sglang", "vllm", "trtllm" or "none"; `times`: "table" or "roofline".
PublishedErrors published_errors(const std::string& engine, const std::string& gpu, const std::string& times);
// Of the cost model of a setting.
PublishedErrors published_errors(const Experiment& experiment);

struct GoalOdds {
  double probability = 0;                                   // that all goals that can be judged hold
  std::map<std::string, std::pair<double, double>> ranges;  // by figure: between these it lies with 90 %
  std::vector<std::string> not_judged;                      // figures of goals that published runs say nothing of
  bool any = false;                                         // a goal depends on TTFT or TPOT
};

// `figures`: report_figures() of the plan's setting. A goal that depends on neither TTFT nor TPOT (price, hits) counts
// as the simulation says.
GoalOdds goal_odds(const std::vector<Goal>& goals, const Json& figures, const PublishedErrors& errors);

// On average the choice between settings for equal requests was so far above the best one (docs/results/published.md).
// Settings whose figures differ by less are a tie.
inline constexpr double kTieShare = 0.08;

}  // namespace kvtwin
