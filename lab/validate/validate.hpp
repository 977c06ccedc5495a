// What was measured against what is predicted. Everything is simulated, run and decided again by processes of their
// own, one after the other: what is timed has the machine for itself.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/listener.hpp"
#include "lab/validate/kvtwin_program.hpp"

namespace kvtwin {

struct ValidateArguments {
  std::vector<std::string> runs, experiments, sets, lists;
  std::string hardware, out, published, bench_serving, experiment, device;
  std::optional<double> max_error;
  int repeats = 5;
  bool json = false, force = false;
};

struct Validation {
  std::string text;         // for a person, or validate.json
  std::string too_far_off;  // a sentence if max_error is exceeded
};

// Writes validate.csv, validate.json and the runs into `out`, if it names a folder. InputError or WorkError.
Validation validate(const ValidateArguments& arguments, const KvtwinProgram& program, const Listener& listener);

}  // namespace kvtwin
