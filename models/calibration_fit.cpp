#include "models/calibration_fit.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

namespace kvtwin {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kMinScale = 1e-4;     // smaller residuals are rounding
constexpr double kProbeFactor = 1.01;  // factor on a number to compute its derivative
constexpr double kMaxLossIncrease =
    3.84;  // increase of the loss, in units of the residuals' variance: 95 % quantile of chance
constexpr double kMaxRelativeError = 1.5;  // relative standard error above which a number may be uninformed

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  return quantile_of(values, 0.5);
}

class Search {
 public:
  explicit Search(const FitTask& task)
      : task_(task), count_(static_cast<Eigen::Index>(task.measured.size())), predicted_(task.measured.size()) {
    values_ = Eigen::Map<const VectorXd>(task.start.data(), static_cast<Eigen::Index>(task.start.size()));
    free_.assign(task.start.size(), true);
    for (Eigen::Index i = 0; i < values_.size(); ++i) values_[i] = clamp_to_range(i, values_[i]);
  }

  void run();
  void reset_uninformed_numbers();
  Fit result();

 private:
  double clamp_to_range(Eigen::Index i, double value) const {
    const auto at = static_cast<std::size_t>(i);
    return std::clamp(value, task_.least[at], task_.most[at]);
  }
  VectorXd residuals(const VectorXd& values);
  double scale_of(const VectorXd& r) const;
  double loss(const VectorXd& r, double scale) const;
  VectorXd weights(const VectorXd& r, double scale) const;
  MatrixXd jacobian();
  std::vector<Eigen::Index> free_numbers() const;
  bool step(double scale);
  void descend(double scale);
  // Returns the relative standard errors of the free numbers; very large if no measurement depends on a number.
  VectorXd errors();
  double largest_value_that_fits(Eigen::Index number);

  const FitTask& task_;
  const Eigen::Index count_;
  std::vector<double> predicted_;
  VectorXd values_;
  std::vector<bool> free_;
  double damping_ = 1e-3;
};

VectorXd Search::residuals(const VectorXd& values) {
  task_.predict({values.data(), static_cast<std::size_t>(values.size())}, predicted_);
  VectorXd r(count_);
  for (Eigen::Index i = 0; i < count_; ++i) {
    const double p = predicted_[static_cast<std::size_t>(i)], m = task_.measured[static_cast<std::size_t>(i)];
    r[i] = (p - m) / std::sqrt(p * m);
  }
  return r;
}

double Search::scale_of(const VectorXd& r) const {
  std::vector<double> sizes(static_cast<std::size_t>(count_));
  for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] = std::abs(r[static_cast<Eigen::Index>(i)]);
  return std::max(kMinScale, 1.4826 * median_of(std::move(sizes)));
}

double Search::loss(const VectorXd& r, double scale) const {
  double total = 0;
  for (const double residual : r) {
    const double u = std::abs(residual) / scale;
    total += u <= kHuberThreshold ? u * u : kHuberThreshold * (2 * u - kHuberThreshold);
  }
  return total;
}

VectorXd Search::weights(const VectorXd& r, double scale) const {
  return r.unaryExpr([&](double residual) {
    const double u = std::abs(residual) / scale;
    return u <= kHuberThreshold ? 1.0 : kHuberThreshold / u;
  });
}

// Derivatives by relative changes of the numbers.
MatrixXd Search::jacobian() {
  MatrixXd j = MatrixXd::Zero(count_, values_.size());
  for (Eigen::Index n = 0; n < values_.size(); ++n) {
    if (!free_[static_cast<std::size_t>(n)]) continue;
    VectorXd up = values_, down = values_;
    up[n] *= kProbeFactor;
    down[n] /= kProbeFactor;
    constexpr double kBetween = (kProbeFactor - 1 / kProbeFactor);
    j.col(n) = (residuals(up) - residuals(down)) / kBetween;
  }
  return j;
}

std::vector<Eigen::Index> Search::free_numbers() const {
  std::vector<Eigen::Index> numbers;
  for (Eigen::Index n = 0; n < values_.size(); ++n) {
    if (free_[static_cast<std::size_t>(n)]) numbers.push_back(n);
  }
  return numbers;
}

// Returns false if there is no further improvement.
bool Search::step(double scale) {
  const VectorXd r = residuals(values_);
  const VectorXd w = weights(r, scale);
  const MatrixXd j = jacobian();
  const double before = loss(r, scale);
  const MatrixXd normal = j.transpose() * w.asDiagonal() * j;
  const VectorXd slope = j.transpose() * (w.cwiseProduct(r));
  for (; damping_ < 1e9; damping_ *= 4) {
    MatrixXd damped = normal;
    for (Eigen::Index n = 0; n < values_.size(); ++n) damped(n, n) += damping_ * (normal(n, n) + 1e-6) + 1e-12;
    const VectorXd change = damped.ldlt().solve(-slope);
    VectorXd next = values_;
    for (const Eigen::Index n : free_numbers()) {
      const double by = std::clamp(change[n], -2.0, 2.0);
      next[n] = clamp_to_range(n, by >= 0 ? next[n] * (1 + by) : next[n] / (1 - by));
    }
    const double after = loss(residuals(next), scale);
    if (!(after < before)) continue;
    values_ = next;
    damping_ = std::max(1e-9, damping_ / 8);
    return before - after > 1e-9 * before + 1e-12;
  }
  return false;
}

