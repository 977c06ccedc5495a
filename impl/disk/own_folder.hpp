// The folder of a storage tier. Only the current user may write to the folder.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "impl/storage/pieces.hpp"

namespace kvtwin {

// Owns a file descriptor; -1 = none.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  int get() const { return number_; }
  int release();

 private:
  int number_;
};

// Opens the folder; makes it with mode 0700 if it does not exist (its parent must).
// Symbolic links on the way to the folder, and the folder's own, are followed. The checks look at the folder that was
// opened, and all later work goes through the descriptor, so a link that changes afterwards has no effect.
// Errors: std::system_error if the folder cannot be made or opened. std::runtime_error if it belongs to another user,
// or if its mode or access list lets others write.
// `tier`: name of the tier in error texts.
Descriptor open_own_folder(const std::filesystem::path& folder, std::string_view tier = "disk tier");

// Writes all bytes. Returns 0 or errno.
int write_whole(int file, std::span<const std::byte> bytes);
// Writes the pieces, one after another, from the start of the file on. Returns 0 or errno.
int write_whole(int file, const Pieces& pieces);
// Fills the pieces from the start of the file on. Returns 0, ENODATA if the file is too short, or errno.
int read_whole(int file, const Pieces& pieces);

// Returns the names in an open folder, without "." and "..", in no order. `error`: -errno on failure, else 0.
std::vector<std::string> names_in(int folder, int& error);

// Returns whether too many files are open, in this process or on the machine. This is a setting and no fault of the
// disk.
bool is_file_limit(int error);
// Returns, for example, "a process may have 1024 files open here (ulimit -n)".
std::string file_limit_sentence();

}  // namespace kvtwin
