// The scheduler's side of requests in two parts.
//
// Prefill part:  waiting --> running (chunks) --> parked --> handed over
//                   ^--------- retracted ---------/    (any state: dropped)
// Decode part:   expected --> leased --> running
//                    \----------\--> waiting (falls back: computes the prompt itself)
//
// No engine waits for ever: a decode engine leases pages in the order of the requests, and a prefill engine whose queue
// does not move gives up computed prompts for which there is no room yet. So whatever a decode engine has leased is
// computed some time. docs/internals/hand-over.md has the argument.
#include <algorithm>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/scheduler.hpp"

namespace kvtwin {

void Scheduler::insert_waiting(Request& request) {
  waiting_.insert(std::ranges::lower_bound(waiting_, &request, is_older), &request);
}

// A prefill part that is rejected is withdrawn; the decode engine then decides about the whole request.
void Scheduler::reject(Request& request, TimeNs now) {
  if (request.record.part == RequestPart::prefill) return end_part(request, request.record.rejected, now);
  if (request.record.part == RequestPart::decode) hand_overs_.send(NoticeKind::cancel, request);
  decide(DecisionKind::reject, request.record.rejected, request, 0);
  report(EventKind::rejected, request, now);
  recycle(request);
}

// ---- prefill parts -------------------------------------------------------------------------------------

void Scheduler::park(Request& request, TimeNs now) {
  RequestRecord& record = request.record;
  record.first_token = now;
  record.queue_ns = now - record.arrival - record.prefetch_wait_ns - record.load_wait_ns - record.compute_ns;
  ++request.generated;
  --running_output_left_;
  parked_.push_back(&request);
  report(EventKind::prefilled, request, now);
}

void Scheduler::write_parked() {
  for (const Request* request : parked_) hand_overs_.write(*request, request->kv_tokens, OperationId::none);
}

// A prefix that was promised, and is still being loaded, has not been computed.
void Scheduler::write_computed() {
  write_parked();
  if (chunked_ != nullptr) free_displaced(*chunked_);
  const bool early = config_.hand_over.unit != HandOverUnit::whole;
  if (early && chunked_ != nullptr && chunked_->record.part == RequestPart::prefill && !arriving(*chunked_)) {
    hand_overs_.write(*chunked_, chunked_->kv_tokens, OperationId::none);
  }
}

// A request may need the room itself: the index can have all its pages, and lack windows or states, so that the request
// computes them again.
void Scheduler::free_displaced(Request& request) {
  if (request.displaced.empty() || hand_overs_.reads_pages(request)) return;
  cache_.free(request.displaced);
  request.displaced.clear();
}

// If nothing else can make room for the queue, gives up the youngest prompt that waits for the decode engine's room.
// Its pages stay cached as long as no other request needs the room.
bool Scheduler::retract_parked() {
  if (parked_.empty() || (!blocked_ && chunked_ == nullptr)) return false;
  if (!running_.empty() || hand_overs_.writing() || cache_.anything_in_flight()) return false;
  Request* youngest = nullptr;
  for (Request* request : parked_) {
    if (hand_overs_.has_room(*request)) continue;
    if (youngest == nullptr || is_older(youngest, request)) youngest = request;
  }
  if (youngest == nullptr) return false;
  std::erase(parked_, youngest);
  youngest->generated = 0;
  youngest->needs_room = true;
  running_output_left_ += youngest->output_left();
  retract(*youngest, Reason::capacity, step_time_);
  return true;
}

// Ends a prefill part that is in no list, without a hand-over.
void Scheduler::end_part(Request& request, Reason reason, TimeNs now) {
  decide(DecisionKind::withdraw, reason, request, request.slots.size());
  if (request.lease != NodeId::none) give_pages_back(request);
  hand_overs_.drop(request.record.request, request.record.attempt, lost_.contains(request.record.peer));
  request.record.finished = now;
  sink_.event_at({.kind = EventKind::hand_over_dropped, .time = now, .reason = reason, .record = &request.record});
  recycle(request);
}

void Scheduler::hand_over_ended(const HandOvers::Ended& ended, TimeNs now) {
  Request* const request = find_part(ended.request, ended.attempt);
  if (!ended.handed) {
    KV_CHECK(request != nullptr, "what is written has been computed, at least in part");
    abort_part(ended.request, Reason::transfer_failed, now);
    return;
  }
  const auto at = std::ranges::find(parked_, request);
  KV_CHECK(request != nullptr, "what is handed over has been computed");
  if (at == parked_.end()) {  // only in a damaged journal: the pass was agreed to have failed
    abort_part(ended.request, Reason::transfer_failed, now);
    return;
  }
  parked_.erase(at);
  decide(DecisionKind::hand_over, Reason::none, *request, request->slots.size());
  if (request->lease != NodeId::none) {
    cache_.request_of_session_finished(request->session, request->session_began, request->lease);
  }
  give_pages_back(*request);
  request->record.finished = now;
  report(EventKind::handed_over, *request, now);
  recycle(*request);
}

// ---- decode parts --------------------------------------------------------------------------------------

void Scheduler::expect(Request& request, TimeNs now) {
  expected_.insert(std::ranges::lower_bound(expected_, &request, is_older), &request);
  cache_.queue(request.record.request, reusable(request));
  if (lost_.contains(request.record.peer)) {
    fall_back(request, Reason::peer_lost, now);
  } else if (request.withdrawn) {
    fall_back(request, Reason::withdrawn, now);
  }
}

// Requests that this engine computes by itself have their turn, too.
void Scheduler::lease_expected() {
  while (!expected_.empty() && !awaits_writes_) {
    Request& request = *expected_.front();
    if (!waiting_.empty() && is_older(waiting_.front(), &request)) return;
    const std::size_t runs = running_.size() + leased_.size() + (chunked_ == nullptr ? 0 : 1);
    if (runs >= config_.max_running || !lease_pages(request)) return;
    expected_.pop_front();
    leased_.push_back(&request);
    running_output_left_ += request.output_left();
    request.record.admitted = step_time_;
    const Pages pages = request.slots.size() - request.shared;
    decide(DecisionKind::expect, Reason::none, request, pages);
    report(EventKind::admitted, request, step_time_);
    sink_.event_at({.kind = EventKind::expected, .time = step_time_, .pages = pages, .record = &request.record});
    request.room_due = true;
    send_room();
  }
}

void Scheduler::send_room() {
  if (cache_.copies_under_way()) return;
  cache_.report_held_slots();
  for (Request* request : leased_) {
    if (!request->room_due || request->gone) continue;
    request->room_due = false;
    const auto first = request->slots.begin() + static_cast<std::ptrdiff_t>(request->shared);
    std::vector<SlotId> slots(first, request->slots.end());
    cache_.handed(request->lease, request->record.prompt_tokens, true, request->pools, slots);
    hand_overs_.send(NoticeKind::room, *request, request->shared, slots);
  }
}

// Leases the cached part of the prompt on L1 and the pages for the rest. Returns false if there is no room yet.
bool Scheduler::lease_pages(Request& request) {
  // A load may fail, and its pages are no part of the prompt then.
  const Tokens prompt = request.record.prompt_tokens;
  std::span<const PageKey> wanted = config_.hand_over.reuse ? reusable(request) : std::span<const PageKey>();
  wanted = wanted.first(std::min(wanted.size(), cache_.reusable_pages(prompt)));
  const PrefixMatch match = cache_.match(wanted.first(std::min(wanted.size(), cache_.pages_before_load(wanted))));
  cache_.lease(match.device_end);
  const Pages pages = pages_for(prompt);
  const Pages cached = match.device_pages;
  if (!has_room(request, cached, cached, prompt, 0) ||
      cache_.make_room_to_receive(pages - cached, prompt, match.device_end) != Room::now) {
    cache_.release(match.device_end);
    return false;
  }
  cache_.unqueue(request.record.request, reusable(request));
  cache_.visit(visit_of(
      request, std::span(request.keys).first(std::min<Pages>(prompt / config_.shape.page_tokens, request.keys.size())),
      false));
  cache_.touch(match.device_end);
  cache_.path_slots(match.device_end, request.pools, request.slots);
  request.lease = match.device_end;
  request.shared = cached;
  cache_.allocate_to_receive(pages - cached, prompt, request.slots, request.pools);
  ensure_keys(request, pages);
  request.record.hit[Tier::device] = cached * config_.shape.page_tokens;
  request.record.miss = prompt - cached * config_.shape.page_tokens;
  return true;
}

void Scheduler::free_leased(Request& request) {
  std::erase(leased_, &request);
  give_pages_back(request);
  if (!request.gone) running_output_left_ -= request.output_left();
}

// All pages of the prompt are there, and so is the first token.
void Scheduler::receive(Request& request, TimeNs now) {
  if (request.gone) {
    free_leased(request);
    recycle(request);
    return;
  }
  std::erase(leased_, &request);
  decide(DecisionKind::receive, Reason::none, request, request.slots.size());
  request.received = true;
  request.matched_before = true;
  request.kv_tokens = request.computed_tokens = request.record.prompt_tokens;
  request.record.hand_over_ns = now - request.record.arrival;
  if (request.output_left() > 1) publish(request, Publish::prompt);
  produce_token(request, now);
}

void Scheduler::fall_back(Request& request, Reason reason, TimeNs now) {
  const bool leased = request.lease != NodeId::none;
  request.room_due = false;
  if (leased) {
    free_leased(request);
    if (request.gone) return recycle(request);
    cache_.queue(request.record.request, reusable(request));
  } else {
    std::erase(expected_, &request);
  }
  decide(DecisionKind::fall_back, reason, request, 0);
  request.record.hit = {};
  request.record.miss = 0;
  request.record.hand_over_ns = now - request.record.arrival;
  insert_waiting(request);
  sink_.event_at({.kind = EventKind::fell_back, .time = now, .reason = reason, .record = &request.record});
  prefetch(request, now);
}

// ---- both ------------------------------------------------------------------------------------------------

Request* Scheduler::find_part(RequestId id, std::uint32_t attempt) {
  const auto is_it = [&](const Request* request) {
    return request->record.request == id && request->record.attempt == attempt;
  };
  if (const auto waits = find_waiting(id); waits != waiting_.end() && is_it(*waits)) return *waits;
  if (chunked_ != nullptr && is_it(chunked_)) return chunked_;
  for (const auto* requests : {&parked_, &leased_}) {
    if (const auto at = std::ranges::find_if(*requests, is_it); at != requests->end()) return *at;
  }
  const auto at = std::ranges::find_if(expected_, is_it);
  return at == expected_.end() ? nullptr : *at;
}

void Scheduler::take(const Notice& notice, TimeNs now) {
  if (notice.kind == NoticeKind::peer_lost) return lose_peer(notice.peer, now);
  Request* const request = find_part(notice.request, notice.attempt);
  switch (notice.kind) {
    case NoticeKind::cancel:
      if (request == nullptr) {
        hand_overs_.drop(notice.request, notice.attempt, false);  // the part has not been taken out of the queue yet
      } else if (request->record.part == RequestPart::prefill) {
        abort_part(notice.request, Reason::aborted, now);
      }
      return;
    case NoticeKind::handed:
      if (std::ranges::find(leased_, request) != leased_.end()) receive(*request, now);
      return;
    case NoticeKind::withdrawn:
      if (std::ranges::find(leased_, request) != leased_.end() ||
          std::ranges::find(expected_, request) != expected_.end()) {
        fall_back(*request, Reason::withdrawn, now);
      }
      return;
    case NoticeKind::room:
    case NoticeKind::peer_lost: break;
  }
  KV_CHECK(false, "the engine takes room");
}

// Ends a part; `reason`: aborted if its client has gone. Returns false if there is no such part; a decode part that
// computes its prompt itself, or decodes, ends like a whole request.
bool Scheduler::abort_part(RequestId id, Reason reason, TimeNs now) {
  const auto is_it = [id](const Request* request) { return request->record.request == id && !request->gone; };
  if (const auto expects = std::ranges::find_if(expected_, is_it); expects != expected_.end()) {
    Request& request = **expects;
    expected_.erase(expects);
    cache_.unqueue(id, reusable(request));
    hand_overs_.send(NoticeKind::cancel, request);
    decide(DecisionKind::abort, Reason::aborted, request, 0);
    report(EventKind::aborted, request, now);
    recycle(request);
    return true;
  }
  if (const auto leases = std::ranges::find_if(leased_, is_it); leases != leased_.end()) {
    Request& request = **leases;
    hand_overs_.send(NoticeKind::cancel, request);
    decide(DecisionKind::abort, Reason::aborted, request, request.slots.size());
    report(EventKind::aborted, request, now);
    running_output_left_ -= request.output_left();
    request.gone = true;
    return true;
  }
  const auto prefills = [&](const Request* request) {
    return is_it(request) && request->record.part == RequestPart::prefill;
  };
  Request* request = nullptr;
  if (const auto parks = std::ranges::find_if(parked_, is_it); parks != parked_.end()) {
    request = *parks;
    parked_.erase(parks);
  } else if (chunked_ != nullptr && prefills(chunked_)) {
    request = std::exchange(chunked_, nullptr);
    running_output_left_ -= request->output_left();
  } else if (const auto waits = find_waiting(id); waits != waiting_.end() && prefills(*waits)) {
    request = *waits;
    waiting_.erase(waits);
    if (request->lease == NodeId::none) cache_.unqueue(id, reusable(*request));
    std::erase(holders_, request);
    prefetcher_.abort(id);
  }
  if (request == nullptr) return false;
  end_part(*request, lost_.contains(request->record.peer) ? Reason::peer_lost : reason, now);
  return true;
}

void Scheduler::lose_peer(std::uint32_t peer, TimeNs now) {
  lost_.insert(peer);
  const auto is_its = [peer](const Request* request) {
    return request->record.part != RequestPart::whole && request->record.peer == peer;
  };
  std::vector<Request*> parts;
  std::ranges::copy_if(expected_, std::back_inserter(parts), is_its);
  std::ranges::copy_if(leased_, std::back_inserter(parts), is_its);
  std::ranges::sort(parts, is_older);
  for (Request* request : parts) fall_back(*request, Reason::peer_lost, now);
  std::vector<RequestId> prefills;
  const auto collect = [&](const Request* request) {
    if (is_its(request) && request->record.part == RequestPart::prefill) prefills.push_back(request->record.request);
  };
  for (const Request* request : waiting_) collect(request);
  for (const Request* request : parked_) collect(request);
  if (chunked_ != nullptr) collect(chunked_);
  std::ranges::sort(prefills);
  for (const RequestId id : prefills) abort_part(id, Reason::peer_lost, now);
}

bool Scheduler::awaits_peer() const {
  return !parked_.empty() || !leased_.empty() ||
         std::ranges::any_of(waiting_, [](const Request* request) { return request->needs_room; });
}

}  // namespace kvtwin
