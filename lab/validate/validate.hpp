// Compares predictions with measurements. Each run, simulation and replay is a child process, and only one child runs
// at a time, so a timed run shares the machine with no other child.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/engine_arguments.hpp"
#include "lab/listener.hpp"
#include "lab/validate/kvtwin_program.hpp"

namespace kvtwin {

struct ValidateArguments {
  std::vector<std::string> runs, experiments, published, sets, lists, knees;
  std::string hardware, out, bench_serving, request_log, events, experiment, device;
  EngineArguments server;  // over `experiment`
  std::optional<double> max_error;
  int repeats = 5;
  bool json = false, force = false;
};

struct Validation {
  std::string text;         // the table, or validate.json
  std::string too_far_off;  // a sentence if an error is larger than max_error; else empty
};

// Writes validate.csv, validate.json and the runs into `out`; without `out`, nothing is kept. `program`: runs kvtwin.
// Errors: InputError for bad arguments and files; WorkError if a child fails or a file cannot be written.
Validation validate(const ValidateArguments& arguments, const KvtwinProgram& program, const Listener& listener);

}  // namespace kvtwin
