#include "lab/validate/validate.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lab/child_processes.hpp"
#include "lab/error.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/experiment/workload.hpp"
#include "lab/formatted.hpp"
#include "lab/out_files.hpp"
#include "lab/run/machine.hpp"
#include "lab/sglang/sglang_flags.hpp"
#include "lab/simulate.hpp"
#include "lab/sweep/sweep_plan.hpp"
#include "lab/validate/ladders.hpp"
#include "lab/validate/validate_bench.hpp"
#include "lab/validate/validate_cell.hpp"
#include "lab/validate/validate_errors.hpp"
#include "lab/validate/validate_notes.hpp"
#include "lab/validate/validate_report.hpp"
#include "lab/validate/validate_requests.hpp"
#include "models/error.hpp"
#include "models/json.hpp"
#include "models/text_file.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr const char* kResolved = "experiment.resolved.toml";

// ---- the output folder -------------------------------------------------------------------------------

// The folder of --out, or a temporary folder that is removed at the end. The temporary folder is in P_tmpdir. TMPDIR is
// not read, because this library does not read the environment.
class Place {
 public:
  Place(const std::string& out, bool force, const KvtwinProgram& program)
      : path_(out), kept_(!out.empty()), program_(program) {
    if (!kept_) {
      std::string name = P_tmpdir "/kvtwin-validate-XXXXXX";
      if (mkdtemp(name.data()) == nullptr) {
        throw WorkError(name + ": can't be made: " + std::strerror(errno) + "; give --out DIR");
      }
      path_ = name;
      return;
    }
    std::error_code error;
    if (fs::exists(path_, error) && !fs::is_directory(path_, error)) {
      throw InputError("--out " + out + ": is a file; give a folder");
    }
    if (fs::exists(path_, error) && !fs::is_empty(path_, error)) {
      const bool ours = fs::exists(path_ / "validate.begun", error) || fs::exists(path_ / "validate.json", error);
      if (!force || !ours) {
        throw InputError("--out " + out + ": is not empty; give another folder" +
                         (ours ? ", or --force to replace it" : ": --force replaces what validate wrote only"));
      }
      fs::remove_all(path_, error);
    }
    make_out_folder(path_, error);
    if (error) throw WorkError("--out " + out + ": can't be written: " + error.message());
    write("validate.begun", "");
  }
  ~Place() {
    std::error_code ignored;
    if (!kept_) fs::remove_all(path_, ignored);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  bool kept() const { return kept_; }
  const KvtwinProgram& program() const { return program_; }  // runs kvtwin for this folder
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  void write(const std::string& name, const std::string& content) const {
    errno = 0;
    std::ofstream out(path_ / name, std::ios::binary);
    out << content;
    out.close();
    if (!out) throw cannot_write(path_ / name, errno);
  }
  void remove(const std::string& name) const {
    std::error_code ignored;
    fs::remove_all(path_ / name, ignored);
  }

 private:
  fs::path path_;
  bool kept_;
  const KvtwinProgram& program_;
};

// Returns a unique folder name for a cell: 003-name, with other characters replaced.
std::string folder_name(std::size_t number, const std::string& name) {
  char head[16];
  std::snprintf(head, sizeof head, "%03zu", number + 1);
  std::string folder = std::string(head) + "-";
  for (const char c : name.substr(0, 80)) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_';
    folder += plain ? c : '-';
  }
  return folder;
}

// ---- predicting --------------------------------------------------------------------------------------

// Returns the settings of --hardware and --set.
std::vector<std::string> prediction_settings(const ValidateArguments& arguments) {
  std::vector<std::string> settings;
  if (!arguments.hardware.empty()) {
    std::error_code error;
    if (fs::is_regular_file(arguments.hardware, error)) {
      settings.push_back("hardware.file=" + Json(fs::absolute(arguments.hardware).string()).dump());
    } else if (arguments.hardware.find('/') != std::string::npos || arguments.hardware.ends_with(".json")) {
      throw InputError("--hardware " + arguments.hardware + ": is not there; give a hardware file, or a preset's name");
    } else {
      settings.push_back("hardware.name=" + Json(arguments.hardware).dump());
      settings.emplace_back("hardware.file=\"\"");
    }
  }
  settings.insert(settings.end(), arguments.sets.begin(), arguments.sets.end());
  return settings;
}

