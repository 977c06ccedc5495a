// How far a predicted time may be off, by the errors of runs that others measured.
//
// kvtwin predicted runs with a published TTFT and TPOT (docs/results/intervals.md). The factor of a run is its measured
// time divided by the predicted one. Its logarithm has a middle and a width, which depend on features of the prediction
// (error_features.hpp), and what is left (the residual, in widths) is taken to be like that of the published runs:
//
//   factor = exp(middle(features) + residual * width(features))
//
// Residuals are those of a fit that had not seen the run's set of runs, and TTFT and TPOT of a run stay together.
// Middles and widths are linear in the features, each within the range that the published runs have.
//
// Where no published run has a feature, the interval is wider by a stated factor, and `widened` says so. One such
// feature is the server itself: runs of other publications, which the model has not seen, are further off than its own.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lab/errors/error_features.hpp"
#include "models/json.hpp"

namespace kvtwin {

struct ErrorFactors {
  struct Factors {
    double ttft = 1, tpot = 1;  // measured / predicted
  };
  std::vector<Factors> runs;         // equally likely
  std::string of;                    // "162 measured runs of sglang with times from operator tables"
  std::vector<std::string> widened;  // one sentence each
  // Two runs of one setting are so far apart: no interval is narrower. Factors of at least 1.
  Factors repeat;
};
ErrorFactors error_factors(const ErrorFeatures& features);
// A run that the user measured, beside its prediction.
struct OwnRun {
  ErrorFeatures features;
  ErrorFactors::Factors factors;
};
// Runs of the same engine, GPU and source of times shift the middle towards theirs, and make the interval narrower by
// what they tell of the set's own error.
void add_own_runs(const std::vector<OwnRun>& runs, ErrorFeatures& features);
// Reads the runs of a folder of kvtwin validate --out that have a TTFT and a TPOT. Errors: InputError.
std::vector<OwnRun> read_own_runs(const std::filesystem::path& folder);

// `report`: report.json of a simulation; of its warm part, if it has one. Nothing if no request completed.
std::optional<ErrorFactors> errors_of_report(const Json& report);

// Settings for equal requests err alike. On average the choice between them was so far above the best one
// (docs/results/published.md). Settings whose times differ by less are a tie.
inline constexpr double kTieShare = 0.08;

}  // namespace kvtwin
