#include "lab/report/prefetch_bounds.hpp"

#include <algorithm>
#include <variant>

#include "lab/report/saved_time.hpp"
#include "sim/bounds/prefetch.hpp"

namespace kvtwin {

class PrefetchBounds::Seat final : public InputHandler {
 public:
  Seat(PrefetchBounds& bounds, std::size_t seat, InputHandler* next) : bounds_(bounds), seat_(seat), next_(next) {}
  void handle(const Input& input) override {
    bounds_.take(seat_, input);
    if (next_ != nullptr) next_->handle(input);
  }

 private:
  PrefetchBounds& bounds_;
  std::size_t seat_;
  InputHandler* next_;
};

PrefetchBounds::PrefetchBounds(Tokens page_tokens, const CostModel& cost, Observer* next)
    : page_tokens_(page_tokens), cost_(cost), next_(next) {}

PrefetchBounds::~PrefetchBounds() = default;

InputHandler* PrefetchBounds::inputs_of(std::size_t seat, InputHandler* next) {
  return &seats_.emplace_back(*this, seat, next);
}

void PrefetchBounds::take(std::size_t seat, const Input& input) {
  seat_ = seat;
  if (const auto* const arrival = std::get_if<Arrival>(&input.what)) {
    prefetches_[arrival->request].reusable =
        std::min<Pages>(arrival->keys.size(), (arrival->prompt_tokens - 1) / page_tokens_);
  } else if (const auto* const completion = std::get_if<Completion>(&input.what)) {
    const auto piece = under_way_.find({seat, completion->id});
    if (piece == under_way_.end()) return;
    const auto [request, number] = piece->second;
    under_way_.erase(piece);
    // A request may finish before the operations of its stopped prefetch.
    const auto prefetch = prefetches_.find(request);
    if (prefetch == prefetches_.end()) return;
    prefetch->second.pieces[number].at = input.now;
    prefetch->second.pieces[number].came = completion->pages;
  }
}

void PrefetchBounds::on_event(const Event& event) {
  switch (event.kind) {
    case EventKind::prefetch_issued: {
      Prefetch& prefetch = prefetches_[event.request];
      prefetch.first = prefetch.reusable - std::min(prefetch.reusable, event.pages);
      break;
    }
    case EventKind::prefetch_shortened:  // other requests have brought the first pages
      if (event.reason == Reason::duplicate && !is_of_hint(event.request))
        prefetches_[event.request].first += event.pages;
      break;
    case EventKind::prefetch_started: {
      if (is_of_hint(event.request)) break;
      std::vector<Piece>& pieces = prefetches_[event.request].pieces;
      under_way_[{seat_, event.operation}] = {event.request, pieces.size()};
      pieces.push_back({event.pages});
      break;
    }
    case EventKind::finished:
    case EventKind::rejected:
    case EventKind::aborted: {
      const auto prefetch = prefetches_.find(event.record->request);
      if (prefetch == prefetches_.end()) break;
      if (event.kind == EventKind::finished) finish(*event.record, prefetch->second);
      prefetches_.erase(prefetch);
      break;
    }
    default: break;
  }
  if (next_ != nullptr) next_->on_event(event);
}

void PrefetchBounds::finish(const RequestRecord& r, const Prefetch& prefetch) {
  if (prefetch.pieces.empty()) return;
  // Only pages without a gap before them count.
  std::vector<PagesArrived> arrivals;
  PagesArrived there;
  for (const Piece& piece : prefetch.pieces) {
    if (piece.at < 0) break;
    there = {std::max(there.time, piece.at), there.pages + piece.came};
    arrivals.push_back(there);
    if (piece.came < piece.asked) break;
  }
  const auto rest = [&](Pages pages) {
    return computing_rest(cost_, r.prompt_tokens, std::min(prefetch.reusable, prefetch.first + pages) * page_tokens_);
  };
  const BestStop stop = best_stop(r.admitted - r.prefetch_wait_ns, arrivals, rest);
  const Tokens hits = r.hit.sum();
  const TimeNs own = r.prefetch_wait_ns + computing_rest(cost_, r.prompt_tokens, hits);
  const TimeNs gain = std::max<TimeNs>(0, own - stop.total);
  const TimeNs ttft = r.first_token - r.arrival;
  const TimeNs wait_best = own <= stop.total ? r.prefetch_wait_ns : stop.wait;
  waited_.push_back({r.arrival, r.prefetch_wait_ns, wait_best, ttft, ttft - gain});
}

PrefetchBounds::Found PrefetchBounds::found(const TimeWindow& arrivals) const {
  Found sum;
  for (const Waited& one : waited_) {
    if (!arrivals.has(one.arrival)) continue;
    ++sum.requests;
    sum.wait += one.wait;
    sum.wait_best += one.wait_best;
    sum.ttft += one.ttft;
    sum.ttft_best += one.ttft_best;
  }
  return sum;
}

}  // namespace kvtwin
