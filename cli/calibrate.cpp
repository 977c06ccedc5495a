// kvtwin calibrate: fits a hardware file to measurements of this machine, or to earlier measurements.
#include "lab/calibrate/calibrate.hpp"

#include <cstdio>

#include "cli/commands.hpp"
#include "cli/environment.hpp"
#include "cli/say.hpp"
#include "cli/terminal.hpp"

namespace kvtwin {
namespace {

void calibrate(CalibrateArguments& arguments) {
  arguments.secrets = environment_secrets();
  Terminal terminal;
  const CalibrationResult result = calibrate_machine(arguments, terminal.listener());
  print(result.text);
  std::fprintf(stderr, "kvtwin: wrote %s; use it with --set hardware.file=%s\n", result.hardware_file.c_str(),
               result.hardware_file.c_str());
}

}  // namespace

void add_calibrate(CLI::App& program) {
  static CalibrateArguments arguments;
  CLI::App* command =
      program.add_subcommand("calibrate", "Measure this machine, and fit a hardware file to the measurements");
  command->footer(
      "Example: kvtwin calibrate --device host --quick --out out/machine\n"
      "         kvtwin simulate experiments/quickstart.toml --set hardware.file=out/machine/hardware.json\n"
      "         kvtwin calibrate --from out/machine out/run --out out/fitted\n"
      "         (the last command fits the first measurements and a recorded run together)");
  command
      ->add_option(
          "--device", arguments.device,
          "Device to measure: host (host memory takes the place of the GPU), cuda, or auto (default: cuda if there "
          "is a GPU, else host)")
      ->check(CLI::IsMember({"host", "cuda", "auto"}));
  command
      ->add_option("--out", arguments.out,
                   "Folder for hardware.json and measurements.jsonl; the disk of this folder is measured")
      ->required();
  command->add_option("--from", arguments.from,
                      "Measure nothing. Fit earlier measurements: folders and files of kvtwin calibrate, of kvtwin run "
                      "(journals) and of tools/gpu-check (link.csv, matrix.csv), and the output of ucx_perftest, "
                      "ib_write_bw or ib_write_lat");
  command->add_option(
      "--model", arguments.models,
      "Model whose forward passes are measured: a preset, or the path of a config.json; may be repeated");
  command->add_option("--remote", arguments.remote, "Measure these servers too, e.g. redis://127.0.0.1:6379");
  command->add_option(
      "--base", arguments.base,
      "Hardware preset for all figures that are not measured (default: cpu-host for host, else the nearest GPU)");
  command->add_flag("--quick", arguments.quick, "Measure for half a minute at most, instead of two to three minutes");
  command->add_flag("--no-disk", arguments.no_disk, "Do not measure the disk");
  command->add_flag("--force", arguments.force, "Write into --out although the folder is not empty");
  command->add_flag("--json", arguments.json, "Print the hardware file (JSON) instead of a summary");
  command->callback([] { calibrate(arguments); });
}

}  // namespace kvtwin
