// Folders and files that the program writes for its user.
#pragma once

#include <filesystem>
#include <system_error>

#include "lab/error.hpp"

namespace kvtwin {

// Makes the folder for this user alone (0700), and missing parents as the umask says. A folder that exists stays as it
// is.
void make_out_folder(const std::filesystem::path& folder, std::error_code& error);

// Why the file could not be written. `error`: the errno of the call that failed; 0: not known.
WorkError cannot_write(const std::filesystem::path& path, int error);

}  // namespace kvtwin
