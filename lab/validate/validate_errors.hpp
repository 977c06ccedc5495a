// Errors of predictions: arithmetic on cells (validate_cell.hpp).
//
// Error: predicted / mean of the measured runs - 1; for a share, predicted - mean. Spread: the sample standard
// deviation of the measured runs, divided by their mean; for a share, not divided. One run has no spread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lab/validate/validate_cell.hpp"

namespace kvtwin {

struct ComparedFigure {
  const FigureKind* kind = nullptr;
  double measured = 0, predicted = 0;
  std::optional<double> error;                          // nothing if the mean is 0
  std::optional<double> spread;                         // nothing for one run, or if the mean is 0
  std::optional<std::pair<double, double>> interval{};  // of the prediction, 80 %
  bool inside() const { return interval && interval->first <= measured && measured <= interval->second; }
};

struct Quantiles {
  double p50 = 0, p90 = 0, p99 = 0, max = 0;  // nearest rank
};
Quantiles quantiles_of(std::vector<double> values);

// Errors of the TTFTs, request by request, for the requests that all measured runs and the prediction completed.
struct RequestErrors {
  std::uint64_t joined = 0;          // compared requests
  std::uint64_t other_prompts = 0;   // requests with one number and prompts of different lengths: not compared
  std::uint64_t one_side_only = 0;   // requests that the prediction or a measured run did not complete: not compared
  Quantiles seconds, relative;       // |predicted - mean of the measured runs|; the same divided by the mean
  std::optional<Quantiles> spreads;  // spread of each request over the measured runs
};

// The busy time of a lane per byte; for compute, which moves no bytes, per completed request.
struct LaneError {
  std::string lane;
  const char* unit = "byte";
  double measured_s = 0, predicted_s = 0;  // per unit
  double ratio = 1;                        // predicted / measured
  std::optional<double> spread;
  bool off = false;  // the error is larger than kLaneError and than twice the spread
  double measured_bytes_an_operation = 0, predicted_bytes_an_operation = 0;
};
// Largest error of a lane's ratio that is not reported. Ratios of 1.1 and 1 / 1.1 both have an error of 0.1. If another
// limit is near, such as the copy kernels, even a link whose figure is wrong by a factor of 2 has a small error.
constexpr double kLaneError = 0.1;

struct CellErrors {
  std::vector<ComparedFigure> figures;     // figures that both sides have
  std::vector<std::string> not_compared;   // names of measured figures that have no error
  std::string why_not;                     // the reason; empty if all measured figures have an error
  std::string other_load;                  // a sentence if the prediction did not get all requests of the stage
  std::optional<RequestErrors> requests;   // if both sides have requests
  std::vector<LaneError> lanes;            // lanes that both sides used; largest error first
  std::vector<std::string> one_side_only;  // sentences about lanes that only one side used
  const ComparedFigure* figure(std::string_view name) const;
};
CellErrors errors_of(const ValidationCell& cell);

// Returns mean and spread, as defined above. Requires: at least one value.
std::pair<double, std::optional<double>> mean_and_spread(std::span<const double> values, bool share);

// Returns Kendall's tau-b of pairs (measured, predicted), -1 to 1; tau-b takes ties into account. Nothing if all values
// of one side are equal.
std::optional<double> kendall_tau(std::span<const std::pair<double, double>> pairs);

// A cell in a ranking by mean TTFT.
struct Ranked {
  std::string work;
  std::vector<double> measured;  // mean TTFT of each run
  double predicted = 0;
  double measured_served = 1, predicted_served = 1;  // completed requests / all requests
  double mean() const;
};

// Cells of the same work: the cell that the simulator chooses, and the cost of this choice. Cells that complete less
// than kMinServedShare of the highest number of completed requests, measured or predicted, are left out.
struct Choice {
  std::vector<std::size_t> cells;
  // The best measured cell, then all cells that the repeats do not separate from it.
  std::vector<std::size_t> best;
  // The cell with the least predicted mean TTFT, the first of equals. Nothing if the repeats separate no two cells.
  std::optional<std::size_t> chosen;
  // Measured mean TTFT of the chosen cell / of the best cell - 1. Nothing if the repeats do not separate the two,
  // unless the chosen cell is the only best one.
  std::optional<double> regret;
  std::optional<double> tau;  // Kendall's tau-b; nothing without `chosen`
  bool has_repeats = false;   // false: a difference may be noise
};
// Returns one choice for each work with at least two cells. Repeats separate two cells if the 95 % interval (Student's
// t) of the difference of their means does not include 0; without repeats, if the two figures differ.
std::vector<Choice> choices_of(std::span<const Ranked> cells);

}  // namespace kvtwin
