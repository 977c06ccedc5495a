// The folder of Python packages with the programs and libraries of remote stores (tools/engine-env remote).
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>

namespace kvtwin::test {

// KVTWIN_TEST_REMOTE is the environment's folder. Throws if there is none.
inline const std::filesystem::path& remote_packages() {
  static const std::filesystem::path packages = [] {
    const char* folder = std::getenv("KVTWIN_TEST_REMOTE");
    const std::filesystem::path library = std::filesystem::path(folder == nullptr ? "" : folder) / "lib";
    if (folder != nullptr && std::filesystem::is_directory(library)) {
      for (const auto& entry : std::filesystem::directory_iterator(library)) {
        if (std::filesystem::is_directory(entry.path() / "site-packages")) return entry.path() / "site-packages";
      }
    }
    throw std::runtime_error(
        "no environment of remote stores: set KVTWIN_TEST_REMOTE to the folder that tools/engine-env remote makes");
  }();
  return packages;
}

}  // namespace kvtwin::test
