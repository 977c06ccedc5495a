// How far a validation can be trusted: sentences on the machine that was measured and on the hardware figures that the
// prediction took.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/validate/validate_report.hpp"
#include "models/calibration_samples.hpp"

namespace kvtwin {

// What a hardware file says of its calibration.
struct CalibrationFacts {
  std::optional<MeasuredMachine> machine;
  std::string base;                          // the preset of what wasn't measured
  std::map<std::string, double> errors_p90;  // by group that was fitted: disk, copies, ...
};

// The figures that a cell was predicted with.
struct PredictedBy {
  std::string hardware;  // a preset's name or a file's path
  std::optional<CalibrationFacts> calibration;
};

// None if the file has no calibration. `text`: a hardware file, which has been read before.
std::optional<CalibrationFacts> calibration_facts(std::string_view text);
// Of the experiment that was simulated.
PredictedBy predicted_by(const Experiment& experiment);

// One sentence each: other work on the machine; repeats that disagree; figures that were not measured on the machine
// that is validated; lanes for which a calibration no longer holds. `by`: of each cell. `here`: this machine, if the
// runs were measured just now.
std::vector<std::string> validation_notes(const std::vector<ValidatedCell>& cells, const std::vector<PredictedBy>& by,
                                          const std::optional<MeasuredMachine>& here);

}  // namespace kvtwin
