// kvtwin calibrate: measures this machine, or takes what was measured before, and fits a hardware file to it.
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

#include "cli/calibrate_runs.hpp"
#include "cli/calibrate_tables.hpp"
#include "cli/commands.hpp"
#include "cli/error.hpp"
#include "cli/journal_file.hpp"
#include "cli/machine.hpp"
#include "cli/out_files.hpp"
#include "kvtwin_version.hpp"
#include "models/calibration.hpp"
#include "models/presets.hpp"
#include "models/text_file.hpp"

#if KVTWIN_HAVE_REAL
#include "cli/calibrate_measure.hpp"
#include "cli/cuda_devices.hpp"
#include "cli/out_files.hpp"
#endif

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMeasurements = "measurements.jsonl";
constexpr const char* kHardware = "hardware.json";
constexpr double kSeconds = 110, kQuickSeconds = 15;  // of measuring; setting up and fitting take some more

struct CalibrateCommand {
  std::string device = "auto", out, remote, base;
  std::vector<std::string> from, models;
  bool quick = false, no_disk = false, force = false, json = false;
};

void write_text(const fs::path& path, const std::string& text) {
  errno = 0;
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw cannot_write(path, errno);
}

// ---- what was measured before --------------------------------------------------------------------------

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
  for (const char* name : {kMeasurements, "link.csv", "matrix.csv"}) {
    if (!fs::is_regular_file(path / name)) continue;
    any = true;
    add_file(path / name, source);
  }
  if (fs::exists(path / kJournalName)) {
    any = true;
    source.measurements.add(measurements_of_run(path), path.string());
  }
  if (!any) {
    throw InputError(path.string() + ": holds neither " + kMeasurements + ", nor a run's " + kJournalName +
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

Measurements measure(const CalibrateCommand& arguments) {
  MeasureTerms terms;
  terms.device = arguments.device;
  terms.disk = arguments.no_disk ? "" : arguments.out;
  terms.remote = arguments.remote;
  terms.models = arguments.models;
  terms.seconds = arguments.quick ? kQuickSeconds : kSeconds;
  const LoadWatch watch;
  Measurements found = measure_machine(terms);
  found.machine = this_machine(arguments.device != "host" && cuda_at_hand().gpus > 0);
  found.machine->load = watch.load();
  return found;
}

#else

Measurements measure(const CalibrateCommand&) {
  throw InputError(
      "calibrate: this build is without the real world, so it measures nothing; build the preset release "
      "or real, or give --from");
}

#endif

// ---- the command -----------------------------------------------------------------------------------------

// The nearest preset by the device's name.
std::string base_of(const CalibrateCommand& arguments, const Measurements& found) {
  if (!arguments.base.empty()) return arguments.base;
  const std::string device = found.machine ? found.machine->device : arguments.device;
  if (device == "host") return "cpu-host";
  for (const auto& [part, preset] :
       {std::pair{"GB200", "gb200-c2c"}, std::pair{"B200", "b200-pcie5"}, std::pair{"H200", "h200-pcie5"},
        std::pair{"H100", "h100-pcie5"}, std::pair{"H20", "h20-pcie5"}, std::pair{"A100", "a100-pcie4"}}) {
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

std::string command_of(const CalibrateCommand& arguments) {
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

void make_folder(const CalibrateCommand& arguments) {
  std::error_code error;
  if (fs::exists(arguments.out, error) && !fs::is_directory(arguments.out, error)) {
    throw InputError("--out " + arguments.out + ": is no folder; give another");
  }
  if (!arguments.force && fs::is_directory(arguments.out, error) && !fs::is_empty(arguments.out, error)) {
    throw InputError("--out " + arguments.out + ": is not empty; give another, or --force to write over its " +
                     kMeasurements + " and " + kHardware);
  }
  make_out_folder(arguments.out, error);
  if (error) throw InputError("--out " + arguments.out + ": " + error.message());
}

void calibrate_command(const CalibrateCommand& arguments) {
  if (!arguments.from.empty() && (!arguments.remote.empty() || !arguments.models.empty() || arguments.quick)) {
    throw InputError("--from fits what was measured before: leave --remote, --model and --quick out, or --from");
  }
  if (!arguments.base.empty()) static_cast<void>(hardware_preset(arguments.base));
  Source source = read_sources(arguments.from);
  make_folder(arguments);
  if (arguments.from.empty()) source.measurements = measure(arguments);
  CalibrationTerms terms;
  terms.base = base_of(arguments, source.measurements);
  terms.date = today();
  terms.version = kVersion;
  terms.commit = kGitCommit;
  terms.command = command_of(arguments);
  terms.limits = source.limits;
  terms.limits_from = source.limits_from;
  const fs::path out = arguments.out;
  write_text(out / kMeasurements, to_jsonl(source.measurements));
  const Calibration calibration = calibrate(source.measurements, terms);
  const std::string json = hardware_json(calibration, source.measurements, terms);
  write_text(out / kHardware, json);
  const std::string text = arguments.json ? json : calibration_text(calibration, terms);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fprintf(stderr, "kvtwin: wrote %s; use it with --set hardware.file=%s\n", (out / kHardware).c_str(),
               (out / kHardware).c_str());
}

}  // namespace

void add_calibrate(CLI::App& program) {
  static CalibrateCommand arguments;
  CLI::App* command = program.add_subcommand("calibrate", "Measure this machine, and fit a hardware file to it");
  command->footer(
      "Example: kvtwin calibrate --device host --quick --out out/machine\n"
      "         kvtwin simulate experiments/quickstart.toml --set hardware.file=out/machine/hardware.json\n"
      "         kvtwin calibrate --from out/machine out/run --out out/fitted    (and recorded runs)");
  command
      ->add_option("--device", arguments.device,
                   "host (host memory stands in for the GPU), cuda, or auto: cuda where there is a GPU, else host")
      ->check(CLI::IsMember({"host", "cuda", "auto"}));
  command
      ->add_option("--out", arguments.out,
                   "Folder for hardware.json and measurements.jsonl; the disk is measured there")
      ->required();
  command->add_option("--from", arguments.from,
                      "Measure nothing, and fit what was measured before: folders and files of kvtwin calibrate, "
                      "kvtwin run (journals), tools/gpu-check (link.csv, matrix.csv), and what ucx_perftest, "
                      "ib_write_bw or ib_write_lat printed");
  command->add_option("--model", arguments.models,
                      "Whose passes to measure: a preset, or the path of a config.json; may be repeated");
  command->add_option("--remote", arguments.remote, "redis://...: measure these servers, too");
  command->add_option("--base", arguments.base, "The preset whose figures stay where nothing was measured");
  command->add_flag("--quick", arguments.quick, "Half a minute at most, instead of three");
  command->add_flag("--no-disk", arguments.no_disk, "Leave the disk alone");
  command->add_flag("--force", arguments.force, "Write into a folder that isn't empty");
  command->add_flag("--json", arguments.json, "Print the hardware file instead of a summary");
  command->callback([] { calibrate_command(arguments); });
}

}  // namespace kvtwin
