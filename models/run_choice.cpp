#include "models/run_choice.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

namespace kvtwin {
namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kNearlyEqual = 0.05;  // share of the reduction of the deviation that a cheaper run may lack

VectorXd vector_of(const Slopes& slopes) {
  return Eigen::Map<const VectorXd>(slopes.data(), static_cast<Index>(slopes.size()));
}

// Returns J' C^-1 J. The inverse of C is that of a matrix with a change of rank 1 (Sherman and Morrison).
MatrixXd information_of(const std::vector<Slopes>& times, Index numbers) {
  MatrixXd squares = MatrixXd::Zero(numbers, numbers);
  VectorXd sum = VectorXd::Zero(numbers);
  for (const Slopes& slopes : times) {
    const VectorXd row = vector_of(slopes);
    squares += row * row.transpose();
    sum += row;
  }
  const double request = kRequestNoise * kRequestNoise, run = kRunNoise * kRunNoise;
  const double common = run / (request + run * static_cast<double>(times.size()));
  return (squares - common * sum * sum.transpose()) / request;
}

class Chooser {
 public:
  explicit Chooser(const RunChoiceTask& task) : figure_(vector_of(task.figure)) {
    const auto numbers = static_cast<Index>(task.deviations.size());
    precision_ = MatrixXd::Zero(numbers, numbers);
    for (Index i = 0; i < numbers; ++i) {
      const double deviation = task.deviations[static_cast<std::size_t>(i)];
      precision_(i, i) = 1 / (deviation * deviation);
    }
    for (const MeasurableRun& run : task.runs) {
      MatrixXd& sum = information_.emplace_back(MatrixXd::Zero(numbers, numbers));
      for (const std::vector<Slopes>& times : run.kinds) sum += information_of(times, numbers);
    }
  }

  double deviation() const { return deviation_of(precision_); }
  double deviation_with(std::size_t run) const { return deviation_of(precision_ + information_[run]); }
  void take(std::size_t run) { precision_ += information_[run]; }
  std::vector<double> numbers() const {
    const Index count = precision_.rows();
    const MatrixXd covariance = precision_.ldlt().solve(MatrixXd::Identity(count, count));
    std::vector<double> deviations;
    for (Index i = 0; i < count; ++i) deviations.push_back(std::sqrt(std::max(0.0, covariance(i, i))));
    return deviations;
  }

 private:
  double deviation_of(const MatrixXd& precision) const {
    return std::sqrt(std::max(0.0, figure_.dot(precision.ldlt().solve(figure_))));
  }

  VectorXd figure_;
  MatrixXd precision_;
  std::vector<MatrixXd> information_;  // of each run
};

}  // namespace

RunChoice choose_runs(const RunChoiceTask& task) {
  Chooser chooser(task);
  RunChoice choice;
  choice.before = chooser.deviation();
  for (std::size_t run = 0; run < task.runs.size(); ++run) choice.alone.push_back(chooser.deviation_with(run));
  std::vector<std::size_t> left(task.runs.size());
  for (std::size_t run = 0; run < left.size(); ++run) left[run] = run;
  while (choice.chosen.size() < task.count && !left.empty()) {
    const double now = chooser.deviation();
    double least = now;
    for (const std::size_t run : left) least = std::min(least, chooser.deviation_with(run));
    std::size_t best = left.front();
    bool any = false;
    for (const std::size_t run : left) {
      if (now - chooser.deviation_with(run) < (1 - kNearlyEqual) * (now - least)) continue;
      if (any && task.runs[run].cost >= task.runs[best].cost) continue;
      best = run;
      any = true;
    }
    chooser.take(best);
    std::erase(left, best);
    choice.chosen.push_back({best, chooser.deviation(), chooser.numbers()});
  }
  return choice;
}

double deviation_after(const RunChoiceTask& task, const std::vector<std::size_t>& runs) {
  Chooser chooser(task);
  for (const std::size_t run : runs) chooser.take(run);
  return chooser.deviation();
}

}  // namespace kvtwin
