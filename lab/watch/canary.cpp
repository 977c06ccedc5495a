#include "lab/watch/canary.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lab/formatted.hpp"

namespace kvtwin {
namespace {

constexpr double kParted = 0.03;  // of the prompt tokens, between measured hits and the twin's

double gap_of(const Canary& of) {
  const double gap = of.measured() - of.twin_with_untold();
  return of.is_least ? std::max(0.0, -gap) : std::abs(gap);  // more hits than at least these are no gap
}

}  // namespace

void EngineCanary::serve(const TraceRequest& request, const EngineTwin::Hits& hits, WatchInterval& interval) {
  if (request.measured_hits && !std::exchange(has_logged_hits_, true)) since_measured_ = {};
  for (Canary* const sum : {&since_measured_, &all_}) {
    sum->twin_looked_up += request.input;
    sum->twin_hits += hits.device + hits.host;
    sum->device_hits += hits.device;
    sum->host_hits += hits.host;
    sum->without_window += hits.without_window;
    sum->without_state += hits.without_state;
  }
  interval.twin_looked_up += request.input;
  interval.twin_hits += hits.device + hits.host;
  if (!request.measured_hits) return;
  interval.measured_looked_up += request.input;
  interval.measured_hits += request.measured_hits->total;
  since_measured_.measured_looked_up += request.input;
  since_measured_.measured_hits += request.measured_hits->total;
}

void EngineCanary::count(Tokens looked_up, Tokens hits, WatchInterval& interval) {
  if (has_logged_hits_) return;
  interval.measured_looked_up += looked_up;
  interval.measured_hits += hits;
  since_measured_.measured_looked_up += looked_up;
  since_measured_.measured_hits += hits;
}

void EngineCanary::begin() {
  if (!has_logged_hits_) since_measured_ = {};
}

Canary sum_of(const std::vector<NamedCanary>& engines, const std::deque<WatchInterval>& intervals, TimeNs begin) {
  Canary sum;
  const NamedCanary* worst = nullptr;
  double worst_gap = 0;
  for (const NamedCanary& one : engines) {
    const Canary& own = one.canary;
    for (const auto member : {&Canary::measured_looked_up, &Canary::measured_hits, &Canary::device_hits,
                              &Canary::host_hits, &Canary::twin_looked_up, &Canary::twin_hits, &Canary::untold}) {
      sum.*member += own.*member;
    }
    sum.by_engine_rules |= own.by_engine_rules;
    sum.is_least |= own.is_least;
    if (own.measured_looked_up > 0 && gap_of(own) > worst_gap) {
      worst_gap = gap_of(own);
      worst = &one;
    }
  }
  if (sum.measured_looked_up == 0 || sum.twin_looked_up == 0) return sum;
  if (gap_of(sum) <= kParted && (engines.size() == 1 || worst_gap <= 2 * kParted)) return sum;
  const auto has_parted = [](const WatchInterval& one) {
    return one.measured_looked_up > 0 && one.twin_looked_up > 0 &&
           std::abs(Canary::ratio(one.measured_hits, one.measured_looked_up) -
                    Canary::ratio(one.twin_hits, one.twin_looked_up)) > kParted;
  };
  const auto at = std::ranges::find_if(intervals, has_parted);
  sum.parted = formatted("%.1f points", 100 * gap_of(sum)) +
               (sum.measured() < sum.twin_with_untold() ? " fewer" : " more") + " hits than the twin";
  if (sum.untold == 0 && at != intervals.end()) {
    sum.parted += formatted(", from %.0f s on", static_cast<double>(std::max<TimeNs>(0, at->begin - begin)) * 1e-9);
  }
  if (engines.size() > 1 && worst != nullptr) sum.parted += ", most at " + worst->engine;
  return sum;
}

}  // namespace kvtwin
