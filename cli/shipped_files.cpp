#include "cli/shipped_files.hpp"

#include <algorithm>
#include <iterator>
#include <system_error>

namespace kvtwin {

namespace fs = std::filesystem;

fs::path program_folder() {
  std::error_code no_program;
  return fs::read_symlink("/proc/self/exe", no_program).parent_path();
}

bool reads_experiment_or_trace(std::string_view option) {
  // "in" is the trace that `trace convert` reads. Files that a command writes are not in the list.
  constexpr std::string_view kOptions[] = {"experiment",   "file",          "in",     "runs", "trace",
                                           "--experiment", "--experiments", "--trace"};
  return std::ranges::find(kOptions, option) != std::end(kOptions);
}

std::string shipped_file(const std::string& path) {
  std::error_code unreadable;  // for example, the name is too long: the reader of the file says so
  if (path.empty() || fs::path(path).is_absolute() || fs::exists(path, unreadable)) return path;
  const fs::path above = program_folder().parent_path();
  for (const char* data : {"data", "share/kvtwin"}) {  // of the wheel, and below the prefix of an installation
    const fs::path file = above / data / path;
    if (fs::is_regular_file(file, unreadable)) return file.string();
  }
  return path;
}

}  // namespace kvtwin
