// kvtwin report: makes one self-contained page of folders, with python/kvtwin/report_page.py.
#include <filesystem>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/package_python.hpp"
#include "lab/error.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

struct ReportArguments {
  std::vector<std::string> folders;
  std::string out;
  bool force = false;
};

void report(const ReportArguments& arguments) {
  check_result_folders(arguments.folders, {"plan.json", "compare.json", "sweep.json", "report.json"},
                       "`kvtwin plan --out`, `compare --out`, `simulate --out` or `run --out`");
  fs::path out = arguments.out;
  if (out.empty()) out = fs::path(arguments.folders.back()) / "report.html";
  if (fs::is_directory(out)) throw InputError("--out " + out.string() + ": is a folder; give the name of a file");
  if (fs::exists(out) && !arguments.force) {
    throw InputError("--out " + out.string() + ": exists; give another name, or --force to replace it");
  }
  const fs::path parent = out.parent_path();
  if (!parent.empty() && !fs::is_directory(parent)) {
    throw InputError("--out " + out.string() + ": there is no folder " + parent.string() + "; make the folder first");
  }
  std::vector<std::string> words = {out.string()};
  words.insert(words.end(), arguments.folders.begin(), arguments.folders.end());
  run_package_module("report", "report_page", words);
}

}  // namespace

void add_report(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "report",
      "Make one page, report.html, of folders of plan, compare, simulate and run: results, interactive figures, "
      "the experiment and the commands that repeat it. The page is one file and needs no network");
  command->footer(
      "Example: kvtwin report out/quickstart-run\n"
      "         kvtwin report out/quickstart-simulated out/quickstart-run --out out/both.html");
  static ReportArguments arguments;
  command->add_option("run_dir", arguments.folders, "Folders to show; several runs also side by side")->required();
  command->add_option("--out", arguments.out, "File to write (default: report.html in the last folder)");
  command->add_flag("--force", arguments.force, "Replace the file if it exists");
  command->callback([] { report(arguments); });
}

}  // namespace kvtwin
