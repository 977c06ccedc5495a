#include "impl/disk/own_folder.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace kvtwin {

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  const int number = other.release();
  if (number_ >= 0) ::close(number_);
  number_ = number;
  return *this;
}

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

int Descriptor::release() { return std::exchange(number_, -1); }

Descriptor open_own_folder(const std::filesystem::path& folder, std::string_view tier) {
  const std::string name = std::string(tier) + "'s folder " + folder.string();
  const auto fail = [&name](const char* what) {
    throw std::system_error(errno, std::generic_category(), std::string(what) + " the " + name);
  };
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) fail("making");
  Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.get() < 0) fail("opening");
  struct stat facts {};
  if (::fstat(opened.get(), &facts) != 0) fail("opening");
  if (facts.st_uid != ::geteuid()) {
    const std::string us = std::to_string(::geteuid());
    throw std::runtime_error("The " + name + " belongs to user " + std::to_string(facts.st_uid) +
                             ", who could put pages there, and this program runs as user " + us +
                             "; name another folder, or chown -R " + us + " it.");
  }
  // Write permissions of an access control list show in the group bit.
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    throw std::runtime_error("The " + name + " may be written to by others, who could put pages there; chmod go-w it.");
  }
  return opened;
}

int write_whole(int file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : ENOSPC;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return 0;
}

namespace {

constexpr std::size_t kMaxVectors = 64;  // of one call

// Moves the pieces by calls of preadv or pwritev. `at_end`: the result if a call moves nothing.
template <typename Move>
int move_whole(int file, const Pieces& pieces, const Move& move, int at_end) {
  std::size_t piece = 0, within = 0;  // the next byte
  off_t at = 0;
  for (;;) {
    std::array<iovec, kMaxVectors> vectors;
    int count = 0;
    for (std::size_t i = piece; i < pieces.size() && count < static_cast<int>(kMaxVectors); ++i) {
      const std::span<std::byte> rest = pieces[i].subspan(i == piece ? within : 0);
      if (!rest.empty()) vectors[static_cast<std::size_t>(count++)] = {rest.data(), rest.size()};
    }
    if (count == 0) return 0;
    const ssize_t moved = move(file, vectors.data(), count, at);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return moved < 0 ? errno : at_end;
    at += moved;
    within += static_cast<std::size_t>(moved);
    while (piece < pieces.size() && within >= pieces[piece].size()) within -= pieces[piece++].size();
  }
}

}  // namespace

int write_whole(int file, const Pieces& pieces) { return move_whole(file, pieces, ::pwritev, ENOSPC); }
int read_whole(int file, const Pieces& pieces) { return move_whole(file, pieces, ::preadv, ENODATA); }

std::vector<std::string> names_in(int folder, int& error) {
  std::vector<std::string> names;
  error = 0;
  const int copy = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* entries = copy < 0 ? nullptr : ::fdopendir(copy);
  if (entries == nullptr) {
    error = -errno;
    if (copy >= 0) ::close(copy);
    return names;
  }
  errno = 0;
  while (const dirent* entry = ::readdir(entries)) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
    errno = 0;
  }
  error = -errno;
  ::closedir(entries);
  return names;
}

bool is_file_limit(int error) { return error == EMFILE || error == ENFILE; }

std::string file_limit_sentence() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return "a process may have " + std::to_string(limit.rlim_cur) + " files open here (ulimit -n)";
}

}  // namespace kvtwin
