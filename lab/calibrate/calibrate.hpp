// Measures this machine, or takes what was measured before, and fits a hardware file to it.
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
  bool json = false;  // the text is the hardware file itself
  StorageSecrets secrets;
};

struct CalibrationResult {
  std::string text;           // a summary for a person, or the hardware file
  std::string hardware_file;  // its path
};

// Writes measurements.jsonl and hardware.json into `out`. InputError; WorkError if the disk says no.
CalibrationResult calibrate_machine(const CalibrateArguments& arguments, const Listener& listener);

}  // namespace kvtwin
