#include "lab/calibrate/calibrate.hpp"

#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "lab/calibrate/advise.hpp"
#include "lab/calibrate/calibrate_capture.hpp"
#include "lab/calibrate/calibrate_published.hpp"
#include "lab/calibrate/calibrate_runs.hpp"
#include "lab/calibrate/calibrate_tables.hpp"
#include "lab/error.hpp"
#include "lab/out_files.hpp"
#include "lab/past_run/call_replay.hpp"
#include "lab/run/journal_file.hpp"
#include "lab/run/machine.hpp"
#include "lab/validate/probe.hpp"
#include "lab/version.hpp"
#include "models/calibration.hpp"
#include "models/json.hpp"
#include "models/presets.hpp"
#include "models/store_fit.hpp"
#include "models/text_file.hpp"

#if KVTWIN_HAVE_REAL
#include "lab/calibrate/calibrate_measure.hpp"
#include "lab/run/cuda_devices.hpp"
#endif

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMeasurementsName = "measurements.jsonl";
constexpr const char* kHardwareName = "hardware.json";
constexpr const char* kStoreName = "store.json";
constexpr const char* kFittedName = "fitted.toml";
constexpr double kMeasureSeconds = 110, kQuickMeasureSeconds = 15;  // without set-up and fit

// ---- earlier measurements ------------------------------------------------------------------------------

struct Source {
  Measurements measurements;
  MeasuredLimits limits;
  std::string limits_from;
  MeasuredSizes sizes;
  std::string sizes_from;
};

void refuse_second(const std::string& first, const std::string& second) {
  if (first.empty()) return;
  throw InputError("--from " + second + ": " + first +
                   " is a table of the same kind, and only one of them can give the planner's limits; give one");
}

void add_file(const fs::path& path, Source& source) {
  const std::string name = path.string();
  if (is_call_journal(path)) return source.measurements.add(measurements_of_calls(path), name);
  if (path.extension() == ".kvj") return source.measurements.add(measurements_of_run(path), name);
  const std::string text = read_text_file(path, "give a file that kvtwin calibrate or tools/gpu-check wrote");
  if (path.extension() == ".csv") {
    source.measurements.add(measurements_of_table(text, name), name);
    if (path.filename() == "link.csv" || text.find("portion_bytes") != std::string::npos) {
      refuse_second(source.sizes_from, name);
      source.sizes = sizes_from(parse_copy_rates(text, name));
      source.sizes_from = name;
    }
    if (text.find("r_median") == std::string::npos) return;
    refuse_second(source.limits_from, name);
    source.limits = limits_from(parse_path_matrix(text, name));
    source.limits_from = name;
    return;
  }
  source.measurements.add(looks_like_perftest(text) ? parse_perftest(text, name) : parse_measurements(text, name),
                          name);
}

void add_folder(const fs::path& path, Source& source) {
  bool any = false;
  for (const char* name : {kMeasurementsName, "link.csv", "matrix.csv"}) {
    if (!fs::is_regular_file(path / name)) continue;
    any = true;
    add_file(path / name, source);
  }
  if (fs::exists(path / kJournalName)) {
    any = true;
    source.measurements.add(measurements_of_run(path), path.string());
  }
  if (!any) {
    throw InputError(path.string() + ": holds neither " + kMeasurementsName + ", nor a run's " + kJournalName +
                     ", nor link.csv or matrix.csv; give what kvtwin calibrate, kvtwin run or tools/gpu-check wrote");
  }
}

Source read_sources(const std::vector<std::string>& from) {
  Source source;
  for (const std::string& name : from) {
    std::error_code error;
    fs::is_directory(name, error) ? add_folder(name, source) : add_file(name, source);
  }
  return source;
}

// ---- this machine ----------------------------------------------------------------------------------------

#if KVTWIN_HAVE_REAL

Measurements probe_here(const ProbedCalibration& calibrated, const StorageSecrets& secrets) {
  MeasureTerms terms;
  terms.device = calibrated.device;
  std::error_code error;
  if (fs::is_directory(calibrated.disk, error)) terms.disk = calibrated.disk;
  terms.secrets = secrets;
  return probe_machine(terms);
}

