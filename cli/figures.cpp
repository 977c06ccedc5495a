// kvtwin figures: draws figures with notebooks/kvtwin.py, in a Python that has matplotlib.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/environment.hpp"
#include "lab/error.hpp"
#include "lab/version.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

void draw(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    const auto holds = [&](const char* name) { return fs::exists(fs::path(folder) / name); };
    const auto files = {"report.json", "sweep.json", "compare.json", "validate.json"};
    if (std::ranges::none_of(files, holds)) {
      throw InputError(
          folder +
          ": holds no report.json, sweep.json, compare.json or validate.json; give a folder that `kvtwin simulate "
          "--out`, `run --out`, `sweep --out`, `compare --out` or `validate --out` wrote (of shards, one that the "
          "command without --shard has finished)");
    }
  }
  const fs::path script = fs::path(kSourceDir) / "notebooks" / "kvtwin.py";
  const std::string named = environment_python();
  const fs::path python = named.empty() ? fs::path(kSourceDir) / ".venv" / "bin" / "python" : fs::path(named);
  if (!fs::exists(python)) {
    throw InputError(python.string() +
                     ": no such Python; run tools/quickstart, or set KVTWIN_PYTHON to one with matplotlib");
  }
  std::vector<std::string> words = {python.string(), script.string(), "figures"};
  words.insert(words.end(), folders.begin(), folders.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child < 0) throw WorkError(std::string("figures: can't start Python: ") + std::strerror(errno));
  if (child == 0) {
    execv(python.c_str(), arguments.data());
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) throw AlreadySaid(2);  // the script has printed the error
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw WorkError("figures: " + python.string() + " " + script.string() + " failed");
  }
}

}  // namespace

void add_figures(CLI::App& program) {
  CLI::App* command = program.add_subcommand("figures",
                                             "Draw figures of run folders, and of folders of sweep, compare and "
                                             "validate, into figures/ of each folder; of several "
                                             "runs also one figure side by side");
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