void add_settings(std::vector<std::string>& words, const std::vector<std::string>& settings) {
  for (const std::string& setting : settings) {
    words.emplace_back("--set");
    words.push_back(setting);
  }
}

RunFigures predict(const Place& place, const std::string& experiment, const std::vector<std::string>& settings,
                   std::size_t number, const std::string& name, const std::string& server_info = "") {
  const std::string out = place / ("predicted/" + folder_name(number, name));
  std::error_code error;
  fs::create_directories(place / "predicted", error);
  std::vector<std::string> words{"simulate", experiment, "--out", out};
  if (!server_info.empty()) words.insert(words.end(), {"--from-sglang-server-info", server_info});
  add_settings(words, settings);
  run_to_its_end(place.program(), words, name);
  return read_run_folder(out);
}

// Predicts each cell of one experiment file with other settings. A child takes over what this process has read, for
// example tables of operators; starting the program again would read all of it once for each cell.
void predict_cells(const Place& place, const std::string& file, const std::vector<std::vector<std::string>>& settings,
                   std::vector<ValidationCell>& cells, const Listener& listener) {
  const auto folder = [&](std::size_t number) {
    return place / ("predicted/" + folder_name(number, cells[number].name));
  };
  std::error_code error;
  fs::create_directories(place / "predicted", error);
  const auto start = std::chrono::steady_clock::now();
  const auto simulate_one = [&](std::size_t number) {
    Experiment experiment = Experiment::from_file(file);
    for (const std::string& setting : settings[number]) experiment.set(setting);
    Observers observers;
    observers.files.out = folder(number);
    simulate(experiment, observers);
    return std::string();
  };
  std::size_t done = 0;
  run_children(cells.size(), children_at_once(0), simulate_one, [&](const ChildEnd& end) {
    ValidationCell& cell = cells[end.number];
    const std::string sentence = cell.name + ": " + end.failure.sentence;
    if (end.failure.code == 2) throw InputError(sentence);
    if (end.failure.code != 0) throw WorkError(sentence);
    cell.predicted = read_run_folder(folder(end.number));
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (listener.cells) listener.cells({++done, cells.size(), taken.count()});
  });
}

// ---- decisions ---------------------------------------------------------------------------------------

void find_first_difference(const Place& place, const RunFigures& measured, const RunFigures& predicted,
                           DecisionCheck& check) {
  const ProgramOutput said =
      place.program()({"compare", measured.folder.string(), predicted.folder.string(), "--json"});
  const Json comparison = Json::parse_or_discard(said.out);
  if (!comparison.is_object() || !comparison.contains("equal_decisions")) {
    check.sentence = "they can't be compared one by one: " + said.sentence();
    return;
  }
  check.equal = comparison.at("equal_decisions");
  if (!comparison.contains("first_difference")) {
    check.sentence = "decided again they are equal: " + said.sentence();
    return;
  }
  const Json& at = comparison.at("first_difference");
  check.at = Json{{"ordinal", at.at("ordinal")}, {"measured", at.at("a")}, {"predicted", at.at("b")}}.dump();
}

DecisionCheck check_decisions(const Place& place, const ValidationCell& cell) {
  DecisionCheck check;
  std::set<std::string> digests;
  const RunFigures* other = nullptr;
  for (const RunFigures& run : cell.measured) {
    if (run.digest.empty() || run.folder.empty()) return check;
    digests.insert(run.digest);
    if (run.digest == cell.predicted.digest) {
      ++check.alike;
    } else if (other == nullptr) {
      other = &run;
    }
  }
  check.known = true;
  check.kinds = digests.size();
  if (other != nullptr) find_first_difference(place, *other, cell.predicted, check);
  return check;
}

