// The figures of the requests that arrive while a run is warm (lab/report/warm_window.hpp).
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "lab/report/request_figures.hpp"
#include "lab/report/warm_window.hpp"

namespace kvtwin {

struct WarmFigures {
  WarmWindow window;
  std::uint64_t times = 1;           // the run is so many times as long as its workload was given
  RequestFigures figures;            // of the requests that arrive in the window
  Rates rates;                       // of the requests and written pages that end in the window
  std::vector<RequestId> completed;  // the requests that the figures are of
};

// Memory: the record of each request that has ended, and 24 bytes for each write to a storage tier.
class WarmWatch final : public Observer {
 public:
  // Events go on to `next`, which may be null. `cost`: as for Metrics.
  WarmWatch(Observer* next, const CostModel* cost, ServiceLevel level) : next_(next), cost_(cost), level_(level) {}
  void on_event(const Event& event) override;
  static constexpr TimeNs kForever = std::numeric_limits<TimeNs>::max();
  // Returns the window of the requests that have ended so far. Arrivals after `until` are left out: when the traffic of
  // users is cut, requests for which they still think arrive later, and alone.
  WarmWindow window(TimeNs least_ns, TimeNs until = kForever) const;
  // Call this after the last event. `least_ns`: the least length of the window.
  WarmFigures found(TimeNs least_ns, TimeNs until = kForever) const;

 private:
  struct End {
    EventKind kind = EventKind::finished;
    Reason reason = Reason::none;
    TimeNs time = 0;
    RequestRecord record;
  };
  struct Written {
    TimeNs time = 0;
    Tier tier = Tier::disk;
    Pages pages = 0;
  };

  Observer* next_;
  const CostModel* cost_;
  ServiceLevel level_;
  std::vector<End> ends_;
  std::vector<Written> writes_;
};

}  // namespace kvtwin
