// kvtwin calibrate: fits a hardware file to measurements of this machine, or to earlier measurements.
#include "lab/calibrate/calibrate.hpp"

#include "cli/commands.hpp"
#include "cli/environment.hpp"
#include "cli/one_of.hpp"
#include "cli/say.hpp"
#include "cli/terminal.hpp"
#include "lab/error.hpp"

namespace kvtwin {
namespace {

void calibrate(CalibrateArguments& arguments) {
  arguments.secrets = environment_secrets();
  Terminal terminal;
  const CalibrationResult result = calibrate_machine(arguments, terminal.listener());
  print(result.text);
  if (!result.use_with.empty()) say(result.use_with);
  if (result.changed.empty()) return;
  say(result.changed);
  throw AlreadySaid(3);
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
      "         (this command fits the first measurements and a recorded run together)\n"
      "         kvtwin calibrate --from bench.jsonl --experiment served.toml --out out/served\n"
      "         kvtwin simulate out/served/fitted.toml\n"
      "         (fits what a server measured, by simulating the requests that it served)\n"
      "         kvtwin calibrate --advise out/plan --out out/advice\n"
      "         (names three runs on your server that make the answer of a plan more certain)\n"
      "         kvtwin calibrate --published table.json --fit-on h100 --fit serving.step_us,serving.sequence_us --out "
      "out/engines");
  command
      ->add_option(
          "--device", arguments.device,
          "Device to measure: host (host memory takes the place of the GPU), cuda, or auto (default: cuda if there "
          "is a GPU, else host)")
      ->check(is_one_of({"host", "cuda", "auto"}));
  command->add_option("--out", arguments.out,
                      "Folder for hardware.json and measurements.jsonl; the disk of this folder is measured");
  command->add_option("--from", arguments.from,
                      "Measure nothing. Fit earlier measurements: folders and files of kvtwin calibrate, of kvtwin run "
                      "(journals) and of tools/gpu-check (link.csv, matrix.csv), and the output of ucx_perftest, "
                      "ib_write_bw or ib_write_lat. Or fit a capture of a server, by simulating its requests. A "
                      "capture is a file of SGLang's bench_serving with --output-details, SGLang's request log, or, "
                      "with --experiment, a folder of kvtwin run. Several captures of one server are fitted together. "
                      "Half of the requests is held out");
  command->add_option("--experiment", arguments.experiments,
                      "Experiment file that describes the server of a capture, and the workload unless the capture has "
                      "it (default: the server of server_info in the file of bench_serving, on the machine of --base). "
                      "For several captures: one file for all of them, or one for each, in the same order");
  CLI::Option* const published =
      command
          ->add_option(
              "--published", arguments.published,
              "Fit times of serving engines (--fit) to a table of published measurements, as for kvtwin validate "
              "--published; only groups of --fit-on are fitted, the others are held out")
          ->check(CLI::ExistingFile);
  command
      ->add_option("--fit-on", arguments.fit_on,
                   "Beginning of the names of the groups of --published that are fitted, e.g. h100")
      ->needs(published);
  command
      ->add_option("--rows", arguments.rows,
                   "Entries of --published: fitted per engine, and held out per group; 0 = all")
      ->capture_default_str()
      ->needs(published);
  command
      ->add_option("--fit", arguments.fit,
                   "Numbers to fit to a capture or to --published, e.g. gemm_fraction,serving.step_us (default for a "
                   "capture: all that the experiment uses)")
      ->delimiter(',');
  command->add_option("--set", arguments.sets, "key=value: set a key of the experiment; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option("--simulations", arguments.simulations,
                   "Limit of the search, in simulations (default: 1200 per capture; per engine of --published 20000). "
                   "The errors before and "
                   "after and the intervals come on top")
      ->check(CLI::Range(1, 10'000'000));
  command->add_option("--jobs", arguments.jobs, "Simulations at the same time; 0 = one per core")
      ->check(CLI::Range(0, 1024));
  command->add_option(
      "--model", arguments.models,
      "Model whose forward passes are measured: a preset, or the path of a config.json; may be repeated");
  command->add_option(
      "--remote", arguments.remote,
      "Measure this remote store too, by its URL as in tiers.remote.url, e.g. redis://127.0.0.1:6379; store.json "
      "gets its figures, for tiers.remote.store_file");
  command->add_option(
      "--base", arguments.base,
      "Hardware preset for all figures that are not measured (default: cpu-host for host, else the nearest GPU)");
  command->add_flag("--quick", arguments.quick, "Measure for half a minute at most, instead of two to three minutes");
  command->add_flag("--no-disk", arguments.no_disk, "Do not measure the disk");
  command->add_flag("--force", arguments.force, "Write into --out although the folder is not empty");
  const std::vector<CLI::Option*> others = command->get_options();
  CLI::Option* const probe = command->add_option(
      "--probe", arguments.probe,
      "Only repeat the probes of this hardware file of kvtwin calibrate, to see whether the machine has changed since. "
      "Takes about 2 s; exit code 3 if a probe takes more than 1.2 times, or less than 1 / 1.2 of, the calibrated "
      "time");
  for (CLI::Option* const other : others) {
    if (other != command->get_help_ptr()) probe->excludes(other);
  }
  CLI::Option* const advise = command->add_option(
      "--advise", arguments.advise,
      "Measure nothing. Name the three cheap runs of a benchmark on your server that narrow the first goal of a plan "
      "(its folder), or the mean TTFT of an experiment file, most; --from then fits what they measure. --out gets an "
      "experiment for each run. With --from and --experiment, a run that is measured already is compared with its "
      "simulation: if it is further off than the uncertain numbers allow, the intervals of the advice are wider");
  for (CLI::Option* const other : others) {
    const std::string name = other->get_name();
    const bool shared = name == "--out" || name == "--set" || name == "--jobs" || name == "--force" ||
                        name == "--from" || name == "--experiment";
    if (other != command->get_help_ptr() && !shared) advise->excludes(other);
  }
  advise->excludes(probe);
  command->add_flag("--json", arguments.json,
                    "Print the hardware file, the advice, or the fit of --published (JSON), instead of a summary");
  command->callback([] { calibrate(arguments); });
}

}  // namespace kvtwin