// ---- cells -------------------------------------------------------------------------------------------

std::vector<ValidationCell> cells_of_folders(const Place& place, const std::vector<std::string>& runs,
                                             const std::vector<std::string>& settings) {
  std::vector<ValidationCell> cells;
  std::map<std::string, std::size_t> by_identity;
  std::set<fs::path> seen;
  for (const std::string& run : runs) {
    RunFigures figures = read_run_folder(run);
    if (!seen.insert(fs::weakly_canonical(run)).second) {
      throw InputError(run + ": is given twice; each run is measured once");
    }
    const Experiment experiment = Experiment::from_file(figures.folder / kResolved);
    const auto [at, fresh] = by_identity.try_emplace(identity_of_run(experiment), cells.size());
    if (fresh) {
      const fs::path whole = fs::weakly_canonical(run);
      const fs::path name = whole.has_filename() ? whole.filename() : whole.parent_path().filename();
      cells.push_back({name.string(), work_of(experiment), "", {}, {}});
    }
    cells[at->second].measured.push_back(std::move(figures));
  }
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const fs::path experiment = cells[i].measured.front().folder / kResolved;
    cells[i].predicted = predict(place, experiment.string(), settings, i, cells[i].name);
  }
  return cells;
}

struct Configuration {
  std::string file, name;
  std::vector<std::string> settings;
  PerTier<bool> stores{};
};

std::vector<Configuration> configurations_of(const ValidateArguments& arguments,
                                             const std::vector<std::string>& settings) {
  std::vector<Configuration> list;
  for (const std::string& file : arguments.experiments) {
    Experiment base = Experiment::from_file(file);
    for (const std::string& set : settings) base.set(set);
    SweepPlan plan;
    for (const std::string& values : arguments.lists) plan.vary(values);
    if (!arguments.lists.empty()) plan.check();
    for (const SweepCell& cell : plan.cells()) {
      Configuration one{file, fs::path(file).stem().string(), settings, {}};
      if (!arguments.lists.empty()) one.name += " " + plan.name_of(cell);
      for (const auto& [key, value] : plan.settings(cell)) one.settings.push_back(key + "=" + value);
      const Experiment experiment = plan.experiment(base, cell);
      try {
        for (const StorageTierConfig& tier : make_setup(experiment).engine.storage) {
          one.stores[tier.tier] = true;
        }
      } catch (const std::runtime_error& error) {
        throw InputError(one.name + ": " + error.what());
      }
      list.push_back(std::move(one));
    }
  }
  return list;
}

// Runs a configuration on this machine. Each run has empty storage of its own, because pages of an earlier run would
// change the result.
RunFigures measure(const ValidateArguments& arguments, const Place& place, const Configuration& one, std::size_t number,
                   int repeat) {
  const std::string name = folder_name(number, one.name) + "." + std::to_string(repeat + 1);
  std::error_code error;
  fs::create_directories(place / "measured", error);
  const std::string out = place / ("measured/" + name);
  std::vector<std::string> words{"run", one.file, "--out", out};
  if (!arguments.device.empty()) words.insert(words.end(), {"--device", arguments.device});
  add_settings(words, one.settings);
  std::vector<std::string> folders;
  bool in_a_service = false;  // a tier without a path; a new namespace is empty there
  for (const TierSpec& spec : kStorageSpecs) {
    const std::string key = "tiers." + std::string(spec.name) + ".path";
    if (!one.stores[spec.tier]) continue;
    if (std::ranges::find(experiment_keys(), key, &ExperimentKey::name) == experiment_keys().end()) {
      in_a_service = true;
      continue;
    }
    folders.push_back(std::string(spec.name) + "-" + name);
    add_settings(words, {key + "=" + Json(fs::absolute(place / folders.back()).string()).dump()});
  }
  if (in_a_service) {
    const auto now = std::chrono::system_clock::now().time_since_epoch().count();
    add_settings(words, {"cache.namespace=\"validate-" + std::to_string(now) + "\""});
  }
  run_to_its_end(place.program(), words, one.name);
  for (const std::string& folder : folders) place.remove(folder);
  return read_run_folder(out);
}

