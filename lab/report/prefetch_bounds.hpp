// Bounds of a run's prefetch waits: for each request, the best time to stop waiting for its prefetch
// (sim/bounds/prefetch.hpp). Observes the run, and records when each part of each prefetch arrived. Everything else
// stays as in the run: the other requests, and the time at which the request could be admitted.
//
// A stop decides two parts of a request's TTFT: the wait for the prefetch, as measured, and the computation of the
// pages that have not arrived, by the cost model for one pass alone. The best stop has the least sum of the two, and is
// never worse than the run's own stop. Loads from the host are in neither part.
//
// Limits: only pages that arrived have a time. After a stop, cancelled pages never arrive, so a run that stops early
// shows little of the possible gain. Under wait_complete all pages arrive. Requests whose prefetch found nothing, or
// went straight to the device, are not counted.
//
// Memory: 40 bytes per finished request with a prefetch.
#pragma once

#include <deque>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lab/report/warm_window.hpp"
#include "policy/seam/cost.hpp"
#include "policy/seam/event.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

class PrefetchBounds final : public Observer {
 public:
  // Requires: `cost` outlives this object. on_event() receives the events of all seats, each after the input of its
  // seat. Events go on to `next`, which may be null.
  PrefetchBounds(Tokens page_tokens, const CostModel& cost, Observer* next = nullptr);
  ~PrefetchBounds() override;

  // Returns the handler that must receive the inputs of a seat. Inputs go on to `next`, which may be null.
  // Ownership: this object's.
  InputHandler* inputs_of(std::size_t seat, InputHandler* next);
  void on_event(const Event& event) override;

  // Sums over finished requests with a prefetch.
  struct Found {
    std::uint64_t requests = 0;
    TimeNs wait = 0, wait_best = 0;  // the wait for the prefetch
    TimeNs ttft = 0, ttft_best = 0;
  };
  // `arrivals`: the requests that count.
  Found found(const TimeWindow& arrivals = {}) const;

 private:
  struct Piece {
    Pages asked = 0, came = 0;
    TimeNs at = -1;
  };
  struct Prefetch {
    Pages reusable = 0;  // pages of the prompt that can be reused
    Pages first = 0;     // first page of the prefetch
    std::vector<Piece> pieces;
  };
  class Seat;

  void take(std::size_t seat, const Input& input);
  void finish(const RequestRecord& record, const Prefetch& prefetch);

  Tokens page_tokens_;
  const CostModel& cost_;
  Observer* next_;
  std::deque<Seat> seats_;
  std::size_t seat_ = 0;  // the seat of the current input
  std::unordered_map<RequestId, Prefetch> prefetches_;
  // Request and number of the piece, by seat and operation.
  std::map<std::pair<std::size_t, OperationId>, std::pair<RequestId, std::size_t>> under_way_;
  struct Waited {
    TimeNs arrival = 0, wait = 0, wait_best = 0, ttft = 0, ttft_best = 0;
  };
  std::vector<Waited> waited_;  // by finished requests with a prefetch
};

}  // namespace kvtwin