Measurements measure(const CalibrateArguments& arguments, const Listener& listener) {
  MeasureTerms terms;
  terms.device = arguments.device;
  terms.disk = arguments.no_disk ? "" : arguments.out;
  terms.remote = arguments.remote;
  terms.models = arguments.models;
  terms.seconds = arguments.quick ? kQuickMeasureSeconds : kMeasureSeconds;
  terms.secrets = arguments.secrets;
  const LoadWatch watch;
  Measurements found = measure_machine(terms, listener);
  found.machine = this_machine(arguments.device != "host" && cuda_at_hand(1).gpus > 0);
  found.machine->load = watch.load();
  return found;
}

#else

Measurements probe_here(const ProbedCalibration&, const StorageSecrets&) {
  throw InputError("calibrate --probe: this build is without the real world; build the preset release or real");
}

Measurements measure(const CalibrateArguments&, const Listener&) {
  throw InputError(
      "calibrate: this build is without the real world, so it measures nothing; build the preset release "
      "or real, or give --from");
}

#endif

// ---- fitting ---------------------------------------------------------------------------------------------

// Returns the preset that is nearest to the device, by the device's name.
std::string base_of(const CalibrateArguments& arguments, const Measurements& found) {
  if (!arguments.base.empty()) return arguments.base;
  const std::string device = found.machine ? found.machine->device : arguments.device;
  if (device == "host") return "cpu-host";
  for (const auto& [part, preset] :
       {std::pair{"GB200", "gb200"}, std::pair{"GB300", "gb300"}, std::pair{"B300", "b300-sxm"},
        std::pair{"B200", "b200-sxm"}, std::pair{"H200", "h200-sxm"}, std::pair{"H100", "h100-sxm"},
        std::pair{"H20", "h20"}, std::pair{"A100", "a100-sxm"}}) {
    if (device.find(part) != std::string::npos) return preset;
  }
  return device == "auto" ? "cpu-host" : "h200-sxm";
}

std::string today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  std::array<char, 16> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d", gmtime_r(&now, &utc));
  return text.data();
}

std::string command_of(const CalibrateArguments& arguments) {
  std::string command = "kvtwin calibrate";
  for (const std::string& from : arguments.from) command += " --from " + from;
  if (!arguments.published.empty()) command += " --published " + arguments.published + " --fit-on " + arguments.fit_on;
  if (arguments.from.empty() && arguments.published.empty()) command += " --device " + arguments.device;
  for (const std::string& experiment : arguments.experiments) command += " --experiment " + experiment;
  for (const std::string& set : arguments.sets) command += " --set " + set;
  for (const std::string& name : arguments.fit) command += " --fit " + name;
  for (const std::string& model : arguments.models) command += " --model " + model;
  if (!arguments.remote.empty()) command += " --remote " + arguments.remote;
  if (!arguments.base.empty()) command += " --base " + arguments.base;
  if (arguments.quick) command += " --quick";
  if (arguments.no_disk) command += " --no-disk";
  return command + " --out " + arguments.out;
}

// Checks that --out can become the folder of the result.
void check_folder(const CalibrateArguments& arguments) {
  if (arguments.out.empty()) throw InputError("--out is required; give the folder for the result");
  std::error_code error;
  if (fs::exists(arguments.out, error) && !fs::is_directory(arguments.out, error)) {
    throw InputError("--out " + arguments.out + ": is no folder; give another");
  }
  if (!arguments.force && fs::is_directory(arguments.out, error) && !fs::is_empty(arguments.out, error)) {
    throw InputError("--out " + arguments.out + ": is not empty; give another, or --force to write over its files");
  }
}

void make_folder(const CalibrateArguments& arguments) {
  std::error_code error;
  make_out_folder(arguments.out, error);
  if (error) throw InputError("--out " + arguments.out + ": " + error.message());
}

std::string use_hardware(const fs::path& file) {
  return "wrote " + file.string() + "; use it with --set hardware.file=" + file.string();
}

