// Robust least squares for positive numbers: finds the values at which a model predicts what was measured, and how far
// they may be off.
//
// A residual is (p - m) / sqrt(p * m) of a prediction p and a measurement m: symmetric in the two, nearly the relative
// error. Huber's loss, with the residuals' own scale; steps are relative (Levenberg-Marquardt with Eigen), so that
// numbers stay positive. + - * / and sqrt only: libm's other functions differ between machines in the last bit.
// A number that the measurements don't tell (its value could as well be the one it began with) keeps that.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace kvtwin {

struct FittedNumber {
  double value = 0;
  double low = 0, high = 0;  // 95 %, were the residuals chance; 0 if it isn't informed
  bool informed = false;     // else `value` is where it began
};

struct FitTask {
  // Where each number begins, and the range it stays in; all above 0.
  std::vector<double> start, least, most;
  std::vector<double> measured;  // above 0
  // predicted[i] for measured[i], above 0; as many as `measured`.
  std::function<void(std::span<const double> numbers, std::span<double> predicted)> predict;
};

struct Fit {
  std::vector<FittedNumber> numbers;
  std::vector<double> errors;  // |p - m| / m, ascending
};

// Without measurements nothing is informed.
Fit fit_numbers(const FitTask& task);

// Between the two nearest of `sorted`, which isn't empty.
double quantile_of(std::span<const double> sorted, double share);

}  // namespace kvtwin
