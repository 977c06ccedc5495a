// How far from the best a run's prefetches are stopped: it looks on while the run is served, notes when each part of
// each prefetch came, and reckons for each request when it would best have stopped waiting (sim/bounds/prefetch.hpp),
// knowing that, and all else being as it was: what others did, and when the request could be admitted.
//
// Of a request's time to the first token a stop decides two parts: the wait for the prefetch, as it was, and the
// computing of what it then doesn't have, as the cost model has it for one pass alone. The best is the least sum of the
// two over all stops, the run's own included. Loading from the host is in neither.
//
// Only what came is known: pages that a stop cancelled have no time, so that the best of a run that stops early is no
// better than what came until its operations were over. Under wait_complete all come. Requests whose prefetch found
// nothing, or went straight to the device, have none.
#pragma once

#include <deque>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "policy/seam/cost.hpp"
#include "policy/seam/event.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

class PrefetchBounds final : public Observer {
 public:
  // `cost` outlives it. It is told all seats' events, each after its seat's input, and hands them on to `next`, which
  // may be null.
  PrefetchBounds(Tokens page_tokens, const CostModel& cost, Observer* next = nullptr);
  ~PrefetchBounds() override;

  // To be told a seat's inputs, which go on to `next`. Owned by this.
  InputHandler* inputs_of(std::size_t seat, InputHandler* next);
  void on_event(const Event& event) override;

  // Sums over the requests that had a prefetch and finished.
  struct Found {
    std::uint64_t requests = 0;
    TimeNs wait = 0, wait_best = 0;  // for the prefetch
    TimeNs ttft = 0, ttft_best = 0;
  };
  const Found& found() const { return found_; }

 private:
  struct Piece {
    Pages asked = 0, came = 0;
    TimeNs at = -1;
  };
  struct Prefetch {
    Pages reusable = 0;  // of the prompt
    Pages first = 0;     // where the prefetch begins
    std::vector<Piece> pieces;
  };
  class Seat;

  void take(std::size_t seat, const Input& input);
  void finish(const RequestRecord& record, const Prefetch& prefetch);

  Tokens page_tokens_;
  const CostModel& cost_;
  Observer* next_;
  std::deque<Seat> seats_;
  std::size_t seat_ = 0;  // whose input is being handled
  std::unordered_map<RequestId, Prefetch> prefetches_;
  // By seat and operation: whose piece it is.
  std::map<std::pair<std::size_t, OperationId>, std::pair<RequestId, std::size_t>> under_way_;
  Found found_;
};

}  // namespace kvtwin
