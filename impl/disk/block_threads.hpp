// Threads that carry out block operations, each one at a time, in the order in which they were submitted, and hand
// their ends back: what is the same in every BlockQueue (files.hpp) whose operations block.
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
  // `carry_out`: the operation's BlockEnd::result; in all threads at once. `begin`: called by each thread before its
  // first operation; if it returns -errno, in place of 0, that is the result of all that the thread takes. Neither
  // throws. What they use outlives this.
  explicit BlockThreads(
      std::function<std::int64_t(const BlockOperation&)> carry_out,
      std::function<std::int64_t()> begin = [] { return 0; });
  // Carries out what was submitted.
  ~BlockThreads();
  BlockThreads(const BlockThreads&) = delete;
  BlockThreads& operator=(const BlockThreads&) = delete;

  // One more. std::system_error if there is none to be had.
  void add();

  // As BlockQueue's.
  void submit(const BlockOperation& operation);
  void wait(std::vector<BlockEnd>& ends);

 private:
  void work();

  const std::function<std::int64_t(const BlockOperation&)> carry_out_;
  const std::function<std::int64_t()> begin_;
  std::mutex mutex_;
  std::condition_variable submitted_, ended_;
  std::deque<BlockOperation> waiting_;
  std::vector<BlockEnd> ends_;
  std::size_t under_way_ = 0;  // submitted, and not handed out by wait
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvtwin
