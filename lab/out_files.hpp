// Folders and files that the program writes for the user.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

#include "lab/error.hpp"

namespace kvtwin {

// Creates the folder with mode 0700, and missing parents with the umask. An existing folder is not changed. `error`:
// set if the folder does not exist afterwards.
void make_out_folder(const std::filesystem::path& folder, std::error_code& error);

// Returns an error with the reason why the file cannot be written. `error`: the errno of the failed call; 0 = not
// known.
WorkError cannot_write(const std::filesystem::path& path, int error);

// Writes .NAME.partial and renames the complete file, so an interrupted program never leaves a part of it at `path`.
// Errors: WorkError.
void write_whole(const std::filesystem::path& path, const std::string& content);

}  // namespace kvtwin
