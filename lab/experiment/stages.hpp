// The stages of generated traffic (workload.generate.stages): a ladder of loads, one after another.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/experiment/experiment.hpp"

namespace kvtwin {

// The load of a stage is a number of clients in a closed loop, and a rate in an open one.
struct WorkloadStage {
  std::uint64_t clients = 0;       // 0 = by the rate
  double requests_per_second = 0;  // 0 = by the clients
  std::uint64_t requests = 0;      // at least 1
};

// Returns the stages of the experiment; none if the experiment does not use the key. Errors: InputError.
std::vector<WorkloadStage> stages_of(const Experiment& experiment);

// `sent`: the requests of each stage that began. Returns a sentence about the stages that have fewer requests than
// planned, because workload.limit ends before; empty if there are none.
std::string stages_past_limit(const Experiment& experiment, const std::vector<std::uint64_t>& sent);

}  // namespace kvtwin
