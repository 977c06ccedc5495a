// kvtwin validate: compares simulations with measured runs.
#include "lab/validate/validate.hpp"

#include <string>

#include "cli/commands.hpp"
#include "cli/engine_options.hpp"
#include "cli/one_of.hpp"
#include "cli/own_program.hpp"
#include "cli/say.hpp"
#include "cli/terminal.hpp"
#include "lab/error.hpp"

namespace kvtwin {
namespace {

void print_validation(const ValidateArguments& arguments) {
  Terminal terminal;
  const Validation result = validate(arguments, run_own_program, terminal.listener());
  print(result.text);
  if (result.too_far_off.empty()) return;
  say(result.too_far_off);
  throw AlreadySaid(3);
}

}  // namespace

void add_validate(CLI::App& program) {
  static ValidateArguments arguments;
  CLI::App* command = program.add_subcommand("validate", "Compare predicted with measured runs");
  command->footer(
      "Example: kvtwin run experiments/quickstart.toml --out out/run1\n"
      "         kvtwin validate out/run1 --hardware models/measured/epyc-2core/hardware.json\n"
      "         kvtwin validate --experiments experiments/quickstart.toml --repeats 5 --vary "
      "cache.eviction=lru,fifo --out out/validated\n"
      "         kvtwin validate --published table.json\n"
      "         kvtwin validate --bench-serving bench.jsonl --experiment served.toml\n"
      "         kvtwin validate --request-log requests.jsonl --events out/events --experiment served.toml\n"
      "Exit:    0 done; 2 bad input; 3 an error is larger than --max-error");
  command->add_option("run_dir", arguments.runs,
                      "Run folders of kvtwin run; folders of one experiment count as repeats");
  command->add_option("--hardware", arguments.hardware,
                      "Hardware file or preset for the prediction (default: the hardware of each experiment)");
  command
      ->add_option("--experiments", arguments.experiments,
                   "Run these experiment files on this machine, then compare: a,b,c")
      ->delimiter(',');
  command->add_option("--repeats", arguments.repeats, "Number of runs of each experiment of --experiments")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command
      ->add_option("--vary", arguments.lists,
                   "key=a,b,c: run each experiment of --experiments with each of these values")
      ->allow_extra_args(false);
  command->add_option("--device", arguments.device, "Device of the runs of --experiments: host, cuda or auto")
      ->check(is_one_of({"host", "cuda", "auto"}));
  command
      ->add_option(
          "--published", arguments.published,
          "Compare with tables of published measurements (JSON), and print scores of each figure: a.json,b.json")
      ->delimiter(',');
  command
      ->add_option("--knee", arguments.knees,
                   "FIGURE=LIMIT, e.g. ttft_p90_s=2: for each ladder, the first stage whose figure is over the limit, "
                   "measured and predicted; may be repeated")
      ->allow_extra_args(false);
  command->add_option(
      "--bench-serving", arguments.bench_serving,
      "Compare with the output file of SGLang's bench_serving (JSONL, one run per line); without --experiment, the "
      "server is that of server_info in the file, on the machine of --hardware");
  command->add_option("--request-log", arguments.request_log,
                      "Compare with the cached tokens in SGLang's request log, request by request; needs --experiment. "
                      "vLLM's log has no cached tokens: give --events too");
  command->add_option("--events", arguments.events,
                      "With --request-log: compare with the stores and removals of pages in a folder of kvtwin record");
  command->add_option("--experiment", arguments.experiment,
                      "Experiment file that describes the server of --request-log, or the server and the workload of "
                      "--bench-serving");
  add_engine_options(*command, arguments.server);
  command->add_option("--set", arguments.sets, "key=value: set a key in all predictions and runs; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option("--max-error", arguments.max_error,
                   "Largest error of a mean TTFT, in %. Exit code 3 if an error is larger, and also larger than twice "
                   "the spread of the runs (default: no limit)")
      ->check(CLI::Range(0.0, 1e6));
  command
      ->add_option("--out", arguments.out,
                   "Folder for validate.json, validate.csv and the runs (default: nothing is kept)")
      ->check([](const std::string& path) { return std::string(path.empty() ? "must name a folder" : ""); });
  command->add_flag("--force", arguments.force, "Replace the folder if it exists");
  command->add_flag("--json", arguments.json, "Print JSON");
  command->callback([] { print_validation(arguments); });
}

}  // namespace kvtwin
