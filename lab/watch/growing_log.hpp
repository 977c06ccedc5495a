// The requests of a log that its server goes on writing.
#pragma once

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

// Threads: one, which reads the log. Memory: at most kMaxWaiting requests that take() has not returned.
class GrowingLog {
 public:
  static constexpr std::size_t kMaxWaiting = 10'000;

  // `block_tokens`: of the format, if it leaves them open; 0: its default. Errors: InputError: the file can't be
  // opened.
  GrowingLog(const std::string& path, Tokens block_tokens);
  ~GrowingLog();
  GrowingLog(const GrowingLog&) = delete;
  GrowingLog& operator=(const GrowingLog&) = delete;

  struct Read {
    Tokens block_tokens = 0;
    TimeNs begin = 0;  // of the first request, as the log tells it; arrivals count from it
    std::vector<TraceRequest> requests;
    std::string fault;  // why no more requests come
  };
  // Returns the requests that have come since the last call.
  Read take();
  // Takes the end of the file as the end of the log: take() then returns all other requests.
  void end();

 private:
  class Stream;
  // Waits until the next look at the file is due, or the log is over.
  bool is_over_after_a_wait();
  void run(const std::string& path, int file);

  const Tokens block_tokens_;
  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::deque<TraceRequest> waiting_;
  Tokens read_block_tokens_ = 0;
  TimeNs begin_ = 0;
  std::string fault_;
  bool is_over_ = false, is_dropped_ = false;
  std::thread thread_;
};

}  // namespace kvtwin
