// Replays a trace as a closed loop: a slow system receives requests later, not more requests at once.
//
// A session's next request arrives when its time in the trace has passed, the previous answer of the session is
// complete, and the think time after this answer has passed. A rejected or aborted request counts as answered. The
// first request of a session, requests without a session, and hints arrive at their times in the trace.
//
// The think time is the value in the trace. If the trace has none, the think time is the gap between the two requests
// in the trace minus `service_ns`, and at least 0.
//
// Users (UserTraffic) take the place of sessions: a user's next request, of whatever conversation, arrives when the
// last answer to the user is complete and the think time has passed. The first requests arrive at their times.
//
// Memory: a few numbers per session, and the requests that wait for an answer. The source reads ahead in the trace only
// as far as the next arrival.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "traces/answered_source.hpp"
#include "traces/paging.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

class ClosedLoopSource final : public AnsweredSource {
 public:
  // Requires: `trace` outlives this object. The time scale of `options` applies to arrivals, gaps and think times, not
  // to service_ns. Errors: those of the trace.
  ClosedLoopSource(TraceSource& trace, const TraceInputOptions& options, TimeNs service_ns);

  bool next(Input& input) override;
  bool overtake(Input& held, bool has) override;
  std::string note() const override;

 private:
  struct Ready {
    TimeNs time = 0;
    std::uint64_t order = 0;  // order among equal times
    TraceRequest request;
    std::uint64_t user = 0;
  };
  struct Session {
    bool open = false;                 // a request of the session is in ready_, held_ or the system
    TimeNs answered = 0;               // time of the last answer
    TimeNs trace_time = 0;             // time in the trace of the last request that was read
    std::deque<TraceRequest> waiting;  // `arrival` is the time in the trace; `think` is always known
  };

  void answered(RequestId request, TimeNs time) override;
  void read();
  void take(TraceRequest request);
  void push(TimeNs time, TraceRequest request, std::uint64_t user = 0);
  void push_of_user(std::uint64_t user, TimeNs answered);
  void hold(Input& input);
  static bool later(const std::unique_ptr<Ready>& a, const std::unique_ptr<Ready>& b);

  TraceSource& trace_;
  UserTraffic* users_;  // null: sessions
  TraceInputOptions options_;
  TimeNs service_ns_;
  ArrivalMaker maker_;
  TraceRequest ahead_;  // the next request of the trace
  bool has_ahead_ = false, begun_ = false;
  std::uint64_t read_ = 0, order_ = 0, without_session_ = 0;
  RequestId ordinal_ = 0;                                // of the arrival in held_, otherwise of the next arrival
  std::unique_ptr<Ready> held_;                          // the input that the world has and has not processed yet
  std::vector<std::unique_ptr<Ready>> ready_;            // top: the earliest (time, order)
  std::unordered_map<std::uint64_t, Session> sessions_;  // never iterated: the order would not be deterministic
  std::unordered_map<RequestId, std::uint64_t> session_of_running_;  // or user; never iterated
};

}  // namespace kvtwin
