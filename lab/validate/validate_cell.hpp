// What `kvtwin validate` compares: runs of one experiment as they were measured, and the same as it is predicted; and
// where their figures are read from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "models/calibration_samples.hpp"

namespace kvtwin {

// A figure that is compared, by its name: "ttft_mean_s", "hit_host", ...
struct FigureKind {
  std::string name;
  std::string label;   // for people, with the unit
  std::string report;  // JSON pointer into report.json; of shares, to what is counted; "" = the sum of all hits
  bool share = false;  // of the prompt's tokens, or of the requests, 0 .. 1: errors are points, not relative
  bool is_hits() const { return report.empty(); }
  bool of_prompt() const { return share && (is_hits() || report.starts_with("/tokens/")); }
};
std::span<const FigureKind> figure_kinds();
// Null if there is none of that name.
const FigureKind* figure_kind(std::string_view name);

struct LaneTime {
  double bytes = 0, operations = 0, busy_s = 0;
};

// One run's figures; what its source doesn't tell is absent, and so is what no completed request gave a figure to.
struct RunFigures {
  struct Request {
    std::uint64_t prompt_tokens = 0;
    double ttft_s = 0;
  };
  std::map<std::string, double, std::less<>> figures;
  std::map<std::uint64_t, Request> requests;  // completed ones by their number
  std::map<std::string, LaneTime> lanes;      // "h2d", ... of all GPUs together; compute without stalls
  double completed = 0;
  std::string digest;                      // of the decisions
  std::filesystem::path folder;            // empty: it isn't from one
  bool simulated = false;                  // a simulation's
  std::optional<MeasuredMachine> machine;  // of a real run that tells
};

struct ValidationCell {
  std::string name;
  std::string work;    // equal: other settings for the same requests of the same model
  std::string source;  // of published figures
  std::vector<RunFigures> measured;
  RunFigures predicted;
};

// InputError, naming file and line, for what isn't a whole run folder.
RunFigures read_run_folder(const std::filesystem::path& folder);

// Each line of what sglang.bench_serving wrote, a run each. InputError, naming file, line and key.
std::vector<RunFigures> read_bench_serving(const std::filesystem::path& file);

// A table of published measurements; docs/calibrate-and-validate.md has its form.
struct PublishedEntry {
  std::string name, source;
  std::vector<std::string> settings;  // key=value, of the experiment
  std::vector<RunFigures> measured;
};
// InputError, naming file, entry and key.
std::vector<PublishedEntry> read_published(const std::filesystem::path& file);

// Of all keys that decide what is asked for; and of all that decide how it is answered.
std::string work_of(const Experiment& experiment);
std::string identity_of_run(const Experiment& experiment);

}  // namespace kvtwin
