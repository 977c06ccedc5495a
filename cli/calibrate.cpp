// kvtwin calibrate: measures this machine, or takes what was measured before, and fits a hardware file to it.
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
  command->callback([] { calibrate(arguments); });
}

}  // namespace kvtwin
