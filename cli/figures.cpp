// kvtwin figures: runs notebooks/kvtwin.py in the Python that has matplotlib.
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "cli/commands.hpp"
#include "cli/environment.hpp"
#include "cli/error.hpp"
#include "kvtwin_version.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

void draw(const std::string& folder) {
  if (!fs::exists(fs::path(folder) / "report.json")) {
    throw InputError(folder + ": holds no report.json; give a run folder that `kvtwin simulate --out` wrote");
  }
  const fs::path script = fs::path(kSourceDir) / "notebooks" / "kvtwin.py";
  const std::string named = environment_python();
  const fs::path python = named.empty() ? fs::path(kSourceDir) / ".venv" / "bin" / "python" : fs::path(named);
  if (!fs::exists(python)) {
    throw InputError(python.string() +
                     ": no such Python; run tools/quickstart, or set KVTWIN_PYTHON to one with matplotlib");
  }
  const pid_t child = fork();
  if (child < 0) throw WorkError(std::string("figures: can't start Python: ") + std::strerror(errno));
  if (child == 0) {
    execl(python.c_str(), python.c_str(), script.c_str(), "figures", folder.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) throw AlreadySaid(2);  // it has named what is wrong in the folder
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw WorkError("figures: " + python.string() + " " + script.string() + " failed");
  }
}

}  // namespace

void add_figures(CLI::App& program) {
  CLI::App* command = program.add_subcommand("figures", "Draw a run folder's figures into its figures/ folder");
  command->footer("Example: kvtwin figures out/quickstart");
  static std::string folder;
  command->add_option("run_dir", folder, "A run folder")->required();
  command->callback([] { draw(folder); });
}

}  // namespace kvtwin
