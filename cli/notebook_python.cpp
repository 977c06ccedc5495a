#include "cli/notebook_python.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "cli/environment.hpp"
#include "lab/error.hpp"
#include "lab/version.hpp"

namespace kvtwin {

namespace fs = std::filesystem;

void check_result_folders(const std::vector<std::string>& folders, std::initializer_list<const char*> files,
                          const std::string& writers) {
  for (const std::string& folder : folders) {
    const auto holds = [&](const char* name) { return fs::exists(fs::path(folder) / name); };
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

void run_notebook_script(const std::string& command, const std::string& script,
                         const std::vector<std::string>& arguments) {
  const fs::path path = fs::path(kSourceDir) / "notebooks" / script;
  const std::string named = environment_python();
  const fs::path python = named.empty() ? fs::path(kSourceDir) / ".venv" / "bin" / "python" : fs::path(named);
  if (!fs::exists(python)) {
    throw InputError(python.string() +
                     ": no such Python; run tools/quickstart, or set KVTWIN_PYTHON to one with the packages of "
                     "notebooks/requirements.txt");
  }
  std::vector<std::string> words = {python.string(), path.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const pid_t child = fork();
  if (child < 0) throw WorkError(command + ": can't start Python: " + std::strerror(errno));
  if (child == 0) {
    execv(python.c_str(), pointers.data());
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) throw AlreadySaid(2);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw WorkError(command + ": " + python.string() + " " + path.string() + " failed");
  }
}

}  // namespace kvtwin
