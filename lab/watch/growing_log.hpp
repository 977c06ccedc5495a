// The requests of a log that its server goes on writing.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "traces/trace.hpp"

namespace kvtwin {

// Follows a log whose server begins a new file (another file of this name, or the same one cut). A request is returned
// at most 10 s after its arrival, by the log's times, or when the log has been silent for `silence`. A broken line is
// counted and passed over. A file that is no request log ends the reading.
// Threads: one, which reads the log. Memory: at most kMaxWaiting requests that take() has not returned.
class GrowingLog {
 public:
  static constexpr std::size_t kMaxWaiting = 10'000;
  static constexpr std::chrono::milliseconds kSilence{5'000};
  static constexpr const char* kHasEnded = "has ended";  // a fault that is none

  // `block_tokens`: of the format, if it leaves them open; 0: its default. `zone`: TraceOptions::zone. Errors:
  // InputError: the file can't be opened.
  GrowingLog(const std::string& path, Tokens block_tokens, std::chrono::milliseconds silence = kSilence,
             TimeNs zone = 0);
  ~GrowingLog();
  GrowingLog(const GrowingLog&) = delete;
  GrowingLog& operator=(const GrowingLog&) = delete;

  struct Read {
    Tokens block_tokens = 0;
    TimeNs begin = 0;              // of the first request, as the log tells it; arrivals count from it
    bool has_local_dates = false;  // the zone was needed
    std::vector<TraceRequest> requests;
    std::uint64_t new_files = 0;  // that the server has begun so far
    std::uint64_t bad_lines = 0;  // so far
    std::string first_bad_line;   // file, line and what is wrong
    bool is_waiting = false;      // the file is silent, and has no line yet that tells its format
    std::string fault;            // why no more requests come
    bool is_refused = false;      // the fault: this is no request log
  };
  // Returns the requests that have come since the last call.
  Read take();
  // Takes the end of the file as the end of the log: take() then returns all other requests.
  void end();

 private:
  class Stream;
  bool is_over();
  // Waits until the next look at the file is due, or the log is over.
  bool is_over_after_a_wait();
  void tell_new_file();
  void tell_waiting(bool is_waiting);
  void run(const std::string& path, int file);
  void read_all(const std::string& path, int file);
  void refuse_if_all_is_bad();
  void count_bad(const TraceReader& reader, const TraceLineError& error);

  const Tokens block_tokens_;
  const std::chrono::milliseconds silence_;
  const TimeNs zone_;
  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::deque<TraceRequest> waiting_;
  Tokens read_block_tokens_ = 0;
  TimeNs begin_ = 0;
  bool has_local_dates_ = false;
  std::uint64_t new_files_ = 0;
  std::uint64_t bad_lines_ = 0;
  std::string first_bad_line_, last_error_, fault_;
  bool has_request_ = false, is_waiting_ = false, is_refused_ = false;
  bool is_over_ = false, is_dropped_ = false;
  std::thread thread_;
};

}  // namespace kvtwin
