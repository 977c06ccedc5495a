// Fits a machine's numbers (models/hardware.hpp) to measurements of this machine. The fit chooses the values at which
// the cost model of the simulations (models/roofline.hpp) predicts the measurements best (calibration_fit.hpp).
//
// Repeated measurements of equal work count once, with their median. So the fit finds the undisturbed duration. Queues
// depend on the average duration. Therefore, if recorded passes of served runs exist, all passes are scaled by one
// factor: the measured total of these passes divided by the predicted total. A recorded pass counts at most ten times
// its prediction.
//
// Groups, each with its own numbers, in this order: copies; both (both directions at once); nic; remote; disk; forward.
// A number that no measurement determines keeps the value and source of the base. Peaks and fractions are determined
// only as products: the peaks stay as in the base and the fractions are fitted. If a fraction exceeds 1, the peak is
// raised.
//
// Probes repeat the same work at the start, in the middle and at the end of the measuring. If their times disagree by
// more than kMaxProbeRatio, the machine changed meanwhile: the intervals of the group are widened by the ratio, and a
// note says so.
//
// Errors: ModelError for an unknown base, or a base without a measured device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/calibration_fit.hpp"
#include "models/calibration_ranges.hpp"
#include "models/calibration_samples.hpp"
#include "models/copy_sizes.hpp"
#include "models/hardware.hpp"
#include "models/path_matrix.hpp"

namespace kvtwin {

constexpr double kMaxProbeRatio = 1.2;  // of the times of equal work on one machine

struct CalibrationTerms {
  std::string base;  // preset with the initial values
  std::string date, version, commit, command;
  MeasuredLimits limits;  // from a matrix.csv, if given
  std::string limits_from;
  MeasuredSizes sizes;  // from a link.csv, if given
  std::string sizes_from;
  std::string probe_disk;  // folder of the disk that was measured; empty: none
};

struct CalibratedNumber {
  std::string key, group;
  double value = 0, low = 0, high = 0;  // in HardwareSpec's units; low = 0: no interval
};

struct CalibratedGroup {
  std::string name;
  std::size_t measurements = 0, distinct = 0;  // `distinct` counts equal work once
  std::vector<double> errors;                  // |predicted - measured| / measured, ascending
  // Spread of repeated measurements: (third quartile - first quartile) / median of the times of equal work; median over
  // all repeated work.
  double repeat_spread = 0;
  double level = 1;  // recorded passes: measured total / predicted total
};

struct Calibration {
  HardwareSpec hardware;
  std::vector<CalibratedNumber> numbers;  // measured numbers, and numbers that follow from them
  std::vector<std::string> not_measured;  // keys that measurements could determine
  std::vector<CalibratedGroup> groups;
  WorkRanges ranges;
  struct Interference {
    std::string lane, beside;
    double factor = 1;  // duration beside / duration alone; median
    std::size_t measurements = 0;
  };
  std::vector<Interference> interference;
  struct Probe {
    std::string of;               // a group
    std::vector<double> seconds;  // in order of time
  };
  std::vector<Probe> probes;
  std::vector<std::string> notes;  // reasons to distrust the result
};

// Returns the prediction of the cost model for this machine, in seconds. Not for interference.
double predicted_seconds(const Measurements& all, const Measurement& one, const HardwareSpec& hardware);

Calibration calibrate(const Measurements& measurements, const CalibrationTerms& terms);

// Returns the hardware file: the base with the measured numbers, and a description of the measurements in
// `calibration`.
std::string hardware_json(const Calibration& calibration, const Measurements& measurements,
                          const CalibrationTerms& terms);

// Returns a text for the user: each number with its interval and the base's value, the errors of each group, and the
// numbers that were not measured.
std::string calibration_text(const Calibration& calibration, const CalibrationTerms& terms);

}  // namespace kvtwin