// The captures of --from, each with its experiment.
std::vector<CaptureArguments> captures_of(const CalibrateArguments& arguments, const std::vector<std::string>& sets) {
  const std::vector<std::string>& experiments = arguments.experiments;
  if (experiments.size() > 1 && experiments.size() != arguments.from.size()) {
    throw InputError("--experiment: " + std::to_string(experiments.size()) + " files, and --from has " +
                     std::to_string(arguments.from.size()) +
                     " captures; give one file for all of them, or one for each, in the same order");
  }
  std::vector<CaptureArguments> captures;
  for (std::size_t i = 0; i < arguments.from.size(); ++i) {
    const std::string experiment = experiments.empty() ? "" : experiments[experiments.size() == 1 ? 0 : i];
    captures.push_back({arguments.from[i], experiment, arguments.base, sets});
  }
  return captures;
}

CalibrationResult calibrate_capture(const CalibrateArguments& arguments, const Listener& listener) {
  CaptureFitTerms terms;
  terms.captures = captures_of(arguments, arguments.sets);
  for (const CaptureArguments& capture : terms.captures) {
    if (is_capture(capture.path, !capture.experiment.empty())) continue;
    throw InputError("--from " + capture.path + ": is no capture of a server, and " + arguments.from.front() +
                     " or another one is; fit captures and measurements by separate commands");
  }
  terms.out = arguments.out;
  terms.fit = arguments.fit;
  terms.max_simulations = arguments.simulations;
  terms.jobs = arguments.jobs;
  terms.date = today();
  terms.version = kVersion;
  terms.commit = kGitCommit;
  terms.command = command_of(arguments);
  const CaptureFit fit = fit_capture(terms, listener);
  make_folder(arguments);
  const fs::path out = arguments.out, hardware = out / kHardwareName, fitted = out / kFittedName;
  write_whole(hardware, fit.hardware);
  if (!fit.workload.empty()) write_whole(out / kCaptureWorkloadName, fit.workload);
  write_whole(fitted, fit.fitted);  // last: it names the other files
  return {arguments.json ? fit.hardware : fit.text,
          use_hardware(hardware) + ", or simulate " + fitted.string() + ", which has the engine's times too"};
}

CalibrationResult calibrate_published(const CalibrateArguments& arguments, const Listener& listener) {
  PublishedFitTerms terms;
  terms.table = arguments.published;
  terms.fit = arguments.fit;
  terms.group = arguments.fit_on;
  terms.rows = arguments.rows;
  terms.sets = arguments.sets;
  if (arguments.simulations != 0) terms.max_simulations = arguments.simulations;
  terms.jobs = arguments.jobs;
  const PublishedFit fit = fit_published(terms, listener);
  make_folder(arguments);
  const fs::path out = arguments.out;
  for (const PublishedFit::Engine& engine : fit.engines) {
    write_whole(out / ("serving-" + engine.name + ".toml"), engine.toml);
  }
  write_whole(out / "fit.json", fit.json);
  return {arguments.json ? fit.json : fit.text, "wrote " + (out / "fit.json").string() + " and serving-ENGINE.toml"};
}

CalibrationResult advise(const CalibrateArguments& arguments, const Listener& listener) {
  if (arguments.from.empty() && !arguments.experiments.empty()) {
    throw InputError("--experiment is of a measured run: give --advise FILE alone, or the run with --from");
  }
  const std::vector<CaptureArguments> captures = captures_of(arguments, {});
  for (const CaptureArguments& capture : captures) {
    std::error_code error;
    if (!fs::exists(capture.path, error)) throw InputError("--from " + capture.path + ": is not there");
    if (is_capture(capture.path, !capture.experiment.empty())) continue;
    throw InputError("--from " + capture.path +
                     ": is no run of a server: give a file of bench_serving, or, with --experiment, a run folder");
  }
  if (!arguments.out.empty()) check_folder(arguments);
  const Advice advice =
      advise_runs({arguments.advise, arguments.sets, captures, arguments.out, arguments.jobs}, listener);
  if (!arguments.out.empty()) {
    make_folder(arguments);
    for (const auto& [name, content] : advice.files) write_whole(fs::path(arguments.out) / name, content);
  }
  return {arguments.json ? advice.json : advice.text};
}

