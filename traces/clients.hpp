// Sends the requests of a trace as a benchmark's clients do, in one or more stages.
//
//   stage 1 sends its requests -> all of them have ended -> stage 2 sends its requests -> ...
//
// In a stage with clients, each client has at most one request in the system. A client that is ready sends the next
// request of the trace, whatever client sent the ones before; the times, the sessions and the think times of the trace
// are not used. A client is ready at a time that is drawn from [0, start_spread_ns] after the start of the stage, and
// then one think time after each answer. A think time is drawn from [0, 2 * think_ns]; all values are equally likely. A
// rejected or aborted request counts as answered.
//
// In a stage without clients, requests arrive at their times in the trace, moved so that the first one arrives at the
// start of the stage.
//
// A stage starts when the last request of the stage before has ended. The draws depend on the seed and on the numbers
// of stage, client and request, not on the times of the answers.
//
// Memory: a few numbers per client and per request in the system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "traces/answered_source.hpp"
#include "traces/paging.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

struct ClientStage {
  std::uint64_t clients = 0;   // 0 = requests arrive at their times in the trace
  std::uint64_t requests = 0;  // of the stage; 0 = all that are left, for the last stage
};

struct ClientsConfig {
  std::uint64_t seed = 1;
  std::vector<ClientStage> stages;  // at least one
  TimeNs start_spread_ns = 0, think_ns = 0;
};

class ClientSource final : public AnsweredSource {
 public:
  // Requires: `trace` outlives this object and has no hints. The time scale of `options` applies to the times of the
  // trace and to the times of `config`. Errors: those of the trace.
  ClientSource(TraceSource& trace, const TraceInputOptions& options, ClientsConfig config);

  bool next(Input& input) override;
  bool overtake(Input& held, bool has) override;

 private:
  struct Sender {
    TimeNs time = 0;
    std::uint64_t order = 0;   // order among equal times
    std::uint64_t client = 0;  // counted over all stages from 1; 0 = none
    bool operator<(const Sender& other) const { return time != other.time ? time < other.time : order < other.order; }
  };
  // The earliest arrival: senders_[place] sends requests_[place].
  struct Earliest {
    std::size_t place = 0;
    TimeNs time = 0;
  };

  void answered(RequestId request, TimeNs time) override;
  const ClientStage& stage() const { return config_.stages[stage_]; }
  bool is_sent() const { return stage().requests != 0 && sent_ == stage().requests; }
  bool has_request(std::size_t place);
  bool begin_stage();
  bool find_earliest();
  bool hold(Input& input);
  void take_held();
  void add_sender(TimeNs time, std::uint64_t client);
  TimeNs draw(std::uint64_t stream, std::uint64_t number, TimeNs most) const;

  TraceSource& trace_;
  TraceInputOptions options_;
  ClientsConfig config_;
  ArrivalMaker maker_;
  // Sender n sends request n, unless an answer leads to an earlier sender. Senders are sorted.
  std::deque<Sender> senders_;
  std::deque<TraceRequest> requests_;  // the next ones of the trace, as many as were necessary
  std::uint64_t read_ = 0;             // requests of the trace
  bool at_end_ = false;                // of the trace
  std::size_t stage_ = 0;
  bool begun_ = false;              // the stage has begun
  std::uint64_t sent_ = 0;          // requests of the stage that the world has processed
  std::uint64_t first_client_ = 1;  // of the stage
  TimeNs last_end_ = 0;             // time of the last end of a request
  TimeNs offset_ = 0;               // of a stage without clients: arrival - time in the trace
  RequestId ordinal_ = 0;           // of the next arrival that the world processes
  std::uint64_t order_ = 0;
  std::optional<Earliest> held_;  // the arrival that the world has and has not processed yet
  Earliest earliest_;
  std::unordered_map<RequestId, std::uint64_t> client_of_running_;  // held, or processed and not ended; never iterated
};

}  // namespace kvtwin
