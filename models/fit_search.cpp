#include "models/fit_search.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "models/calibration_fit.hpp"

namespace kvtwin {
namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kMinKindScale = 2e-3;  // of residuals; batches that form differently move figures by as much
constexpr double kNoPrediction = 3;     // residual of a figure that the simulation does not have: a factor of 11
constexpr double kBaseDeviation = 1.5;  // standard deviation of a number around its base, as a residual: a factor of 4
constexpr double kMaxDeviation = 0.5;   // of an identified number; a third of what the base alone says
constexpr double kMinSensitivity = 0.01;  // root mean square of the residuals' derivatives by a number's logarithm
constexpr std::array<double, 3> kFactors{1.3, 1.1, 1.03};        // of the steps up and down
constexpr std::array<double, 4> kDampings{0.0, 0.1, 1.0, 10.0};  // of Levenberg-Marquardt
constexpr double kMaxStep = 2;                                   // a step multiplies or divides a number by 3 at most
constexpr double kMinProgress = 0.1;  // of the loss, which is in units of the variance of a residual
constexpr int kMaxRounds = 25;
constexpr double k95 = 1.96;  // standard deviations of a 95 % interval
// Of a number that jumps. Near the minimum, the steps are as narrow as its neighbours are.
constexpr std::array<double, 20> kElsewhere{0.125, 0.25, 0.5,  0.55, 0.6,  0.66, 0.72, 0.79, 0.87, 0.93,
                                            1.07,  1.15, 1.27, 1.39, 1.52, 1.67, 1.82, 2,    4,    8};
constexpr int kMaxEscapes = 4;
constexpr double kSurveyFactor = 2;  // between the values of the whole range at which a search may begin

double residual(double predicted, double measured) {
  return predicted > 0 ? (predicted - measured) / std::sqrt(predicted * measured) : kNoPrediction;
}

class PointSearch {
 public:
  explicit PointSearch(const SearchTask& task) : task_(task), count_(static_cast<Index>(task.measured.size())) {
    for (const SearchedNumber& number : task.numbers) x_.push_back(number.start);
    state_.assign(x_.size(), Identified::yes);
    kept_.resize(x_.size());
    elsewhere_.resize(x_.size());
  }

  SearchResult run();

 private:
  struct Derivatives {
    MatrixXd by_logarithm;            // of the residuals, one column per free number
    std::vector<SearchPoint> points;  // the points up and down
    std::vector<VectorXd> residuals;  // at these points
  };

  std::vector<VectorXd> residuals_at(const std::vector<SearchPoint>& points);
  void set_scales();
  double loss(const SearchPoint& x, const VectorXd& r) const;
  VectorXd weights() const;
  Derivatives derivatives(double factor);
  SearchPoint moved(const VectorXd& step) const;
  bool fits(std::size_t points) {
    complete_ = complete_ && points_ + points <= task_.max_points;
    return complete_;
  }
  // Moves to the best point of a round. Returns whether the loss became smaller by more than kMinProgress.
  bool round(double factor, bool first);
  bool untouched(std::size_t number) const;
  void try_again();
  void descend(std::size_t coarsest, bool first);
  struct Scanned {
    double value = 0, loss = 0;
  };
  // Predicts at other values of a number, and moves to the best one if it is better.
  std::vector<Scanned> scan(std::size_t number, const std::vector<double>& values);
  std::vector<double> around(std::size_t number) const;
  // Moves each number that jumps to the best of the values in its whole range.
  void survey();
  // Descends from the start and, if it is another point, from the best one of the survey. Moves to the better end.
  void descend_from_best_starts();
  // Leaves a minimum for a better one elsewhere, as long as there is one.
  void escape();
  void freeze(std::size_t number, Identified why);
  std::vector<std::size_t> free_numbers() const;
  MatrixXd normal_matrix(const MatrixXd& j) const;
  struct Deviations {
    VectorXd free, alone;  // of the free numbers' logarithms: with the others free, and with the others known
    VectorXd whole;        // as `free`, with the common error of the figures of a kind
  };
  Deviations deviations();
  std::size_t kinds() const { return *std::ranges::max_element(task_.kind) + 1; }