std::vector<ValidationCell> cells_of_experiments(const ValidateArguments& arguments, const Place& place,
                                                 const std::vector<std::string>& settings, const Listener& listener) {
  // Runs and predictions use the same settings, so the policies have the same cost figures and plan copies alike.
  const std::vector<Configuration> list = configurations_of(arguments, settings);
  std::vector<ValidationCell> cells(list.size());
  // Repeats run round by round, so a change of the machine affects all configurations and appears in the spread.
  const std::size_t runs = static_cast<std::size_t>(arguments.repeats) * list.size();
  std::size_t done = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int repeat = 0; repeat < arguments.repeats; ++repeat) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      std::string left;
      if (done > 0) {
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        left = formatted(", about %.0f s left", seconds * static_cast<double>(runs - done) / static_cast<double>(done));
      }
      listener.begin("round " + std::to_string(repeat + 1) + " of " + std::to_string(arguments.repeats) + ": " +
                     list[i].name + formatted(" (run %zu of %zu", ++done, runs) + left + ")");
      cells[i].measured.push_back(measure(arguments, place, list[i], i, repeat));
    }
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    const fs::path experiment = cells[i].measured.front().folder / kResolved;
    cells[i].name = list[i].name;
    cells[i].work = work_of(Experiment::from_file(experiment));
    cells[i].predicted = predict(place, experiment.string(), {}, i, cells[i].name);
  }
  return cells;
}

std::vector<ValidationCell> cells_of_tables(const Place& place, const std::vector<std::string>& files,
                                            const std::vector<std::string>& settings, const Listener& listener) {
  std::vector<ValidationCell> cells;
  std::vector<std::vector<std::string>> all_settings;
  // All entries are checked before the first simulation.
  for (const std::string& file : files) {
    for (PublishedEntry& entry : read_published(file)) {
      Experiment experiment = Experiment::from_text("", file);
      entry.settings.insert(entry.settings.end(), settings.begin(), settings.end());
      try {
        for (const std::string& setting : entry.settings) experiment.set(setting, entry.name);
        make_setup(experiment);
        open_workload(experiment);
      } catch (const std::runtime_error& error) {
        throw InputError(file + ": " + entry.name + ": " + error.what());
      }
      cells.push_back({entry.name, work_of(experiment), entry.source, std::move(entry.measured), {}, entry.group});
      cells.back().setting = identity_of_run(experiment);
      cells.back().knees = std::move(entry.knees);
      all_settings.push_back(std::move(entry.settings));
    }
  }
  place.write("empty.toml", "# All is set.\n");
  predict_cells(place, place / "empty.toml", all_settings, cells, listener);
  return cells;
}

// The experiment that predicts a bench_serving file.
struct BenchExperiment {
  std::string experiment, server_info;  // files; server_info is empty if the experiment says what served
  std::vector<std::string> settings;
};

