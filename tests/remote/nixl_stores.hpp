// NIXL for tests: files of a folder, and buckets of an S3 server (SeaweedFS) that is a process on this machine.
#pragma once

#include <filesystem>
#include <string>

#include "impl/remote/nixl_backend.hpp"
#include "tests/folder.hpp"
#include "tests/free_port.hpp"
#include "tests/remote/environment.hpp"
#include "tests/server_process.hpp"

namespace kvtwin::test {

inline NixlConfig nixl_files(const std::filesystem::path& folder) {
  NixlConfig config;
  config.folder = folder;
  config.library = remote_packages().string();
  config.timeout = 60 * kNsPerSecond;  // a test machine may be slow
  config.bytes_in_flight = 4096;       // several batches an operation
  return config;
}

}  // namespace kvtwin::test
