// Has a machine changed since its calibration? Compares the times of probes (equal work) now with those of the
// calibration.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/calibration_samples.hpp"
#include "models/json.hpp"

namespace kvtwin {

// The probes of a hardware file of kvtwin calibrate.
struct ProbedCalibration {
  struct Probe {
    std::string of;               // copies, forward, disk
    std::vector<double> seconds;  // at the start, in the middle and at the end of the calibration
  };
  std::vector<Probe> probes;
  std::string device;  // host or cuda
  std::string disk;    // folder of the measured disk; empty: none
};
// Errors: ModelError if the file cannot be read; InputError if it has no probes.
ProbedCalibration probed_calibration(const std::string& hardware_file);

struct ProbeCheck {
  struct One {
    std::string of;
    double seconds = 0;          // now
    double least = 0, most = 0;  // of the calibration
    double ratio = 1;            // now / the nearest time of the calibration; 1 if between its times
    bool changed = false;        // by more than kMaxProbeRatio (models/calibration.hpp)
  };
  std::vector<One> probes;
  std::vector<std::string> not_repeated;  // probes of the calibration without a probe now, e.g. for an absent folder
};
ProbeCheck check_probes(const ProbedCalibration& calibrated, const Measurements& now);

std::string text_of(const ProbeCheck& check);
Json json_of(const ProbeCheck& check);
// Returns nothing for a text that json_of() did not make.
std::optional<ProbeCheck> probe_check_from(const std::string& json);

// Returns a sentence if a probe has changed; else an empty text.
std::string changed_sentence(const ProbeCheck& check, const std::string& hardware_file);

}  // namespace kvtwin
