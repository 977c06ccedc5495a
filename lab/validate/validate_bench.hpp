// The output file of SGLang's bench_serving, of vLLM's `bench serve --save-result`, or of AIPerf and genai-perf: what
// was measured, and by SGLang's newer releases also by what. The first two write a JSON object per run; the file of the
// others has one run.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "lab/validate/validate_cell.hpp"
#include "traces/passed_over.hpp"

namespace kvtwin {

// The load that a file states. What it does not state is absent.
struct BenchLoad {
  std::optional<double> requests, prompt_tokens, output_tokens;  // answered; tokens: the mean of a request
  std::optional<double> clients;                                 // --max-concurrency
  std::optional<double> rate;                                    // requests/s; infinity: all at once
};

struct BenchRun {
  RunFigures figures;
  BenchLoad load;
  RequestHits hits;                // of all requests (--cache-report); prompt_tokens is 0 if the run has none
  std::string server_info;         // JSON, the answer of the server's /server_info; empty: none
  std::string workload;            // the requests as lines of a trace; empty: the line does not have them
  std::string no_workload;         // then the reason
  std::vector<std::string> notes;  // what of the line is not read, left out, assumed, or not the prediction's
  PassedOver passed_over;          // keys of the line that no release known here writes
  bool drawn_arrivals = false;     // the client drew the arrivals at a rate, and the file does not have them
  bool closed = false;             // each session of `workload` waits for its answers (--max-concurrency)
};

// Returns whether the text begins with a line of bench_serving or of vLLM's bench serve.
bool looks_like_bench_serving(std::string_view text);

// One run per line. Errors: InputError with file, line and key; a repeated key is one, too.
std::vector<BenchRun> read_bench_serving(const std::filesystem::path& file);

// Returns the notes of all runs, each once.
std::vector<std::string> bench_notes(const std::vector<BenchRun>& runs, const std::string& file);

// Requires that the file says which server served, and that all runs have this server. Errors: InputError.
void check_one_server(const std::vector<BenchRun>& runs, const std::string& file);
// Requires that all runs have the requests of the first one. Errors: InputError.
void check_one_workload(const std::vector<BenchRun>& runs, const std::string& file);

// Returns what of the load differs from the simulated requests, e.g. "1024 prompt tokens a request, 4096 simulated";
// empty if nothing does. `predicted`: of the same requests, or of the same stage of a ladder.
std::string other_requests(const BenchLoad& load, const RunFigures& predicted, const Experiment& experiment);

// Adds the shares of the prompt tokens that hit, by tier where the report has tiers.
void add_hit_shares(const RequestHits& hits, const Experiment& experiment, RunFigures& run);

}  // namespace kvtwin
