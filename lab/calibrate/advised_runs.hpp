// Cheap runs of a benchmark on a server that serves one experiment: the candidates of `kvtwin calibrate --advise`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "lab/experiment/setup.hpp"

namespace kvtwin {

struct CandidateRun {
  std::string name;   // "long-prompts"
  std::string words;  // for the screen
  std::uint64_t prefix_tokens = 0, question_tokens = 0, output_tokens = 0;
  std::uint64_t groups = 1, requests = 0, clients = 1;
};

// Returns candidates that fit into the context and the tiers of the experiment. `setup`: of the experiment.
std::vector<CandidateRun> candidate_runs(const Experiment& experiment, const Setup& setup);

// Returns the experiment with one engine and the requests of the run.
Experiment experiment_of(const CandidateRun& run, const Experiment& server);

// Returns the command line of the run and the name of the file that it writes: `vllm bench serve` for vLLM and
// TensorRT-LLM, else SGLang's bench_serving. `number`: of the run, from 1; prompts of two runs are different.
struct RunCommand {
  std::string line, file;
};
RunCommand command_of(const CandidateRun& run, const Experiment& server, std::size_t number);

}  // namespace kvtwin
