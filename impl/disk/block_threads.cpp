#include "impl/disk/block_threads.hpp"

#include <utility>

namespace kvtwin {

BlockThreads::BlockThreads(std::function<std::int64_t(const BlockOperation&)> execute,
                           std::function<std::int64_t()> begin)
    : execute_(std::move(execute)), begin_(std::move(begin)) {}

BlockThreads::~BlockThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  submitted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void BlockThreads::add() {
  threads_.emplace_back([this] { work(); });
}

void BlockThreads::submit(const BlockOperation& operation) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(operation);
    ++in_flight_;
  }
  submitted_.notify_one();
}

void BlockThreads::wait(std::vector<BlockEnd>& ends) {
  std::unique_lock lock(mutex_);
  if (in_flight_ == 0) return;
  ended_.wait(lock, [this] { return !ends_.empty(); });
  in_flight_ -= ends_.size();
  ends.insert(ends.end(), ends_.begin(), ends_.end());
  ends_.clear();
}

void BlockThreads::work() {
  const std::int64_t error = begin_();
  std::unique_lock lock(mutex_);
  for (;;) {
    submitted_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const BlockOperation operation = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    const BlockEnd end{operation.tag, error == 0 ? execute_(operation) : error};
    lock.lock();
    ends_.push_back(end);
    ended_.notify_one();
  }
}

}  // namespace kvtwin
