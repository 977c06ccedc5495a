#include "lab/report/warm_figures.hpp"

namespace kvtwin {

void WarmWatch::on_event(const Event& event) {
  if (event.kind == EventKind::finished || event.kind == EventKind::rejected || event.kind == EventKind::aborted) {
    ends_.push_back({event.kind, event.reason, event.time, *event.record});
  }
  if (event.kind == EventKind::store_done && event.pool == 0) writes_.push_back({event.time, event.tier, event.pages});
  if (next_ != nullptr) next_->on_event(event);
}

WarmWindow WarmWatch::window(TimeNs least_ns, TimeNs until) const {
  std::vector<WarmSample> samples;
  samples.reserve(ends_.size());
  for (const End& end : ends_) {
    if (end.kind != EventKind::finished || end.record.arrival > until) continue;
    const RequestRecord& r = end.record;
    samples.push_back({r.arrival, r.queue_ns + r.prefetch_wait_ns + r.load_wait_ns, r.prompt_tokens, r.hit.sum()});
  }
  return warm_window(samples, least_ns);
}

WarmFigures WarmWatch::found(TimeNs least_ns, TimeNs until) const {
  WarmFigures found;
  found.window = this->window(least_ns, until);
  found.rates.span = found.window.to - found.window.from;
  const TimeWindow& window = found.window;
  for (const Written& written : writes_) {
    if (window.has(written.time)) found.rates.written[written.tier] += written.pages;
  }
  for (const End& end : ends_) {
    if (end.kind == EventKind::finished && window.has(end.time)) found.rates.add(end.record, level_);
    if (!window.has(end.record.arrival)) continue;
    ++found.figures.arrived;
    if (end.kind == EventKind::finished) {
      found.figures.finished(end.record, cost_, level_);
      found.completed.push_back(end.record.request);
    }
    if (end.kind == EventKind::rejected) found.figures.rejected_for(end.reason);
    if (end.kind == EventKind::aborted) ++found.figures.aborted;
  }
  return found;
}

}  // namespace kvtwin
