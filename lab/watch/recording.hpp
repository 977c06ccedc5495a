// A recording that is played: the events or requests of one engine, in the order of time. Internal to lab/watch.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "lab/watch/watch.hpp"

namespace kvtwin {

class WatchedRecording {
 public:
  virtual ~WatchedRecording() = default;
  // Returns the time of the next event or request; nothing at the end. Errors: TraceError.
  virtual std::optional<TimeNs> next_time() = 0;
  // Requires: next_time() has returned a time. Passes the event or request on.
  virtual void deliver(Watch& watch, std::size_t source) = 0;
  // The same, for a request of an earlier watch: Watch::take_kept().
  virtual void deliver_kept(Watch& watch, std::size_t source) { deliver(watch, source); }
  // It says how many tokens a block has, whatever open_recording() was given.
  virtual bool has_own_block_size() const { return true; }
};

// Opens a folder of `kvtwin record`, a folder of one engine in --out, or a trace. `block_tokens`: of a trace whose
// format leaves it open; 0: the format's default. Errors: InputError, TraceError.
std::unique_ptr<WatchedRecording> open_recording(const std::string& path, Tokens block_tokens);

// The name of a file of requests in --out: requests-BLOCKt-TIME.jsonl. TIME: ms of the first arrival, 15 digits.
struct RequestFileName {
  Tokens block_tokens = 0;
  TimeNs begin = 0;

  std::string text() const;
  static std::optional<RequestFileName> parse(const std::string& name);
};

// The files of requests in a folder, in the order of time.
std::vector<std::filesystem::path> request_files(const std::filesystem::path& folder);
// The folders of the engines in a folder of --out; empty if it is none.
std::vector<std::filesystem::path> engine_folders(const std::filesystem::path& folder);

}  // namespace kvtwin
