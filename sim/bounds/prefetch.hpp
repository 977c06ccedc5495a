// The best time to stop waiting for a prefetch, for who knows when its pages came. Time is the only thing weighed: what
// a request does to others is left as it was.
#pragma once

#include <functional>
#include <span>

#include "policy/base/types.hpp"

namespace kvtwin {

// From `time` on, `pages` of a prefetch's leading pages were there.
struct PagesArrived {
  TimeNs time = 0;
  Pages pages = 0;
};

// What the request still takes, with so many of the prefetch's pages there: never more with more of them.
using RestTime = std::function<TimeNs(Pages pages)>;

struct BestStop {
  TimeNs wait = 0;   // from `ready` to the stop
  TimeNs total = 0;  // and what the request takes from there
};

// `ready`: from when on the request waits for nothing else. `arrivals`: in order of time, pages rising. No stop at or
// after `ready` has a smaller total, nor has never having begun; of equal ones the first.
BestStop best_stop(TimeNs ready, std::span<const PagesArrived> arrivals, const RestTime& rest);

}  // namespace kvtwin
