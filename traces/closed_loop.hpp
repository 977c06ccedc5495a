// A trace as a closed loop: a session's next request comes when the answer to its last one is complete and the time in
// between has passed, and never before its time in the trace. So a system that is slow is asked later, not more at
// once. What belongs to no session, and each session's first request, comes at its time.
//
// The time in between is the request's think time where the trace has one; else the gap between the two requests in the
// trace, less what of it is service by `service_ns`. A request that is rejected or aborted counts as answered. Hints
// come at their times.
//
// Memory: a few numbers a session, and the requests read that wait for an answer: all that lie, in the trace, between
// the next arrival and the first request that waits.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "policy/seam/event.hpp"
#include "policy/seam/live_source.hpp"
#include "traces/paging.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

class ClosedLoopSource final : public LiveSource, public Observer {
 public:
  // `trace` must outlive it. The time scale holds for gaps and think times too, not for service_ns. Errors: the
  // trace's.
  ClosedLoopSource(TraceSource& trace, const TraceInputOptions& options, TimeNs service_ns);

  // Who is told all events that this one is told; may be null.
  void pass_events_to(Observer* observer) { observer_ = observer; }

  bool next(Input& input) override;
  bool overtake(Input& held, bool has) override;
  void on_event(const Event& event) override;

 private:
  struct Ready {
    TimeNs time = 0;
    std::uint64_t order = 0;  // of equal times
    TraceRequest request;
  };
  struct Session {
    bool open = false;                 // a request of it is under way, or to come
    TimeNs answered = 0;               // its last one
    TimeNs trace_time = 0;             // of its last one that was read
    std::deque<TraceRequest> waiting;  // their arrival: in the trace; think: always given
  };

  void read();
  void take(TraceRequest request);
  void push(TimeNs time, TraceRequest request);
  void hold(Input& input);
  static bool later(const std::unique_ptr<Ready>& a, const std::unique_ptr<Ready>& b);

  TraceSource& trace_;
  TraceInputOptions options_;
  TimeNs service_ns_;
  Observer* observer_ = nullptr;
  ArrivalMaker maker_;
  TraceRequest ahead_;  // the next one of the trace
  bool has_ahead_ = false, begun_ = false;
  std::uint64_t read_ = 0, order_ = 0;
  RequestId ordinal_ = 0;                                   // of the arrival held, or the next one
  std::unique_ptr<Ready> held_;                             // by the world
  std::vector<std::unique_ptr<Ready>> ready_;               // the earliest (time, order) on top
  std::unordered_map<std::uint64_t, Session> sessions_;     // looked up only
  std::unordered_map<RequestId, std::uint64_t> under_way_;  // their sessions; looked up only
};

}  // namespace kvtwin
