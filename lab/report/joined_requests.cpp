#include "lab/report/joined_requests.hpp"

#include <algorithm>
#include <utility>

namespace kvtwin {

RequestRecord joined_parts(const RequestRecord& decode, const RequestRecord* prefill) {
  RequestRecord whole = decode;
  const bool received = prefill != nullptr && decode.part == RequestPart::decode && decode.first_token >= 0 &&
                        prefill->attempt == decode.attempt && decode.compute_ns == 0;
  if (received) {
    whole.admitted = prefill->admitted;
    whole.hit = prefill->hit;
    whole.recomputed_after_stop = prefill->recomputed_after_stop;
    whole.miss = prefill->miss;
    whole.prefetch_wait_ns = prefill->prefetch_wait_ns;
    whole.load_wait_ns = prefill->load_wait_ns;
    whole.compute_ns = prefill->compute_ns;
    whole.hand_over_ns = decode.first_token - prefill->first_token;
    whole.retractions += prefill->retractions;
    whole.retracted_recompute += prefill->retracted_recompute;
    whole.prefill_passes += prefill->prefill_passes;
  }
  // The queue is the time before the first token that is in no other part.
  if (whole.first_token >= 0) {
    whole.queue_ns = whole.first_token - whole.arrival - whole.prefetch_wait_ns - whole.load_wait_ns -
                     whole.compute_ns - whole.hand_over_ns;
  }
  return whole;
}

void JoinedRequests::on_event(const Event& event) {
  if (event.kind == EventKind::hand_over_ended) {
    ++figures_.writes;
    if (event.reason == Reason::none) figures_.pages += event.pages;
    if (event.reason != Reason::none) ++figures_.failed_writes;
  }
  if (event.record == nullptr) return next_.on_event(event);
  const RequestRecord& record = *event.record;
  const bool prefills = record.part == RequestPart::prefill;
  switch (event.kind) {
    case EventKind::arrived: {
      if (prefills) return;
      if (record.attempt > 0) ++figures_.sent_again;
      Open& open = open_.try_emplace(record.request, Open{record.arrival, {}}).first->second;
      if (std::exchange(open.arrived, true)) return;
      return next_.on_event(event);
    }
    case EventKind::prefilled: {
      // A busy decode engine notices the request at its next step, which may come later than this.
      Open& open = open_.try_emplace(record.request, Open{record.arrival, {}}).first->second;
      open.prefill = record;
      open.prefilled = true;
      return;
    }
    case EventKind::handed_over: ++figures_.hand_overs; return;
    case EventKind::hand_over_dropped: return;
    case EventKind::fell_back: ++figures_.fell_back; return;
    case EventKind::admitted:
      if (record.part == RequestPart::decode) return;  // the prefill part is admitted
      return pass_on(event, record);
    case EventKind::finished:
    case EventKind::rejected:
    case EventKind::aborted: {
      const RequestRecord whole = joined(record);
      open_.erase(record.request);
      return pass_on(event, whole);
    }
    case EventKind::first_token: return pass_on(event, joined(record));
    default: return next_.on_event(event);
  }
}

void JoinedRequests::pass_on(const Event& event, const RequestRecord& record) {
  Event with = event;
  with.record = &record;
  next_.on_event(with);
}

RequestRecord JoinedRequests::joined(const RequestRecord& record) {
  RequestRecord whole = record;
  const auto at = open_.find(record.request);
  if (at == open_.end()) return whole;
  const Open& open = at->second;
  whole.arrival = open.arrival;
  // In a real run, the prefill engine may have its part first.
  if (open.prefilled) whole.arrival = std::min(whole.arrival, open.prefill.arrival);
  return joined_parts(whole, open.prefilled ? &open.prefill : nullptr);
}

}  // namespace kvtwin
