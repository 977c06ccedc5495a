#include "lab/calibrate/calibrate.hpp"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "lab/calibrate/calibrate_runs.hpp"
#include "lab/calibrate/calibrate_tables.hpp"
#include "lab/error.hpp"
#include "lab/out_files.hpp"
#include "lab/run/journal_file.hpp"
#include "lab/run/machine.hpp"
#include "lab/version.hpp"
#include "models/calibration.hpp"
#include "models/presets.hpp"
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
constexpr double kMeasureSeconds = 110, kQuickMeasureSeconds = 15;  // without set-up and fit

void write_text(const fs::path& path, const std::string& text) {
  errno = 0;
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw cannot_write(path, errno);
}

// ---- earlier measurements ------------------------------------------------------------------------------

struct Source {
  Measurements measurements;
  MeasuredLimits limits;
  std::string limits_from;
};

void add_file(const fs::path& path, Source& source) {
  const std::string name = path.string();
  if (path.extension() == ".kvj") return source.measurements.add(measurements_of_run(path), name);
  const std::string text = read_text_file(path, "give what kvtwin calibrate or tools/gpu-check wrote");
  if (path.extension() == ".csv") {
    source.measurements.add(measurements_of_table(text, name), name);
    if (text.find("r_median") == std::string::npos) return;
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
    if (!fs::exists(name, error)) throw InputError("--from " + name + ": is not there");
    fs::is_directory(name, error) ? add_folder(name, source) : add_file(name, source);
  }
  return source;
}

// ---- this machine ----------------------------------------------------------------------------------------

#if KVTWIN_HAVE_REAL

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
  found.machine = this_machine(arguments.device != "host" && cuda_at_hand().gpus > 0);
  found.machine->load = watch.load();
  return found;
}

#else

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
       {std::pair{"GB200", "gb200-c2c"}, std::pair{"B300", "b300-pcie5"}, std::pair{"B200", "b200-pcie5"},
        std::pair{"H200", "h200-pcie5"}, std::pair{"H100", "h100-pcie5"}, std::pair{"H20", "h20-pcie5"},
        std::pair{"A100", "a100-pcie4"}}) {
    if (device.find(part) != std::string::npos) return preset;
  }
  return device == "auto" ? "cpu-host" : "h200-pcie5";
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
  if (arguments.from.empty()) command += " --device " + arguments.device;
  for (const std::string& model : arguments.models) command += " --model " + model;
  if (!arguments.remote.empty()) command += " --remote " + arguments.remote;
  if (!arguments.base.empty()) command += " --base " + arguments.base;
  if (arguments.quick) command += " --quick";
  if (arguments.no_disk) command += " --no-disk";
  return command + " --out " + arguments.out;
}

void make_folder(const CalibrateArguments& arguments) {
  std::error_code error;
  if (fs::exists(arguments.out, error) && !fs::is_directory(arguments.out, error)) {
    throw InputError("--out " + arguments.out + ": is no folder; give another");
  }
  if (!arguments.force && fs::is_directory(arguments.out, error) && !fs::is_empty(arguments.out, error)) {
    throw InputError("--out " + arguments.out + ": is not empty; give another, or --force to write over its " +
                     kMeasurementsName + " and " + kHardwareName);
  }
  make_out_folder(arguments.out, error);
  if (error) throw InputError("--out " + arguments.out + ": " + error.message());
}

}  // namespace

CalibrationResult calibrate_machine(const CalibrateArguments& arguments, const Listener& listener) {
  if (!arguments.from.empty() && (!arguments.remote.empty() || !arguments.models.empty() || arguments.quick)) {
    throw InputError("--from fits what was measured before: leave --remote, --model and --quick out, or --from");
  }
  if (!arguments.base.empty()) static_cast<void>(hardware_preset(arguments.base));
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
  const fs::path out = arguments.out;
  write_text(out / kMeasurementsName, to_jsonl(source.measurements));
  const Calibration calibration = calibrate(source.measurements, terms);
  const std::string json = hardware_json(calibration, source.measurements, terms);
  write_text(out / kHardwareName, json);
  return {arguments.json ? json : calibration_text(calibration, terms), (out / kHardwareName).string()};
}

}  // namespace kvtwin
