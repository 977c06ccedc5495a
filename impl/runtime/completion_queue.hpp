// Where every thread of the real world leaves what it has done, and the event loop takes it: in the order in
// which it was left. Any thread may push; one takes.
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

// Time since the start of the run, for all threads alike.
class RunClock {
 public:
  using Steady = std::chrono::steady_clock;
  // While no other thread looks at it.
  void start() { start_ = Steady::now(); }
  TimeNs now() const { return std::chrono::duration_cast<std::chrono::nanoseconds>(Steady::now() - start_).count(); }
  // At most a century from the start: nobody waits longer, and the sum must not overflow.
  Steady::time_point at(TimeNs time) const {
    constexpr std::chrono::hours kCentury{876'600};
    return start_ + std::min<std::chrono::nanoseconds>(std::chrono::nanoseconds(time), kCentury);
  }

 private:
  Steady::time_point start_ = Steady::now();
};

// An operation that has ended, or a reduction among ranks.
struct Finished {
  Completion completion;
  LaneSpan span;                                    // its stay on the lane; end: when it was pushed
  std::shared_ptr<const ReduceVector> agreed = {};  // a reduction's minimum; it failed if a rank has left
  std::shared_ptr<const std::string> failure = {};  // the device can't go on, and why: one sentence
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

  // Moves all that is there into `items` (empty before). Never waits.
  void take(std::vector<Finished>& items) {
    const std::lock_guard lock(mutex_);
    items.swap(items_);
  }

  // Until something is there, or `deadline` has come; none = no deadline.
  void wait(std::optional<RunClock::Steady::time_point> deadline) {
    std::unique_lock lock(mutex_);
    const auto there = [this] { return !items_.empty(); };
    if (deadline) {
      pushed_.wait_until(lock, *deadline, there);
    } else {
      pushed_.wait(lock, there);
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable pushed_;
  std::vector<Finished> items_;
};

}  // namespace kvtwin
