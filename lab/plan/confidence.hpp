// The probability that goals hold, from the errors of measured runs (lab/errors/error_model.hpp).
//
// A goal holds with the share of the runs whose factors keep the plan's figures within it. TTFT and TPOT of one run
// stay together. With k of n runs the probability is (k + 1) / (n + 2), which is never 0 or 1 (Laplace).
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lab/errors/error_model.hpp"
#include "lab/report/figures.hpp"
#include "models/json.hpp"

namespace kvtwin {

struct GoalOdds {
  double probability = 0;                                   // that all goals that can be judged hold
  std::map<std::string, std::pair<double, double>> ranges;  // by figure: between these it lies with 80 %
  std::vector<std::string> not_judged;                      // figures of goals that measured runs say nothing of
  bool any = false;                                         // a goal depends on TTFT or TPOT
};

// `figures`: report_figures() of the plan's setting. A goal that depends on neither TTFT nor TPOT (price, hits) counts
// as the simulation says. Without runs nothing is judged.
GoalOdds goal_odds(const std::vector<Goal>& goals, const Json& figures, const ErrorFactors& errors);

// The figure's value that is not exceeded with this probability; `value` itself for a figure that is no time.
double value_with_probability(std::string_view figure, double value, const Json& figures, const ErrorFactors& errors,
                              double probability);

}  // namespace kvtwin
