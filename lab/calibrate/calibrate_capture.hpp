// Fits a hardware file and the times of the serving engine to what a server measured (lab/calibrate/capture.hpp), by
// simulating the served requests. Half of the conversations is fitted; the other half is held out, and only its errors
// are reported. Several captures of one server, of other requests each, are fitted together: a number that one of them
// does not tell, another one may.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lab/calibrate/capture.hpp"
#include "lab/calibrate/simulated_fit.hpp"
#include "lab/listener.hpp"

namespace kvtwin {

struct CaptureFit {
  std::string text;      // the summary
  std::string hardware;  // hardware.json: the base with the fitted numbers, and the entry `capture`
  std::string fitted;    // fitted.toml: the first experiment with the fitted times of the engine and hardware.json
  std::string workload;  // kCaptureWorkloadName: the requests of the first capture; empty: the experiment has them
};

// The file for the requests of a capture, beside fitted.toml.
inline constexpr const char* kCaptureWorkloadName = "workload.jsonl";

struct CaptureFitTerms {
  std::vector<CaptureArguments> captures;  // at least one
  std::string out;                         // the folder in which the result will be; fitted.toml has its path
  std::vector<std::string> fit;            // names of fit_keys(); empty = all that the experiment uses
  std::size_t max_simulations = 0;         // 0 = 1200 for each capture
  int jobs = 0;
  std::string date, version, commit, command;
};

// Errors: InputError if the captures have too few requests or are of two servers, or if a number of `fit` is not of
// this server; else as
// read_capture() and fit_by_simulation().
CaptureFit fit_capture(const CaptureFitTerms& terms, const Listener& listener);

}  // namespace kvtwin
