// Puts and gets of a store that run in a thread of their own, without Python.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kvtwin/store.h"

namespace kvtwin::python {

// What a put or get needs, owned by it. `memory` is the caller's.
struct Transfer {
  std::uint64_t job = 0;
  std::size_t pool = 0;
  std::vector<kvtwin_key> keys;
  std::vector<void*> memory;
  std::vector<std::size_t> lengths;
};

struct EndedTransfer {
  std::uint64_t job = 0;
  bool failed = false;              // the call; its pages have no status
  std::vector<std::uint8_t> pages;  // one status each
  double seconds = 0;               // without the wait for the transfers before
};

// Runs transfers in the order in which they were added. Any thread may call any method. The thread begins with the
// first transfer, so that a store without transfers has none. It takes no lock of Python: Python's threads wait for
// each other up to 5 ms whenever one of them returns from a call.
class TransferThread {
 public:
  // Runs in the thread, and must not throw.
  using Move = std::function<EndedTransfer(const Transfer&)>;

  explicit TransferThread(Move move) : move_(std::move(move)) {}
  TransferThread(const TransferThread&) = delete;
  TransferThread& operator=(const TransferThread&) = delete;
  ~TransferThread() { stop(); }

  // Returns false after stop().
  bool add(Transfer transfer) {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    waiting_.push_back(std::move(transfer));
    added_.notify_one();
    return true;
  }
  // Adds the ended transfers to `ended`, each once.
  void take_ended(std::vector<EndedTransfer>& ended) {
    const std::lock_guard lock(mutex_);
    for (EndedTransfer& one : ended_) ended.push_back(std::move(one));
    ended_.clear();
  }
  // Blocks until all transfers that were added have ended.
  void wait() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return waiting_.empty() && !running_; });
  }
  // Ends the thread after the transfers that were added.
  void stop() {
    std::thread thread;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      added_.notify_one();
      thread.swap(thread_);
    }
    if (thread.joinable()) thread.join();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      added_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const Transfer transfer = std::move(waiting_.front());
      waiting_.pop_front();
      running_ = true;
      lock.unlock();
      EndedTransfer ended = move_(transfer);
      lock.lock();
      running_ = false;
      ended_.push_back(std::move(ended));
      if (waiting_.empty()) idle_.notify_all();
    }
  }

  const Move move_;
  std::mutex mutex_;
  std::condition_variable added_, idle_;
  std::deque<Transfer> waiting_;
  std::vector<EndedTransfer> ended_;
  bool running_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace kvtwin::python
