// Fits a machine's numbers (models/hardware.hpp) to what was measured on it, through the cost model that simulations
// ask (models/roofline.hpp): the values are those at which it predicts the measurements best (calibration_fit.hpp).
// Equal work that was measured several times counts once, with its median. A fit so finds what work takes when nothing
// comes between; queues feel what it takes on average. Where served runs were recorded, passes are slowed (or sped up)
// together until all of theirs take as long, in all, as they did (one that took more than ten times as long as fitted
// counts as ten).
//
// By group, each with numbers of its own, in this order: copies; both (both directions at once); nic; remote; disk;
// forward. A number that no measurement tells keeps the base's value and source. Two are told as products only: peaks
// stay the base's, with fractions fitted; a peak is raised where a fraction would exceed 1.
//
// Errors: ModelError for an unknown base, and one that lacks a device that was measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/calibration_fit.hpp"
#include "models/calibration_ranges.hpp"
#include "models/calibration_samples.hpp"
#include "models/hardware.hpp"
#include "models/path_matrix.hpp"

namespace kvtwin {

struct CalibrationTerms {
  std::string base;  // the preset to begin with
  std::string date, version, commit, command;
  MeasuredLimits limits;  // where a matrix.csv tells them
  std::string limits_from;
};

struct CalibratedNumber {
  std::string key, group;
  double value = 0, low = 0, high = 0;  // in HardwareSpec's units; low = 0: no interval
};

struct CalibratedGroup {
  std::string name;
  std::size_t measurements = 0, distinct = 0;  // of the latter one each counts
  std::vector<double> errors;                  // |predicted - measured| / measured, ascending
  double repeat_spread = 0;  // of equal work's times: its quartiles' distance / median; the median of all such work
  double level = 1;          // of recorded runs: how many times as long as the fit says, in all
};

struct Calibration {
  HardwareSpec hardware;
  std::vector<CalibratedNumber> numbers;  // that were measured, or follow from such
  std::vector<std::string> not_measured;  // keys that a measurement of this kind could tell
  std::vector<CalibratedGroup> groups;
  WorkRanges ranges;
  struct Interference {
    std::string lane, beside;
    double factor = 1;  // how many times as long it takes: the median
    std::size_t measurements = 0;
  };
  std::vector<Interference> interference;
  std::vector<std::string> notes;  // why not to trust it
};

// What the cost model of this machine says that it takes; in seconds. Not of interference.
double predicted_seconds(const Measurements& all, const Measurement& one, const HardwareSpec& hardware);

Calibration calibrate(const Measurements& measurements, const CalibrationTerms& terms);

// The hardware file: the base's numbers with those that were measured, and what `calibration` says of them.
std::string hardware_json(const Calibration& calibration, const Measurements& measurements,
                          const CalibrationTerms& terms);

// For people: each number with its interval and what the base had, how well groups fit, what wasn't measured.
std::string calibration_text(const Calibration& calibration, const CalibrationTerms& terms);

}  // namespace kvtwin
