#include "policy/scheduler.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/base/mutant.hpp"
#include "policy/index/page_key.hpp"

namespace kvtwin {
namespace {

// Admission counts at most this much output of one request (SGLang's clip of max_new_tokens).
constexpr Tokens kMaxEstimatedOutput = 4096;

}  // namespace

Scheduler::Scheduler(const EngineConfig& config, Cache& cache, Prefetcher& prefetcher, HandOvers& hand_overs,
                     const EventSink& sink)
    : config_(config),
      cache_(cache),
      prefetcher_(prefetcher),
      hand_overs_(hand_overs),
      sink_(sink),
      order_(make_request_order(config.order)),
      style_(make_style(config.style, config)) {
  KV_CHECK(order_ != nullptr, "an order is known by its name");
  KV_CHECK(style_ != nullptr, "a style is known by its name");
  KV_CHECK(!style_->loads_before_admission() || config.storage.empty() || config.path == CachePath::via_host,
           "a style that loads before admission loads from L2");
  KV_CHECK(!cache_.offloads_blocks() || style_->loads_before_admission(), "blocks are loaded before admission");
}

Request& Scheduler::new_request() {
  if (spare_.empty()) {
    requests_.push_back(std::make_unique<Request>());
    return *requests_.back();
  }
  Request* request = spare_.back();
  spare_.pop_back();
  return *request;
}

// Keeps the buffers of as many requests as may run. The buffers of a longer queue are freed.
void Scheduler::recycle(Request& request) {
  if (request.enqueued) cache_.request_of_session_ended(request.session);
  Request blank;
  if (spare_.size() < config_.max_running) {
    blank.keys = std::move(request.keys);
    blank.slots = std::move(request.slots);
    blank.keys.clear();
    blank.slots.clear();
  }
  request = std::move(blank);
  spare_.push_back(&request);
}

void Scheduler::enqueue(Request& request, TimeNs now) {
  request.enqueued = true;
  request.session_began = cache_.request_of_session_began(request.session);
  RequestRecord& record = request.record;
  if (pages_for(record.prompt_tokens + record.output_tokens - 1) > config_.device_pages) {
    record.rejected = Reason::too_long;
  } else if (config_.max_waiting != 0 && waiting_.size() + expected_.size() >= config_.max_waiting) {
    record.rejected = Reason::queue_full;
  }
  report(EventKind::arrived, request, now);
  if (record.rejected != Reason::none) return reject(request, now);
  request.prefill_target = record.prompt_tokens;
  request.prefill_tokens_before = prefill_tokens_;
  if (record.part == RequestPart::decode) return expect(request, now);
  if (record.part == RequestPart::prefill) {
    if (lost_.contains(record.peer)) return end_part(request, Reason::peer_lost, now);
    if (!hand_overs_.is_open(request)) return end_part(request, Reason::aborted, now);
  }
  insert_waiting(request);
  cache_.queue(record.request, reusable(request));
  prefetch(request, now);
}

// Returns the keys of the pages that the request may reuse. At least one token is always computed, so that there is a
// first token to sample.
std::span<const PageKey> Scheduler::reusable(const Request& request) const {
  const Pages pages = (request.prefill_target - 1) / config_.shape.page_tokens;
  return std::span(request.keys).first(std::min<Pages>(request.keys.size(), pages));
}

void Scheduler::prefetch(Request& request, TimeNs now) {
  if (!prefetches()) return;
  const TimeNs starts = prefetcher_.weighs_costs() ? now + queued_compute_ns(request) : now;
  const std::span<const PageKey> keys = reusable(request);
  const PrefixMatch match = cache_.look_up(keys, request.record.request);
  request.looked_up_behind = match.device_pages + match.host_pages;
  ++request.prefetch_attempts;
  request.retry_step = 0;
  prefetcher_.issue(request.record.request, keys, match, now, starts);
}

void Scheduler::prefetch_for_hint(std::span<const PageKey> keys, TimeNs now) {
  // A buffer keeps nothing for a request that has not come.
  if (!prefetches() || config_.path == CachePath::direct || config_.buffers() || keys.empty()) return;
  prefetcher_.issue_for_hint(keys, cache_.match(keys), now);
}

bool Scheduler::retries(const Request& request) const {
  return config_.prefetch_retry_steps != 0 && request.lease == NodeId::none && !request.recompute &&
         request.prefetch_attempts < config_.prefetch_attempts;
}

// What a waiting request lost since its last look-up, storage may have. Issues its prefetch again if its cached prefix
// has become shorter. Returns true if so: this step then does not admit the request (SGLang's
// Scheduler._prefetch_after_device_hit_loss). Compares with the prefix that the look-up began behind, so pages that the
// prefetch brought and that were evicted since do not count.
bool Scheduler::look_up_again(Request& request, const PrefixMatch& match) {
  const Pages matched = match.device_pages + match.host_pages;
  if (!config_.prefetch_recheck || !prefetches() || request.recompute) return false;
  if (matched >= request.looked_up_behind || prefetcher_.waits(request.record.request)) return false;
  if (request.prefetch_attempts >= config_.prefetch_attempts) {
    request.looked_up_behind = matched;
    return false;
  }
  prefetch(request, step_time_);
  looks_up_again_ = true;
  return true;
}

// Returns the compute time ahead of this request. Sums the uncached tokens, at their arrival, of the requests ahead in
// the queue that wait for no prefetch. Looks at `order_window` requests at most, as a step does.
TimeNs Scheduler::queued_compute_ns(Request& request) {
  const PrefixMatch match = cache_.peek(reusable(request));
  const Tokens near = (match.device_pages + match.host_pages) * config_.shape.page_tokens;
  request.uncached_compute_ns = config_.prefill_ns(near, request.prefill_target);
  TimeNs ahead = chunked_ == nullptr ? 0 : config_.prefill_ns(chunked_->kv_tokens, chunked_->prefill_target);
  const std::size_t window = std::min<std::size_t>(config_.order_window, waiting_.size());
  for (std::size_t i = 0; i < window && waiting_[i] != &request; ++i) {
    if (!prefetcher_.waits(waiting_[i]->record.request)) ahead += waiting_[i]->uncached_compute_ns;
  }
  return ahead;
}

void Scheduler::retry_prefetches(TimeNs now) {
  ++steps_;
  for (const RequestId id : prefetcher_.take_unfulfilled()) {
    const auto waits = find_waiting(id);
    if (waits == waiting_.end() || (*waits)->retry_step != 0 || !retries(**waits)) continue;
    (*waits)->retry_step = steps_ + config_.prefetch_retry_steps;
    retries_.emplace((*waits)->retry_step, id);
  }
  // No second look-up may delay the request that is admitted next.
  if (!waiting_.empty()) waiting_.front()->retry_step = 0;
  while (!retries_.empty()) {
    const auto [due, id] = *retries_.begin();
    const auto waits = find_waiting(id);
    const bool valid = waits != waiting_.end() && (*waits)->retry_step == due;
    if (valid && due > steps_) break;
    retries_.erase(retries_.begin());
    if (!valid) continue;
    (*waits)->retry_step = 0;
    if (retries(**waits)) prefetch(**waits, now);
  }
}

std::deque<Request*>::iterator Scheduler::find_waiting(RequestId id) {
  const auto at = std::ranges::lower_bound(waiting_, id, {}, [](const Request* r) { return r->record.request; });
  return at != waiting_.end() && (*at)->record.request == id ? at : waiting_.end();
}

void Scheduler::abort(RequestId id, TimeNs now) {
  const auto is_it = [id](const Request* request) { return request->record.request == id; };
  if (abort_part(id, Reason::aborted, now)) return;
  Request* request = nullptr;
  if (const auto waits = find_waiting(id); waits != waiting_.end()) {
    request = *waits;
    waiting_.erase(waits);
    if (request->lease == NodeId::none) cache_.unqueue(id, reusable(*request));
    prefetcher_.abort(id);
  } else if (chunked_ != nullptr && is_it(chunked_)) {
    request = std::exchange(chunked_, nullptr);
  } else if (const auto runs = std::ranges::find_if(running_, is_it); runs != running_.end()) {
    request = *runs;
    running_.erase(runs);
  }
  if (request == nullptr) return;
  if (const auto holds = std::ranges::find(holders_, request); holds != holders_.end()) {
    holders_.erase(holds);
    cache_.release(request->lease);
    cache_.leave_pools(request->pools);
  } else if (request->lease != NodeId::none) {
    cache_.free(std::span(request->slots).subspan(request->shared));
    cache_.release(request->lease);
    cache_.leave_pools(request->pools);
    running_output_left_ -= request->output_left();
  }
  cache_.request_ended(id);
  decide(DecisionKind::abort, Reason::aborted, *request, request->slots.size());
  report(EventKind::aborted, *request, now);
  recycle(*request);
}

// ---- admission ---------------------------------------------------------------------------------------

// Returns the share of the running requests' outstanding output that is kept free for them.
Pages Scheduler::reserve_pages(Tokens more_output) const {
  const std::uint64_t span = config_.reserve_initial - config_.reserve_min;
  const std::uint64_t decayed = std::min<std::uint64_t>(steps_since_reset_, config_.reserve_decay_steps);
  const std::uint64_t share = config_.reserve_initial - span * decayed / std::max(1U, config_.reserve_decay_steps);
  return pages_for((running_output_left_ + more_output) * share / 1024);
}

// Returns the pages up to the end of the request's first chunk after its `cached` pages.
Pages Scheduler::first_chunk_end(const Request& request, Pages cached, Tokens budget) const {
  const Tokens reused = cached * config_.shape.page_tokens;
  return pages_for(reused + std::min(budget, request.prefill_target - reused));
}

// Returns whether L1 can make the room that the style asks for. `device_pages`: the pages of the cached prefix that are
// on L1, and leased.
bool Scheduler::has_room(const Request& request, Pages device_pages, Pages cached, Tokens budget,
                         Pages reserved) const {
  const Tokens output = std::min(request.output_left() - 1, kMaxEstimatedOutput);
  const Pages pages = style_->pages_to_admit({.first_chunk = first_chunk_end(request, cached, budget),
                                              .prompt = pages_for(request.prefill_target),
                                              .sequence = pages_for(request.prefill_target + output),
                                              .reserve = reserve_pages(0)});
  return std::max(pages, device_pages) - device_pages + reserved <= cache_.promised_pages();
}

// Admits the request if there is room for it, unless its prefix has to be loaded first.
Scheduler::Admission Scheduler::admit(Request& request, Tokens budget, Pages reserved) {
  if (request.needs_room && !hand_overs_.has_room(request)) return Admission::held;
  if (request.lease == NodeId::none) {
    const Admission taken = take_over(request, budget, reserved);
    if (taken != Admission::admitted) return taken;
  } else {
    if (request.load_since >= 0) return Admission::held;
    const Pages more = cache_.chunk_pages(first_chunk_end(request, request.shared, budget) - request.shared, reserved);
    const bool room = has_room(request, request.shared, request.shared, budget, reserved) &&
                      cache_.make_room(more + reserved, request.lease) == Room::now;
    if (!room) return Admission::no_room;
    std::erase(holders_, &request);
  }
  enter(request);
  return Admission::admitted;
}

// Leases the request's cached prefix, if there is room for the request, and starts the load of the part on L2. Its
// prefetch is checked only after there is room, because a stop without an admission would lose the fetched pages for
// nothing.
Scheduler::Admission Scheduler::take_over(Request& request, Tokens budget, Pages reserved) {
  const std::span<const PageKey> keys = reusable(request);
  const bool waits = prefetcher_.waits(request.record.request);
  PrefixMatch match = waits ? cache_.match(keys) : cache_.look_up(keys, request.record.request);
  if (look_up_again(request, match)) return Admission::held;
  if (cache_.offloads_blocks() && request.recompute) {
    match.host_pages = 0;
  } else if (match.waits) {
    return Admission::held;
  }
  // Without a load of its own: a load below pages that may not arrive could not be undone.
  if (style_->loads_before_admission() && cache_.arriving(match.end)) return Admission::held;
  const auto room = [&](Pages direct) {
    return has_room(request, match.device_pages, match.device_pages + match.host_pages + direct, budget, reserved);
  };
  cache_.lease(match);
  const bool promised = room(0);
  cache_.release(match);
  if (!promised) return Admission::no_room;
  if (prefetcher_.holds(request.record.request, step_time_)) return Admission::held;
  if (waits) match = cache_.look_up(keys, request.record.request);
  cache_.lease(match);
  request.pools.request = request.record.request;
  const Pages direct = prefetcher_.direct_pages(request.record.request, match.device_pages + match.host_pages);
  const Pages first = first_chunk_end(request, match.device_pages + match.host_pages + direct, budget);
  const Pages more = cache_.chunk_pages(first - match.device_pages, reserved);
  if (!room(direct) || cache_.make_room(more + reserved, match.end) != Room::now ||
      !cache_.enter_pools(keys, match, request.record.prompt_tokens, request.pools)) {
    cache_.release(match);
    return Admission::no_room;
  }
  take_over_prefix(request, match);
  if (!style_->loads_before_admission() || !arriving(request)) return Admission::admitted;
  request.load_since = step_time_;
  holders_.push_back(&request);
  return Admission::held;
}

// Takes the request, which has its cached prefix, out of the queue.
void Scheduler::enter(Request& request) {
  const bool first = request.record.admitted < 0;
  if (first) {
    request.record.admitted = step_time_;
  } else {
    request.record.retracted_recompute += std::max(request.computed_tokens, request.kv_tokens) - request.kv_tokens;
  }
  // Tokens whose load was promised count as computed: if the load fails, they are computed again.
  request.computed_tokens = std::max(request.computed_tokens, request.kv_tokens);
  running_output_left_ += request.output_left();
  waiting_.erase(std::ranges::lower_bound(waiting_, &request, is_older));
  decide(DecisionKind::admit, Reason::none, request, request.shared);
  if (first) report(EventKind::admitted, request, step_time_);
}

// Returns whether pages of the request's prefix are still being loaded.
bool Scheduler::arriving(const Request& request) const {
  return cache_.arriving(request.lease) || cache_.arriving(request.pools);
}

// Ends the wait of the requests whose prefix has been loaded.
void Scheduler::settle_loads() {
  for (Request* request : holders_) {
    if (request->load_since < 0 || arriving(*request)) continue;
    cache_.loaded(request->pools, reusable(*request), request->kv_tokens);
    const TimeNs waited = step_time_ - std::exchange(request->load_since, -1);
    if (request->generated == 0) request->record.load_wait_ns += waited;
  }
}

// Returns the tokens of the request's first chunk after its first `pages` pages.
Tokens Scheduler::first_chunk_tokens(const Request& request, Pages pages) const {
  return std::min(config_.chunk_tokens, request.prefill_target - pages * config_.shape.page_tokens);
}

// Takes over the cached prefix, whose device part is leased: the part on L1, then the part on L2, then the part of L3
// that is loaded straight.
void Scheduler::take_over_prefix(Request& request, const PrefixMatch& match) {
  const bool first = !std::exchange(request.matched_before, true);
  RequestRecord& record = request.record;
  const Pages matched = match.device_pages + match.host_pages;
  const Pages direct = prefetcher_.direct_pages(record.request, matched);
  PrefetchOutcome outcome = prefetcher_.finish(record.request, matched);
  if (cache_.offloads_blocks()) outcome.runs = cache_.read_for(reusable(request), match, record.request);
  NodeId end = match.device_end;
  const auto move_to = [&](NodeId next) {
    cache_.lease(next);
    cache_.release(end);
    end = next;
  };
  Pages loaded = 0;
  if (match.host_pages > 0 && !request.recompute &&
      cache_.load_back(reusable(request), match, record.request, first_chunk_tokens(request, matched),
                       &request.pools) == Reason::none) {
    loaded = match.host_pages;
    move_to(match.end);
  }
  std::vector<SlotId> own;
  if (direct > 0 && loaded == match.host_pages && !request.recompute) {
    NodeId next = end;
    if (config_.buffers()) {
      cache_.load_staged(request.keys, matched, outcome.staged, record.request, next);
    } else {
      cache_.load_direct(request.keys, outcome.runs, record.request, next, own);
    }
    loaded += direct;
    move_to(next);
  } else {
    cache_.free_host(outcome.staged);
  }
  // Policies must not see the future: keys of output that the trace knows, and private pages of a prompt that may not
  // be computed yet.
  const Pages prompt = std::min<Pages>(record.prompt_tokens / config_.shape.page_tokens, request.keys.size());
  cache_.unqueue(record.request, reusable(request));
  cache_.visit(visit_of(request, std::span(request.keys).first(std::max(prompt, first ? 0 : matched)), !first));
  cache_.touch(end);
  cache_.take_states(request.pools, end);
  request.copies_state = cache_.has_state(end);
  cache_.path_slots(end, request.pools, request.slots);
  request.lease = end;
  request.shared = request.slots.size();
  request.slots.insert(request.slots.end(), own.begin(), own.end());
  request.kv_tokens = request.slots.size() * config_.shape.page_tokens;
  request.without_draft = cache_.incomplete_pages(end);
  if (!first) return;
  record.reused_without_draft = request.without_draft * config_.shape.page_tokens;
  record.prefetch_wait_ns = outcome.waited;
  count_hits(record, match, loaded, outcome);
}

// Counts the request's prompt tokens by their source. Pages that its prefetch brought count as hits of the storage
// tier.
void Scheduler::count_hits(RequestRecord& record, const PrefixMatch& match, Pages loaded,
                           const PrefetchOutcome& outcome) const {
  const Tokens page = config_.shape.page_tokens;
  const Pages from = match.device_pages, to = from + loaded;
  record.hit[Tier::device] = from * page;
  record.hit[Tier::host] = loaded * page;
  record.unusable = (match.present - match.device_pages - match.host_pages) * page;
  record.without_window = match.without_window * page;
  record.without_state = match.without_state * page;
  for (const FetchedRun& run : outcome.runs) {
    const Pages first = std::max(run.first, from), end = std::min(run.first + run.pages, to);
    if (first >= end) continue;
    const Tokens tokens = (end - first) * page;
    record.hit[Tier::host] -= tokens;
    record.hit[config_.storage[run.tier].tier] += tokens;
  }
  const Pages had = std::max(to, match.device_pages + match.host_pages);  // loaded, or on L1 or L2 but not loaded
  if (outcome.stopped && outcome.known_end > had) record.recomputed_after_stop = (outcome.known_end - had) * page;
  record.miss = record.prompt_tokens - to * page - record.recomputed_after_stop;
}

// ---- decode steps ------------------------------------------------------------------------------------

// Tokens of a decode step. If reused pages lack the draft model's KV, few proposals are accepted.
std::uint64_t Scheduler::yield_x1024(const Request& request) const {
  return request.without_draft > 0 ? config_.accept_without_x1024 : config_.accept_x1024;
}

StepYield Scheduler::step_yield(const Request& request) const {
  return {yield_x1024(request), request.yield_remainder_x1024};
}

// Tokens of the next `steps` decode steps. Verified tokens beyond the end of the output do not count.
Tokens Scheduler::yield_of(const Request& request, std::uint64_t steps) const {
  return std::min<Tokens>(step_yield(request).after(steps), request.output_left());
}

// Decode steps until the request finishes.
std::uint64_t Scheduler::steps_left(const Request& request) const {
  const std::uint64_t yield = yield_x1024(request);
  return (request.output_left() * 1024 - request.yield_remainder_x1024 + yield - 1) / yield;
}

// ---- retraction --------------------------------------------------------------------------------------

// Retracts the style's victim. Returns false if there is none: the last running request stays.
bool Scheduler::retract_victim(TimeNs now) {
  if (running_.empty() && chunked_ == nullptr) return false;
  const bool by_age = style_->victim() == Victim::youngest;
  const auto victim = by_age             ? std::ranges::max_element(running_, is_older)
                      : running_.empty() ? running_.end()
                                         : std::prev(running_.end());
  // Nothing is admitted while a prompt is only partly computed, so that request was admitted last.
  const bool chunked = chunked_ != nullptr && (!by_age || running_.empty() || is_older(*victim, chunked_));
  if (chunked) {
    retract(*std::exchange(chunked_, nullptr), Reason::capacity, now);
  } else {
    if (running_.size() == 1 && chunked_ == nullptr) return false;
    Request* request = *victim;
    running_.erase(victim);
    if (style_->keeps_retracted_pages()) publish(*request, Publish::chunk);  // without a copy on L2
    retract(*request, Reason::capacity, now);
  }
  steps_since_reset_ = 0;
  return true;
}

// The pages that the index owns stay cached. The others are freed and computed again later.
void Scheduler::retract(Request& request, Reason reason, TimeNs now) {
  decide(DecisionKind::retract, reason, request, request.slots.size());
  give_pages_back(request);
  request.received = false;
  request.prefill_target = request.record.prompt_tokens + request.generated;
  request.prefill_tokens_before = prefill_tokens_;
  running_output_left_ -= request.output_left();
  ++request.record.retractions;
  insert_waiting(request);
  cache_.queue(request.record.request, reusable(request));
  report(EventKind::retracted, request, now);
  // A new wait.
  request.prefetch_attempts = 0;
  request.retry_step = 0;
  if (!request.recompute) prefetch(request, now);
}

// Pages that are being written to a decode engine stay until they have been written.
void Scheduler::give_pages_back(Request& request) {
  const std::span<const SlotId> own = std::span(request.slots).subspan(request.shared);
  if (request.record.part == RequestPart::prefill && hand_overs_.reads_pages(request)) {
    std::vector<SlotId> kept(own.begin(), own.end());
    kept.insert(kept.end(), request.displaced.begin(), request.displaced.end());
    // No write reads pages that are still being loaded. If the load fails, they must be free to go.
    const NodeId end = cache_.end_before_load(request.lease);
    cache_.lease(end);
    cache_.release(request.lease);
    // Windows and states are read only with the last page.
    const bool computed = end == request.lease;
    hand_overs_.linger(request, end, std::move(kept), computed ? std::exchange(request.pools, {}) : RequestPools{});
  } else {
    cache_.free(own);
    cache_.free(request.displaced);
    cache_.release(request.lease);
  }
  cache_.leave_pools(request.pools);
  request.displaced.clear();
  request.slots.clear();
  request.shared = 0;
  request.lease = NodeId::none;
  request.counted = {};
  request.without_draft = 0;
  request.kv_tokens = 0;
}

// Takes the prefix back from a waiting request, which stays in the queue.
void Scheduler::release_prefix(Request& request, Reason reason) {
  decide(DecisionKind::release, reason, request, request.shared);
  std::erase(holders_, &request);
  request.load_since = -1;
  give_pages_back(request);
  cache_.queue(request.record.request, reusable(request));
}

void Scheduler::load_failed(std::uint64_t load, TimeNs now) {
  const auto lost = [&](const Request* request) {
    return cache_.depends_on_load(request->lease, load) || cache_.depends_on_load(request->pools, load);
  };
  std::vector<Request*> losers;
  std::ranges::copy_if(holders_, std::back_inserter(losers), lost);
  for (Request* request : losers) {
    request->recompute = true;
    if (request->generated == 0) request->record.load_wait_ns += now - request->load_since;
    release_prefix(*request, Reason::transfer_failed);
  }
}

// ---- after a pass ------------------------------------------------------------------------------------

void Scheduler::prefill_done(const PassPart& part, TimeNs end, TimeNs compute_ns, TimeNs stalled_ns) {
  if (!part.empty()) poll_next();
  for (std::size_t i = 0; i < part.requests.size(); ++i) {
    Request& request = *part.requests[i];
    cache_.track_prefill(request.pools, request.kv_tokens, request.kv_tokens + part.new_tokens[i]);
    request.kv_tokens += part.new_tokens[i];
    request.computed_tokens = std::max(request.computed_tokens, request.kv_tokens);
    if (request.generated == 0) {
      request.record.compute_ns += compute_ns;
      request.record.load_wait_ns += stalled_ns;
    }
    const bool chunked = request.kv_tokens < request.prefill_target;
    // If a request has only one token to generate, this pass ends it, and finish() publishes: one insert, not two.
    const bool hands_over = request.record.part == RequestPart::prefill;
    if (chunked || hands_over || request.output_left() > 1)
      publish(request, chunked ? Publish::chunk : Publish::prompt);
    if (!chunked) hands_over ? park(request, end) : produce_token(request, end);
  }
}

void Scheduler::prefill_failed(const PassPart& part, TimeNs end) {
  // A prompt that was admitted and got no room in the pass has a prefix, too, which may be among the failed loads.
  const bool idle = chunked_ != nullptr && std::ranges::find(part.requests, chunked_) == part.requests.end();
  if (part.empty() && !idle) return;
  poll_next();
  std::vector<Request*> failed(part.requests.begin(), part.requests.end());
  if (idle) failed.push_back(chunked_);
  chunked_ = nullptr;
  for (Request* request : failed) {
    request->recompute = true;
    retract(*request, Reason::transfer_failed, end);
  }
}

void Scheduler::decode_done(const PassPart& part, std::uint64_t steps, TimeNs end) {
  steps_since_reset_ += steps;
  steps_unpolled_ += steps;
  steps_ += std::max<std::uint64_t>(steps, 1) - 1;
  // The burst was cancelled before its first step, for an input that the next step must see. Else the step would submit
  // the same burst again, and cancel it again.
  if (steps == 0 && config_.poll_steps == 1) poll_next();
  Tokens all = 0;
  for (Request* request : part.requests) {
    const Tokens tokens = yield_of(*request, steps);
    request->yield_remainder_x1024 = (request->yield_remainder_x1024 + steps * yield_x1024(*request)) % 1024;
    cache_.track_decode(request->pools, cacheable(*request), request->kv_tokens, tokens, request->shared);
    request->kv_tokens += tokens;
    request->computed_tokens = std::max(request->computed_tokens, request->kv_tokens);
    request->generated += tokens;
    all += tokens;
  }
  running_output_left_ -= all;
  std::erase_if(running_, [](const Request* request) { return request->output_left() == 0; });
  for (Request* request : part.requests) {
    if (request->output_left() == 0) finish(*request, end);
  }
}

// The visit has the step's time, which all ranks share. The end of a pass differs between ranks.
Visit Scheduler::visit_of(const Request& request, std::span<const PageKey> keys, bool further) const {
  const Tokens prompt = request.record.prompt_tokens;
  return {.request = request.record.request,
          .time = step_time_,
          .session = request.session,
          .prompt_tokens = prompt,
          .output_tokens = request.generated,
          .keys = keys,
          .further = further,
          .parts = PromptParts::of(request.system_tokens, prompt, config_.shape.page_tokens)};
}

// Returns the keys of the request's pages that may be cached.
std::span<const PageKey> Scheduler::cacheable(const Request& request) const {
  if (config_.cache_output) return request.keys;
  const Pages prompt = request.record.prompt_tokens / config_.shape.page_tokens;
  return std::span(request.keys).first(std::min<std::size_t>(prompt, request.keys.size()));
}

// Gives the full pages computed so far to the index, and moves the lease to their end.
void Scheduler::publish(Request& request, Publish after) {
  const bool chunked = after == Publish::chunk;
  if (request.received && !config_.hand_over.cache) return;
  const Tokens page = config_.shape.page_tokens;
  const Tokens cached =
      config_.cache_output ? request.kv_tokens : std::min(request.kv_tokens, request.record.prompt_tokens);
  const Tokens insertable = cache_.insertable(request.pools, cacheable(request), request.kv_tokens, cached,
                                              request.shared, after == Publish::end);
  // After a retraction, the shared prefix may include pages of the output. They stay shared.
  Pages pages = std::max<Pages>(insertable / page, request.shared);
  // If no pass of the request waits for loads, it keeps its own pages beside pages that another request is loading.
  if (!loads_gate_passes() || request.received) {
    pages = std::max(std::min(pages, cache_.pages_before_load(std::span(request.keys).first(pages))), request.shared);
  }
  if (pages == 0 || insertable == 0) {
    cache_.inserted(request.pools, NodeId::none, cached, request.shared, after == Publish::end);
    return;
  }
  cache_.visit(visit_of(request, std::span(request.keys).first(pages), true));
  const NodeId end = cache_.insert(std::span(request.keys).first(pages), std::span(request.slots).first(pages),
                                   request.shared, chunked, request.counted, request.priority,
                                   hand_overs_.reads_pages(request) ? &request.displaced : nullptr, &request.pools);
  const Pages prompt_pages = request.record.prompt_tokens / page;
  if (config_.raise_prompt_priority && prompt_pages > 0 && prompt_pages < pages) {
    const auto above =
        std::min<std::int64_t>(request.priority + std::int64_t{1}, std::numeric_limits<std::int32_t>::max());
    cache_.raise_priority(std::span(request.keys).first(prompt_pages), static_cast<std::int32_t>(above));
  }
  if (after == Publish::end) cache_.request_of_session_finished(request.session, request.session_began, end);
  request.counted.touches = std::max(request.counted.touches, pages);
  if (!chunked) request.counted.backup_hits = request.counted.touches;
  cache_.lease(end);
  cache_.release(request.lease);
  request.lease = end;
  request.shared = pages;
  cache_.inserted(request.pools, end, cached, pages, after == Publish::end);
  // If another request inserted the same pages first, the index keeps those pages, and this request uses them.
  request.without_draft = cache_.incomplete_pages(end);
}

void Scheduler::produce_token(Request& request, TimeNs now) {
  RequestRecord& record = request.record;
  if (request.generated == 0) {
    record.first_token = now;
    record.queue_ns =
        now - record.arrival - record.prefetch_wait_ns - record.load_wait_ns - record.compute_ns - record.hand_over_ns;
    report(EventKind::first_token, request, now);
  }
  ++request.generated;
  --running_output_left_;
  if (request.output_left() == 0) {
    finish(request, now);
  } else {
    running_.push_back(&request);
  }
}

void Scheduler::finish(Request& request, TimeNs now) {
  publish(request, Publish::end);
  cache_.free(std::span(request.slots).subspan(request.shared));
  cache_.release(request.lease);
  cache_.leave_pools(request.pools);
  cache_.request_ended(request.record.request);
  request.record.finished = now;
  decide(DecisionKind::finish, Reason::none, request, request.shared);
  report(EventKind::finished, request, now);
  recycle(request);
}

void Scheduler::ensure_keys(Request& request, Pages pages) {
  while (request.keys.size() < pages) {
    const PageKey* prior = request.keys.empty() ? nullptr : &request.keys.back();
    request.keys.push_back(private_page_key(prior, request.record.request, request.keys.size()));
  }
}

// ---- accounts ----------------------------------------------------------------------------------------

bool Scheduler::arrival_changes_step() const {
  if (config_.poll_steps > 1) return false;  // bursts end at the next poll
  if (prefetches()) return true;             // the arrival's prefetch can begin
  return waiting_.empty() || (order_->reorders() && waiting_.size() < config_.order_window);
}

Pages Scheduler::owned_pages() const {
  Pages pages = hand_overs_.lingering_pages();
  const auto add = [&](const Request& request) {
    pages += request.slots.size() - request.shared + request.displaced.size();
  };
  if (chunked_ != nullptr) add(*chunked_);
  for (const auto* requests : {&running_, &parked_, &leased_}) {
    for (const Request* request : *requests) add(*request);
  }
  return pages;
}

void Scheduler::check_invariants(const Pass* in_flight) const {
  Tokens output = 0;
  Pages owned = 0;
  std::vector<const RequestPools*> pools;
  const auto holds = [&](const Request& request) {
    pools.push_back(&request.pools);
    if (!request.gone) output += request.output_left();
    owned += request.slots.size() - request.shared + request.displaced.size();
    KV_CHECK(request.lease != NodeId::none, "an admitted request holds a lease");
    KV_CHECK(pages_for(request.kv_tokens) <= request.slots.size(), "computed KV has its slots");
    KV_CHECK(request.keys.size() >= request.slots.size(), "each slot has its key");
  };
  for (const Request* request : running_) holds(*request);
  if (chunked_ != nullptr) holds(*chunked_);
  if (in_flight != nullptr) {
    for (const Request* request : in_flight->prefill.requests) {
      if (request != chunked_) holds(*request);
    }
  }
  for (const Request* request : parked_) holds(*request);  // without output left
  for (const Request* request : leased_) holds(*request);
  owned += hand_overs_.lingering_pages();
  hand_overs_.lingering_pools(pools);
  KV_CHECK(output == running_output_left_, "outstanding output is summed up");
  KV_CHECK(running_.size() + leased_.size() <= config_.max_running, "leased requests count as running ones");
  KV_CHECK(holders_.size() <= waiting_.size(), "only waiting requests hold prefixes");
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    KV_CHECK(i == 0 || is_older(waiting_[i - 1], waiting_[i]), "the queue is in order of arrival");
    const bool holder = std::ranges::find(holders_, waiting_[i]) != holders_.end();
    KV_CHECK(holder == (waiting_[i]->lease != NodeId::none), "a waiting request with a lease is known as its holder");
    pools.push_back(&waiting_[i]->pools);
    KV_CHECK(waiting_[i]->slots.size() == waiting_[i]->shared, "a waiting request owns no slot");
    KV_CHECK(holder || waiting_[i]->slots.empty(), "a waiting request without a lease uses no slot");
    KV_CHECK(waiting_[i]->prefetch_attempts <= config_.prefetch_attempts, "the attempts of a wait are bounded");
  }
  prefetcher_.check_invariants();
  cache_.check_invariants(owned, prefetcher_.owned_pages(), pools, prefetcher_.owned_beside());
}

void Scheduler::report(EventKind kind, const Request& request, TimeNs now) {
  sink_.event_at({.kind = kind, .time = now, .reason = request.record.rejected, .record = &request.record});
}

void Scheduler::decide(DecisionKind kind, Reason reason, const Request& request, Pages pages) {
  const PageKey key = request.keys.empty() ? PageKey{} : request.keys.front();
  sink_.decide(kind, reason, key, pages, request.record.request);
}

}  // namespace kvtwin