// The server is that of `arguments`, or the file's. `names_requests`: the experiment says which requests were sent, so
// those of the file are not taken.
BenchExperiment bench_experiment(const ValidateArguments& arguments, const Place& place,
                                 const std::vector<BenchRun>& runs, std::vector<std::string> settings,
                                 const std::optional<bool>& names_requests) {
  BenchExperiment one{arguments.experiment, "", {}};
  const BenchRun& first = runs.front();
  if (arguments.experiment.empty()) {
    check_one_server(runs, arguments.bench_serving);
    one.experiment = place / "empty.toml";
    one.server_info = place / "server_info.json";
    place.write("empty.toml", "# All is set.\n");
    place.write("server_info.json", first.server_info);
  }
  Experiment experiment = Experiment::from_file(one.experiment);
  for (const std::string& set : settings) experiment.set(set);
  if (!names_requests.value_or(names_workload(experiment))) {
    if (first.workload.empty()) {
      throw InputError(arguments.bench_serving + ": " + first.no_workload +
                       "; give the workload with --set workload.trace=FILE or --set workload.generate.kind=KIND" +
                       (arguments.experiment.empty() ? "" : ", or in the experiment"));
    }
    check_one_workload(runs, arguments.bench_serving);
    place.write("workload.jsonl", first.workload);
    const std::string trace = fs::absolute(place / "workload.jsonl").string();
    one.settings = {"workload.trace=" + Json(trace).dump(), "workload.format=\"mooncake\""};
    if (first.closed) one.settings.emplace_back("workload.loop=\"closed\"");
  }
  one.settings.insert(one.settings.end(), settings.begin(), settings.end());
  return one;
}

std::vector<ValidationCell> cells_of_bench_serving(const ValidateArguments& arguments, const Place& place,
                                                   const std::vector<std::string>& settings,
                                                   const std::optional<bool>& names_requests) {
  std::vector<BenchRun> runs = read_bench_serving(arguments.bench_serving);
  const BenchExperiment by = bench_experiment(arguments, place, runs, settings, names_requests);
  Experiment experiment = Experiment::from_file(by.experiment);
  if (!by.server_info.empty()) {
    apply_sglang_server_info_text(experiment, runs.front().server_info, arguments.bench_serving);
  }
  const std::vector<std::string> notes = experiment.notes();
  for (const std::string& set : by.settings) experiment.set(set);
  ValidationCell cell{fs::path(arguments.bench_serving).stem().string(), work_of(experiment), "", {}, {}};
  cell.notes = notes;
  for (std::string& note : bench_notes(runs, arguments.bench_serving)) cell.notes.push_back(std::move(note));
  bool has_hits = false;
  for (BenchRun& run : runs) {
    add_hit_shares(run.hits, experiment, run.figures);
    has_hits = has_hits || !run.figures.hits.empty();
  }
  cell.predicted = predict(place, by.experiment, by.settings, 0, cell.name, by.server_info);
  if (has_hits) take_hits(read_request_hits(cell.predicted.folder), cell.predicted);
  const std::size_t stages = cell.predicted.stages.size();
  if (stages != 0 && runs.size() % stages != 0) {
    throw InputError(arguments.bench_serving + ": has " + std::to_string(runs.size()) + " runs, and the prediction " +
                     std::to_string(stages) +
                     " stages (workload.generate.stages); give one run for each stage, in the order of the stages");
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    RunFigures& measured = runs[i].figures;
    const RunFigures& predicted = stages == 0 ? cell.predicted : cell.predicted.stages[i % stages];
    const std::size_t served = measured.requests.size();
    if (served > predicted.requests.size()) {
      throw InputError(arguments.bench_serving + ": run " + std::to_string(i + 1) + " served " +
                       std::to_string(served) + " requests, and the prediction " +
                       std::to_string(predicted.requests.size()) + "; give the workload that bench_serving sent");
    }
    const std::string other = other_requests(runs[i].load, predicted, experiment);
    if (!other.empty()) {
      cell.notes.push_back(arguments.bench_serving + (runs.size() == 1 ? "" : ": run " + std::to_string(i + 1)) +
                           ": the simulated requests are not those of the file: " + other +
                           "; give the workload that was sent");
    }
    if (stages == 0) {
      cell.measured.push_back(std::move(measured));
      continue;
    }
    if (i % stages == 0) cell.measured.emplace_back();  // the next repeat of all stages
    cell.measured.back().stages.push_back(std::move(measured));
  }
  std::vector<ValidationCell> cells;
  cells.push_back(std::move(cell));
  return cells;
}

bool names_server(const EngineArguments& server) {
  return !server.sglang_flags.empty() || server.sglang_server_info || server.vllm_flags || server.server_log;
}

