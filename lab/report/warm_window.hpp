// Where a run is warm: from when on its hit ratio and its waits change by no more than chance. Before, caches fill and
// queues build up, and figures say more about the start than about the traffic.
//
// The test, which is deterministic:
//   1. The time from the first to the last arrival is cut into 64 equal batches, by arrival. A batch has the hit ratio
//      of its prompts' tokens and their mean wait.
//   2. For each of the two, the start of the window is the batch d of the first half at which the squared standard
//      error of the mean of the batches from d on is smallest (MSER: White, Simulation 69 (6), 1997). The window begins
//      at the later of both, and ends at the last arrival.
//   3. The window is flat if it is long enough, and if for both the means of its halves differ by at most 3 standard
//      errors of that difference, or by a tolerance: 0.01 of the hit ratio, 5 % of the wait or 10 ms.
//   4. A run whose waits grow by 0.05 s or more per second is overloaded: no longer run can be flat.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "policy/base/types.hpp"

namespace kvtwin {

// From `from` to `to`, both included; all times by default.
struct TimeWindow {
  TimeNs from = std::numeric_limits<TimeNs>::min(), to = std::numeric_limits<TimeNs>::max();
  bool has(TimeNs time) const { return time >= from && time <= to; }
};

// What the test needs of a request that has ended.
struct WarmSample {
  TimeNs arrival = 0, wait_ns = 0;  // wait: from the arrival to the first token, without compute
  Tokens prompt = 0, hit = 0;
};

struct WarmWindow : TimeWindow {
  std::string not_flat;     // why the window is not warm, a part of a sentence; empty: it is
  std::string growth;       // of the waits, a part of a sentence; empty: they do not grow
  bool overloaded = false;  // they grow by more than a longer run can make up for
  double wait_s = 0;        // mean of the window
};

// Returns the window of a run. `least_ns`: its least length, for example some think times. Samples in any order.
WarmWindow warm_window(const std::vector<WarmSample>& samples, TimeNs least_ns);

}  // namespace kvtwin
