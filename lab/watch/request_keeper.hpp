// Keeps the requests of watched engines as workloads, in files that are bounded together:
//   OUT/engine-N/requests-BLOCKt-TIME.jsonl   Mooncake's format, ids of blocks only; readable after a kill up to the
//   last
//                                             whole line
//   OUT/engine-N/workload.toml                the newest complete file as a workload: for simulate, compare, plan
// A later watch with the same folder reads them first, so that its curve goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "traces/trace.hpp"

namespace kvtwin {

class RequestKeeper {
 public:
  static constexpr std::uint64_t kFiles = 8;  // that share the bytes of an engine

  // Makes the folders. Errors: InputError if the folder has other engines than `engines`, WorkError.
  RequestKeeper(const std::filesystem::path& folder, std::size_t engines, std::uint64_t max_bytes);
  ~RequestKeeper();
  RequestKeeper(const RequestKeeper&) = delete;
  RequestKeeper& operator=(const RequestKeeper&) = delete;

  // Errors: WorkError.
  void write(std::size_t engine, const TraceRequest& request, Tokens block_tokens);
  // Writes what is kept back. Errors: WorkError.
  void flush();
  // Completes all files. A later write() begins a new one. Errors: WorkError.
  void end();
  std::uint64_t bytes() const;  // of all files

 private:
  struct Engine;
  void end_file(Engine& engine);
  void begin_file(Engine& engine, TimeNs arrival, Tokens block_tokens);
  void remove_oldest(const Engine& engine) const;

  const std::uint64_t max_bytes_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace kvtwin
