// Chooses which runs to measure, so that a prediction becomes as certain as possible.
//
// The logarithm of the predicted figure is linear in the logarithms of the uncertain numbers, and so is the logarithm
// of each time of a run. With the prior precision P of the numbers and the Fisher information I of a run,
//
//   I = J' C^-1 J,   C = request noise^2 * identity + run noise^2 * ones   (J: slopes of the run's times)
//
// the variance of the figure is g' (P + sum of I)^-1 g, with the figure's slopes g. The run noise is common to all
// times of one kind in a run, e.g. an error of the model at this load. So a hundred equal requests tell about as much
// as ten. The choice is greedy: each run is the one that lowers the variance most, given those before it. Only + - * /
// and sqrt are used: equal results on all machines.
#pragma once

#include <cstddef>
#include <vector>

namespace kvtwin {

using Slopes = std::vector<double>;  // derivatives by the logarithm of each number

struct MeasurableRun {
  std::vector<std::vector<Slopes>> kinds;  // per kind of time (TTFT, TPOT) the slopes of each request's time
  double cost = 0;                         // e.g. minutes
};

struct RunChoiceTask {
  std::vector<double> deviations;  // prior standard deviations of the numbers' logarithms. Requires: above 0
  Slopes figure;                   // of the prediction
  std::vector<MeasurableRun> runs;
  std::size_t count = 3;  // runs to choose, at most
};

// Standard deviations of the noise of measured times, relative: of each request, and of all requests of a run together.
inline constexpr double kRequestNoise = 0.1, kRunNoise = 0.03;

struct ChosenRun {
  std::size_t run = 0;
  double deviation = 0;         // of the prediction's logarithm, after this run and those before it
  std::vector<double> numbers;  // deviations of the numbers, likewise
};

struct RunChoice {
  double before = 0;              // deviation of the prediction without a run
  std::vector<double> alone;      // deviation after each run alone
  std::vector<ChosenRun> chosen;  // of runs that lower the deviation nearly equally, the cheapest
};

RunChoice choose_runs(const RunChoiceTask& task);

// Returns the deviation of the prediction after these runs.
double deviation_after(const RunChoiceTask& task, const std::vector<std::size_t>& runs);

}  // namespace kvtwin
