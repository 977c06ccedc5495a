#include "models/calibration_fit.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

namespace kvtwin {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kHuber = 1.345;      // 95 % as good as plain least squares where residuals are normal
constexpr double kLeastScale = 1e-4;  // residuals below it are rounding
constexpr double kProbe = 1.01;       // what a number is multiplied by to see what hangs on it
constexpr double kTold = 3.84;        // of the loss, in units of the residuals' variance: 95 % of chance is below
constexpr double kWide = 1.5;         // of a relative standard error: more, and it is asked whether it tells anything

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
    for (Eigen::Index i = 0; i < values_.size(); ++i) values_[i] = within(i, values_[i]);
  }

  void run();
  void pin_what_is_not_told();
  Fit result();

 private:
  double within(Eigen::Index i, double value) const {
    const auto at = static_cast<std::size_t>(i);
    return std::clamp(value, task_.least[at], task_.most[at]);
  }
  VectorXd residuals(const VectorXd& values);
  double scale_of(const VectorXd& r) const;
  double loss(const VectorXd& r, double scale) const;
  VectorXd weights(const VectorXd& r, double scale) const;
  MatrixXd jacobian();
  std::vector<Eigen::Index> moving() const;
  bool step(double scale);
  void descend(double scale);
  // The free numbers' relative standard errors; very large where nothing hangs on one.
  VectorXd errors();
  double as_high_as_may_be(Eigen::Index number);

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
  return std::max(kLeastScale, 1.4826 * median_of(std::move(sizes)));
}

double Search::loss(const VectorXd& r, double scale) const {
  double total = 0;
  for (const double residual : r) {
    const double u = std::abs(residual) / scale;
    total += u <= kHuber ? u * u : kHuber * (2 * u - kHuber);
  }
  return total;
}

VectorXd Search::weights(const VectorXd& r, double scale) const {
  return r.unaryExpr([&](double residual) {
    const double u = std::abs(residual) / scale;
    return u <= kHuber ? 1.0 : kHuber / u;
  });
}

// By relative changes of the numbers.
MatrixXd Search::jacobian() {
  MatrixXd j = MatrixXd::Zero(count_, values_.size());
  for (Eigen::Index n = 0; n < values_.size(); ++n) {
    if (!free_[static_cast<std::size_t>(n)]) continue;
    VectorXd up = values_, down = values_;
    up[n] *= kProbe;
    down[n] /= kProbe;
    constexpr double kBetween = (kProbe - 1 / kProbe);
    j.col(n) = (residuals(up) - residuals(down)) / kBetween;
  }
  return j;
}

std::vector<Eigen::Index> Search::moving() const {
  std::vector<Eigen::Index> numbers;
  for (Eigen::Index n = 0; n < values_.size(); ++n) {
    if (free_[static_cast<std::size_t>(n)]) numbers.push_back(n);
  }
  return numbers;
}

// False: it gets no better.
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
    for (const Eigen::Index n : moving()) {
      const double by = std::clamp(change[n], -2.0, 2.0);
      next[n] = within(n, by >= 0 ? next[n] * (1 + by) : next[n] / (1 - by));
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
  if (moving().empty()) return;
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
  const std::vector<Eigen::Index> numbers = moving();
  const double spare = std::max<double>(1, static_cast<double>(count_) - static_cast<double>(numbers.size()));
  // Huber's estimate of the residuals' variance, outliers cut off.
  double square = 0, inside = 0;
  for (const double residual : r) {
    const double cut = std::clamp(residual, -kHuber * scale, kHuber * scale);
    square += cut * cut;
    inside += std::abs(residual) <= kHuber * scale ? 1 : 0;
  }
  const double share = std::max(0.2, inside / static_cast<double>(count_));
  const double variance = std::max(square / spare, kLeastScale * kLeastScale) / (share * share);
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

// Takes the vaguest number's start again where the rest then fits as well.
void Search::pin_what_is_not_told() {
  std::vector<bool> told(free_.size(), false);
  for (;;) {
    const VectorXd vague = errors();
    Eigen::Index worst = -1;
    for (const Eigen::Index n : moving()) {
      if (told[static_cast<std::size_t>(n)] || vague[n] < kWide) continue;
      if (worst < 0 || vague[n] > vague[worst]) worst = n;
    }
    if (worst < 0) return;
    const auto at = static_cast<std::size_t>(worst);
    const VectorXd best = values_;
    const VectorXd r = residuals(values_);
    const double scale = scale_of(r), before = loss(r, scale);
    free_[at] = false;
    values_[worst] = within(worst, task_.start[at]);
    if (!moving().empty()) descend(scale);
    if (loss(residuals(values_), scale) <= before + kTold) continue;
    values_ = best;
    free_[at] = told[at] = true;
  }
}

// The largest value that predicts as well, the others staying: for a number that is nearly 0.
double Search::as_high_as_may_be(Eigen::Index number) {
  const VectorXd r = residuals(values_);
  const double scale = scale_of(r), most = loss(r, scale) + kTold;
  VectorXd tried = values_;
  for (int i = 0; i < 200; ++i) {
    const double next = within(number, tried[number] * 1.25);
    if (next == tried[number]) break;
    VectorXd more = tried;
    more[number] = next;
    if (loss(residuals(more), scale) > most) break;
    tried = more;
  }
  return tried[number];
}

Fit Search::result() {
  Fit fit;
  const VectorXd error = errors();
  const double spare = std::max<double>(1, static_cast<double>(count_) - static_cast<double>(moving().size()));
  const double t = 1.96 + 2.4 / spare;  // nearly Student's 97.5 %
  for (Eigen::Index n = 0; n < values_.size(); ++n) {
    const double value = values_[n], wide = 1 + t * error[n];
    if (!free_[static_cast<std::size_t>(n)]) {
      fit.numbers.push_back({task_.start[static_cast<std::size_t>(n)], 0, 0, false});
    } else if (error[n] < kWide) {
      fit.numbers.push_back({value, value / wide, value * wide, true});
    } else {
      const double high = as_high_as_may_be(n);
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
  search.pin_what_is_not_told();
  return search.result();
}

}  // namespace kvtwin