// Writes the experiment of the served requests with the server's flags. Returns it with --experiment set to it.
// `names_requests` says whether it names the requests, which the written file no longer shows.
ValidateArguments with_server(const ValidateArguments& arguments, const Place& place, std::vector<std::string>& notes,
                              std::optional<bool>& names_requests) {
  ValidateArguments all = arguments;
  if (!names_server(arguments.server)) return all;
  Experiment experiment = arguments.experiment.empty() ? Experiment::from_text("", "validate")
                                                       : Experiment::from_file(arguments.experiment);
  apply_engine_arguments(arguments.server, arguments.sets, experiment);
  notes = experiment.notes();
  place.write("server.toml", experiment.resolved());
  for (const std::string& set : arguments.sets) experiment.set(set);
  names_requests = names_workload(experiment);
  all.experiment = place / "server.toml";
  return all;
}

std::vector<ValidationCell> cells_of_request_log(const ValidateArguments& arguments, const Place& place,
                                                 const std::vector<std::string>& settings) {
  if (arguments.experiment.empty()) {
    throw InputError(
        "--request-log needs --experiment, the file that describes the server of the requests, or the server's flags, "
        "e.g. --from-vllm-flags");
  }
  Experiment experiment = Experiment::from_file(arguments.experiment);
  for (const std::string& set : settings) experiment.set(set);
  std::vector<std::string> all = request_log_settings(arguments.request_log, experiment);
  all.insert(all.end(), settings.begin(), settings.end());
  for (const std::string& set : all) experiment.set(set);
  ValidationCell cell{fs::path(arguments.request_log).stem().string(), work_of(experiment), "", {}, {}};
  cell.measured.push_back(read_request_log(experiment, !arguments.events.empty()));
  cell.predicted = predict(place, arguments.experiment, all, 0, cell.name);
  take_hits(read_request_hits(cell.predicted.folder), cell.predicted);
  std::vector<ValidationCell> cells;
  cells.push_back(std::move(cell));
  return cells;
}

// ---- the machine -------------------------------------------------------------------------------------

// Returns the hardware files of the predictions of real runs, each once.
std::vector<std::string> hardware_files(const ValidateArguments& arguments, const std::vector<std::string>& settings) {
  std::vector<std::string> files;
  std::vector<fs::path> experiments(arguments.experiments.begin(), arguments.experiments.end());
  for (const std::string& run : arguments.runs) experiments.push_back(fs::path(run) / kResolved);
  for (const fs::path& path : experiments) {
    std::error_code error;
    if (!fs::is_regular_file(path, error)) continue;  // refused later, with the reason
    Experiment experiment = Experiment::from_file(path);
    for (const std::string& setting : settings) experiment.set(setting);
    if (experiment.text("hardware.file").empty()) continue;
    const std::string file = experiment.path("hardware.file").string();
    if (std::ranges::find(files, file) == files.end()) files.push_back(file);
  }
  return files;
}

// Returns whether a run folder is of this machine; experiments are run on this machine.
bool runs_on(const MeasuredMachine& machine, const ValidateArguments& arguments) {
  if (!arguments.experiments.empty()) return true;
  return std::ranges::any_of(arguments.runs, [&](const std::string& run) {
    const RunFigures figures = read_run_folder(run);
    return figures.machine && figures.machine->same_as(machine);
  });
}

