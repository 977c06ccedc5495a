// The time of the next attempt at a server after trouble: twice as late after each failure. All threads share an
// object.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>

#include "policy/base/types.hpp"

namespace kvtwin {

// The clock of back-offs, unless a test sets another one.
inline TimeNs steady_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct BackOffTimes {
  TimeNs first = kNsPerSecond / 10, longest = 10 * kNsPerSecond;
};

class BackOff {
 public:
  explicit BackOff(const BackOffTimes& times = {}) : times_(times) {}
  // Returns the number of this attempt, or none if the back-off time has not passed.
  std::optional<std::uint64_t> begin(TimeNs now) {
    const std::lock_guard lock(mutex_);
    if (wait_ > 0 && now < again_at_) return std::nullopt;
    return failures_;
  }
  // Several attempts that were in progress at the same time count as one failure.
  void fail(std::uint64_t attempt, TimeNs now) {
    const std::lock_guard lock(mutex_);
    if (attempt != failures_) return;
    ++failures_;
    wait_ = wait_ == 0 ? times_.first : std::min(2 * wait_, times_.longest);
    again_at_ = now + wait_;
  }
  void succeed(std::uint64_t attempt) {
    const std::lock_guard lock(mutex_);
    if (attempt == failures_) wait_ = 0;
  }

 private:
  const BackOffTimes times_;
  std::mutex mutex_;
  std::uint64_t failures_ = 0;
  TimeNs wait_ = 0, again_at_ = 0;
};

}  // namespace kvtwin