  const SearchTask& task_;
  const Index count_;
  SearchPoint x_;
  VectorXd r_;  // residuals at x_
  VectorXd scale_;
  std::vector<Identified> state_;
  std::vector<SearchResult::Number> kept_;       // of the numbers that are not identified: the reason
  std::vector<std::vector<Scanned>> elsewhere_;  // the last values of a number that jumps
  std::size_t points_ = 0;
  bool complete_ = true;
};

std::vector<VectorXd> PointSearch::residuals_at(const std::vector<SearchPoint>& points) {
  points_ += points.size();
  std::vector<VectorXd> all;
  for (const Predictions& predicted : task_.predict(points)) {
    VectorXd r(count_);
    for (Index i = 0; i < count_; ++i) {
      const auto at = static_cast<std::size_t>(i);
      r[i] = residual(predicted[at], task_.measured[at]);
    }
    all.push_back(std::move(r));
  }
  return all;
}

void PointSearch::set_scales() {
  std::vector<std::vector<double>> sizes(kinds());
  for (Index i = 0; i < count_; ++i) sizes[task_.kind[static_cast<std::size_t>(i)]].push_back(std::abs(r_[i]));
  std::vector<double> scales(kinds(), kMinKindScale);
  for (std::size_t k = 0; k < kinds(); ++k) {
    if (sizes[k].empty()) continue;
    std::ranges::sort(sizes[k]);
    scales[k] = std::max(kMinKindScale, 1.4826 * quantile_of(sizes[k], 0.5));
  }
  scale_.resize(count_);
  for (Index i = 0; i < count_; ++i) scale_[i] = scales[task_.kind[static_cast<std::size_t>(i)]];
}

double PointSearch::loss(const SearchPoint& x, const VectorXd& r) const {
  double total = 0;
  for (Index i = 0; i < count_; ++i) {
    const double u = std::abs(r[i]) / scale_[i];
    total += u <= kHuberThreshold ? u * u : kHuberThreshold * (2 * u - kHuberThreshold);
  }
  for (std::size_t n = 0; n < x.size(); ++n) {
    if (state_[n] != Identified::yes) continue;
    const double off = residual(x[n], task_.numbers[n].start) / kBaseDeviation;
    total += off * off;
  }
  return total;
}

VectorXd PointSearch::weights() const {
  VectorXd w(count_);
  for (Index i = 0; i < count_; ++i) {
    const double u = std::abs(r_[i]) / scale_[i];
    w[i] = (u <= kHuberThreshold ? 1.0 : kHuberThreshold / u) / (scale_[i] * scale_[i]);
  }
  return w;
}

std::vector<std::size_t> PointSearch::free_numbers() const {
  std::vector<std::size_t> numbers;
  for (std::size_t n = 0; n < state_.size(); ++n) {
    if (state_[n] == Identified::yes) numbers.push_back(n);
  }
  return numbers;
}

PointSearch::Derivatives PointSearch::derivatives(double factor) {
  const std::vector<std::size_t> numbers = free_numbers();
  Derivatives found;
  for (const std::size_t n : numbers) {
    for (const double to : {x_[n] * factor, x_[n] / factor}) {
      found.points.push_back(x_);
      found.points.back()[n] = std::clamp(to, task_.numbers[n].least, task_.numbers[n].most);
    }
  }
  found.residuals = residuals_at(found.points);
  found.by_logarithm = MatrixXd::Zero(count_, static_cast<Index>(numbers.size()));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    // The difference of the values as a residual, which is nearly the difference of their logarithms.
    const double between = residual(found.points[2 * i][numbers[i]], found.points[2 * i + 1][numbers[i]]);
    if (between <= 0) continue;
    found.by_logarithm.col(static_cast<Index>(i)) = (found.residuals[2 * i] - found.residuals[2 * i + 1]) / between;
  }
  return found;
}

SearchPoint PointSearch::moved(const VectorXd& step) const {
  SearchPoint next = x_;
  const std::vector<std::size_t> numbers = free_numbers();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double by = std::clamp(step[static_cast<Index>(i)], -kMaxStep, kMaxStep);
    double& value = next[numbers[i]];
    value = by >= 0 ? value * (1 + by) : value / (1 - by);
    value = std::clamp(value, task_.numbers[numbers[i]].least, task_.numbers[numbers[i]].most);
  }
  return next;
}

MatrixXd PointSearch::normal_matrix(const MatrixXd& j) const {
  MatrixXd normal = j.transpose() * weights().asDiagonal() * j;
  normal.diagonal().array() += 1 / (kBaseDeviation * kBaseDeviation);
  return normal;
}

void PointSearch::freeze(std::size_t number, Identified why) {
  state_[number] = why;
  x_[number] = task_.numbers[number].base;
}

bool PointSearch::untouched(std::size_t number) const {
  return x_[number] == task_.numbers[number].start || x_[number] == task_.numbers[number].base;
}