// Repeats the probes of each hardware file that was calibrated on this machine, and adds notes about changes.
void repeat_probes(const ValidateArguments& arguments, const Place& place, const Listener& listener,
                   ValidationTerms& terms) {
  for (const std::string& file : hardware_files(arguments, prediction_settings(arguments))) {
    const std::optional<CalibrationFacts> facts = calibration_facts(read_text_file(file, "give a hardware file"));
    if (!facts || !facts->machine) continue;
    const MeasuredMachine& machine = *facts->machine;
    if (!machine.same_as(this_machine(machine.device != "host")) || !runs_on(machine, arguments)) continue;
    listener.begin("repeats the probes of " + file);
    const ProgramOutput said = place.program()({"calibrate", "--probe", file, "--json"});
    const std::optional<ProbeCheck> check = probe_check_from(said.out);
    if (!check) {
      terms.notes.push_back("It is not known whether this machine has changed since the calibration: " +
                            said.sentence());
      continue;
    }
    const std::string changed = changed_sentence(*check, file);
    if (!changed.empty()) terms.notes.push_back(changed);
    terms.probed.push_back({file, *check});
  }
}

// ---- the command -------------------------------------------------------------------------------------

std::vector<ValidationCell> cells_of(const ValidateArguments& arguments, const Place& place, const Listener& listener) {
  const int sources = static_cast<int>(!arguments.runs.empty()) + static_cast<int>(!arguments.experiments.empty()) +
                      static_cast<int>(!arguments.published.empty()) +
                      static_cast<int>(!arguments.bench_serving.empty()) +
                      static_cast<int>(!arguments.request_log.empty());
  if (sources != 1) {
    throw InputError(
        "validate needs what was measured: run folders, or --experiments, --published, --bench-serving or "
        "--request-log; one of them");
  }
  if (!arguments.events.empty() && arguments.request_log.empty()) {
    throw InputError("--events needs --request-log, the log of the requests that the engine served meanwhile");
  }
  const bool served = !arguments.bench_serving.empty() || !arguments.request_log.empty();
  if (names_server(arguments.server) && !served) {
    throw InputError("the flags and the log of a server are of --bench-serving and --request-log; leave them out");
  }
  const bool runs_itself = !arguments.experiments.empty();
  if (!runs_itself && !(arguments.lists.empty() && arguments.device.empty())) {
    throw InputError("--vary and --device are of --experiments; leave them out");
  }
  const std::vector<std::string> settings = prediction_settings(arguments);
  if (runs_itself) return cells_of_experiments(arguments, place, settings, listener);
  if (!arguments.published.empty()) return cells_of_tables(place, arguments.published, settings, listener);
  if (!served) return cells_of_folders(place, arguments.runs, settings);
  std::vector<std::string> notes;
  std::optional<bool> names_requests;
  const ValidateArguments all = with_server(arguments, place, notes, names_requests);
  std::vector<ValidationCell> cells = arguments.request_log.empty()
                                          ? cells_of_bench_serving(all, place, settings, names_requests)
                                          : cells_of_request_log(all, place, settings);
  cells.front().notes.insert(cells.front().notes.begin(), notes.begin(), notes.end());
  return cells;
}

// Prints both numbers with enough digits to show that the error is larger than the bound.
std::string bound_text(double error, double bound) {
  char of_error[400], of_bound[400];
  int decimals = 2;
  do {
    std::snprintf(of_error, sizeof of_error, "%.*f", decimals, error);
    std::snprintf(of_bound, sizeof of_bound, "%.*f", decimals, bound);
  } while (std::strtod(of_error, nullptr) <= std::strtod(of_bound, nullptr) && ++decimals < 20);
  return std::string(" by ") + of_error + " %, bound " + of_bound + " %";
}

bool completes_none(const RunFigures& run) { return !run.folder.empty() && !run.figures.contains("ttft_mean_s"); }

