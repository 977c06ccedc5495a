// Which cheap runs on the user's server narrow the answer of a plan or an experiment most (kvtwin calibrate --advise).
//
// The answer is the first goal of a plan whose figure depends on the fitted numbers, or the mean TTFT. Its interval
// comes from the uncertainty of the numbers that `calibrate --from` can fit (simulated_fit.hpp). The slopes of the
// answer, and of each time of each candidate run, come from simulations with one number moved up and down. The choice
// of the runs is models/run_choice.hpp.
//
// The intervals hold if the true numbers are within theirs. Runs of the server that are measured already say whether
// this is so: their times are compared with the simulated ones. If they are further off than the numbers allow, all
// intervals of the advice are wider by the same factor.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lab/calibrate/capture.hpp"
#include "lab/listener.hpp"

namespace kvtwin {

struct AdviseTerms {
  std::string from;               // the folder of a plan, or an experiment file
  std::vector<std::string> sets;  // key=value
  // Runs that are measured already: their requests are simulated on the machine of `from`. `sets` are not theirs.
  std::vector<CaptureArguments> captures{};
  std::string out;  // the folder that will have `files`; empty = none
  int jobs = 0;     // simulations at the same time; 0 = one per core
};

struct Advice {
  std::string text, json;
  std::vector<std::pair<std::string, std::string>> files;  // name and content: advice.json, and an experiment per run
};

// Errors: InputError if the folder has no recommendation, if the answer depends on no number that can be fitted, if a
// key hides such a number (refuse_overrides()), if no run is cheap, or if a capture has no times of first
// tokens; as make_setup().
Advice advise_runs(const AdviseTerms& terms, const Listener& listener);

}  // namespace kvtwin
