// Which requests of an experiment the figures count.
#pragma once

#include "lab/experiment/experiment.hpp"
#include "lab/report/request_figures.hpp"

namespace kvtwin {

// Returns the requests that the figures count (workload.warmup_requests, workload.count_drain), by stage. Errors:
// InputError.
CountingTerms counting_terms(const Experiment& experiment);

}  // namespace kvtwin