// Names the cells whose mean TTFT has an error larger than `max_error` (in %) and than twice the spread, and the cells
// in which only one side completes requests. Empty if there is none.
std::string too_far_off(const std::vector<ValidatedCell>& cells, double max_error) {
  std::string sentence;
  const auto add = [&](const ValidatedCell& cell, const std::string& words) {
    sentence += (sentence.empty() ? "" : "; ") + cell.cell.name + words;
  };
  std::size_t judged = 0;
  for (const ValidatedCell& cell : cells) {
    const bool none_measured = std::ranges::all_of(cell.cell.measured, completes_none);
    if (none_measured != completes_none(cell.cell.predicted)) {
      add(cell, none_measured ? " completes no request as measured, and some as predicted"
                              : " completes no request as predicted, and some as measured");
    }
    const ComparedFigure* const ttft = cell.errors.figure("ttft_mean_s");
    if (ttft == nullptr || !ttft->error) continue;
    ++judged;
    const double bound = std::max(max_error, 100 * 2 * ttft->spread.value_or(0));
    const double error = std::abs(*ttft->error) * 100;
    if (error > bound) add(cell, bound_text(error, bound));
  }
  if (!sentence.empty()) return "mean TTFT is off: " + sentence;
  if (judged != 0) return "";
  return "no configuration has a mean TTFT on both sides, so --max-error judges nothing; leave it out, or give figures "
         "with ttft_mean_s";
}

// Returns the machine that measured the runs.
MeasuredMachine machine_here(const std::vector<ValidatedCell>& cells) {
  return cells.front().cell.measured.front().machine.value_or(this_machine(false));
}

}  // namespace

Validation validate(const ValidateArguments& arguments, const KvtwinProgram& program, const Listener& listener) {
  const Place place(arguments.out, arguments.force, program);
  const LoadWatch watch;
  ValidationTerms terms;
  for (const std::string& knee : arguments.knees) terms.knees.insert(knee_limit_from(knee));
  repeat_probes(arguments, place, listener, terms);
  std::vector<ValidatedCell> cells;
  std::vector<PredictedBy> by;
  std::vector<ValidationCell> read = cells_of(arguments, place, listener);
  for (ValidationCell& cell : read) take_planned(cell.predicted);
  for (ValidationCell& cell : cells_with_stages(std::move(read))) {
    CellErrors errors = errors_of(cell);
    DecisionCheck decisions = check_decisions(place, cell);
    by.push_back(predicted_by(Experiment::from_file(cell.predicted.folder / kResolved)));
    std::optional<EventErrors> events;
    if (!arguments.events.empty()) events = event_errors(arguments.events, cell.predicted.folder);
    cells.push_back({std::move(cell), std::move(errors), std::move(decisions), std::move(events)});
  }
  if (!arguments.experiments.empty()) {
    terms.here = machine_here(cells);
    terms.here->load = watch.load();
  }
  for (std::string& note : validation_notes(cells, by, terms.here)) terms.notes.push_back(std::move(note));
  if (arguments.max_error) {
    const auto judged = std::ranges::count_if(cells, [](const ValidatedCell& cell) {
      const ComparedFigure* const ttft = cell.errors.figure("ttft_mean_s");
      return ttft != nullptr && ttft->error;
    });
    const std::size_t others = cells.size() - static_cast<std::size_t>(judged);
    if (others != 0) {
      terms.notes.push_back("--max-error judges the mean TTFT, which " + std::to_string(others) + " of " +
                            std::to_string(cells.size()) + " configurations do not have on both sides");
    }
  }
  for (const ValidatedCell& cell : cells) {
    for (const std::string& note : cell.cell.notes) {  // the stages of a run have the same notes
      if (std::ranges::find(terms.notes, note) == terms.notes.end()) terms.notes.push_back(note);
    }
  }
  if (!terms.knees.empty() && ladders_of(cells, {}).empty()) {
    terms.notes.emplace_back("--knee: nothing that is compared has stages, so there is no knee");
  }
  const Ranking ranking = ranking_of(cells);
  const std::string json = validation_json(cells, ranking, terms).dump(2, Json::BadBytes::replace) + "\n";
  if (place.kept()) {
    place.write("validate.csv", validation_csv(cells));
    place.write("validate.json", json);
  }
  Validation result;
  result.text = arguments.json ? json : validation_text(cells, ranking, terms);
  if (arguments.max_error) result.too_far_off = too_far_off(cells, *arguments.max_error);
  return result;
}

}  // namespace kvtwin
