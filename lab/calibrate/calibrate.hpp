// Fits a hardware file to measurements of this machine, or to earlier measurements.
#pragma once

#include <string>
#include <vector>

#include "lab/listener.hpp"
#include "lab/run/storage_secrets.hpp"

namespace kvtwin {

struct CalibrateArguments {
  std::string device = "auto", out, remote, base;
  std::vector<std::string> from, models;
  bool quick = false, no_disk = false, force = false;
  bool json = false;  // CalibrationResult::text is the hardware file instead of a summary
  StorageSecrets secrets;
};

struct CalibrationResult {
  std::string text;           // the summary, or the hardware file
  std::string hardware_file;  // its path
};

// Measures the machine if `from` is empty, fits, and writes measurements.jsonl and hardware.json into `out`.
// Errors: InputError or ModelError for bad arguments and files; WorkError if a file cannot be written.
// Cost: about 110 s of measuring, with `quick` 15 s, plus set-up and fit.
CalibrationResult calibrate_machine(const CalibrateArguments& arguments, const Listener& listener);

}  // namespace kvtwin
