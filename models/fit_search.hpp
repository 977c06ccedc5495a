// Finds the numbers at which simulations predict measured figures best, and their uncertainty. Unlike fit_numbers()
// (calibration_fit.hpp), a prediction costs a simulation and is not a smooth function of the numbers: one more request
// in a batch moves all figures behind it. So derivatives use steps of 30 % to 3 %, the points of a round are predicted
// together, and the number of points is limited.
//
// The residual r of a prediction p and a measurement m is (p - m) / sqrt(p * m).
//
//   loss = sum of Huber(r / scale of its kind of figure) + sum of prior(number / base)
//
// The prior keeps a number within a factor of about 4 of its base, unless the figures say otherwise. A round predicts
// each number up and down, and the steps of Levenberg-Marquardt for several dampings. The best point is the next one.
// Without an improvement, the steps become smaller. Only + - * / and sqrt are used: equal results on all machines.
//
// A number keeps its base if it moves the figures too little, or if the figures leave it uncertain by more than a
// factor of 2 (95 %), for example because only its sum with another number matters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace kvtwin {

struct SearchedNumber {
  double base = 0;             // the value if the figures do not identify the number; may be 0
  double start = 0;            // where the search begins. Requires: least <= start <= most
  double least = 0, most = 0;  // requires: above 0
  // Figures may jump with the number, so that there are several minima, and parts of the range without an effect. The
  // search begins at the start, and at the best of some values of the whole range. Each minimum is compared with values
  // up to 8 times as large and as small, and the search goes on from a better one.
  bool jumps = false;
};

using SearchPoint = std::vector<double>;  // one value per number
using Predictions = std::vector<double>;  // one per measured figure; 0 = the simulation has no such figure

struct SearchTask {
  std::vector<SearchedNumber> numbers;
  std::vector<double> measured;   // requires: above 0
  std::vector<std::size_t> kind;  // of each measured figure, from 0: figures of one kind have one scale
  // What figures of one kind have in common beside their own errors, one standard deviation of the logarithm: figures
  // of one run, which another run would not have. It widens the intervals, and does not move the numbers.
  double common_error = 0;
  // Returns the predictions at each point.
  std::function<std::vector<Predictions>(const std::vector<SearchPoint>& points)> predict;
  std::size_t max_points = 500;  // a round begins only if it fits
};

enum class Identified : std::uint8_t {
  yes,
  no_figures,  // nothing was measured
  no_effect,   // the number moved up and down by 30 %, and the figures moved by less than 0.5 %
  uncertain    // the figures leave the number uncertain by more than a factor of 2
};

struct SearchResult {
  struct Number {
    double value = 0;
    double low = 0, high = 0;  // 95 % interval, if residuals are random beside the common error, within the range; 0 if
                               // not identified
    Identified identified = Identified::yes;
    bool at_bound = false;   // `value` is the end of the range
    bool ambiguous = false;  // of a number that jumps: the interval has values of other minima
    double effect = 0;       // no_effect: by how much the figures moved, root mean square of (up - down) / figure
    // uncertain: factors of the 95 % interval, with the other numbers free, and with the other numbers known.
    double spread = 0, spread_alone = 0;
  };
  std::vector<Number> numbers;
  std::size_t points = 0;  // predicted points
  bool complete = true;    // false: max_points ended the search
};

// Requires: the sizes agree. Without measured figures, no number is identified.
SearchResult search_numbers(const SearchTask& task);

}  // namespace kvtwin
