// The queue from all threads of the real world to the event loop, first in, first out.
// Thread: any thread may push; one thread takes.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "policy/seam/world.hpp"

namespace kvtwin {

// The time since the start of the run. One clock for all threads.
class RunClock {
 public:
  using Steady = std::chrono::steady_clock;
  // Requires: no other thread reads the clock.
  void start() { start_ = Steady::now(); }
  // Starts at a reading of since_boot(), which may be another process's on the same machine. Requires: not in the
  // future, and as above.
  void start_at(TimeNs since_boot) { start_ = Steady::time_point(std::chrono::nanoseconds(since_boot)); }
  // Returns the steady clock's own time, the same for all processes of a machine.
  static TimeNs since_boot() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Steady::now().time_since_epoch()).count();
  }
  TimeNs now() const { return std::chrono::duration_cast<std::chrono::nanoseconds>(Steady::now() - start_).count(); }
  // Limited to 100 years after the start: nobody waits longer, and the sum does not overflow.
  Steady::time_point at(TimeNs time) const {
    constexpr std::chrono::hours kCentury{876'600};
    return start_ + std::min<std::chrono::nanoseconds>(std::chrono::nanoseconds(time), kCentury);
  }

 private:
  Steady::time_point start_ = Steady::now();
};

// The end of an operation, or of a reduction among ranks.
struct Finished {
  Completion completion;
  LaneSpan span;                                          // stay on the lane; `end` is the time of push()
  std::shared_ptr<const ReduceVector> agreed = {};        // minimum of a reduction; Status::failed if a rank has left
  std::shared_ptr<const std::vector<Pages>> usable = {};  // the memory of completion.usable; null: empty
  std::shared_ptr<const std::string> failure = {};        // not null: the device cannot continue; one sentence
};

class CompletionQueue {
 public:
  void push(const Finished& finished) {
    {
      const std::lock_guard lock(mutex_);
      items_.push_back(finished);
    }
    pushed_.notify_one();
  }

  // Moves all items into `items`. Requires: `items` is empty. Never waits.
  void take(std::vector<Finished>& items) {
    const std::lock_guard lock(mutex_);
    items.swap(items_);
  }

  // The current or next wait() returns at once.
  void wake() {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    pushed_.notify_one();
  }

  // Returns when the queue has an item, after wake(), or at `deadline`. None = no deadline.
  void wait(std::optional<RunClock::Steady::time_point> deadline) {
    std::unique_lock lock(mutex_);
    const auto has_items = [this] { return woken_ || !items_.empty(); };
    if (deadline) {
      pushed_.wait_until(lock, *deadline, has_items);
    } else {
      pushed_.wait(lock, has_items);
    }
    woken_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable pushed_;
  std::vector<Finished> items_;
  bool woken_ = false;
};

}  // namespace kvtwin
