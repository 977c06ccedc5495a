#include "sim/bounds/prefetch.hpp"

namespace kvtwin {

// Between arrivals, waiting only costs time. So the best stop is at `ready`, or at the arrival of pages.
BestStop best_stop(TimeNs ready, std::span<const PagesArrived> arrivals, const RestTime& rest) {
  Pages there = 0;
  while (!arrivals.empty() && arrivals.front().time <= ready) {
    there = arrivals.front().pages;
    arrivals = arrivals.subspan(1);
  }
  BestStop best{0, rest(there)};
  for (const PagesArrived& arrived : arrivals) {
    const TimeNs wait = arrived.time - ready;
    const TimeNs total = wait + rest(arrived.pages);
    if (total < best.total) best = {wait, total};
  }
  return best;
}

}  // namespace kvtwin
