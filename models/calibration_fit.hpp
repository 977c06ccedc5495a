// Robust least squares for positive numbers: finds the values at which a model predicts the measurements best, and
// their uncertainty.
//
// The residual of a prediction p and a measurement m is (p - m) / sqrt(p * m): symmetric, and nearly the relative
// error. The loss is Huber's, with a scale estimated from the residuals. The search is Levenberg-Marquardt with
// relative steps (Eigen), so numbers stay positive. Only + - * / and sqrt are used, because other functions of libm
// differ between machines in the last bit. A number that the measurements do not determine keeps its start value.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace kvtwin {

// In scales of the residuals: a larger residual counts linearly. 95 % of the efficiency of least squares for normal
// residuals.
constexpr double kHuberThreshold = 1.345;

struct FittedNumber {
  double value = 0;
  double low = 0, high = 0;  // 95 % confidence interval, if residuals are random; 0 if not informed
  bool informed = false;     // determined by the measurements; otherwise `value` is the start value
};

struct FitTask {
  // Start value and range of each number. Requires: all above 0.
  std::vector<double> start, least, most;
  std::vector<double> measured;  // requires: above 0
  // Writes predicted[i] for measured[i]. Requires: above 0; the sizes are equal.
  std::function<void(std::span<const double> numbers, std::span<double> predicted)> predict;
};

struct Fit {
  std::vector<FittedNumber> numbers;
  std::vector<double> errors;  // |p - m| / m, ascending
};

// Without measurements, no number is informed.
Fit fit_numbers(const FitTask& task);

// Returns a quantile, interpolated between the two nearest elements. Requires: `sorted` is ascending and not empty.
double quantile_of(std::span<const double> sorted, double share);

}  // namespace kvtwin
