#include "lab/calibrate/capture.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/experiment/stages.hpp"
#include "lab/experiment/workload.hpp"
#include "lab/experiment/workload_recipe.hpp"
#include "lab/formatted.hpp"
#include "lab/sglang/sglang_flags.hpp"
#include "lab/validate/validate_bench.hpp"
#include "lab/validate/validate_requests.hpp"
#include "models/json.hpp"
#include "models/text_file.hpp"
#include "traces/trace.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

bool is_request_log(const std::string& text) {
  const std::size_t event = std::min(text.find("\"request.received\""), text.find("\"request.finished\""));
  return event != std::string::npos && text.find("\"rid\"") != std::string::npos;
}

// Returns whether the experiment draws the order or the lengths of the prompts. A client draws others.
bool draws_requests(const Experiment& e) {
  if (!e.text("workload.trace").empty() || !names_workload(e)) return false;
  if (e.text("workload.generate.kind") != "groups") return true;
  const bool ordered = e.integer("workload.generate.groups") == 1 || e.integer("workload.generate.prefix_tokens") == 0;
  return !ordered || e.number("workload.generate.range_ratio") != 1;
}

Experiment server_of(const CaptureArguments& arguments) {
  if (arguments.experiment.empty()) {
    throw InputError("--from " + arguments.path +
                     ": needs --experiment, the file that says what was served and by what");
  }
  return Experiment::from_file(arguments.experiment);
}

// Calls `take` with the number and the request of each request of the workload.
template <typename Take>
void for_each_request(const Experiment& experiment, const Take& take) {
  const std::unique_ptr<TraceSource> workload = open_workload(experiment);
  const auto limit = static_cast<std::uint64_t>(experiment.integer("workload.limit"));
  TraceRequest request;
  for (std::uint64_t number = 0; (limit == 0 || number < limit) && workload->next(request);) {
    if (!request.is_hint) take(number++, request);
  }
}

// Gives the requests of a session one conversation, and each request without a session its own.
void take_conversations(Capture& capture) {
  std::map<std::uint64_t, std::uint64_t> conversations;  // by request
  std::map<std::uint64_t, std::uint64_t> first;          // request of each session
  for_each_request(capture.experiment, [&](std::uint64_t number, const TraceRequest& request) {
    conversations[number] = request.session == 0 ? number : first.try_emplace(request.session, number).first->second;
  });
  for (CapturedRequest& request : capture.requests) {
    const auto at = conversations.find(request.number);
    if (at == conversations.end()) {
      throw InputError("request " + std::to_string(request.number) + " was measured, and the workload has " +
                       std::to_string(conversations.size()) + " requests; give the workload that was served");
    }
    request.conversation = at->second;
  }
}

void add(const RunFigures& run, const std::string& path, Capture& capture) {
  for (const auto& [number, request] : run.requests) {
    for (const auto& [name, value] : {std::pair("TTFT", request.ttft_s), std::pair("TPOT", request.tpot_s)}) {
      if (std::isfinite(value) && value >= 0) continue;
      throw InputError(path + ": request " + std::to_string(number) + " has a " + name +
                       formatted(" of %g s; a time is a number of at least 0", value));
    }
    capture.requests.push_back({number, 0, request.ttft_s, request.tpot_s, 0});
  }
}

Capture read_bench(const CaptureArguments& arguments) {
  const std::vector<BenchRun> runs = read_bench_serving(arguments.path);
  Capture capture{"bench_serving", Experiment::from_text("", arguments.path), {}, {}, false, {}, {}};
  if (!arguments.experiment.empty()) {
    capture.experiment = Experiment::from_file(arguments.experiment);
  } else {
    check_one_server(runs, arguments.path);
    apply_sglang_server_info_text(capture.experiment, runs.front().server_info, arguments.path);
    if (!arguments.hardware.empty()) capture.experiment.set("hardware.name=" + arguments.hardware, "--base");
  }
  for (const std::string& set : arguments.sets) capture.experiment.set(set);
  const BenchRun& first = runs.front();
  if (!names_workload(capture.experiment)) {
    if (first.workload.empty()) {
      throw InputError(arguments.path + ": " + first.no_workload +
                       "; give the workload with --set workload.trace=FILE, or in --experiment");
    }
    check_one_workload(runs, arguments.path);
    capture.workload = std::make_unique<WorkloadFile>(first.workload);
    capture.experiment.set("workload.trace=" + capture.workload->path(), arguments.path);
    capture.experiment.set("workload.format=mooncake", arguments.path);
    if (first.closed) capture.experiment.set("workload.loop=closed", arguments.path);
  }
  capture.by_rank = first.drawn_arrivals || draws_requests(capture.experiment);
  for (const BenchRun& run : runs) {
    if (run.figures.requests.empty()) {
      throw InputError(arguments.path +
                       ": has no request with a time; give a file in which requests were answered, of bench_serving "
                       "with --output-details");
    }
    add(run.figures, arguments.path, capture);
  }
  if (first.hits.prompt_tokens != 0) capture.hits = first.hits;
  capture.notes = bench_notes(runs, arguments.path);
  return capture;
}

