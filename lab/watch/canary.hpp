// Measured hits beside the twin's: a canary that says when the two part.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "lab/watch/watch_intervals.hpp"
#include "lab/watch/watched_server.hpp"
#include "policy/base/types.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

// Sums of tokens, over the requests of which both are known.
struct Canary {
  Tokens measured_looked_up = 0, measured_hits = 0, device_hits = 0, host_hits = 0;
  Tokens twin_looked_up = 0, twin_hits = 0;
  Tokens without_window = 0, without_state = 0;  // the twin's, which are there and of no use
  // Prompt tokens that were measured and that no inferred request has. 0 if the requests are exact.
  Tokens untold = 0;
  bool by_engine_rules = false;  // else LRU at the present size
  bool is_least = false;         // the twin's hits may be more: the present size is above the tracked blocks
  std::string parted;            // where the two part; empty: nowhere

  double measured() const { return ratio(measured_hits, measured_looked_up); }
  double twin() const { return ratio(twin_hits, twin_looked_up); }
  double twin_with_untold() const { return ratio(twin_hits + untold, twin_looked_up + untold); }
  static double ratio(Tokens part, Tokens whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  }
};

// Of one engine.
class EngineCanary {
 public:
  // A request that the twin has served, and what its log measured. `interval`: in which it began.
  void serve(const TraceRequest& request, const EngineTwin::Hits& hits, WatchInterval& interval);
  // What the engine's counters have more than before. Not counted if a log has measured hits.
  void count(Tokens looked_up, Tokens hits, WatchInterval& interval);
  // The counters are there for the first time: both sides begin here.
  void begin();

  const Canary& since_measured() const { return since_measured_; }
  const Canary& all() const { return all_; }  // the twin's of all requests

 private:
  bool has_logged_hits_ = false;  // counters then count the same again
  Canary since_measured_, all_;
};

struct NamedCanary {
  std::string engine;
  Canary canary;
};
// Adds the engines up. `parted` says where measured hits and the twin's are more than 3 points apart, and since when.
// `begin`: of the watch.
Canary sum_of(const std::vector<NamedCanary>& engines, const std::deque<WatchInterval>& intervals, TimeNs begin);

}  // namespace kvtwin
