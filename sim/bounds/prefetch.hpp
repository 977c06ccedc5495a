// The best time to stop waiting for a prefetch, if the arrival times of its pages are known. The bound weighs only the
// request's own time. The effect of a stop on other requests is not modelled.
#pragma once

#include <functional>
#include <span>

#include "policy/base/types.hpp"

namespace kvtwin {

// From `time` on, the first `pages` pages of a prefetch have arrived.
struct PagesArrived {
  TimeNs time = 0;
  Pages pages = 0;
};

// Returns the time that the request still takes when `pages` pages have arrived. Requires: does not rise with `pages`.
using RestTime = std::function<TimeNs(Pages pages)>;

struct BestStop {
  TimeNs wait = 0;   // from `ready` to the stop
  TimeNs total = 0;  // `wait` plus the time that the request takes after the stop
};

// Returns the stop with the smallest total time; among equal ones, the first. No stop at or after `ready` is better,
// and neither is a request without prefetch. `ready`: from this time on, the request waits only for the prefetch.
// Requires: `arrivals` are ordered by time, and `pages` rises.
BestStop best_stop(TimeNs ready, std::span<const PagesArrived> arrivals, const RestTime& rest);

}  // namespace kvtwin