Capture read_log(const CaptureArguments& arguments) {
  Capture capture{"request log", server_of(arguments), {}, {}, false, {}, {}};
  for (const std::string& set : arguments.sets) capture.experiment.set(set);
  for (const std::string& set : request_log_settings(arguments.path, capture.experiment)) {
    capture.experiment.set(set, arguments.path);
  }
  RequestHits sum{0, 0, true};
  for_each_request(capture.experiment, [&](std::uint64_t number, const TraceRequest& request) {
    if (request.measured_latency > 0) {
      capture.requests.push_back({number, 0, 0, 0, static_cast<double>(request.measured_latency) / 1e9});
    }
    if (!request.measured_hits) return;
    sum.prompt_tokens += request.input;
    sum.total += request.measured_hits->total;
    sum.device += request.measured_hits->device;
    sum.host += request.measured_hits->host;
    sum.storage += request.measured_hits->storage;
    sum.by_tier = sum.by_tier && request.measured_hits->by_tier;
  });
  if (sum.prompt_tokens != 0) capture.hits = sum;
  capture.notes.emplace_back(
      "the log has the end-to-end time of each request only; times of prefill and of decode are told apart by the "
      "requests' lengths");
  return capture;
}

Capture read_run(const CaptureArguments& arguments) {
  Capture capture{"run folder", server_of(arguments), {}, {}, false, {}, {}};
  for (const std::string& set : arguments.sets) capture.experiment.set(set);
  add(read_run_folder(arguments.path), arguments.path, capture);
  RequestHits sum{0, 0, true};
  for (const auto& [number, hits] : read_request_hits(arguments.path)) {
    sum.prompt_tokens += hits.prompt_tokens;
    sum.total += hits.total;
    sum.device += hits.device;
    sum.host += hits.host;
    sum.storage += hits.storage;
  }
  if (sum.prompt_tokens != 0) capture.hits = sum;
  return capture;
}

}  // namespace

WorkloadFile::WorkloadFile(std::string lines) : lines_(std::move(lines)), file_(memfd_create("workload", MFD_CLOEXEC)) {
  for (std::size_t done = 0; file_ >= 0 && done < lines_.size();) {
    const ssize_t written = write(file_, lines_.data() + done, lines_.size() - done);
    if (written > 0) {
      done += static_cast<std::size_t>(written);
    } else if (errno != EINTR) {
      close(file_);
      file_ = -1;
    }
  }
  if (file_ < 0) throw WorkError(std::string("no memory for the requests of the capture: ") + std::strerror(errno));
}

WorkloadFile::~WorkloadFile() { close(file_); }

bool is_capture(const fs::path& path, bool with_experiment) {
  std::error_code error;
  if (fs::is_directory(path, error)) return with_experiment && fs::exists(path / "requests.csv", error);
  if (path.extension() == ".kvj" || path.extension() == ".csv") return false;
  const std::string text = read_text_file(path, "give measurements or a capture", kMaxRowsBytes);
  return looks_like_bench_serving(text) || is_request_log(text);
}

Capture read_capture(const CaptureArguments& arguments) {
  std::error_code error;
  const bool is_run = fs::is_directory(arguments.path, error);
  const bool is_bench =
      !is_run && looks_like_bench_serving(read_text_file(arguments.path, "give a capture", kMaxRowsBytes));
  Capture capture = is_run ? read_run(arguments) : is_bench ? read_bench(arguments) : read_log(arguments);
  if (!stages_of(capture.experiment).empty()) {
    throw InputError(arguments.path + ": workload.generate.stages is set; a capture is of one load, so leave it out");
  }
  take_conversations(capture);
  capture.notes.insert(capture.notes.end(), capture.experiment.notes().begin(), capture.experiment.notes().end());
  return capture;
}

}  // namespace kvtwin
