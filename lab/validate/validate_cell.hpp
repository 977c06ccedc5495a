// The data that `kvtwin validate` compares: the measured runs of one experiment and its prediction. Also the readers of
// these data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "models/calibration_samples.hpp"

namespace kvtwin {

// A compared figure, by name: "ttft_mean_s", "hit_host", ...
struct FigureKind {
  std::string name;
  std::string label;   // for the table, with the unit
  std::string report;  // JSON pointer into report.json; of a share: to its dividend; "" = the sum of all hits
  bool share = false;  // a share of the prompt tokens or of the requests, 0 to 1. Errors are differences, not relative
  bool rate = false;   // `report` per second of all requests that count. Benchmarks count the drain of a closed loop
  bool is_hits() const { return report.empty(); }
  bool of_prompt() const { return share && (is_hits() || report.starts_with("/tokens/")); }
  bool more_is_better() const { return is_hits() || name.ends_with("_per_second") || name.starts_with("hit_"); }
};
std::span<const FigureKind> figure_kinds();
// Returns null for an unknown name.
const FigureKind* figure_kind(std::string_view name);

struct LaneTime {
  double bytes = 0, operations = 0, busy_s = 0;
};

// The prompt tokens of one request that were in a cache. storage: all storage tiers together.
struct RequestHits {
  std::uint64_t prompt_tokens = 0, total = 0;
  bool by_tier = false;
  std::uint64_t device = 0, host = 0, storage = 0;
};

// The figures of one run. A figure that the source does not have is absent, and so is a figure without a completed
// request.
struct RunFigures {
  struct Request {
    std::uint64_t prompt_tokens = 0;
    double ttft_s = 0;
    double tpot_s = 0;  // 0 = not known, or one output token
  };
  std::map<std::string, double, std::less<>> figures;
  std::map<std::string, std::pair<double, double>, std::less<>> intervals;  // 80 %, of a simulation's times
  std::string intervals_of;                   // JSON: what the intervals are made of (report.json); empty without
  std::map<std::uint64_t, Request> requests;  // completed requests, by number
  std::map<std::uint64_t, RequestHits> hits;  // the same, of a request log and its prediction
  std::map<std::string, LaneTime> lanes;      // by name: "h2d", ...; all GPUs together; compute without stalls
  double completed = 0;
  std::uint64_t arrived = 0;     // requests of a run folder, completed or not, counted or not (warm-up, drain)
  std::uint64_t planned = 0;     // requests that the experiment gives to a stage; 0: not known
  std::string load;              // of a stage: "8 clients", "4.5 requests/s"
  std::string digest;            // of the decisions
  std::filesystem::path folder;  // the run folder; empty: none
  bool simulated = false;        // the run is a simulation
  std::optional<MeasuredMachine> machine;  // of a real run, if its report has the machine
  // Stages of the workload (workload.generate.stages). The requests of a stage are numbered from 0; a stage has no
  // lanes and no digest.
  std::vector<RunFigures> stages;
  std::vector<std::uint64_t> requests_of_stage;  // completed or not
};

struct ValidationCell {
  std::string name;
  std::string work;    // cells with equal work serve the same requests of the same model, with other settings
  std::string source;  // of published figures, e.g. a URL
  std::vector<RunFigures> measured;
  RunFigures predicted;
  std::string group{};               // of published figures: a scoreboard has the group's scores
  std::vector<std::string> notes{};  // about the experiment that predicts
  std::string setting{};             // published cells with equal settings are one setting, published more than once
  std::string ladder{};              // of a stage: the name of the cell that it is of
  std::size_t stage = 0;             // number of the stage, from 1; 0 = no stage
  std::map<std::string, double> knees{};  // of a ladder: limits by figure (ladders.hpp)
};

// Replaces each cell with stages on both sides by the cell, if that was measured, and a cell for each stage. Errors:
// InputError if the numbers of stages differ.
std::vector<ValidationCell> cells_with_stages(std::vector<ValidationCell> cells);

// Reads a run folder. Errors: InputError with file and line, if the folder is not a complete run folder.
RunFigures read_run_folder(const std::filesystem::path& folder);

// Reads the hits of each completed request in requests.csv of a run folder. Errors: InputError.
std::map<std::uint64_t, RequestHits> read_request_hits(const std::filesystem::path& folder);

// Sets `planned` of the run's stages, from the experiment in its folder.
void take_planned(RunFigures& run);

// Sets the hits of a run and of its stages.
void take_hits(std::map<std::uint64_t, RequestHits> hits, RunFigures& run);

// An entry of a table of published measurements (form: docs/calibrate-and-validate.md).
struct PublishedEntry {
  std::string name, source;
  std::string group;                  // the entry's, else the file's name without its ending
  std::vector<std::string> settings;  // of the experiment: key=value
  std::vector<RunFigures> measured;
  std::map<std::string, double> knees;  // limits by figure
};
// Reads a table. Errors: InputError with file, entry and key.
std::vector<PublishedEntry> read_published(const std::filesystem::path& file);

// work_of(): the keys that set the requests and the model. identity_of_run(): all keys that may change the result;
// equal for repeats.
std::string work_of(const Experiment& experiment);
std::string identity_of_run(const Experiment& experiment);

}  // namespace kvtwin
