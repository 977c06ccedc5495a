// Simulations with one uncertain number moved: the slopes of figures and of the times of requests by the logarithm of
// the number. The numbers are those that `calibrate --from` can fit (simulated_fit.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lab/calibrate/simulated_fit.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/listener.hpp"

namespace kvtwin {

struct UncertainFit {
  const FitKey* key = nullptr;
  double value = 0, low = 0, high = 0;  // in the key's unit; the 95 % interval
  bool assumed = false;                 // the interval: +- kUnknownSpread
  double deviation() const;             // of the number's logarithm, one standard deviation
  double step() const;                  // factor up and down for a slope
};
inline constexpr double kUnknownSpread = 0.3;

// Returns the numbers that a simulation of the experiment uses. Their intervals are those of the hardware file, with
// the fitted times of an engine in it; without one, hardware.spread_percent, or kUnknownSpread. Errors: as
// make_setup().
std::vector<UncertainFit> uncertain_fits(const Experiment& experiment);

struct RequestTimes {
  double ttft_s = 0, tpot_s = 0;  // tpot_s: 0 = one output token
};

// What a simulation returned.
struct MovedAnswer {
  std::string failure;          // a sentence; else empty
  std::vector<double> figures;  // in the order of MovedSimulations; 0 = none
  // Of each figure, the 80 % by runs that others measured (lab/errors); 0 and 0: the figure has none.
  std::vector<std::pair<double, double>> intervals{};
  double seconds = 0;  // simulated
  std::map<std::uint64_t, RequestTimes> requests;
};

// A point: no number, or one number moved up or down.
struct MovedNumber {
  std::size_t number = 0;
  int way = 0;  // 1 up, -1 down, 0 none
};

class MovedSimulations {
 public:
  // `figures`: names of report_figures(). `jobs`: 0 = one per core. Requires: `numbers` and `listener` outlive this
  // object.
  MovedSimulations(const std::vector<UncertainFit>& numbers, std::vector<std::string> figures, int jobs,
                   const Listener& listener);

  // Simulates each experiment at each point, each in a child process. Returns the answers by experiment and then by
  // point.
  std::vector<std::vector<MovedAnswer>> run(const std::vector<const Experiment*>& experiments,
                                            const std::vector<MovedNumber>& points);
  // Returns all points but the base: each number up, and down.
  std::vector<MovedNumber> moves() const;
  // Returns the slope of something that is `up` and `down` with the number moved so; 0 if one of them is 0.
  double slope(std::size_t number, double up, double down) const;

 private:
  double value_at(const MovedNumber& point) const;
  std::string simulated(const Experiment& base, const MovedNumber& point) const;
  MovedAnswer answer_in(const std::string& text) const;

  const std::vector<UncertainFit>& numbers_;
  std::vector<std::string> figures_;
  std::size_t at_once_;
  const Listener& listener_;
};

}  // namespace kvtwin