void Search::descend(double scale) {
  damping_ = 1e-3;
  for (int i = 0; i < 60 && step(scale); ++i) {
  }
}

void Search::run() {
  if (free_numbers().empty()) return;
  descend(std::max(1.0, residuals(values_).cwiseAbs().maxCoeff()));
  for (int round = 0; round < 6; ++round) {
    const double scale = scale_of(residuals(values_));
    descend(scale);
    if (std::abs(scale_of(residuals(values_)) - scale) < 1e-3 * scale) break;
  }
}

VectorXd Search::errors() {
  const VectorXd r = residuals(values_);
  const double scale = scale_of(r);
  const MatrixXd j = jacobian();
  const std::vector<Eigen::Index> numbers = free_numbers();
  const double degrees_of_freedom =
      std::max<double>(1, static_cast<double>(count_) - static_cast<double>(numbers.size()));
  // Huber's estimate of the residuals' variance, with outliers cut off.
  double square = 0, inside = 0;
  for (const double residual : r) {
    const double cut = std::clamp(residual, -kHuberThreshold * scale, kHuberThreshold * scale);
    square += cut * cut;
    inside += std::abs(residual) <= kHuberThreshold * scale ? 1 : 0;
  }
  const double share = std::max(0.2, inside / static_cast<double>(count_));
  const double variance = std::max(square / degrees_of_freedom, kMinScale * kMinScale) / (share * share);
  MatrixXd normal(numbers.size(), numbers.size());
  for (std::size_t a = 0; a < numbers.size(); ++a) {
    for (std::size_t b = 0; b < numbers.size(); ++b) {
      normal(static_cast<Eigen::Index>(a), static_cast<Eigen::Index>(b)) = j.col(numbers[a]).dot(j.col(numbers[b]));
    }
  }
  normal.diagonal().array() += 1e-9;
  const MatrixXd covariance = normal.ldlt().solve(MatrixXd::Identity(normal.rows(), normal.cols())) * variance;
  VectorXd found = VectorXd::Zero(values_.size());
  for (std::size_t a = 0; a < numbers.size(); ++a) {
    const auto at = static_cast<Eigen::Index>(a);
    found[numbers[a]] = std::sqrt(std::max(0.0, covariance(at, at)));
  }
  return found;
}

// Resets the most uncertain number to its start value if the other numbers then fit as well. Repeats this.
void Search::reset_uninformed_numbers() {
  std::vector<bool> informed(free_.size(), false);
  for (;;) {
    const VectorXd vague = errors();
    Eigen::Index worst = -1;
    for (const Eigen::Index n : free_numbers()) {
      if (informed[static_cast<std::size_t>(n)] || vague[n] < kMaxRelativeError) continue;
      if (worst < 0 || vague[n] > vague[worst]) worst = n;
    }
    if (worst < 0) return;
    const auto at = static_cast<std::size_t>(worst);
    const VectorXd best = values_;
    const VectorXd r = residuals(values_);
    const double scale = scale_of(r), before = loss(r, scale);
    free_[at] = false;
    values_[worst] = clamp_to_range(worst, task_.start[at]);
    if (!free_numbers().empty()) descend(scale);
    if (loss(residuals(values_), scale) <= before + kMaxLossIncrease) continue;
    values_ = best;
    free_[at] = informed[at] = true;
  }
}

// Returns the largest value that predicts as well, with the other numbers fixed. For a number that is nearly 0.
double Search::largest_value_that_fits(Eigen::Index number) {
  const VectorXd r = residuals(values_);
  const double scale = scale_of(r), most = loss(r, scale) + kMaxLossIncrease;
  VectorXd tried = values_;
  for (int i = 0; i < 200; ++i) {
    const double next = clamp_to_range(number, tried[number] * 1.25);
    if (next == tried[number]) break;
    VectorXd larger = tried;
    larger[number] = next;
    if (loss(residuals(larger), scale) > most) break;
    tried = larger;
  }
  return tried[number];
}

Fit Search::result() {
  Fit fit;
  const VectorXd error = errors();
  const double degrees_of_freedom =
      std::max<double>(1, static_cast<double>(count_) - static_cast<double>(free_numbers().size()));
  const double t = 1.96 + 2.4 / degrees_of_freedom;  // approximates Student's 97.5 % quantile
  for (Eigen::Index n = 0; n < values_.size(); ++n) {
    const double value = values_[n], wide = 1 + t * error[n];
    if (!free_[static_cast<std::size_t>(n)]) {
      fit.numbers.push_back({task_.start[static_cast<std::size_t>(n)], 0, 0, false});
    } else if (error[n] < kMaxRelativeError) {
      fit.numbers.push_back({value, value / wide, value * wide, true});
    } else {
      const double high = largest_value_that_fits(n);
      fit.numbers.push_back({value, task_.least[static_cast<std::size_t>(n)], high, true});
    }
  }
  residuals(values_);
  for (std::size_t i = 0; i < predicted_.size(); ++i) {
    fit.errors.push_back(std::abs(predicted_[i] - task_.measured[i]) / task_.measured[i]);
  }
  std::ranges::sort(fit.errors);
  return fit;
}

}  // namespace

double quantile_of(std::span<const double> sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

Fit fit_numbers(const FitTask& task) {
  if (task.measured.empty()) {
    Fit fit;
    for (const double start : task.start) fit.numbers.push_back({start, 0, 0, false});
    return fit;
  }
  Search search(task);
  search.run();
  search.reset_uninformed_numbers();
  return search.result();
}

}  // namespace kvtwin
