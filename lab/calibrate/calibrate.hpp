// Fits a hardware file to measurements of this machine, to earlier measurements, or to what a server measured; or fits
// the times of serving engines to published measurements.
#pragma once

#include <string>
#include <vector>

#include "lab/listener.hpp"
#include "lab/run/storage_secrets.hpp"

namespace kvtwin {

struct CalibrateArguments {
  std::string device = "auto", out, remote, base;
  std::vector<std::string> from, models;
  // Of a capture in `from`, and of `published` (lab/calibrate/calibrate_capture.hpp, calibrate_published.hpp):
  std::vector<std::string> experiments;  // one for all captures, or one for each
  std::string published, fit_on;
  std::vector<std::string> sets, fit;
  std::size_t simulations = 0;  // limit; 0 = the default
  std::size_t rows = 60;
  int jobs = 0;
  std::string advise;  // a plan's folder or an experiment: only advise on runs (advise.hpp); uses sets, out and jobs
  std::string probe;   // a hardware file: only repeat its probes; uses `json` and `secrets` of the other arguments
  bool quick = false, no_disk = false, force = false;
  bool json = false;  // CalibrationResult::text is the hardware file instead of a summary
  StorageSecrets secrets;
};

struct CalibrationResult {
  std::string text;        // the summary, or the result as JSON
  std::string use_with{};  // for the user: the written files and how to use them; empty: none
  std::string changed{};   // of `probe`: a sentence if the machine is no longer what was calibrated; else empty
};

// Measures the machine if `from` and `published` are empty, fits, and writes into `out`: measurements.jsonl and
// hardware.json, with `remote` store.json (and nothing with `probe`); for a capture hardware.json and fitted.toml; for
// `published` fit.json and serving-ENGINE.toml. Errors: InputError or ModelError for bad arguments and files; WorkError
// if a file cannot be written. Cost: about 110 s of measuring, with `quick` 15 s, plus set-up and fit; with a capture
// or `published`, up to `simulations` simulations.
CalibrationResult calibrate_machine(const CalibrateArguments& arguments, const Listener& listener);

}  // namespace kvtwin
