#include "lab/validate/validate_cell.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "lab/error.hpp"
#include "lab/experiment/stages.hpp"
#include "lab/units.hpp"
#include "models/json.hpp"
#include "models/text_file.hpp"
#include "policy/base/tiers.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

std::vector<FigureKind> kinds() {
  std::vector<FigureKind> list = {
      {"ttft_mean_s", "TTFT mean, s", "/ttft_seconds/mean", false},
      {"ttft_p50_s", "TTFT p50, s", "/ttft_seconds/p50", false},
      {"ttft_p90_s", "TTFT p90, s", "/ttft_seconds/p90", false},
      {"ttft_p95_s", "TTFT p95, s", "/ttft_seconds/p95", false},
      {"ttft_p99_s", "TTFT p99, s", "/ttft_seconds/p99", false},
      {"tpot_mean_s", "TPOT mean, s", "/tpot_seconds/mean", false},
      {"tpot_p50_s", "TPOT p50, s", "/tpot_seconds/p50", false},
      {"tpot_p90_s", "TPOT p90, s", "/tpot_seconds/p90", false},
      {"tpot_p99_s", "TPOT p99, s", "/tpot_seconds/p99", false},
      {"e2e_mean_s", "end to end mean, s", "/e2e_seconds/mean", false},
      {"e2e_p50_s", "end to end p50, s", "/e2e_seconds/p50", false},
      {"e2e_p90_s", "end to end p90, s", "/e2e_seconds/p90", false},
      {"e2e_p99_s", "end to end p99, s", "/e2e_seconds/p99", false},
      {"requests_per_second", "requests/s", "/requests/completed", false, true},
      {"prompt_tokens_per_second", "prompt tokens/s", "/tokens/prompt", false, true},
      {"output_tokens_per_second", "output tokens/s", "/tokens/output", false, true},
      {"rejected_share", "rejected, %", "/requests/rejected", true},
      {"failed_share", "failed, %", "/requests/failed", true},
  };
  for (const TierSpec& spec : kTierSpecs) {
    const std::string column(spec.hit_column);
    list.push_back({column, "hit " + std::string(spec.where) + ", %", "/tokens/" + column, true});
  }
  list.push_back({"hit_ratio", "hit in all, %", "", true});
  return list;
}

constexpr const char* kWantedRun = "give a run folder that kvtwin run wrote";

// Reads the figures. A figure that the run does not have (null, or a share of 0) stays absent.
void take_figures(const Json& report, RunFigures& run) {
  const double prompt = report.at("tokens").at("prompt"), requests = report.at("requests").at("total");
  const bool completes = report.at("requests").at("completed") != 0;
  const double duration =
      report.contains("window_seconds") ? report.at("window_seconds") : report.at("simulated_seconds");
  double hits = 0;
  for (const FigureKind& kind : figure_kinds()) {
    // Reports of older versions lack the figures of newer tiers.
    const bool absent = kind.of_prompt() && report.find_path(kind.report) == nullptr;
    const Json value = kind.is_hits() ? Json(hits) : absent ? Json(0) : report.at_path(kind.report);
    if (value.is_null()) continue;
    double figure = value.get<double>();
    if (kind.rate) {
      if (!completes || duration == 0) continue;
      figure /= duration;
    }
    if (kind.of_prompt() && !kind.is_hits()) hits += figure;
    if (kind.share) {
      const double all = kind.of_prompt() ? prompt : requests;
      if (all == 0) continue;
      figure /= all;
    }
    run.figures[kind.name] = figure;
  }
  if (!report.contains("intervals")) return;
  run.intervals_of = report.at("intervals_of").dump();
  for (const auto& [name, interval] : report.at("intervals").items()) {
    run.intervals[name] = {interval.at(0), interval.at(1)};
  }
}

// Reads the stages of a report.
void take_stages(const Json& report, RunFigures& run) {
  if (!report.contains("stages")) return;
  for (const Json& stage : report.at("stages")) {
    RunFigures& own = run.stages.emplace_back();
    take_figures(stage, own);
    own.completed = stage.at("requests").at("completed");
    own.load = stage.contains("clients") ? stage.at("clients").dump() + " clients"
                                         : plain_number(stage.at("requests_per_second").get<double>()) + " requests/s";
    own.folder = run.folder;
    own.simulated = run.simulated;
    own.machine = run.machine;
    own.arrived = stage.at("requests").at("total");
    for (const char* left_out : {"warmup", "drain"}) {
      own.arrived += stage.at("left_out").at(left_out).get<std::uint64_t>();
    }
    run.requests_of_stage.push_back(own.arrived);
  }
}

