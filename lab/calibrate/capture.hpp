// What a server measured while it served requests: the times of each request, its hits by tier, and the experiment that
// simulates the same requests on the same server.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "lab/validate/validate_cell.hpp"

namespace kvtwin {

struct CapturedRequest {
  std::uint64_t number = 0;                  // in the order of arrival
  std::uint64_t conversation = 0;            // requests of one conversation are in one half
  double ttft_s = 0, tpot_s = 0, e2e_s = 0;  // 0 = not measured
};

struct Capture {
  std::string format;  // "bench_serving", "request log", "run folder"
  Experiment experiment;
  std::vector<CapturedRequest> requests;  // those with a measured time; several runs follow each other
  std::optional<RequestHits> hits;        // of all requests
  bool by_rank = false;                   // the arrivals were drawn anew: times are compared in the order of their size
  std::vector<std::string> notes;
};

// The file for the requests of a bench_serving file, in the folder of the results.
inline constexpr const char* kCaptureWorkloadName = "workload.jsonl";

struct CaptureArguments {
  std::string path;
  std::string experiment;  // the server (and the workload, unless the capture has it); may be empty for bench_serving
  std::string hardware;    // without `experiment`: the preset of the machine; empty = the default
  std::vector<std::string> sets;  // key=value
  std::string out;                // folder for the workload of a bench_serving file
};

// Returns whether the path is a bench_serving file or a request log, or, with an experiment, a run folder.
// Errors: ModelError if a file cannot be read.
bool is_capture(const std::filesystem::path& path, bool with_experiment);

// Errors: InputError or TraceError.
Capture read_capture(const CaptureArguments& arguments);

}  // namespace kvtwin
