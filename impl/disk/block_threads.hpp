// Threads that execute block operations: the common part of every BlockQueue (files.hpp) whose operations block. The
// threads take operations in the order of submission; each thread executes one at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "impl/disk/files.hpp"

namespace kvtwin {

class BlockThreads {
 public:
  // `execute` returns BlockEnd::result; called by all threads at the same time. `begin`: each thread calls this
  // function before its first operation. If the result is -errno instead of 0, it is the result of all operations of
  // the thread.
  // Requires: neither function throws. Ownership: everything that they use outlives this object.
  explicit BlockThreads(
      std::function<std::int64_t(const BlockOperation&)> execute,
      std::function<std::int64_t()> begin = [] { return 0; });
  // Executes all submitted operations first.
  ~BlockThreads();
  BlockThreads(const BlockThreads&) = delete;
  BlockThreads& operator=(const BlockThreads&) = delete;

  // Adds a thread. Errors: std::system_error if the system has no thread.
  void add();

  // See BlockQueue.
  void submit(const BlockOperation& operation);
  void wait(std::vector<BlockEnd>& ends);

 private:
  void work();

  const std::function<std::int64_t(const BlockOperation&)> execute_;
  const std::function<std::int64_t()> begin_;
  std::mutex mutex_;
  std::condition_variable submitted_, ended_;
  std::deque<BlockOperation> waiting_;
  std::vector<BlockEnd> ends_;
  std::size_t in_flight_ = 0;  // submitted and not yet returned by wait()
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvtwin
