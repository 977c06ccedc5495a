// What a server measured while it served requests: the times of each request, its hits by tier, and the experiment that
// simulates the same requests on the same server.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
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

// The requests of a capture as a file in memory, so that a command that is killed leaves no file. The path is valid in
// this process and in its children, while the object exists.
class WorkloadFile {
 public:
  // Errors: WorkError.
  explicit WorkloadFile(std::string lines);
  ~WorkloadFile();
  WorkloadFile(const WorkloadFile&) = delete;
  WorkloadFile& operator=(const WorkloadFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }
  const std::string& lines() const { return lines_; }

 private:
  std::string lines_;
  int file_ = -1;
};

struct Capture {
  std::string format;  // "bench_serving", "request log", "run folder"
  Experiment experiment;
  std::vector<CapturedRequest> requests;  // those with a measured time; several runs follow each other
  std::optional<RequestHits> hits;        // of all requests
  bool by_rank = false;  // the client drew other requests or arrivals: times are compared in the order of their size
  std::vector<std::string> notes;
  std::unique_ptr<WorkloadFile> workload;  // null: the experiment has the requests
};

struct CaptureArguments {
  std::string path;
  std::string experiment;  // the server (and the workload, unless the capture has it); may be empty for bench_serving
  std::string hardware;    // without `experiment`: the preset of the machine; empty = the default
  std::vector<std::string> sets;  // key=value
};

// Returns whether the path is a bench_serving file or a request log, or, with an experiment, a run folder.
// Errors: ModelError if a file cannot be read.
bool is_capture(const std::filesystem::path& path, bool with_experiment);

// Errors: InputError or TraceError.
Capture read_capture(const CaptureArguments& arguments);

}  // namespace kvtwin