// Far from the measured figures, a long queue hides the effect of small times. So if the search has moved far, it tries
// the numbers without an effect once more.
void PointSearch::try_again() {
  constexpr double kFarAway = 4;
  bool far = false, any = false;
  for (std::size_t n = 0; n < x_.size(); ++n) {
    const double base = task_.numbers[n].base;
    far |= state_[n] == Identified::yes && (x_[n] > kFarAway * base || kFarAway * x_[n] < base);
    any |= state_[n] == Identified::no_effect;
  }
  if (!far || !any) return;
  for (Identified& state : state_) {
    if (state == Identified::no_effect) state = Identified::yes;
  }
  descend(0, true);
}

bool PointSearch::round(double factor, bool first) {
  if (!fits(2 * free_numbers().size() + kDampings.size())) return false;
  Derivatives found = derivatives(factor);
  const std::vector<std::size_t> numbers = free_numbers();
  if (first) {
    bool any = false, moved_away = false;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const double square = found.by_logarithm.col(static_cast<Index>(i)).squaredNorm() / static_cast<double>(count_);
      if (std::sqrt(square) >= kMinSensitivity || !untouched(numbers[i])) continue;
      const double moved = (found.residuals[2 * i] - found.residuals[2 * i + 1]).squaredNorm();
      kept_[numbers[i]].effect = std::sqrt(moved / static_cast<double>(count_));
      freeze(numbers[i], Identified::no_effect);
      moved_away |= x_[numbers[i]] != task_.numbers[numbers[i]].start;
      any = true;
    }
    // A base that is the start predicts the same, so r_ stays.
    if (moved_away) r_ = residuals_at({x_}).front();
    if (any) return true;
  }
  const MatrixXd normal = normal_matrix(found.by_logarithm);
  VectorXd slope = found.by_logarithm.transpose() * (weights().cwiseProduct(r_));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    slope[static_cast<Index>(i)] +=
        residual(x_[numbers[i]], task_.numbers[numbers[i]].start) / (kBaseDeviation * kBaseDeviation);
  }
  std::vector<SearchPoint> steps;
  for (const double damping : kDampings) {
    MatrixXd damped = normal;
    damped.diagonal() *= 1 + damping;
    steps.push_back(moved(damped.ldlt().solve(-slope)));
  }
  const std::vector<VectorXd> at_steps = residuals_at(steps);
  found.points.insert(found.points.end(), steps.begin(), steps.end());
  found.residuals.insert(found.residuals.end(), at_steps.begin(), at_steps.end());
  const double before = loss(x_, r_);
  double least = before;
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < found.points.size(); ++i) {
    const double here = loss(found.points[i], found.residuals[i]);
    if (!(here < least)) continue;
    least = here;
    best = i;
  }
  if (best) {
    x_ = found.points[*best];
    r_ = found.residuals[*best];
  }
  return before - least > kMinProgress;
}

void PointSearch::descend(std::size_t coarsest, bool first) {
  std::size_t at = coarsest;
  for (int i = 0; i < kMaxRounds && at < kFactors.size() && !free_numbers().empty() && complete_; ++i) {
    set_scales();
    if (!round(kFactors[at], first && i == 0)) ++at;
  }
  set_scales();
}

std::vector<PointSearch::Scanned> PointSearch::scan(std::size_t n, const std::vector<double>& values) {
  std::vector<SearchPoint> points(values.size(), x_);
  for (std::size_t k = 0; k < values.size(); ++k) {
    points[k][n] = std::clamp(values[k], task_.numbers[n].least, task_.numbers[n].most);
  }
  const std::vector<VectorXd> residuals = residuals_at(points);
  const double before = loss(x_, r_);
  std::vector<Scanned> scanned;
  std::size_t best = 0;
  for (std::size_t k = 0; k < points.size(); ++k) {
    scanned.push_back({points[k][n], loss(points[k], residuals[k])});
    if (scanned[k].loss < scanned[best].loss) best = k;
  }
  if (before - scanned[best].loss > kMinProgress) {
    x_ = points[best];
    r_ = residuals[best];
  }
  return scanned;
}

std::vector<double> PointSearch::around(std::size_t n) const {
  std::vector<double> values;
  for (const double factor : kElsewhere) values.push_back(x_[n] * factor);
  return values;
}

void PointSearch::survey() {
  set_scales();
  for (std::size_t n = 0; n < x_.size(); ++n) {
    const SearchedNumber& number = task_.numbers[n];
    if (!number.jumps) continue;
    std::vector<double> values;
    for (double at = number.start / kSurveyFactor; at > number.least; at /= kSurveyFactor) values.push_back(at);
    for (double at = number.start * kSurveyFactor; at < number.most; at *= kSurveyFactor) values.push_back(at);
    if (!fits(values.size() + kElsewhere.size())) return;
    scan(n, values);
    if (x_[n] != number.start) scan(n, around(n));
  }
}

