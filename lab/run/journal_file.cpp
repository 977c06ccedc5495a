#include "lab/run/journal_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "lab/error.hpp"
#include "lab/out_files.hpp"

namespace kvtwin {

JournalFile::JournalFile(std::filesystem::path path) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file_ < 0) throw cannot_write(path_, errno);
}

JournalFile::~JournalFile() { ::close(file_); }

void JournalFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw cannot_write(path_, written < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

std::vector<std::byte> read_journal(const std::filesystem::path& path) {
  std::error_code error;
  const bool file = std::filesystem::is_regular_file(path, error);  // opening a pipe would wait for a writer
  const auto size = file ? std::filesystem::file_size(path, error) : 0;
  constexpr std::uintmax_t kMaxBytes = std::uintmax_t{1} << 36;
  if (size > kMaxBytes) throw InputError(path.string() + ": is longer than 64 GiB, which no journal of a run is");
  std::ifstream in;
  if (file) in.open(path, std::ios::binary);
  std::vector<std::byte> bytes(error ? 0 : size);
  if (error || !file || !in || !in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size))) {
    throw InputError(path.string() +
                     ": can't be read; it is the journal that `kvtwin run` writes, and `kvtwin "
                     "simulate --journal`");
  }
  return bytes;
}

}  // namespace kvtwin
