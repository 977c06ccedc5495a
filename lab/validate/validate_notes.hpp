// Notes about the reliability of a validation: the measured machine, and the hardware figures of the prediction.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/validate/validate_report.hpp"
#include "models/calibration_samples.hpp"

namespace kvtwin {

// The calibration entry of a hardware file.
struct CalibrationFacts {
  std::optional<MeasuredMachine> machine;
  std::string base;                          // the preset for figures that were not measured
  std::map<std::string, double> errors_p90;  // 90th percentile of the fit's errors, by group: disk, copies, ...
};

// The hardware of a cell's prediction.
struct PredictedBy {
  std::string hardware;  // a preset's name or a file's path
  std::optional<CalibrationFacts> calibration;
};

// `text`: a hardware file that has been checked. Returns nothing if the file has no calibration.
std::optional<CalibrationFacts> calibration_facts(std::string_view text);
// Returns the hardware of a simulated experiment.
PredictedBy predicted_by(const Experiment& experiment);

// Returns sentences about: configurations with measured figures that are compared with nothing, or whose prediction ran
// out of prompts; other work on the machine; repeats that disagree; figures that were not measured on the
// validated machine; lanes for which a calibration no longer holds. `by`: the hardware of each cell. `here`: this
// machine, if `validate` itself measured the runs.
std::vector<std::string> validation_notes(const std::vector<ValidatedCell>& cells, const std::vector<PredictedBy>& by,
                                          const std::optional<MeasuredMachine>& here);

}  // namespace kvtwin