// Refuses options that do not belong to the source of the fit.
void check_options(const CalibrateArguments& arguments, bool capture) {
  const bool simulates = capture || !arguments.published.empty();
  if (simulates || !arguments.from.empty()) {
    const char* const source = arguments.published.empty() ? "--from" : "--published";
    if (!arguments.remote.empty() || !arguments.models.empty() || arguments.quick) {
      throw InputError(std::string(source) +
                       " fits earlier measurements: leave --remote, --model and --quick out, or " + source);
    }
  }
  if (!arguments.published.empty() &&
      (!arguments.from.empty() || !arguments.experiments.empty() || arguments.fit_on.empty())) {
    throw InputError(
        "--published fits a table alone, and needs --fit-on, the beginning of the names of the fitted groups; "
        "leave --from and --experiment out");
  }
  const bool only_here = !arguments.experiments.empty() || !arguments.sets.empty() || !arguments.fit.empty() ||
                         arguments.simulations != 0 || arguments.jobs != 0;
  if (!simulates && only_here) {
    throw InputError(
        "--experiment, --set, --fit, --simulations and --jobs are of a capture of a server (--from) or of --published; "
        "give a file of "
        "bench_serving, a request log, or a folder of kvtwin run");
  }
  if (capture && !arguments.base.empty() && !arguments.experiments.empty()) {
    throw InputError("--base " + arguments.base +
                     ": the experiment has the hardware; leave --base out, or give --set "
                     "hardware.name=" +
                     arguments.base);
  }
}

}  // namespace

CalibrationResult calibrate_machine(const CalibrateArguments& arguments, const Listener& listener) {
  if (!arguments.advise.empty()) return advise(arguments, listener);
  if (!arguments.probe.empty()) {
    const ProbedCalibration calibrated = probed_calibration(arguments.probe);
    const ProbeCheck check = check_probes(calibrated, probe_here(calibrated, arguments.secrets));
    return {arguments.json ? json_of(check).dump(2) + "\n" : text_of(check), "",
            changed_sentence(check, arguments.probe)};
  }
  bool capture = false;
  for (const std::string& name : arguments.from) {
    std::error_code error;
    if (!fs::exists(name, error)) throw InputError("--from " + name + ": is not there");
    capture = capture || is_capture(name, !arguments.experiments.empty());
  }
  check_options(arguments, capture);
  if (!arguments.base.empty()) static_cast<void>(hardware_preset(arguments.base));
  check_folder(arguments);
  if (capture) return calibrate_capture(arguments, listener);
  if (!arguments.published.empty()) return calibrate_published(arguments, listener);
  Source source = read_sources(arguments.from);
  make_folder(arguments);
  if (arguments.from.empty()) source.measurements = measure(arguments, listener);
  CalibrationTerms terms;
  terms.base = base_of(arguments, source.measurements);
  terms.date = today();
  terms.version = kVersion;
  terms.commit = kGitCommit;
  terms.command = command_of(arguments);
  terms.limits = source.limits;
  terms.limits_from = source.limits_from;
  terms.sizes = source.sizes;
  terms.sizes_from = source.sizes_from;
  if (arguments.from.empty() && !arguments.no_disk) terms.probe_disk = fs::absolute(arguments.out).lexically_normal();
  const fs::path out = arguments.out;
  write_whole(out / kMeasurementsName, to_jsonl(source.measurements));
  const Calibration calibration = calibrate(source.measurements, terms);
  const std::string json = hardware_json(calibration, source.measurements, terms);
  write_whole(out / kHardwareName, json);
  std::string use_with = use_hardware(out / kHardwareName);
  if (!arguments.remote.empty()) {
    StoreFitTerms store = store_kind(arguments.remote);
    store.source = "measured: kvtwin calibrate --remote, one client, pages of 64 KiB and 1 MiB";
    store.date = terms.date;
    write_whole(out / kStoreName, fitted_store(source.measurements, store));
    use_with += "; wrote " + (out / kStoreName).string() +
                "; use it with --set tiers.remote.store_file=" + (out / kStoreName).string();
  }
  return {arguments.json ? json : calibration_text(calibration, terms), use_with};
}

}  // namespace kvtwin
