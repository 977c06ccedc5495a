// kvtwin figures: draws figures with python/kvtwin/figures.py.
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/package_python.hpp"

namespace kvtwin {
namespace {

void draw(const std::vector<std::string>& folders) {
  check_result_folders(folders, {"report.json", "sweep.json", "compare.json", "validate.json"},
                       "`kvtwin simulate --out`, `run --out`, `compare --out` or `validate --out`");
  std::vector<std::string> arguments = {"figures"};
  arguments.insert(arguments.end(), folders.begin(), folders.end());
  run_package_module("figures", "figures", arguments);
}

}  // namespace

void add_figures(CLI::App& program) {
  CLI::App* command =
      program.add_subcommand("figures",
                             "Draw figures of run folders, and of folders of compare and validate, into "
                             "figures/ of each folder; of several runs also one figure side by side");
  command->footer(
      "Example: kvtwin figures out/quickstart-simulated out/quickstart-run\n"
      "         kvtwin figures out/termination out/compare");
  static std::vector<std::string> folders;
  command
      ->add_option("run_dir", folders,
                   "Folders to draw; side_by_side.png of several runs is in figures/ of the last folder")
      ->required();
  command->callback([] { draw(folders); });
}

}  // namespace kvtwin