void PointSearch::escape() {
  bool moved = true;
  for (int i = 0; i < kMaxEscapes && moved; ++i) {
    moved = false;
    for (const std::size_t n : free_numbers()) {
      if (!task_.numbers[n].jumps) continue;
      if (!fits(kElsewhere.size())) return;
      const double before = x_[n];
      elsewhere_[n] = scan(n, around(n));
      moved = moved || x_[n] != before;
    }
    if (moved) descend(0, false);
  }
}

PointSearch::Deviations PointSearch::deviations() {
  const MatrixXd j = derivatives(kFactors[1]).by_logarithm;
  const MatrixXd normal = normal_matrix(j);
  const MatrixXd covariance = normal.ldlt().solve(MatrixXd::Identity(normal.rows(), normal.cols()));
  // How far the numbers move if all figures of a kind are off by the common error.
  const MatrixXd weighted = weights().asDiagonal() * j;
  MatrixXd sums = MatrixXd::Zero(static_cast<Index>(kinds()), j.cols());
  for (Index i = 0; i < count_; ++i) {
    sums.row(static_cast<Index>(task_.kind[static_cast<std::size_t>(i)])) += weighted.row(i);
  }
  const MatrixXd common = task_.common_error * sums * covariance;
  const VectorXd free = covariance.diagonal().cwiseMax(0.0);
  const VectorXd whole = free + common.colwise().squaredNorm().transpose();
  return {free.cwiseSqrt(), normal.diagonal().cwiseInverse().cwiseSqrt(), whole.cwiseSqrt()};
}

void PointSearch::descend_from_best_starts() {
  PointSearch surveyed(*this);
  surveyed.survey();
  points_ = surveyed.points_;
  complete_ = surveyed.complete_;
  if (surveyed.x_ != x_) {
    surveyed.descend(0, true);
    surveyed.escape();
    points_ = surveyed.points_;
    complete_ = surveyed.complete_;
    const bool both = 2 * points_ <= task_.max_points;
    if (both) {
      descend(0, true);
      escape();
      surveyed.scale_ = scale_;  // one scale for both
    }
    if (!both || surveyed.loss(surveyed.x_, surveyed.r_) < loss(x_, r_)) {
      x_ = surveyed.x_;
      r_ = surveyed.r_;
      state_ = surveyed.state_;
      kept_ = surveyed.kept_;
      elsewhere_ = surveyed.elsewhere_;
      set_scales();
    }
    return;
  }
  descend(0, true);
  escape();
}

SearchResult PointSearch::run() {
  SearchResult result;
  if (count_ > 0) {
    r_ = residuals_at({x_}).front();
    descend_from_best_starts();
    try_again();
  }
  Deviations found;
  for (;;) {
    const std::vector<std::size_t> numbers = free_numbers();
    if (count_ == 0 || numbers.empty()) break;
    found = deviations();
    Index worst = 0;
    if (!(found.free.maxCoeff(&worst) > kMaxDeviation)) break;
    const std::size_t number = numbers[static_cast<std::size_t>(worst)];
    kept_[number].spread = 1 + k95 * found.free[worst];
    kept_[number].spread_alone = 1 + k95 * found.alone[worst];
    freeze(number, Identified::uncertain);
    r_ = residuals_at({x_}).front();
    descend(1, false);
  }
  Index i = 0;
  for (std::size_t n = 0; n < x_.size(); ++n) {
    const SearchedNumber& number = task_.numbers[n];
    if (count_ == 0) state_[n] = Identified::no_figures;
    SearchResult::Number& one = result.numbers.emplace_back(kept_[n]);
    one.identified = state_[n];
    one.value = x_[n];
    if (state_[n] != Identified::yes) {
      one.value = number.base;
      continue;
    }
    const double wide = 1 + k95 * found.whole[i++];
    one.at_bound = x_[n] == number.least || x_[n] == number.most;
    one.low = std::max(number.least, x_[n] / wide);
    one.high = std::min(number.most, x_[n] * wide);
    for (const Scanned& other : elsewhere_[n]) {
      const bool outside = other.value < one.low || other.value > one.high;
      if (!outside || other.loss > loss(x_, r_) + k95 * k95) continue;
      one.low = std::min(one.low, other.value);
      one.high = std::max(one.high, other.value);
      one.ambiguous = true;
    }
  }
  result.points = points_;
  result.complete = complete_;
  return result;
}

}  // namespace

SearchResult search_numbers(const SearchTask& task) { return PointSearch(task).run(); }

}  // namespace kvtwin
