#include "lab/past_run/request_life.hpp"

#include <algorithm>
#include <variant>

#include "policy/index/page_key.hpp"

namespace kvtwin {

void RequestLife::handle(const Input& input) {
  now_ = input.now;
  backups_.clear();
  if (const auto* arrival = std::get_if<Arrival>(&input.what)) take(*arrival);
  if (const auto* completion = std::get_if<Completion>(&input.what)) take(*completion);
  const auto* notice = std::get_if<Notice>(&input.what);
  if (notice != nullptr && notice->kind == NoticeKind::room && notice->request == request_) hand_over.room = now_;
}

void RequestLife::take(const Arrival& arrival) {
  ++arrivals;
  if (arrival.request == request_) {
    if (!arrived) first_arrival = now_;
    arrived = true;
    hand_over = {};
    writes_.clear();
    record.part = arrival.part;
    record.peer = arrival.peer;
    record.attempt = attempt_ = arrival.attempt;
    record.request = request_;
    record.arrival = now_;
    record.prompt_tokens = arrival.prompt_tokens;
    record.output_tokens = arrival.output_tokens;
    session = arrival.session;
    priority = arrival.priority;
    found_waiting = waiting_.size();
    found_running = running_.size();
    for (auto id = waiting_.begin(); id != waiting_.end() && ahead.size() < kMaxAhead; ++id) ahead.push_back(*id);
    // The last token has no KV. Pages without a key in the trace have private keys, as in the policy.
    const Pages pages = (arrival.prompt_tokens + arrival.output_tokens - 1) / page_tokens_;
    std::vector<PageKey> keys(arrival.keys.begin(), arrival.keys.end());
    while (keys.size() < pages) {
      keys.push_back(private_page_key(keys.empty() ? nullptr : &keys.back(), request_, keys.size()));
    }
    for (Pages page = 0; page < keys.size(); ++page) pages_.emplace(keys[page], page);
  }
  waiting_.insert(arrival.request);
}

void RequestLife::take(const Completion& completion) {
  for (Prefill& prefill : prefills) {
    if (prefill.pass != completion.id) continue;
    prefill.end = now_;
    prefill.stalled = completion.stalled_ns;
    prefill.status = completion.status;
  }
  for (Load& load : loads) {
    if (load.operation != completion.id) continue;
    load.landed = now_;
    load.status = completion.status;
  }
  for (PageMoment& moment : moments) {
    if (moment.kind != DecisionKind::backup || moment.operation != completion.id) continue;
    moment.done = now_;
    moment.status = completion.status;
  }
}

void RequestLife::decided(const Decision& decision) {
  follow_queue(decision);
  follow_pages(decision);
  if (decision.request != request_) return;
  switch (decision.kind) {
    case DecisionKind::admit: admissions.push_back({now_, decision.pages}); break;
    case DecisionKind::load_back: {
      Load load;
      load.queued = now_;
      load.pages = decision.pages;
      load.refused = decision.reason;
      loads.push_back(load);
      break;
    }
    case DecisionKind::load_direct: direct_loads.push_back({now_, decision.pages}); break;
    case DecisionKind::retract: retractions.push_back({now_, decision.reason}); break;
    case DecisionKind::release: releases.push_back({now_, decision.reason}); break;
    case DecisionKind::finish: pages_left = decision.pages; break;
    case DecisionKind::expect:
      hand_over.room = now_;
      hand_over.leased = decision.pages;
      break;
    case DecisionKind::receive: hand_over.ended = now_; break;
    case DecisionKind::fall_back:
      hand_over.fell_back = now_;
      hand_over.reason = decision.reason;
      break;
    default: follow_prefetch(decision); break;
  }
}

void RequestLife::follow_prefetch(const Decision& decision) {
  if (decision.kind == DecisionKind::prefetch) {
    Prefetch prefetch;
    prefetch.issued = now_;
    prefetch.asked = decision.pages;
    prefetch.declined = decision.reason;
    prefetches.push_back(prefetch);
  }
  if (prefetches.empty()) return;
  Prefetch& last = prefetches.back();
  if (decision.kind == DecisionKind::revoke) {
    last.revoked = now_;
    last.revoke_reason = decision.reason;
    last.hit = decision.pages;
  } else if (decision.kind == DecisionKind::stop) {
    last.stopped = now_;
    last.stop_reason = decision.reason;
    last.arrived_at_stop = decision.pages;
  }
}

void RequestLife::follow_prefetch(const Event& event) {
  if (event.kind == EventKind::storage_fell_short) {
    for (Prefetch& prefetch : prefetches) {
      if (std::ranges::find(prefetch.gets, event.operation) == prefetch.gets.end()) continue;
      prefetch.fell_short[event.cause] += event.pages;
    }
    return;
  }
  if (event.request != request_ || prefetches.empty()) return;
  Prefetch& last = prefetches.back();
  if (event.kind == EventKind::prefetch_started) {
    last.begin = event.time;
    last.gets.push_back(event.operation);
    if (last.found.empty() || last.found.back().first != event.tier) last.found.emplace_back(event.tier, 0);
    last.found.back().second += event.pages;
  } else if (event.kind == EventKind::prefetch_shortened) {
    if (event.reason == Reason::capacity) last.no_room = event.pages;
  } else if (event.kind == EventKind::prefetch_done) {
    // A later prefetch may end before a stopped one.
    const auto fetched = std::ranges::find_if(prefetches, [&](const Prefetch& prefetch) {
      return !prefetch.gets.empty() && prefetch.gets.front() == event.operation;
    });
    Prefetch& of = fetched == prefetches.end() ? last : *fetched;
    of.end = event.time;
    of.arrived = event.pages;
  }
}

void RequestLife::follow_queue(const Decision& decision) {
  switch (decision.kind) {
    case DecisionKind::admit:
      admitted_meanwhile += arrived && admissions.empty() && decision.request != request_;
      [[fallthrough]];
    case DecisionKind::expect:
      waiting_.erase(decision.request);
      running_.insert(decision.request);
      break;
    case DecisionKind::retract:
    case DecisionKind::fall_back:
      waiting_.insert(decision.request);
      running_.erase(decision.request);
      break;
    case DecisionKind::reject:
    case DecisionKind::abort:
    case DecisionKind::finish:
    case DecisionKind::hand_over:
    case DecisionKind::withdraw:
      waiting_.erase(decision.request);
      running_.erase(decision.request);
      break;
    default: break;
  }
}

// A decision about pages has the key of the first page of a run within one node. A node with a page of this request
// ends before or at the request's last page. So, when the prompt is in the index, the whole run belongs to the request.
void RequestLife::follow_pages(const Decision& decision) {
  const bool backup = decision.kind == DecisionKind::backup;
  if (!backup && decision.kind != DecisionKind::evict_device && decision.kind != DecisionKind::evict_host) return;
  if (!published_) {
    if (backup && arrived) backups_.push_back(decision);
    return;
  }
  const auto page = pages_.find(decision.key);
  if (page == pages_.end()) return;
  if (moments.size() == kMaxMoments) {
    ++moments_left_out;
    return;
  }
  PageMoment moment;
  moment.kind = decision.kind;
  moment.reason = decision.reason;
  moment.first = page->second;
  moment.pages = std::min<Pages>(decision.pages, pages_.size() - page->second);
  moment.at = now_;
  moment.pool = decision.pool;
  if (!backup && !moments.empty() && moments.back().goes_on_below(moment)) {  // from the tail of a path, page by page
    moments.back().first = moment.first;
    moments.back().pages += moment.pages;
    return;
  }
  moments.push_back(moment);
}

void RequestLife::follow_hand_over(const Event& event) {
  if (event.kind == EventKind::handed_over || event.kind == EventKind::hand_over_dropped) {
    if (event.record->request != request_ || event.record->attempt != attempt_) return;
    hand_over.ended = event.time;
    hand_over.reason = event.reason;
    return;
  }
  if (event.request != request_) return;
  if (event.kind == EventKind::hand_over_submitted) {
    writes_.insert(event.operation);
    ++hand_over.writes;
    if (hand_over.first_write < 0) hand_over.first_write = event.time;
  } else if (event.kind == EventKind::hand_over_ended && writes_.contains(event.operation)) {
    hand_over.last_write = event.time;
    if (event.reason == Reason::none) hand_over.pages += event.pages;
    if (event.reason != Reason::none) ++hand_over.failed_writes;
  }
}

void RequestLife::on_event(const Event& event) {
  if (event.kind == EventKind::transfer_submitted) {
    // All loads queued by one input are one transfer, and so are all backups.
    for (Load& load : loads) {
      const bool queued = load.refused == Reason::none && load.operation == OperationId::none;
      if (queued && event.tier == Tier::device) load.operation = event.operation;
    }
    for (PageMoment& moment : moments) {
      const bool queued = moment.kind == DecisionKind::backup && moment.reason != Reason::capacity;
      if (queued && moment.operation == OperationId::none && event.tier == Tier::host) {
        moment.operation = event.operation;
      }
    }
    return;
  }
  follow_prefetch(event);
  follow_hand_over(event);
  if (event.record == nullptr || event.record->request != request_ || event.record->attempt != attempt_) return;
  record = *event.record;
  if (event.kind == EventKind::prefill_started) {
    Prefill prefill;
    prefill.begin = event.time;
    prefill.tokens = event.tokens;
    prefill.pass = event.operation;
    prefills.push_back(prefill);
  } else if (event.kind == EventKind::first_token || event.kind == EventKind::prefilled) {
    published_ = true;
    for (const Decision& backup : backups_) follow_pages(backup);
    backups_.clear();
  }
}

}  // namespace kvtwin
