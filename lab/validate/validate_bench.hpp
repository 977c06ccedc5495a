// The output file of SGLang's bench_serving: what was measured, and in newer releases also by what.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "lab/validate/validate_cell.hpp"

namespace kvtwin {

struct BenchRun {
  RunFigures figures;
  RequestHits hits;         // of all requests (--cache-report); prompt_tokens is 0 if the run has none
  std::string server_info;  // JSON, the answer of the server's /server_info; empty: none
  std::string workload;     // the requests as lines of a trace; empty: the line does not have them
  std::string no_workload;  // then the reason
  bool closed = false;      // each session of `workload` waits for its answers (--max-concurrency)
};

// One run per line. Errors: InputError with file, line and key.
std::vector<BenchRun> read_bench_serving(const std::filesystem::path& file);

// Adds the shares of the prompt tokens that hit, by tier where the report has tiers.
void add_hit_shares(const RequestHits& hits, const Experiment& experiment, RunFigures& run);

}  // namespace kvtwin