// Gives each stage its part of `all`. Requests have their numbers in the order of arrival.
template <typename Value>
void share(const std::map<std::uint64_t, Value>& all, RunFigures& run,
           std::map<std::uint64_t, Value> RunFigures::*part) {
  std::uint64_t first = 0;
  for (std::size_t i = 0; i < run.stages.size(); ++i) {
    const std::uint64_t next = first + run.requests_of_stage[i];
    for (auto at = all.lower_bound(first); at != all.end() && at->first < next; ++at) {
      (run.stages[i].*part)[at->first - first] = at->second;
    }
    first = next;
  }
}

void take_lanes(const Json& report, RunFigures& run) {
  const double duration = report.at("simulated_seconds");
  for (const Json& lane : report.at("lanes")) {
    std::string name = lane.at("name");
    name.erase(0, name.rfind('.') + 1);  // "gpu0.h2d" becomes "h2d"
    if (name == "dram") continue;        // only simulations have this lane
    LaneTime& time = run.lanes[name];
    time.bytes += lane.at("bytes").get<double>();
    time.operations += lane.at("transfers").get<double>();
    time.busy_s += lane.at("busy_fraction").get<double>() * duration;
  }
  std::erase_if(run.lanes, [](const auto& entry) { return entry.second.operations == 0; });
}

// Returns nothing if the report has no machine.
std::optional<MeasuredMachine> machine_of(const Json& report) {
  const Json* const found = report.find_path("/real/machine");
  if (found == nullptr) return std::nullopt;
  const Json& machine = *found;
  return MeasuredMachine{machine.at("cpu"), machine.at("kernel"), machine.at("cores"), machine.at("device")};
}

template <typename Number>
Number number_in(std::string_view text, const std::string& where) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw InputError(where + ": '" + std::string(text.substr(0, 40)) + "' is no number; give a file that kvtwin wrote");
  }
  return value;
}

// A row of requests.csv, whose columns go by their names.
class RequestRow {
 public:
  RequestRow(const std::vector<std::string_view>& header, const std::vector<std::string_view>& fields,
             const fs::path& path, std::size_t line)
      : header_(header), fields_(fields), path_(path), where_(path.string() + ":" + std::to_string(line)) {}

  std::string_view text(std::string_view column) const {
    const auto at = std::ranges::find(header_, column);
    if (at == header_.end()) {
      throw InputError(path_.string() + ":1: has no column " + std::string(column) + "; give a file that kvtwin wrote");
    }
    return fields_[static_cast<std::size_t>(at - header_.begin())];
  }
  template <typename Number>
  Number number(std::string_view column) const {
    return number_in<Number>(text(column), where_);
  }
  bool has(std::string_view column) const { return std::ranges::find(header_, column) != header_.end(); }

 private:
  const std::vector<std::string_view>&header_, &fields_;
  const fs::path& path_;
  std::string where_;
};

// Calls `take` with each completed request of requests.csv.
template <typename Take>
void for_each_completed(const fs::path& path, const Take& take) {
  const std::string text = read_text_file(path, kWantedRun, kMaxRowsBytes);
  std::string_view rest = text;
  std::size_t line_number = 0;
  std::vector<std::string_view> header;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::vector<std::string_view> fields = fields_of(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++line_number;
    if (header.empty()) {
      header = fields;
      continue;
    }
    if (fields.size() != header.size()) {
      throw InputError(path.string() + ":" + std::to_string(line_number) + ": has " + std::to_string(fields.size()) +
                       " columns and its header " + std::to_string(header.size()) + "; give a file that kvtwin wrote");
    }
    const RequestRow row(header, fields, path, line_number);
    if (row.text("outcome") == "completed") take(row);
  }
}

std::string keys_but(const Experiment& experiment, bool (*leave_out)(std::string_view)) {
  std::string text;
  for (const ExperimentKey& key : experiment_keys()) {
    if (!leave_out(key.name)) text += std::string(key.name) + "=" + experiment.as_toml(key.name) + "\n";
  }
  return text;
}

}  // namespace

std::span<const FigureKind> figure_kinds() {
  static const std::vector<FigureKind> all = kinds();
  return all;
}

const FigureKind* figure_kind(std::string_view name) {
  const auto at = std::ranges::find(figure_kinds(), name, &FigureKind::name);
  return at == figure_kinds().end() ? nullptr : &*at;
}

