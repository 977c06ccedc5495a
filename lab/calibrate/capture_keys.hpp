// Which numbers a fit to captures of a server changes, and what it refuses.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lab/calibrate/capture.hpp"
#include "lab/calibrate/simulated_fit.hpp"

namespace kvtwin {

struct ChosenKeys {
  FitKeys keys;
  std::vector<std::pair<std::string, std::string>> without_hits;  // name, reason
};
// `fit`: names of fit_keys(); empty = all that the experiment uses. Requires: the captures are of one server. Errors:
// InputError for a number that the experiment does not use.
ChosenKeys choose_keys(const std::vector<std::string>& fit, const std::vector<Capture>& captures);

// Refuses keys hardware.* that hide a fitted number, because they apply after the hardware file. Errors: InputError.
void refuse_overrides(const Experiment& experiment, const FitKeys& keys);

// Captures of one server have equal keys, but for the requests. `paths`: of the captures. Errors: InputError.
void check_same_server(const std::vector<Capture>& captures, const std::vector<std::string>& paths);

}  // namespace kvtwin
