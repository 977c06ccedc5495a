// One thread with a FIFO of jobs.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace kvtwin {

template <typename Job>
class Worker {
 public:
  // The thread calls `work` for one job at a time. Requires: `work` does not throw.
  // Errors: std::system_error, whose text contains `what`, if the system has no thread.
  void start(const char* what, std::function<void(Job&)> work) {
    work_ = std::move(work);
    try {
      thread_ = std::thread([this] { loop(); });
    } catch (const std::system_error& error) {
      throw std::system_error(error.code(), std::string("starting the ") + what);
    }
  }
  ~Worker() { finish(); }

  void submit(Job job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_one();
  }

  // Finishes all jobs in the queue, then ends the thread.
  void finish() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  // Returns the jobs that have not begun. No further job begins.
  std::deque<Job> drop() {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    return std::exchange(jobs_, {});
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      work_(job);
      lock.lock();
    }
  }

  std::function<void(Job&)> work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace kvtwin