RunFigures read_run_folder(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw InputError(folder.string() + ": is no folder; give run folders that `kvtwin run --out` wrote");
  }
  const fs::path path = folder / "report.json";
  if (!fs::is_regular_file(path, error)) {
    throw InputError(folder.string() +
                     ": holds no report.json: the run was cut short, or it is no run folder; give one that `kvtwin "
                     "run --out` finished");
  }
  RunFigures run;
  run.folder = folder;
  try {
    const Json report = Json::parse(read_text_file(path, kWantedRun));
    take_figures(report, run);
    take_lanes(report, run);
    run.completed = report.at("requests").at("completed");
    run.arrived = report.at("requests").at("total");
    run.digest = report.at("decisions").at("digest");
    run.simulated = report.value("device", "") == "model";
    run.machine = machine_of(report);
    take_stages(report, run);
  } catch (const Json::exception& wrong) {
    throw InputError(path.string() + ": isn't one that kvtwin wrote: " + wrong.what());
  }
  for_each_completed(folder / "requests.csv", [&](const RequestRow& row) {
    const bool has_tpot = row.has("tpot_s") && !row.text("tpot_s").empty();
    run.requests[row.number<std::uint64_t>("request")] = {row.number<std::uint64_t>("prompt_tokens"),
                                                          row.number<double>("ttft_s"),
                                                          has_tpot ? row.number<double>("tpot_s") : 0};
  });
  share(run.requests, run, &RunFigures::requests);
  return run;
}

std::vector<ValidationCell> cells_with_stages(std::vector<ValidationCell> cells) {
  std::vector<ValidationCell> result;
  for (ValidationCell& cell : cells) {
    const std::size_t stages = cell.predicted.stages.size();
    for (const RunFigures& run : cell.measured) {
      if (run.stages.empty() || run.stages.size() == stages) continue;
      throw InputError(cell.name + ": " + std::to_string(run.stages.size()) + " stages were measured, and " +
                       std::to_string(stages) + " are predicted; give workload.generate.stages the measured loads");
    }
    const bool staged =
        stages != 0 && std::ranges::all_of(cell.measured, [](const auto& r) { return !r.stages.empty(); });
    std::vector<ValidationCell> own;
    for (std::size_t i = 0; staged && i < stages; ++i) {
      ValidationCell& stage = own.emplace_back();
      const std::string number = ", stage " + std::to_string(i + 1);
      stage.name = cell.name + number;
      stage.work = cell.work + number;
      stage.source = cell.source;
      stage.group = cell.group;
      stage.notes = cell.notes;
      if (!cell.setting.empty()) stage.setting = cell.setting + number;
      stage.ladder = cell.name;
      stage.stage = i + 1;
      stage.knees = cell.knees;
      for (const RunFigures& run : cell.measured) stage.measured.push_back(run.stages[i]);
      stage.predicted = cell.predicted.stages[i];
    }
    const bool whole = std::ranges::any_of(cell.measured, [](const auto& r) { return !r.figures.empty(); });
    if (!staged || whole) result.push_back(std::move(cell));
    std::ranges::move(own, std::back_inserter(result));
  }
  return result;
}

std::map<std::uint64_t, RequestHits> read_request_hits(const fs::path& folder) {
  std::map<std::uint64_t, RequestHits> all;
  for_each_completed(folder / "requests.csv", [&](const RequestRow& row) {
    RequestHits hits{row.number<std::uint64_t>("prompt_tokens"), 0, true};
    for (const TierSpec& spec : kTierSpecs) {
      const auto tokens = row.has(spec.hit_column) ? row.number<std::uint64_t>(spec.hit_column) : 0;
      (spec.tier == Tier::device ? hits.device : spec.tier == Tier::host ? hits.host : hits.storage) += tokens;
      hits.total += tokens;
    }
    all[row.number<std::uint64_t>("request")] = hits;
  });
  return all;
}

void take_planned(RunFigures& run) {
  if (run.stages.empty()) return;
  const std::vector<WorkloadStage> planned = stages_of(Experiment::from_file(run.folder / "experiment.resolved.toml"));
  for (std::size_t i = 0; i < std::min(planned.size(), run.stages.size()); ++i) {
    run.stages[i].planned = planned[i].requests;
  }
}

void take_hits(std::map<std::uint64_t, RequestHits> hits, RunFigures& run) {
  run.hits = std::move(hits);
  share(run.hits, run, &RunFigures::hits);
}

std::string work_of(const Experiment& experiment) {
  return keys_but(experiment, [](std::string_view key) {
    return !key.starts_with("workload.") && !key.starts_with("model.") && key != "seed";
  });
}

// Leaves out the keys in which repeats differ: paths and namespaces, because each repeat has empty storage, and real.*.
std::string identity_of_run(const Experiment& experiment) {
  return keys_but(experiment, [](std::string_view key) {
    return key.starts_with("real.") || key == "tiers.disk.path" || key == "tiers.shared_fs.path" ||
           key == "cache.namespace";
  });
}

}  // namespace kvtwin
