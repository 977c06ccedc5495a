#include "lab/out_files.hpp"

#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

namespace kvtwin {
namespace {

std::string limit_of(__rlimit_resource resource) {
  rlimit limit{};
  ::getrlimit(resource, &limit);
  return std::to_string(limit.rlim_cur);
}

}  // namespace

void make_out_folder(const std::filesystem::path& folder, std::error_code& error) {
  error.clear();
  const std::filesystem::path whole = folder.has_filename() ? folder : folder.parent_path();
  if (whole.has_parent_path()) std::filesystem::create_directories(whole.parent_path(), error);
  if (error || ::mkdir(whole.c_str(), 0700) == 0) return;
  const int failed = errno;
  std::error_code ignored;
  if (failed != EEXIST || !std::filesystem::is_directory(whole, ignored)) {
    error = std::error_code(failed, std::generic_category());
  }
}

WorkError cannot_write(const std::filesystem::path& path, int error) {
  const std::string text = path.string() + ": can't be written";
  switch (error) {
    case 0:
    case ENOSPC:
    case EDQUOT: return WorkError(text + "; is the disk full?");
    case EFBIG: return WorkError(text + ": a file may have " + limit_of(RLIMIT_FSIZE) + " bytes here (ulimit -f)");
    case EMFILE:
    case ENFILE:
      return WorkError(text + ": too many files are open; a process may have " + limit_of(RLIMIT_NOFILE) +
                       " here (ulimit -n)");
    default: return WorkError(text + ": " + std::strerror(error));
  }
}

void write_whole(const std::filesystem::path& path, const std::string& content) {
  const std::filesystem::path partial = path.parent_path() / ("." + path.filename().string() + ".partial");
  errno = 0;
  std::ofstream out(partial, std::ios::binary);
  out << content;
  out.close();
  if (!out) throw cannot_write(path, errno);
  std::error_code error;
  std::filesystem::rename(partial, path, error);
  if (!error) return;
  std::error_code ignored;
  std::filesystem::remove(partial, ignored);
  throw cannot_write(path, error.value());
}

}  // namespace kvtwin
