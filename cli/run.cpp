// kvtwin run: serves an experiment on this machine, with real copies and real storage.
#include <string>

#include "cli/commands.hpp"
#include "cli/environment.hpp"
#include "cli/one_of.hpp"
#include "cli/say.hpp"
#include "cli/serve_options.hpp"
#include "cli/terminal.hpp"
#include "lab/run/real_run.hpp"

namespace kvtwin {
namespace {

struct RunCommand : ServeArguments {
  std::string device;
};

void run(const RunCommand& arguments) {
  if (arguments.help_keys) return list_keys();
  Experiment experiment = read_experiment(arguments, "run");
  if (!arguments.device.empty()) experiment.set("real.device=" + arguments.device, "--device");
  prepare_real_run(experiment);
  if (arguments.prints_flags()) return print_flags(arguments, experiment);
  Terminal terminal;
  RealRun how;
  how.secrets = environment_secrets();
  how.listener = run_listener(terminal, arguments.json);
  how.served = [&](const RunResult& result) {
    terminal.erase();
    print_result(result, arguments.json);
  };
  how.say = [&](const std::string& sentence) {
    terminal.erase();
    say(sentence);
  };
  run_real(experiment, arguments, how);
}

}  // namespace

void add_run(CLI::App& program) {
  static RunCommand arguments;
  CLI::App* command = program.add_subcommand(
      "run", "Serve an experiment's requests on this machine, with real copies and real storage");
  command->footer(
      "Every byte of every page that is read is checked. With --out, the journal records the inputs for kvtwin "
      "replay.\n"
      "Example: kvtwin run experiments/quickstart.toml --device host --out out/run\n"
      "Several ranks: mpirun -np 2 kvtwin run experiments/quickstart.toml --set parallel.tp=2 --out out/ranks\n"
      "Several engines: mpirun -np 2 kvtwin run experiments/quickstart.toml --set cluster.engines=2 --out out/engines");
  add_serve_options(*command, arguments);
  command
      ->add_option(
          "--device", arguments.device,
          "host (host memory takes the place of the GPU), cuda, or auto (cuda if there is a GPU, else host); sets "
          "real.device")
      ->check(is_one_of({"host", "cuda", "auto"}));
  command->callback([] { run(arguments); });
}

}  // namespace kvtwin
