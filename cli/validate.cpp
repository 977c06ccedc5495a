// kvtwin validate: what was measured against what is predicted.
#include "lab/validate/validate.hpp"

#include <string>

#include "cli/commands.hpp"
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
  CLI::App* command = program.add_subcommand("validate", "What was measured against what is predicted");
  command->footer(
      "Example: kvtwin run experiments/quickstart.toml --out out/run1\n"
      "         kvtwin validate out/run1 --hardware models/measured/epyc-2core/hardware.json\n"
      "         kvtwin validate --experiments experiments/quickstart.toml --repeats 5 --vary "
      "cache.eviction=lru,fifo --out out/validated\n"
      "         kvtwin validate --published table.json\n"
      "         kvtwin validate --bench-serving bench.jsonl --experiment served.toml\n"
      "Exit:    0 done, 2 bad input, 3 --max-error is exceeded");
  command->add_option("run_dir", arguments.runs, "Run folders; those of one experiment are repeats");
  command->add_option("--hardware", arguments.hardware,
                      "Predict with this hardware file or preset instead of the experiments' own");
  command->add_option("--experiments", arguments.experiments, "Run these experiments for real, a,b,c")->delimiter(',');
  command->add_option("--repeats", arguments.repeats, "Runs of each of --experiments")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--vary", arguments.lists, "key=a,b,c: each of --experiments with each of these values")
      ->allow_extra_args(false);
  command->add_option("--device", arguments.device, "Of --experiments: host, cuda or auto")
      ->check(CLI::IsMember({"host", "cuda", "auto"}));
  command->add_option("--published", arguments.published, "Table of published measurements (JSON)");
  command->add_option("--bench-serving", arguments.bench_serving,
                      "What sglang.bench_serving wrote (JSONL), a run a line");
  command->add_option("--experiment", arguments.experiment, "Of --bench-serving: what was served, and by what");
  command->add_option("--set", arguments.sets, "key=value of all that is predicted (and run); may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option("--max-error", arguments.max_error,
                   "% that a mean TTFT may be off; twice its spread, where that is more")
      ->check(CLI::Range(0.0, 1e6));
  command
      ->add_option("--out", arguments.out,
                   "Folder to write: validate.json, validate.csv, the runs (default: none stays)")
      ->check([](const std::string& path) { return std::string(path.empty() ? "must name a folder" : ""); });
  command->add_flag("--force", arguments.force, "Replace the folder");
  command->add_flag("--json", arguments.json, "Print it as JSON");
  command->callback([] { print_validation(arguments); });
}

}  // namespace kvtwin
