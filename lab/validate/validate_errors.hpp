// How far predictions are from what was measured: plain arithmetic on cells (validate_cell.hpp).
//
// An error is predicted / mean of the measured runs - 1; of shares, the difference. The spread of measured runs is
// their standard deviation (of a sample), relative to their mean; of shares, as it is. Of one run it isn't known.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lab/validate/validate_cell.hpp"

namespace kvtwin {

struct FigureError {
  const FigureKind* kind = nullptr;
  double measured = 0, predicted = 0;
  std::optional<double> error;   // none: relative to 0
  std::optional<double> spread;  // none: of one run, or relative to 0
};

struct Quantiles {
  double p50 = 0, p90 = 0, p99 = 0, max = 0;  // nearest rank
};
Quantiles quantiles_of(std::vector<double> values);

// TTFTs request by request; of all that all measured runs and the prediction completed.
struct RequestErrors {
  std::uint64_t joined = 0;
  std::uint64_t other_prompts = 0;   // requests of one number whose prompts are of different lengths: not joined
  Quantiles seconds, relative;       // |predicted - mean of the measured|; relative to that mean
  std::optional<Quantiles> spreads;  // of the measured, each request's own, relative
};

// A lane's time for what it does: a byte; of compute, which moves none, a completed request.
struct LaneError {
  std::string lane;
  const char* unit = "byte";
  double measured_s = 0, predicted_s = 0;  // a unit
  double ratio = 1;                        // predicted to measured
  std::optional<double> spread;
  bool off = false;  // by more than kLaneError and twice the spread
  double measured_bytes_an_operation = 0, predicted_bytes_an_operation = 0;
};
// Of a ratio, whichever way it is off: 1.1 and 1 / 1.1 are off by 0.1. A link that is wrong by 2 may show as little
// where another limit is near, as that of copy kernels is.
constexpr double kLaneError = 0.1;

struct CellErrors {
  std::vector<FigureError> figures;        // those that both sides tell
  std::optional<RequestErrors> requests;   // where both sides tell of requests
  std::vector<LaneError> lanes;            // used on both sides; the furthest off first
  std::vector<std::string> one_side_only;  // lanes that only one side used, in words
  const FigureError* figure(std::string_view name) const;
};
CellErrors errors_of(const ValidationCell& cell);

// Mean and spread, as above.
std::pair<double, std::optional<double>> mean_and_spread(std::span<const double> values, bool share);

// Kendall's tau-b of pairs (measured, predicted), which allows for ties: -1 .. 1; none if one side is all ties.
std::optional<double> kendall_tau(std::span<const std::pair<double, double>> pairs);

// A cell among those of the same work, by mean TTFT.
struct Ranked {
  std::string work;
  std::vector<double> measured;  // mean TTFTs, a run each
  double predicted = 0;
  double measured_served = 1, predicted_served = 1;  // completed requests as a share of all
  double mean() const;
};

// Cells of the same work: which one the simulator would have chosen, and what that costs. Cells that complete less than
// kMinServedShare of what the cell that completes most does, measured or predicted, are left out.
struct Choice {
  std::vector<std::size_t> cells;
  std::vector<std::size_t> best;      // the best measured one first, then those that its repeats don't tell from it
  std::optional<std::size_t> chosen;  // the first of equals; nothing where the repeats tell no cell from another
  std::optional<double> regret;       // measured mean TTFT of the chosen / of the best - 1, where repeats tell the two
                                      // apart, or there is one best, which is chosen
  std::optional<double> tau;          // nothing without `chosen`
  bool has_repeats = false;           // else a difference may be noise
};
// Of each work that two cells or more share. Repeats don't tell two cells apart if the 95 % interval (Student's t) of
// the difference of their means includes 0; without repeats, if the two figures are the same.
std::vector<Choice> choices_of(std::span<const Ranked> cells);

}  // namespace kvtwin
