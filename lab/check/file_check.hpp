// Reads one file as kvtwin would, and says what it is: an experiment, a price list, a trace, a model's config.json, a
// hardware file, a table of operator times, or a policy library, of which it tests the rules of policies.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

struct CheckedFile {
  std::string kind;   // "experiment", "price list", "trace", "model", "hardware", "operator table", "eviction policy"
  std::string facts;  // e.g. "qwen3-32b on h100-sxm, 4 engines of 2 GPUs; 12031 requests"
  std::vector<std::string> notes;  // what kvtwin assumes, and keys without effect
};

// The kind is known by the end of the name and by the content. An experiment is set up, and each request of its trace
// is read; nothing is simulated.
// Errors: as the command that reads such a file: InputError, TraceError or ModelError with the place and the cure.
CheckedFile check_file(const std::filesystem::path& path, const TraceOptions& of_traces = {});
CheckedFile check_experiment(const Experiment& experiment);

}  // namespace kvtwin
