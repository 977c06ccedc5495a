#include "policy/prefetch/prefetch.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/base/mutant.hpp"
#include "policy/base/wide.hpp"

namespace kvtwin {
namespace {

constexpr Wide kMaxReadNs = Wide{100'000} * kNsPerSecond;

// Returns how many requests bear a cost: one, and `others`, of which at most 8 count.
std::int64_t bearers(std::size_t others) {
  constexpr std::size_t kMaxOthers = 8;
  return static_cast<std::int64_t>(1 + std::min(others, kMaxOthers));
}

}  // namespace

Prefetcher::Prefetcher(const EngineConfig& config, Cache& cache, Storage& storage, const EventSink& sink)
    : config_(config),
      cache_(cache),
      storage_(storage),
      sink_(sink),
      termination_(make_termination(config)),
      admission_(make_prefetch_admission(config.prefetch_admission)) {
  KV_CHECK(termination_ != nullptr, "a prefetch policy is known by its name");
  KV_CHECK(admission_ != nullptr, "a prefetch admission is known by its name");
  reads_.resize(config.storage.size());
  for (std::size_t tier = 0; tier < reads_.size(); ++tier) reset_rate(tier);
}

void Prefetcher::begin_step(TimeNs step_time, TimeNs unseen_since, std::size_t waiting) {
  step_time_ = step_time;
  unseen_since_ = unseen_since;
  waiting_ = waiting;
}

// ---- issue -----------------------------------------------------------------------------------------------

void Prefetcher::issue(RequestId request, std::span<const PageKey> keys, const PrefixMatch& match, TimeNs step_time,
                       TimeNs starts) {
  const Entry earlier = find(request);
  if (earlier != prefetches_.end() && (is_waited_for(earlier->second) || earlier->second.was_final)) return;
  const Pages first = match.device_pages + match.host_pages;
  const Pages asked = keys.size() - first;
  if (asked == 0) return;
  const bool by_host = config_.path != CachePath::direct;
  Reason refused = Reason::none;
  if (tokens(asked) < config_.prefetch_min_tokens) {
    refused = Reason::too_short;
  } else if (by_host && !cache_.can_prefetch_below(match.end)) {
    refused = Reason::not_backed_up;
  } else if (!may_be_admitted(first, asked, starts)) {
    refused = Reason::too_slow;
  } else if (by_host && !config_.buffers() && occupied_ >= max_in_flight_pages()) {
    refused = Reason::rate_limited;
  }
  sink_.decide(DecisionKind::prefetch, refused, keys[first], asked, request);
  if (refused != Reason::none) {
    if (refused == Reason::too_slow) count_refusal();
    if (refused == Reason::too_slow || refused == Reason::rate_limited) unfulfilled_.push_back(request);
    sink_.event({.kind = EventKind::prefetch_declined,
                 .tier = Tier::host,
                 .reason = refused,
                 .pages = asked,
                 .request = request});
    return;
  }
  Prefetch prefetch;
  prefetch.keys.assign(keys.begin(), keys.end());
  prefetch.first = first;
  prefetch.issued = prefetch.progress = step_time;
  prefetch.starts = starts;
  if (earlier != prefetches_.end()) inherit(prefetch, earlier);
  prefetch.needs = cache_.needs(first, asked);
  if (by_host) {
    prefetch.hold = cache_.hold(match.end);
    if (!config_.buffers()) occupy(prefetch, asked);
  }
  look_up(0, prefetches_.emplace(request, std::move(prefetch)));
  if (!is_of_hint(request)) ++looking_up_;
  sink_.event({.kind = EventKind::prefetch_issued, .tier = Tier::host, .pages = asked, .request = request});
}

void Prefetcher::issue_for_hint(std::span<const PageKey> keys, const PrefixMatch& match, TimeNs step_time) {
  constexpr TimeNs kLeisure = 3600 * kNsPerSecond;  // for admissions that weigh the wait of a request
  const RequestId id = next_hint_++;
  issue(id, keys, match, step_time, step_time + kLeisure);
  if (const Entry entry = find(id); entry != prefetches_.end()) entry->second.for_hint = true;
}

// Returns the newest prefetch of a request that waits; end() if there is none.
Prefetcher::Entry Prefetcher::find(RequestId request) {
  const auto [first, last] = prefetches_.equal_range(request);
  return first == last || std::prev(last)->second.request_gone ? prefetches_.end() : std::prev(last);
}

const Prefetcher::Prefetch* Prefetcher::find(RequestId request) const {
  const auto [first, last] = prefetches_.equal_range(request);
  return first == last || std::prev(last)->second.request_gone ? nullptr : &std::prev(last)->second;
}

// The prefetch takes the place of the request's earlier one, for which the request does not wait.
void Prefetcher::inherit(Prefetch& prefetch, Entry from) {
  Prefetch& earlier = from->second;
  if (earlier.state == State::ready) {
    unpin_found(earlier);
    report_end(from, EventKind::prefetch_revoked, earlier.hit, Reason::anchor_lost, Tier::device);
  }
  free_staged(from, Reason::anchor_lost);
  prefetch.waited = earlier.waited;
  if (earlier.held_since >= 0) prefetch.waited += std::max<TimeNs>(0, earlier.ended - earlier.held_since);
  prefetch.waits_since = earlier.waits_since;
  prefetch.waits_for = earlier.waits_for;
  const Pages end = earlier.fetch_first + earlier.committed;
  for (FetchedRun run : runs_between(earlier, earlier.fetch_first, end)) {
    run.pages = std::min(run.first + run.pages, std::max(run.first, prefetch.first)) - run.first;
    if (run.pages > 0) prefetch.brought.push_back(run);
  }
  earlier.request_gone = true;
  if (earlier.state != State::draining) forget(from);
}

// Returns the pages that earlier prefetches brought, then the pages in [from, to) that this one found.
std::vector<FetchedRun> Prefetcher::runs_between(const Prefetch& prefetch, Pages from, Pages to) {
  std::vector<FetchedRun> runs = prefetch.brought;
  for (const FetchedRun& run : prefetch.found) {
    const Pages first = std::max(run.first, from), end = std::min(run.first + run.pages, to);
    if (first < end) runs.push_back({run.tier, first, end - first});
  }
  return runs;
}

// ---- look-ups --------------------------------------------------------------------------------------------

void Prefetcher::look_up(std::size_t tier, Entry entry) {
  Prefetch& prefetch = entry->second;
  std::vector<StorageOperation::Need> needs = prefetch.needs;
  for (StorageOperation::Need& need : needs) need.from_start &= prefetch.hit == 0;
  prefetch.look_up = storage_.look_up(tier, entry->first, prefetch.keys, prefetch.first + prefetch.hit, needs);
}

void Prefetcher::take(const StorageAnswer& answer, RequestId head) {
  auto [entry, last] = prefetches_.equal_range(answer.request);
  const auto awaits = [&](const Prefetch& prefetch) {
    return prefetch.look_up == answer.id ||
           std::ranges::any_of(prefetch.pieces, [&](const Piece& piece) { return piece.get.id == answer.id; });
  };
  while (entry != last && !awaits(entry->second)) ++entry;
  KV_CHECK(entry != last, "a prefetch lasts until its last answer");
  if (!entry->second.stopped) entry->second.ended = answer.answered;
  entry->second.progress = step_time_;
  if (answer.verb == StorageVerb::look_up) {
    take_look_up(entry, answer, head);
  } else {
    take_get(entry, answer);
  }
}

void Prefetcher::take_look_up(Entry entry, const StorageAnswer& answer, RequestId head) {
  Prefetch& prefetch = entry->second;
  prefetch.look_up = OperationId::none;
  prefetch.failed |= !answer.done;
  if (prefetch.state == State::draining) return land(entry);
  if (answer.usable > 0) prefetch.usable = prefetch.hit + answer.usable;
  if (answer.pages > 0) {
    prefetch.found.push_back({answer.tier, prefetch.first + prefetch.hit, answer.pages});
    prefetch.hit += answer.pages;
    storage_.pin(answer.tier, prefetch.keys[prefetch.first + prefetch.hit - 1]);
    ++prefetch.pinned_runs;
  }
  cut_to_usable(prefetch);  // the next tier may have the windows and the state that this one lacks
  if (prefetch.first + prefetch.hit < prefetch.keys.size() && answer.tier + 1 < storage_.tiers()) {
    return look_up(answer.tier + 1, entry);
  }
  decide_after_look_ups(entry, head);
}

// Pages behind the usable prefix are not read.
void Prefetcher::cut_to_usable(Prefetch& prefetch) {
  while (prefetch.hit > prefetch.usable) {
    FetchedRun& last = prefetch.found.back();
    storage_.unpin(last.tier, prefetch.keys[last.first + last.pages - 1]);
    const Pages more = std::min(prefetch.hit - prefetch.usable, last.pages);
    last.pages -= more;
    prefetch.hit -= more;
    if (last.pages > 0) {
      storage_.pin(last.tier, prefetch.keys[last.first + last.pages - 1]);
    } else {
      prefetch.found.pop_back();
      --prefetch.pinned_runs;
    }
  }
}

// All tiers have answered: revokes the prefetch, makes it ready for a direct load, or fetches.
void Prefetcher::decide_after_look_ups(Entry entry, RequestId head) {
  Prefetch& prefetch = entry->second;
  if (prefetch.hit == 0) return revoke(entry, prefetch.failed ? Reason::transfer_failed : Reason::miss);
  if (tokens(prefetch.hit) < config_.prefetch_min_tokens) return revoke(entry, Reason::too_short);
  TimeNs takes = 0;
  for (const FetchedRun& run : prefetch.found) takes += queued_ns(run.tier) + read_ns(run.tier, tokens(run.pages));
  for (const StorageOperation::Need& need : prefetch.needs) {
    const StorageAnswer get{.pool = need.pool};
    takes += read_ns(prefetch.found.back().tier, tokens(get, std::min(need.trailing, prefetch.hit)));
  }
  if (!is_admitted(prefetch.first, prefetch.hit, takes, prefetch.starts)) {
    count_refusal();
    return revoke(entry, Reason::too_slow);
  }
  if (config_.buffers() && occupied_ >= max_in_flight_pages()) return revoke(entry, Reason::rate_limited);
  const bool direct =
      config_.path == CachePath::direct || (config_.path == CachePath::automatic && head == entry->first);
  if (direct) {
    occupy(prefetch, 0);
    cache_.unhold(std::exchange(prefetch.hold, Hold{}));
    enter(entry, State::ready);
  } else if (!fetch(entry)) {
    revoke(entry, Reason::capacity);
  }
}

// From the look-up's answer until the gets are submitted, a tier that the engine owns keeps the found pages. A shared
// tier may evict them; the get then falls short. So may a window or a state, while another tier is asked.
void Prefetcher::unpin_found(Prefetch& prefetch) {
  for (const FetchedRun& run : std::span(prefetch.found).first(std::exchange(prefetch.pinned_runs, 0))) {
    storage_.unpin(run.tier, prefetch.keys[run.first + run.pages - 1]);
  }
}

// ---- gets ------------------------------------------------------------------------------------------------

// Submits the gets of the hit. Skips pages that other requests have brought meanwhile, and takes no more pages than L2
// has room for. Returns false if the room is too small to be worth it.
bool Prefetcher::fetch(Entry entry) {
  Prefetch& prefetch = entry->second;
  const PrefixMatch now = cache_.peek(prefetch.keys);
  const Pages end = prefetch.first + prefetch.hit;
  const Pages brought = whole() && !config_.buffers() ? 0 : now.device_pages + now.host_pages;
  prefetch.fetch_first = std::min(end, std::max(prefetch.first, brought));
  const Pages wanted = end - prefetch.fetch_first;
  if (config_.buffers() && config_.look_ups_refresh) cache_.refresh(std::span(prefetch.keys).first(end), 0);
  const Pages room = cache_.make_host_room(wanted, whole());
  const bool divides = !config_.buffers() && prefetch.needs.empty() && tokens(room) >= config_.prefetch_min_tokens;
  const bool enough = room == wanted || divides;
  const Pages fetched = enough ? room : 0;
  sink_.event({.kind = EventKind::prefetch_hit, .tier = Tier::host, .pages = prefetch.hit, .request = entry->first});
  if (prefetch.hit > wanted)
    sink_.event({.kind = EventKind::prefetch_shortened,
                 .tier = Tier::host,
                 .reason = Reason::duplicate,
                 .pages = prefetch.hit - wanted,
                 .request = entry->first});
  if (fetched < wanted && !KV_MUTANT(9))
    sink_.event({.kind = EventKind::prefetch_shortened,
                 .tier = Tier::host,
                 .reason = Reason::capacity,
                 .pages = wanted - fetched,
                 .request = entry->first});
  if (!enough) return false;
  if (room > 0) cache_.allocate_host(room, prefetch.slots);
  if (room > 0 && !allocate_beside(prefetch)) {
    free_beside(prefetch);
    cache_.free_host(std::exchange(prefetch.slots, {}));
    sink_.event({.kind = EventKind::prefetch_shortened,
                 .tier = Tier::host,
                 .reason = Reason::capacity,
                 .pages = room,
                 .request = entry->first});
    return false;
  }
  if (!whole() || config_.buffers()) occupy(prefetch, room);
  sink_.decide(DecisionKind::fetch, room < wanted ? Reason::capacity : Reason::none, prefetch.keys[prefetch.first],
               room, entry->first);
  const Pages fetch_end = prefetch.fetch_first + room;
  for (const FetchedRun& run : prefetch.found) {
    const Pages run_end = std::min(run.first + run.pages, fetch_end);
    Pages at = std::max(run.first, prefetch.fetch_first);
    while (at < run_end) {
      const Pages pages = std::min(run_end - at, config_.storage_batch_pages);
      get(entry, run.tier, at, std::span(prefetch.slots).subspan(at - prefetch.fetch_first, pages), 0);
      at += pages;
    }
  }
  // What a page has beside it comes from the page's tier.
  for (const Cache::PoolSlots& beside : prefetch.beside) {
    for (const FetchedRun& run : prefetch.found) {
      const Pages from = std::max(run.first, beside.first);
      const Pages to = std::min(run.first + run.pages, beside.first + beside.slots.size());
      if (from >= to) continue;
      get(entry, run.tier, from, std::span(beside.slots).subspan(from - beside.first, to - from), beside.pool);
    }
  }
  enter(entry, State::fetching);
  if (!prefetch.pieces.empty()) return true;
  report_end(entry, EventKind::prefetch_revoked, prefetch.hit, Reason::duplicate);
  land(entry);
  return true;
}

void Prefetcher::get(Entry entry, std::size_t tier, Pages first, std::span<const SlotId> slots, std::size_t pool) {
  Prefetch& prefetch = entry->second;
  const StorageAnswer get = storage_.get(tier, entry->first, prefetch.keys, first, slots, Tier::host, pool);
  queue_read(tier, get);
  prefetch.pieces.push_back({get, first, false});
  if (pool != 0) return;
  // Each batch by itself, so that the end of its operation tells when it came.
  sink_.event({.kind = EventKind::prefetch_started,
               .tier = storage_.tier(tier),
               .pages = get.asked,
               .operation = get.id,
               .request = entry->first});
}

// Takes slots for the windows before the end of the pages that are read, and for the state there. Returns false if
// there is too little room; it may then have taken some.
bool Prefetcher::allocate_beside(Prefetch& prefetch) {
  const Pages read = prefetch.slots.size(), end = prefetch.fetch_first + read;
  for (const StorageOperation::Need& need : prefetch.needs) {
    const Pages count = std::min(need.trailing, read);
    if (whole() && count < need.trailing && prefetch.first > 0) continue;  // SGLang reads no part of a window
    prefetch.beside.push_back({need.pool, end - count, {}});
    if (!cache_.allocate_host_beside(prefetch.beside.back(), count)) return false;
  }
  return true;
}

void Prefetcher::free_beside(Prefetch& prefetch) {
  for (Cache::PoolSlots& beside : prefetch.beside) cache_.free_host_beside(beside);
  prefetch.beside.clear();
}

// All that was to be read has arrived.
bool Prefetcher::is_whole(const Prefetch& prefetch) {
  return std::ranges::all_of(prefetch.pieces,
                             [](const Piece& piece) { return piece.answered && piece.get.pages == piece.get.asked; });
}

void Prefetcher::take_get(Entry entry, const StorageAnswer& answer) {
  Prefetch& prefetch = entry->second;
  const auto piece = std::ranges::find(prefetch.pieces, answer.id, [](const Piece& p) { return p.get.id; });
  KV_CHECK(piece != prefetch.pieces.end(), "a get belongs to a prefetch");
  piece->get = answer;
  piece->answered = true;
  record_read(answer);
  prefetch.arrived = 0;
  bool all = true, gap = false;
  for (const Piece& p : prefetch.pieces) {
    all = all && p.answered;
    if (p.get.pool != 0) continue;
    if (gap && !KV_MUTANT(6)) continue;
    if (p.answered) prefetch.arrived += p.get.pages;
    gap = !p.answered || p.get.pages < p.get.asked;
  }
  prefetch.failed |= answer.pages < answer.asked && !prefetch.cut;
  if (answer.pages < answer.asked) cut(entry);
  if (all) land(entry);
}

// Cancels the batches in flight: later pages would be of no use.
void Prefetcher::cut(Entry entry) {
  Prefetch& prefetch = entry->second;
  if (std::exchange(prefetch.cut, true)) return;
  give_up_reads(entry->first);
  for (const Piece& piece : prefetch.pieces) {
    if (!piece.answered) storage_.cancel(piece.get);
  }
}

// ---- ends ------------------------------------------------------------------------------------------------

// Pages that have arrived enter the index. The matched prefix above them may have gone meanwhile; adopt() then refuses.
void Prefetcher::commit(Prefetch& prefetch, RequestId request) {
  if (config_.buffers()) return;
  if (config_.look_ups_refresh && !prefetch.pieces.empty()) {
    cache_.refresh(std::span(prefetch.keys).first(prefetch.fetch_first + prefetch.arrived), prefetch.first);
  }
  if (prefetch.arrived <= prefetch.committed) return;
  if (!prefetch.needs.empty() && !is_whole(prefetch)) return;  // a prefix without its windows and state is of no use
  const Pages first = prefetch.fetch_first + prefetch.committed;
  const Pages pages = prefetch.arrived - prefetch.committed;
  const Cache::Adoption adopted =
      cache_.adopt(std::span(prefetch.keys).first(first + pages), first,
                   std::span(prefetch.slots).subspan(prefetch.committed, pages), prefetch.beside);
  prefetch.beside.clear();
  sink_.decide(DecisionKind::commit, adopted.refused, prefetch.keys[prefetch.first], adopted.pages, request);
  if (adopted.pages < pages)
    sink_.event({.kind = EventKind::prefetch_wasted,
                 .tier = Tier::host,
                 .reason = adopted.refused,
                 .pages = pages - adopted.pages,
                 .request = request});
  prefetch.committed = prefetch.arrived;
  // Tiers nearer than the source get a copy too.
  for (const FetchedRun& run : prefetch.found) {
    const Pages from = std::max(run.first, first), to = std::min(run.first + run.pages, first + pages);
    if (run.tier > 0 && from < to && adopted.end != NodeId::none) {
      cache_.store_path(adopted.end, from, to, run.tier);
    }
  }
}

// Called when all answers have come.
void Prefetcher::land(Entry entry) {
  Prefetch& prefetch = entry->second;
  if (!prefetch.stopped || !whole()) commit(prefetch, entry->first);
  if (config_.buffers() && !prefetch.stopped) prefetch.staged = prefetch.arrived;
  const Pages kept = prefetch.committed + prefetch.staged + prefetch.given;
  if (prefetch.arrived > kept) {  // after a stop in SGLang's style, or a window or state has not come
    sink_.event({.kind = EventKind::prefetch_wasted,
                 .tier = Tier::host,
                 .reason = prefetch.stopped ? Reason::stopped : Reason::transfer_failed,
                 .pages = prefetch.arrived - kept,
                 .operation = first_get(prefetch),
                 .request = entry->first});
  }
  release(std::span(prefetch.slots).subspan(kept));
  free_beside(prefetch);
  if (!prefetch.pieces.empty() && prefetch.stopped) {
    sink_.event({.kind = EventKind::prefetch_done,
                 .tier = Tier::host,
                 .reason = Reason::stopped,
                 .pages = prefetch.arrived,
                 .operation = first_get(prefetch),
                 .request = entry->first});
  } else if (!prefetch.pieces.empty()) {
    report_end(entry, EventKind::prefetch_done, prefetch.arrived,
               prefetch.failed ? Reason::transfer_failed : Reason::none);
  }
  occupy(prefetch, prefetch.staged);
  cache_.unhold(std::exchange(prefetch.hold, Hold{}));
  enter(entry, prefetch.staged > 0 ? State::staged : State::landed);
  // The request may wait for a long time after this, so only what finish() reports is kept.
  prefetch.slots.resize(prefetch.staged);
  prefetch.slots.shrink_to_fit();
  prefetch.keys = {};
  prefetch.pieces = {};
  if (prefetch.request_gone || prefetch.for_hint) forget(entry);
}

// Frees slots that hold nothing to keep: at once, or in the style of SGLang in the next step (`_drain_release`).
void Prefetcher::release(std::span<const SlotId> slots) {
  if (!whole()) return cache_.free_host(slots);
  released_.insert(released_.end(), slots.begin(), slots.end());
}

void Prefetcher::free_released(bool all) {
  cache_.free_host(released_before_);
  released_before_ = std::exchange(released_, {});
  if (all) cache_.free_host(std::exchange(released_before_, {}));
}

void Prefetcher::revoke(Entry entry, Reason reason) {
  sink_.decide(DecisionKind::revoke, reason, entry->second.keys[entry->second.first], entry->second.hit, entry->first);
  report_end(entry, EventKind::prefetch_revoked, entry->second.hit, reason);
  unfulfilled_.push_back(entry->first);
  land(entry);
}

// The request stops waiting: pages that have arrived are committed, the rest is cancelled.
void Prefetcher::stop(Entry entry, Reason reason) {
  Prefetch& prefetch = entry->second;
  prefetch.was_final = termination_->stop_is_final();
  if (prefetch.state == State::looking_up) {
    if (!prefetch.was_final && reason == Reason::stopped) unfulfilled_.push_back(entry->first);
    sink_.decide(DecisionKind::revoke, reason, prefetch.keys[prefetch.first], prefetch.hit, entry->first);
    report_end(entry, EventKind::prefetch_revoked, prefetch.hit, reason);
  } else {
    sink_.decide(DecisionKind::stop, reason, prefetch.keys[prefetch.first], prefetch.arrived, entry->first);
    report_end(entry, EventKind::prefetch_stopped, prefetch.slots.size() - prefetch.arrived, reason);
    if (config_.buffers() && reason != Reason::aborted) prefetch.staged = prefetch.arrived;
    commit(prefetch, entry->first);
    cut(entry);
    if (KV_MUTANT(5)) {
      cache_.free_host(std::span(prefetch.slots).subspan(prefetch.committed));
      prefetch.slots.resize(prefetch.committed);
    }
  }
  prefetch.stopped = true;
  enter(entry, State::draining);
  if (!whole()) return;
  if (prefetch.look_up != OperationId::none) storage_.cancel(prefetch.look_up);
  occupy(prefetch, prefetch.staged);
  cache_.unhold(std::exchange(prefetch.hold, Hold{}));
}

void Prefetcher::enter(Entry entry, State state) {
  const auto count = [this, entry](State which) -> std::size_t* {
    if (is_of_hint(entry->first)) return nullptr;
    return which == State::looking_up ? &looking_up_ : which == State::fetching ? &fetching_ : nullptr;
  };
  if (std::size_t* const before = count(entry->second.state)) --*before;
  if (std::size_t* const now = count(state)) ++*now;
  entry->second.state = state;
  if (state != State::ready) unpin_found(entry->second);
  if (!is_waited_for(entry->second) && !entry->second.request_gone) held_.erase(entry->first);
}

void Prefetcher::report_end(Entry entry, EventKind kind, Pages pages, Reason reason, Tier tier) {
  KV_CHECK(!std::exchange(entry->second.end_reported, true), "a prefetch ends once");
  sink_.event({.kind = kind,
               .tier = tier,
               .reason = reason,
               .pages = pages,
               .operation = first_get(entry->second),
               .request = entry->first});
}

void Prefetcher::forget(Entry entry) {
  KV_CHECK(entry->second.end_reported, "the end of every issued prefetch is reported");
  prefetches_.erase(entry);
}

bool Prefetcher::waits(RequestId request) const {
  const Prefetch* const prefetch = find(request);
  return prefetch != nullptr && is_waited_for(*prefetch);
}

bool Prefetcher::holds(RequestId request, TimeNs step_time) {
  const Entry entry = find(request);
  if (entry == prefetches_.end()) return false;
  Prefetch& prefetch = entry->second;
  if (!is_waited_for(prefetch)) return false;
  if (prefetch.held_since < 0) prefetch.held_since = step_time;
  if (prefetch.waits_since < 0) {
    prefetch.waits_since = step_time;
    prefetch.waits_for = tokens(prefetch.keys.size() - prefetch.first);
  }
  held_.insert(request);
  if (step_time < stop_at(entry->first, prefetch)) return true;
  prefetch.ended = step_time;
  stop(entry, Reason::stopped);
  return false;
}

TimeNs Prefetcher::stop_at(RequestId request, const Prefetch& prefetch) const {
  PrefetchFacts known = facts(request, prefetch);
  if (known.medium != nullptr && known.first != request) {
    const PrefetchFacts ahead = facts(known.first, *find(known.first));
    // If the other request's next batch comes from another tier, it is assumed to wait for this one as long as this
    // request would.
    known.ahead = ahead.medium == known.medium
                      ? weigh(ahead)
                      : known.medium->weigh({known.unit_ns, known.now - known.began, 1, 0, known.saves_ns});
  }
  return termination_->stop_at(known);
}

// A request whose deadline has passed sets no timer of its own. The request ahead of it in the queue wakes it.
TimeNs Prefetcher::next_stop(TimeNs step_time) const {
  TimeNs next = kNoStop;
  for (const RequestId request : held_) {
    const TimeNs stop = stop_at(request, *find(request));
    if (stop > step_time) next = std::min(next, stop);
  }
  return next;
}

Pages Prefetcher::direct_pages(RequestId request, Pages matched) const {
  const Prefetch* const prefetch = find(request);
  if (prefetch == nullptr || (prefetch->state != State::ready && prefetch->staged == 0)) return 0;
  const Pages first = prefetch->staged > 0 ? prefetch->fetch_first : prefetch->first;
  if (matched < first) return 0;  // the prefix that the prefetch was to extend has gone
  const Pages end = first + (prefetch->staged > 0 ? prefetch->staged : prefetch->hit);
  return end > matched ? end - matched : 0;
}

PrefetchOutcome Prefetcher::finish(RequestId request, Pages matched) {
  PrefetchOutcome outcome;
  const Entry entry = find(request);
  if (entry == prefetches_.end()) return outcome;
  Prefetch& prefetch = entry->second;
  outcome.waited = prefetch.waited;
  if (prefetch.held_since >= 0) outcome.waited += std::max<TimeNs>(0, prefetch.ended - prefetch.held_since);
  outcome.known_end = prefetch.first + prefetch.hit;
  outcome.stopped = prefetch.stopped;
  const bool ready = prefetch.state == State::ready;
  if (prefetch.staged > 0) {
    take_staged(entry, matched, outcome);
    return outcome;
  }
  const Pages from = ready ? matched : prefetch.fetch_first;
  const Pages to = ready ? outcome.known_end : prefetch.fetch_first + prefetch.committed;
  outcome.runs = runs_between(prefetch, from, to);
  Pages used = ready || to <= from ? 0 : std::min(to, std::max(from, matched)) - from;
  for (const FetchedRun& run : prefetch.brought) {
    used += std::min(run.first + run.pages, std::max(run.first, matched)) - run.first;
  }
  if ((!ready && to > from) || !prefetch.brought.empty()) {
    sink_.event({.kind = EventKind::prefetch_used, .tier = Tier::host, .pages = used, .request = request});
  }
  if (ready) {
    unpin_found(prefetch);
    const Pages pages = to > from ? to - from : 0;  // all pages are used as soon as they come
    report_end(entry, EventKind::prefetch_done, pages, Reason::none, Tier::device);
    sink_.event({.kind = EventKind::prefetch_used, .tier = Tier::device, .pages = pages, .request = request});
  }
  prefetch.request_gone = true;
  if (prefetch.state == State::landed || ready) forget(entry);
  return outcome;
}

// What L1 lacks of the staged pages is the outcome's, the rest is freed. If the pages above have gone, all of it is.
void Prefetcher::take_staged(Entry entry, Pages matched, PrefetchOutcome& outcome) {
  Prefetch& prefetch = entry->second;
  const Pages first = prefetch.fetch_first, end = first + prefetch.staged;
  const bool fits = matched >= first;
  const Pages covered = fits ? std::min(matched, end) - first : prefetch.staged;
  const std::span<const SlotId> used = std::span(prefetch.slots).first(prefetch.staged).subspan(covered);
  outcome.staged.assign(used.begin(), used.end());
  if (!used.empty()) outcome.runs = runs_between(prefetch, matched, end);
  sink_.event({.kind = EventKind::prefetch_used, .tier = Tier::host, .pages = used.size(), .request = entry->first});
  prefetch.given = std::exchange(prefetch.staged, covered) - covered;
  free_staged(entry, fits ? Reason::duplicate : Reason::anchor_lost);
  prefetch.request_gone = true;
  if (prefetch.state == State::landed) forget(entry);
}

// The staged pages are of no use.
void Prefetcher::free_staged(Entry entry, Reason reason) {
  Prefetch& prefetch = entry->second;
  const Pages pages = std::exchange(prefetch.staged, 0);
  if (pages > 0) {
    cache_.free_host(std::span(prefetch.slots).first(pages));
    prefetch.given += pages;
    sink_.event({.kind = EventKind::prefetch_wasted,
                 .tier = Tier::host,
                 .reason = reason,
                 .pages = pages,
                 .request = entry->first});
  }
  if (prefetch.state != State::staged) return;
  prefetch.slots = {};
  prefetch.given = 0;
  occupy(prefetch, 0);
  enter(entry, State::landed);
}

void Prefetcher::abort(RequestId request) {
  const Entry entry = find(request);
  if (entry == prefetches_.end()) return;
  Prefetch& prefetch = entry->second;
  if (is_waited_for(prefetch)) stop(entry, Reason::aborted);
  free_staged(entry, Reason::aborted);
  prefetch.request_gone = true;
  if (prefetch.state == State::ready) {
    unpin_found(prefetch);
    report_end(entry, EventKind::prefetch_revoked, prefetch.hit, Reason::aborted, Tier::device);
  }
  if (prefetch.state != State::draining) forget(entry);
}

// ---- accounts --------------------------------------------------------------------------------------------

void Prefetcher::occupy(Prefetch& prefetch, Pages pages) {
  occupied_ = occupied_ - prefetch.occupied + pages;
  prefetch.occupied = pages;
}

// ---- is a read worth it

bool Prefetcher::is_admitted(Pages first, Pages pages, TimeNs takes, TimeNs starts) const {
  PrefetchOffer offer{tokens(first), tokens(first + pages)};
  if (admission_->weighs_costs()) {
    offer.read_ns = takes;
    offer.queue_ns = std::max<TimeNs>(0, starts - step_time_);
    offer.saves_ns = config_.prefill_ns(offer.from, offer.to) * bearers(delayed_requests(nullptr));
  }
  return admission_->admits(offer);
}

// Returns whether the offer would be admitted if the tier that is the fastest now had all pages. If that is not worth
// it, fewer pages are not either.
bool Prefetcher::may_be_admitted(Pages first, Pages pages, TimeNs starts) const {
  return is_admitted(first, pages, fastest_read_ns(pages), starts);
}

TimeNs Prefetcher::fastest_read_ns(Pages pages) const {
  TimeNs takes = kNoStop;
  for (std::size_t tier = 0; tier < reads_.size(); ++tier) {
    takes = std::min(takes, queued_ns(tier) + read_ns(tier, tokens(pages)));
  }
  return takes;
}

// Returns the number of requests that computing would delay: those that wait only for the GPU, and those that will wait
// for it after their fetch, without the request of `own`.
std::size_t Prefetcher::delayed_requests(const Prefetch* own) const {
  const std::size_t held = looking_up_ + fetching_;
  const bool is_own = own != nullptr && own->state == State::fetching && !own->for_hint;
  const std::size_t fetching = fetching_ - (is_own ? 1 : 0);
  return waiting_ - std::min(waiting_, held) + fetching;
}

// Returns the number of pages of L2 that prefetches in flight may take.
Pages Prefetcher::max_in_flight_pages() const {
  if (config_.buffers()) return config_.host_pages - config_.host_pages / 10;  // SGLang's
  const bool less_device = config_.prefetch_share_of == PrefetchShareOf::host_less_device;
  const Pages whole = config_.host_pages - (less_device ? std::min(config_.host_pages, config_.device_pages) : 0);
  const Pages share = whole * config_.prefetch_host_share / 1024;
  const TimeNs limit = admission_->in_flight_limit_ns();
  if (limit == 0) return share;
  Wide in_time = 0;
  for (const Reads& reads : reads_) {
    if (reads.token_ps == 0) return share;  // no rate is known for this tier
    in_time += Wide{limit} * 1000 / reads.token_ps / config_.shape.page_tokens;
  }
  return static_cast<Pages>(std::min<Wide>(in_time, share));
}

// Called after a refusal as too slow. A medium that is not read because it was slow may have become faster. So after 64
// refusals in a row, each tier's rate is reset to its configured value.
void Prefetcher::count_refusal() {
  constexpr std::uint32_t kRefusalsPerReset = 64;
  if (++refusals_in_a_row_ < kRefusalsPerReset) return;
  refusals_in_a_row_ = 0;
  for (std::size_t tier = 0; tier < reads_.size(); ++tier) reset_rate(tier);
}

void Prefetcher::reset_rate(std::size_t tier) {
  Reads& reads = reads_[tier];
  reads.token_ps = config_.storage[tier].read_token_ps;
  reads.samples.fill(reads.token_ps == 0 ? std::numeric_limits<std::uint64_t>::max() : reads.token_ps);
}

TimeNs Prefetcher::queued_ns(std::size_t tier) const {
  TimeNs takes = 0;
  for (const Read& read : reads_[tier].queue) takes += read.cut ? 0 : read_ns(tier, read.tokens);
  return takes;
}

// ---- is waiting worth it

void Prefetcher::queue_read(std::size_t tier, const StorageAnswer& get) {
  Reads& reads = reads_[tier];
  if (reads.queue.empty()) {
    reads.began = reads.asked = step_time_;
    reads.uncertain_ns = 0;
    reads.tokens = 0;
  }
  reads.queue.push_back({get.id, get.request, tokens(get, get.asked), false});
}

// The answered get is the first in the queue. If a pass had to end first, the step sees the answer late: the get came
// at some time since that pass began, and the next get began at that time.
void Prefetcher::record_read(const StorageAnswer& answer) {
  Reads& reads = reads_[answer.tier];
  KV_CHECK(!reads.queue.empty() && reads.queue.front().id == answer.id, "a tier's gets are answered in their order");
  const Read read = reads.queue.front();
  reads.queue.pop_front();
  const bool whole = answer.pages == answer.asked && !read.cut;
  const TimeNs took = step_time_ - reads.began, unseen = step_time_ - unseen_since_;
  constexpr TimeNs kUncertaintyDivisor = 8;
  if (whole && kUncertaintyDivisor * (reads.uncertain_ns + unseen) <= took) {
    reads.lateness.came(unit_ns(answer.tier, read.tokens), took);
  } else if (whole && took > unseen) {
    reads.lateness.given_up(unit_ns(answer.tier, read.tokens), took - unseen);
  }
  reads.began = step_time_;
  reads.uncertain_ns = unseen;
  reads.tokens += tokens(answer, answer.pages);
  if (!whole || step_time_ == reads.asked) return;
  // The time since the tier began to read, divided by the tokens since then, is never less than the true time per
  // token, and sometimes far more. So the least of the last samples is used.
  refusals_in_a_row_ = 0;
  const Wide busy = step_time_ - reads.asked;
  reads.samples[reads.next] = static_cast<std::uint64_t>(busy * 1000 / static_cast<Wide>(reads.tokens));
  reads.next = (reads.next + 1) % reads.samples.size();
  reads.token_ps = *std::ranges::min_element(reads.samples);
}

// Gets of this request that are still in flight will not come. The turn of the next request's get begins.
void Prefetcher::give_up_reads(RequestId request) {
  for (std::size_t tier = 0; tier < reads_.size(); ++tier) {
    Reads& reads = reads_[tier];
    if (!reads.queue.empty() && reads.queue.front().request == request && !reads.queue.front().cut) {
      reads.lateness.given_up(unit_ns(tier, reads.queue.front().tokens), step_time_ - reads.began);
      reads.began = step_time_;
      reads.uncertain_ns = 0;
    }
    for (Read& read : reads.queue) read.cut |= read.request == request;
  }
}

// Times of less than a millisecond are not resolved.
TimeNs Prefetcher::unit_ns(std::size_t tier, Tokens tokens) const {
  constexpr TimeNs kMinUnitNs = 1'000'000;
  return std::max(kMinUnitNs, read_ns(tier, tokens));
}

TimeNs Prefetcher::read_ns(std::size_t tier, Tokens tokens) const {
  return static_cast<TimeNs>(std::min<Wide>(Wide{tokens} * reads_[tier].token_ps / 1000, kMaxReadNs));
}

PrefetchFacts Prefetcher::facts(RequestId request, const Prefetch& prefetch) const {
  const bool fetching = prefetch.state == State::fetching;
  const Pages to_read = fetching ? prefetch.fetch_first + prefetch.slots.size() - prefetch.first : prefetch.hit;
  PrefetchFacts facts{prefetch.issued, prefetch.waits_for, tokens(prefetch.arrived), tokens(to_read),
                      prefetch.waits_since};
  if (!termination_->weighs_costs()) return facts;
  const Pages from = fetching ? prefetch.fetch_first + prefetch.arrived : prefetch.first;
  const Pages to = fetching ? prefetch.fetch_first + prefetch.slots.size() : prefetch.keys.size();
  facts.now = step_time_;
  facts.progress = prefetch.progress;
  const TimeNs saves = config_.prefill_ns(tokens(from), tokens(std::max(from, to)));
  facts.saves_ns = saves * bearers(delayed_requests(&prefetch));
  const auto next = std::ranges::find(prefetch.pieces, false, &Piece::answered);
  if (!fetching) facts.rest_ns = fastest_read_ns(to - from);
  if (!fetching || next == prefetch.pieces.end()) return facts;
  const TimeNs tail = config_.prefill_ns(tokens(to), tokens(prefetch.keys.size()));
  for (std::size_t tier = 0; tier < reads_.size(); ++tier) {
    TimeNs before = 0, own = 0, overtaken = 0;
    std::size_t behind = 0;
    Lateness::Outlook to_come;
    TimeNs of_unit = -1;  // the unit that to_come belongs to; most batches are alike
    const std::deque<Read>& queue = reads_[tier].queue;
    for (auto read = queue.begin(); read != queue.end(); ++read) {
      if (read->cut) continue;
      const bool is_own = read->request == request;
      if (next->get.tier == tier && facts.medium == nullptr) {
        facts.medium = &reads_[tier].lateness;
        facts.began = reads_[tier].began;
        facts.unit_ns = unit_ns(tier, read->tokens);
        facts.first = read->request;
      } else {
        // This get may be late and given up too.
        if (const TimeNs unit = unit_ns(tier, read->tokens); unit != of_unit) {
          to_come = reads_[tier].lateness.weigh({unit, 0, 1, 0, saves});
          of_unit = unit;
        }
        if (is_own) own += to_come.cost;
        if (!is_own && own == 0 && facts.first != request) before += to_come.wait;
      }
      const bool last = std::next(read) == queue.end() || std::next(read)->request != read->request;
      if (!last || is_own) continue;
      if (own > 0 || facts.first == request) {
        ++behind;
      } else {
        overtaken += std::clamp<TimeNs>(saves + tail - before, 0, tail);
      }
    }
    if (own > 0) facts.rest_ns += before + own * bearers(behind);
    if (next->get.tier != tier) continue;
    facts.bearers = bearers(behind);
    facts.saves_ns += overtaken;
  }
  return facts;
}

Pages Prefetcher::owned_pages() const {
  Pages pages = released_.size() + released_before_.size();
  for (const auto& [request, prefetch] : prefetches_) {
    if (!prefetch.slots.empty()) pages += prefetch.slots.size() - prefetch.committed - prefetch.given;
  }
  return pages;
}

std::vector<Pages> Prefetcher::owned_beside() const {
  std::vector<Pages> slots(config_.pools.size(), 0);
  for (const auto& [request, prefetch] : prefetches_) {
    for (const Cache::PoolSlots& beside : prefetch.beside) slots[beside.pool - 1] += beside.slots.size();
  }
  return slots;
}

void Prefetcher::check_invariants() const {
  Pages occupied = 0;
  std::size_t looking_up = 0, fetching = 0, held = 0;
  for (const auto& [request, prefetch] : prefetches_) {
    occupied += prefetch.occupied;
    const bool waits = is_waited_for(prefetch);
    looking_up += prefetch.state == State::looking_up && !is_of_hint(request);
    fetching += prefetch.state == State::fetching && !is_of_hint(request);
    held += waits && prefetch.held_since >= 0;
    KV_CHECK(!waits || !prefetch.request_gone, "a prefetch that is waited for has its request");
    KV_CHECK(prefetch.request_gone || &prefetch == find(request),
             "a request has one prefetch, and older ones that drain");
    KV_CHECK(!prefetch.request_gone || prefetch.state == State::draining,
             "only a prefetch that drains outlives its request");
    KV_CHECK(waits || prefetch.state == State::ready || prefetch.end_reported,
             "the end of a finished prefetch is reported");
    KV_CHECK(!prefetch.end_reported || !waits, "a prefetch whose end is reported is no longer waited for");
    KV_CHECK(prefetch.held_since < 0 || !waits || held_.contains(request), "held requests are known");
    KV_CHECK(waits || prefetch.state == State::draining || prefetch.occupied == prefetch.staged,
             "a finished prefetch occupies no pages of L2");
    KV_CHECK(prefetch.state != State::landed || prefetch.slots.empty(), "a landed prefetch owns no slots");
    KV_CHECK(prefetch.state == State::looking_up || prefetch.state == State::ready || prefetch.pinned_runs == 0,
             "found pages are pinned until they are read");
    KV_CHECK(prefetch.committed <= prefetch.arrived, "only pages that have arrived are committed");
  }
  KV_CHECK(looking_up == looking_up_ && fetching == fetching_ && held == held_.size(), "prefetches are counted");
  KV_CHECK(occupied == occupied_, "the pages of L2 that prefetches occupy are counted");
}

}  // namespace kvtwin
