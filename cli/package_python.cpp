#include "cli/package_python.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "cli/environment.hpp"
#include "cli/shipped_files.hpp"
#include "lab/error.hpp"
#include "lab/version.hpp"

namespace kvtwin {

namespace fs = std::filesystem;

namespace {

// False too if the path cannot be followed, say because links loop.
bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

}  // namespace

void check_result_folders(const std::vector<std::string>& folders, std::initializer_list<const char*> files,
                          const std::string& writers) {
  for (const std::string& folder : folders) {
    const auto holds = [&](const char* name) { return is_there(fs::path(folder) / name); };
    if (std::ranges::any_of(files, holds)) continue;
    std::string names;
    for (const char* const* file = files.begin(); file != files.end(); ++file) {
      names += file == files.begin() ? "" : file + 1 == files.end() ? " or " : ", ";
      names += *file;
    }
    throw InputError(folder + ": holds no " + names + "; give a folder that " + writers +
                     " wrote (of shards, one that the command without --shard has finished)");
  }
}

namespace {

// Returns the folder that holds the package kvtwin.
fs::path package_folder() {
  const fs::path bin = program_folder();
  for (const fs::path& folder : {bin.parent_path().parent_path(), bin.parent_path() / "share/kvtwin/python"}) {
    if (is_there(folder / "kvtwin/figures.py")) return folder;
  }
  return fs::path(kSourceDir) / "python";
}

}  // namespace

void run_package_module(const std::string& command, const std::string& module,
                        const std::vector<std::string>& arguments) {
  std::fflush(stdout);  // what was printed comes before the lines of the module
  const std::string folder = package_folder().string();
  const std::string named = environment_python();
  if (named.empty() && *kSourceDir == '\0') {
    throw InputError(command + ": needs a Python with packages; set KVTWIN_PYTHON to one with those of " +
                     (fs::path(folder).parent_path() / "notebooks/requirements.txt").string());
  }
  const fs::path python = named.empty() ? fs::path(kSourceDir) / ".venv" / "bin" / "python" : fs::path(named);
  if (!is_there(python)) {
    throw InputError(python.string() +
                     ": no such Python; run tools/quickstart, or set KVTWIN_PYTHON to one with the packages of "
                     "notebooks/requirements.txt");
  }
  // -P: without the working folder, which may have modules of equal names.
  std::vector<std::string> words = {python.string(), "-P", "-m", "kvtwin.run_module", module};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const pid_t child = fork();
  if (child < 0) throw WorkError(command + ": can't start Python: " + std::strerror(errno));
  if (child == 0) {
    const char* const others = std::getenv("PYTHONPATH");
    const std::string path = others == nullptr || *others == '\0' ? folder : folder + ":" + others;
    setenv("PYTHONPATH", path.c_str(), 1);
    execv(python.c_str(), pointers.data());
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) throw AlreadySaid(2);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw WorkError(command + ": " + python.string() + " -m kvtwin.run_module " + module + " failed");
  }
}

}  // namespace kvtwin
