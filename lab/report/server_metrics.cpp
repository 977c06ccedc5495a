#include "lab/report/server_metrics.hpp"

#include <algorithm>
#include <utility>

namespace kvtwin {
namespace {

constexpr std::string_view kTooShort = "below_threshold", kHostFull = "host_capacity", kTransfer = "storage_transfer",
                           kDeadline = "deadline", kAnchorLost = "anchor_lost",
                           kNotReusable = "cache_admission_shortfall", kDropped = "dropped";

}  // namespace

ServerMetrics::ServerMetrics()
    : unfulfilled{{kTooShort, 0},   {kHostFull, 0},    {kTransfer, 0}, {kDeadline, 0},
                  {kAnchorLost, 0}, {kNotReusable, 0}, {kDropped, 0}},
      deferred{{kHostFull, 0}} {}

void ServerMetrics::on_event(const Event& event) {
  switch (event.kind) {
    case EventKind::prefetch_hit:
      storage_hit += event.pages;
      newest_[event.engine] = OperationId::none;
      break;
    case EventKind::prefetch_shortened:
      // Pages that another request has brought meanwhile are usable.
      if (event.reason == Reason::capacity) unfulfilled[kHostFull] += event.pages;
      break;
    case EventKind::prefetch_started: {
      OperationId& first = newest_[event.engine];
      if (first == OperationId::none) first = event.operation;
      fetching_[{event.engine, first}].started += event.pages;
      brought_.try_emplace({event.request, event.engine});
      break;
    }
    case EventKind::prefetch_stopped:
      fetching_[{event.engine, event.operation}].aborted = event.reason == Reason::aborted;
      break;
    case EventKind::prefetch_revoked: revoked(event); break;
    case EventKind::prefetch_done: landed(event); break;
    case EventKind::prefetch_wasted:
      if (event.reason == Reason::stopped) {
        fetching_[{event.engine, event.operation}].late += event.pages;
        break;
      }
      brought_[{event.request, event.engine}].wasted += event.pages;
      if (event.reason != Reason::duplicate) unfulfilled[kAnchorLost] += event.pages;
      break;
    case EventKind::prefetch_used: used(event); break;
    case EventKind::finished:
    case EventKind::aborted:
    case EventKind::rejected: {  // where it ends, which is not always where it was prefetched
      const RequestId ended = event.record->request;
      brought_.erase(brought_.lower_bound({ended, 0}), brought_.lower_bound({ended + 1, 0}));
      break;
    }
    case EventKind::backup_awaited: {
      Evicting& of = evicting_[event.engine];
      if (of.waits_since < 0) of.waits_since = event.time;
      break;
    }
    case EventKind::evicted: evicted(event); break;
    default: break;
  }
}

// The look-ups have found pages, and the prefetch ends before it fetches them.
void ServerMetrics::revoked(const Event& event) {
  // These two come after the hit was reported.
  if (event.reason == Reason::capacity) deferred[kHostFull] += event.pages;
  if (event.reason == Reason::capacity || event.reason == Reason::duplicate || event.pages == 0) return;
  storage_hit += event.pages;
  switch (event.reason) {
    case Reason::too_short: unfulfilled[kTooShort] += event.pages; break;
    case Reason::stopped: unfulfilled[kDeadline] += event.pages; break;
    case Reason::aborted: unfulfilled[kDropped] += event.pages; break;
    default: unfulfilled[name_of(event.reason)] += event.pages; break;
  }
}

void ServerMetrics::landed(const Event& event) {
  if (event.tier == Tier::device) {  // a direct load, whose pages are used as they come
    storage_hit += event.pages;
    return;
  }
  const auto fetch = fetching_.extract({event.engine, event.operation});
  if (fetch.empty()) return;
  const Fetch& of = fetch.mapped();
  // For SGLang, a page that arrives after the stop has not arrived.
  const Pages arrived = event.pages - of.late;
  const Pages missing = of.started - std::min(of.started, arrived);
  if (event.reason == Reason::stopped) unfulfilled[of.aborted ? kDropped : kDeadline] += missing;
  if (event.reason == Reason::transfer_failed) unfulfilled[kTransfer] += missing;
  const auto brought = brought_.find({event.request, event.engine});
  if (brought != brought_.end()) brought->second.arrived += arrived;
}

void ServerMetrics::used(const Event& event) {
  if (event.tier == Tier::device) return;
  Brought& of = brought_[{event.request, event.engine}];
  const Pages expected = event.pages + of.wasted;
  unfulfilled[kNotReusable] += of.arrived - std::min(of.arrived, expected);
  of.arrived = of.wasted = 0;
}

// All that is evicted at one time is one pass.
void ServerMetrics::evicted(const Event& event) {
  if (event.tier != Tier::device || event.pool != 0) return;
  Evicting& of = evicting_[event.engine];
  if (event.time == of.last) return;
  of.last = event.time;
  const TimeNs waited = of.waits_since < 0 ? 0 : event.time - of.waits_since;
  of.waits_since = -1;
  evictions.add(kSecondsBounds, static_cast<double>(waited) / 1e9);
}

}  // namespace kvtwin
