#include "policy/prefetch/prefetch.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/base/mutant.hpp"
#include "policy/base/wide.hpp"

namespace kvtwin {
namespace {

constexpr Wide kLongest = Wide{100'000} * kNsPerSecond;

// Who waits for something, and as many others as may wait with it.
std::int64_t bearers(std::size_t others) {
  constexpr std::size_t kMost = 8;
  return static_cast<std::int64_t>(1 + std::min(others, kMost));
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
  for (std::size_t tier = 0; tier < reads_.size(); ++tier) forget_rate(tier);
}

void Prefetcher::begin_step(TimeNs step_time, TimeNs unseen_since, std::size_t waiting) {
  step_time_ = step_time;
  unseen_since_ = unseen_since;
  waiting_ = waiting;
}

// ---- issue -----------------------------------------------------------------------------------------------

Reason Prefetcher::issue(RequestId request, std::span<const PageKey> keys, TimeNs step_time, TimeNs starts) {
  if (storage_.tiers() == 0 || prefetches_.contains(request)) return Reason::none;
  const PrefixMatch match = cache_.match(keys);
  const Pages first = match.device_pages + match.host_pages;
  const Pages asked = keys.size() - first;
  if (asked == 0) return Reason::none;
  const bool by_host = config_.path != CachePath::direct;
  Reason refused = Reason::none;
  if (tokens(asked) < config_.prefetch_min_tokens) {
    refused = Reason::too_short;
  } else if (by_host && !cache_.can_extend_on_host(match.end)) {
    refused = Reason::not_backed_up;
  } else if (!can_pay(first, asked, starts)) {
    refused = Reason::too_slow;
  } else if (by_host && occupied_ >= most_in_flight()) {
    refused = Reason::rate_limited;
  }
  sink_.decide(DecisionKind::prefetch, refused, keys[first], asked, request);
  if (refused != Reason::none) {
    if (refused == Reason::too_slow) doubt_rates();
    sink_.event({.kind = EventKind::prefetch_declined,
                 .tier = Tier::host,
                 .reason = refused,
                 .pages = asked,
                 .request = request});
    return refused;
  }
  Prefetch prefetch;
  prefetch.keys.assign(keys.begin(), keys.end());
  prefetch.first = first;
  prefetch.issued = prefetch.progress = step_time;
  prefetch.starts = starts;
  if (by_host) {
    prefetch.hold = cache_.hold(match.end);
    occupy(prefetch, asked);
  }
  storage_.look_up(0, request, prefetch.keys, first);
  prefetches_.emplace(request, std::move(prefetch));
  ++looking_up_;
  sink_.event({.kind = EventKind::prefetch_issued, .tier = Tier::host, .pages = asked, .request = request});
  return Reason::none;
}

// ---- look-ups --------------------------------------------------------------------------------------------

void Prefetcher::take(const StorageAnswer& answer, RequestId head) {
  const Entry entry = prefetches_.find(answer.request);
  KV_CHECK(entry != prefetches_.end(), "a prefetch lasts until its last answer");
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
  prefetch.failed |= !answer.done;
  if (prefetch.state == State::draining) return land(entry);
  if (answer.pages > 0) {
    prefetch.found.push_back({answer.tier, prefetch.first + prefetch.hit, answer.pages});
    prefetch.hit += answer.pages;
  }
  if (answer.pages < answer.asked && answer.tier + 1 < storage_.tiers()) {
    storage_.look_up(answer.tier + 1, entry->first, prefetch.keys, prefetch.first + prefetch.hit);
    return;
  }
  decide_on(entry, head);
}

// All tiers have been asked.
void Prefetcher::decide_on(Entry entry, RequestId head) {
  Prefetch& prefetch = entry->second;
  if (prefetch.hit == 0) return revoke(entry, prefetch.failed ? Reason::transfer_failed : Reason::miss);
  if (tokens(prefetch.hit) < config_.prefetch_min_tokens) return revoke(entry, Reason::too_short);
  TimeNs takes = 0;
  for (const FetchedRun& run : prefetch.found) takes += queued_ns(run.tier) + read_ns(run.tier, tokens(run.pages));
  if (!pays(prefetch.first, prefetch.hit, takes, prefetch.starts)) {
    doubt_rates();
    return revoke(entry, Reason::too_slow);
  }
  const bool direct =
      config_.path == CachePath::direct || (config_.path == CachePath::automatic && head == entry->first);
  if (direct) {
    occupy(prefetch, 0);
    cache_.unhold(std::exchange(prefetch.hold, Hold{}));
    enter(entry, State::ready);
    pin_found(prefetch, true);
  } else if (!fetch(entry)) {
    revoke(entry, Reason::capacity);
  }
}

// Until it is admitted, a tier of ours keeps what was found; a shared one may not, and then the load falls short.
void Prefetcher::pin_found(const Prefetch& prefetch, bool pinned) {
  for (const FetchedRun& run : prefetch.found) {
    const PageKey& last = prefetch.keys[run.first + run.pages - 1];
    if (pinned) {
      storage_.pin(run.tier, last);
    } else {
      storage_.unpin(run.tier, last);
    }
  }
}

// ---- gets ------------------------------------------------------------------------------------------------

// Allocates for the hit, less what others have brought meanwhile, and no more than L2 has room for.
bool Prefetcher::fetch(Entry entry) {
  Prefetch& prefetch = entry->second;
  const PrefixMatch now = cache_.peek(prefetch.keys);
  const Pages end = prefetch.first + prefetch.hit;
  prefetch.fetch_first = std::min(end, std::max(prefetch.first, now.device_pages + now.host_pages));
  const Pages wanted = end - prefetch.fetch_first;
  const Pages room = cache_.make_host_room(wanted);
  const bool enough = room == wanted || tokens(room) >= config_.prefetch_min_tokens;
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
  occupy(prefetch, room);
  sink_.decide(DecisionKind::fetch, room < wanted ? Reason::capacity : Reason::none, prefetch.keys[prefetch.first],
               room, entry->first);
  const Pages fetch_end = prefetch.fetch_first + room;
  for (const FetchedRun& run : prefetch.found) {
    const Pages run_end = std::min(run.first + run.pages, fetch_end);
    Pages at = std::max(run.first, prefetch.fetch_first);
    while (at < run_end) {
      const Pages pages = std::min(run_end - at, config_.storage_batch_pages);
      const auto slots = std::span(prefetch.slots).subspan(at - prefetch.fetch_first, pages);
      const StorageAnswer get = storage_.get(run.tier, entry->first, prefetch.keys, at, slots, Tier::host);
      ask(run.tier, get);
      prefetch.pieces.push_back({get, at, false});
      // Each part by itself: the end of its operation tells when it came.
      sink_.event({.kind = EventKind::prefetch_started,
                   .tier = storage_.tier(run.tier),
                   .pages = get.asked,
                   .operation = get.id,
                   .request = entry->first});
      at += pages;
    }
  }
  enter(entry, State::fetching);
  if (!prefetch.pieces.empty()) return true;
  tell_end(entry, EventKind::prefetch_revoked, prefetch.hit, Reason::duplicate);
  land(entry);
  return true;
}

void Prefetcher::take_get(Entry entry, const StorageAnswer& answer) {
  Prefetch& prefetch = entry->second;
  const auto piece = std::ranges::find(prefetch.pieces, answer.id, [](const Piece& p) { return p.get.id; });
  KV_CHECK(piece != prefetch.pieces.end(), "a get belongs to a prefetch");
  piece->get = answer;
  piece->answered = true;
  learn(answer);
  prefetch.arrived = 0;
  bool all = true, gap = false;
  for (const Piece& p : prefetch.pieces) {
    all = all && p.answered;
    if (gap && !KV_MUTANT(6)) continue;
    if (p.answered) prefetch.arrived += p.get.pages;
    gap = !p.answered || p.get.pages < p.get.asked;
  }
  prefetch.failed |= answer.pages < answer.asked && !prefetch.cut;
  if (answer.pages < answer.asked) cut(entry);
  if (all) land(entry);
}

// What is still to come wouldn't be of use.
void Prefetcher::cut(Entry entry) {
  Prefetch& prefetch = entry->second;
  if (std::exchange(prefetch.cut, true)) return;
  unlearn(entry->first);
  for (const Piece& piece : prefetch.pieces) {
    if (!piece.answered) storage_.cancel(piece.get);
  }
}

// ---- ends ------------------------------------------------------------------------------------------------

// What has arrived enters the index; under it all that was matched must still be there.
void Prefetcher::commit(Prefetch& prefetch, RequestId request) {
  if (prefetch.arrived <= prefetch.committed) return;
  const Pages first = prefetch.fetch_first + prefetch.committed;
  const Pages pages = prefetch.arrived - prefetch.committed;
  const Cache::Adoption adopted = cache_.adopt(std::span(prefetch.keys).first(first + pages), first,
                                               std::span(prefetch.slots).subspan(prefetch.committed, pages));
  sink_.decide(DecisionKind::commit, adopted.refused, prefetch.keys[prefetch.first], adopted.pages, request);
  if (adopted.pages < pages)
    sink_.event({.kind = EventKind::prefetch_wasted,
                 .tier = Tier::host,
                 .reason = adopted.refused,
                 .pages = pages - adopted.pages,
                 .request = request});
  prefetch.committed = prefetch.arrived;
  // Nearer tiers get what came from farther ones.
  for (const FetchedRun& run : prefetch.found) {
    const Pages from = std::max(run.first, first), to = std::min(run.first + run.pages, first + pages);
    if (run.tier > 0 && from < to && adopted.end != NodeId::none) {
      cache_.store_path(adopted.end, from, to, run.tier);
    }
  }
}

// All answers are in.
void Prefetcher::land(Entry entry) {
  Prefetch& prefetch = entry->second;
  commit(prefetch, entry->first);
  cache_.free_host(std::span(prefetch.slots).subspan(prefetch.committed));
  if (!prefetch.pieces.empty() && prefetch.stopped) {
    sink_.event({.kind = EventKind::prefetch_done,
                 .tier = Tier::host,
                 .reason = Reason::stopped,
                 .pages = prefetch.arrived,
                 .request = entry->first});
  } else if (!prefetch.pieces.empty()) {
    tell_end(entry, EventKind::prefetch_done, prefetch.arrived,
             prefetch.failed ? Reason::transfer_failed : Reason::none);
  }
  occupy(prefetch, 0);
  cache_.unhold(std::exchange(prefetch.hold, Hold{}));
  enter(entry, State::landed);
  // Its request may wait for long: only what finish() tells is kept.
  prefetch.slots = {};
  prefetch.keys = {};
  prefetch.pieces = {};
  if (prefetch.gone) forget(entry);
}

void Prefetcher::revoke(Entry entry, Reason reason) {
  sink_.decide(DecisionKind::revoke, reason, entry->second.keys[entry->second.first], entry->second.hit, entry->first);
  tell_end(entry, EventKind::prefetch_revoked, entry->second.hit, reason);
  land(entry);
}

// The request goes on without waiting: what has arrived is committed, what hasn't is cancelled.
void Prefetcher::stop(Entry entry, Reason reason) {
  Prefetch& prefetch = entry->second;
  if (prefetch.state == State::looking_up) {
    sink_.decide(DecisionKind::revoke, reason, prefetch.keys[prefetch.first], prefetch.hit, entry->first);
    tell_end(entry, EventKind::prefetch_revoked, prefetch.hit, reason);
  } else {
    sink_.decide(DecisionKind::stop, reason, prefetch.keys[prefetch.first], prefetch.arrived, entry->first);
    tell_end(entry, EventKind::prefetch_stopped, prefetch.slots.size() - prefetch.arrived, reason);
    commit(prefetch, entry->first);
    cut(entry);
    if (KV_MUTANT(5)) {
      cache_.free_host(std::span(prefetch.slots).subspan(prefetch.committed));
      prefetch.slots.resize(prefetch.committed);
    }
  }
  prefetch.stopped = true;
  enter(entry, State::draining);
}

void Prefetcher::enter(Entry entry, State state) {
  const auto count = [this](State which) -> std::size_t* {
    return which == State::looking_up ? &looking_up_ : which == State::fetching ? &fetching_ : nullptr;
  };
  if (std::size_t* const before = count(entry->second.state)) --*before;
  if (std::size_t* const now = count(state)) ++*now;
  entry->second.state = state;
  if (!is_waited_for(entry->second)) held_.erase(entry->first);
}

void Prefetcher::tell_end(Entry entry, EventKind kind, Pages pages, Reason reason, Tier tier) {
  KV_CHECK(!std::exchange(entry->second.end_told, true), "a prefetch ends once");
  sink_.event({.kind = kind, .tier = tier, .reason = reason, .pages = pages, .request = entry->first});
}

void Prefetcher::forget(Entry entry) {
  KV_CHECK(entry->second.end_told, "every prefetch that is issued ends in a way that is told");
  prefetches_.erase(entry);
}

bool Prefetcher::waits(RequestId request) const {
  const auto entry = prefetches_.find(request);
  return entry != prefetches_.end() && is_waited_for(entry->second);
}

bool Prefetcher::holds(RequestId request, TimeNs step_time) {
  const Entry entry = prefetches_.find(request);
  if (entry == prefetches_.end()) return false;
  Prefetch& prefetch = entry->second;
  if (!is_waited_for(prefetch)) return false;
  if (prefetch.held_since < 0) prefetch.held_since = step_time;
  held_.insert(request);
  if (step_time < stop_at(entry->first, prefetch)) return true;
  prefetch.ended = step_time;
  stop(entry, Reason::stopped);
  return false;
}

TimeNs Prefetcher::stop_at(RequestId request, const Prefetch& prefetch) const {
  PrefetchFacts known = facts(request, prefetch);
  if (known.medium != nullptr && known.first != request) {
    const auto first = prefetches_.find(known.first);
    const PrefetchFacts ahead = facts(known.first, first->second);
    // Its own next part may be another tier's; then it waits for this one as long as we would.
    known.ahead = ahead.medium == known.medium
                      ? weigh(ahead)
                      : known.medium->weigh({known.unit_ns, known.now - known.began, 1, 0, known.saves_ns});
  }
  return termination_->stop_at(known);
}

// Whose time is over and who is held no more, but by others before it, waits for those.
TimeNs Prefetcher::next_stop(TimeNs step_time) const {
  TimeNs next = kNoStop;
  for (const RequestId request : held_) {
    const TimeNs stop = stop_at(request, prefetches_.find(request)->second);
    if (stop > step_time) next = std::min(next, stop);
  }
  return next;
}

Pages Prefetcher::direct_pages(RequestId request, Pages matched) const {
  const auto entry = prefetches_.find(request);
  if (entry == prefetches_.end() || entry->second.state != State::ready) return 0;
  const Prefetch& prefetch = entry->second;
  if (matched < prefetch.first) return 0;  // what it was to extend has gone
  const Pages end = prefetch.first + prefetch.hit;
  return end > matched ? end - matched : 0;
}

PrefetchOutcome Prefetcher::finish(RequestId request, Pages matched) {
  PrefetchOutcome outcome;
  const Entry entry = prefetches_.find(request);
  if (entry == prefetches_.end()) return outcome;
  Prefetch& prefetch = entry->second;
  if (prefetch.held_since >= 0) outcome.waited = std::max<TimeNs>(0, prefetch.ended - prefetch.held_since);
  outcome.known_end = prefetch.first + prefetch.hit;
  outcome.stopped = prefetch.stopped;
  const bool ready = prefetch.state == State::ready;
  const Pages from = ready ? matched : prefetch.fetch_first;
  const Pages to = ready ? outcome.known_end : prefetch.fetch_first + prefetch.committed;
  for (const FetchedRun& run : prefetch.found) {
    const Pages first = std::max(run.first, from), end = std::min(run.first + run.pages, to);
    if (first < end) outcome.runs.push_back({run.tier, first, end - first});
  }
  if (!ready && to > from) {
    sink_.event({.kind = EventKind::prefetch_used,
                 .tier = Tier::host,
                 .pages = std::min(to, std::max(from, matched)) - from,
                 .request = request});
  }
  if (ready) {
    pin_found(prefetch, false);
    const Pages pages = to > from ? to - from : 0;  // all are used, as they come
    tell_end(entry, EventKind::prefetch_done, pages, Reason::none, Tier::device);
    sink_.event({.kind = EventKind::prefetch_used, .tier = Tier::device, .pages = pages, .request = request});
  }
  prefetch.gone = true;
  if (prefetch.state == State::landed || ready) forget(entry);
  return outcome;
}

void Prefetcher::abort(RequestId request) {
  const Entry entry = prefetches_.find(request);
  if (entry == prefetches_.end()) return;
  Prefetch& prefetch = entry->second;
  prefetch.gone = true;
  if (is_waited_for(prefetch)) stop(entry, Reason::aborted);
  if (prefetch.state == State::ready) {
    pin_found(prefetch, false);
    tell_end(entry, EventKind::prefetch_revoked, prefetch.hit, Reason::aborted, Tier::device);
  }
  if (prefetch.state != State::draining) forget(entry);
}

// ---- accounts --------------------------------------------------------------------------------------------

void Prefetcher::occupy(Prefetch& prefetch, Pages pages) {
  occupied_ = occupied_ - prefetch.occupied + pages;
  prefetch.occupied = pages;
}

// ---- what reading is worth -------------------------------------------------------------------------------

bool Prefetcher::pays(Pages first, Pages pages, TimeNs takes, TimeNs starts) const {
  PrefetchOffer offer{tokens(first), tokens(first + pages)};
  if (admission_->weighs_costs()) {
    offer.read_ns = takes;
    offer.queue_ns = std::max<TimeNs>(0, starts - step_time_);
    offer.saves_ns = config_.prefill_ns(offer.from, offer.to) * bearers(others(nullptr));
  }
  return admission_->admits(offer);
}

// Should the tier that is the fastest one now have all of it? If that doesn't pay, less doesn't either.
bool Prefetcher::can_pay(Pages first, Pages pages, TimeNs starts) const {
  return pays(first, pages, soonest_ns(pages), starts);
}

TimeNs Prefetcher::soonest_ns(Pages pages) const {
  TimeNs takes = kNoStop;
  for (std::size_t tier = 0; tier < reads_.size(); ++tier) {
    takes = std::min(takes, queued_ns(tier) + read_ns(tier, tokens(pages)));
  }
  return takes;
}

// Whom its computing would delay: those that wait for the GPU alone, and those that will once they have been fetched.
std::size_t Prefetcher::others(const Prefetch* own) const {
  const std::size_t held = looking_up_ + fetching_;
  const std::size_t fetching = fetching_ - (own != nullptr && own->state == State::fetching ? 1 : 0);
  return waiting_ - std::min(waiting_, held) + fetching;
}

// Pages of L2.
Pages Prefetcher::most_in_flight() const {
  const Pages share = config_.host_pages * config_.prefetch_host_share / 1024;
  const TimeNs limit = admission_->in_flight_limit_ns();
  if (limit == 0) return share;
  Wide soon = 0;
  for (const Reads& reads : reads_) {
    if (reads.token_ps == 0) return share;  // nothing is known of it
    soon += Wide{limit} * 1000 / reads.token_ps / config_.shape.page_tokens;
  }
  return static_cast<Pages>(std::min<Wide>(soon, share));
}

// A medium that isn't read because it was slow may have become faster: now and then it is believed once more what it is
// said to be.
void Prefetcher::doubt_rates() {
  constexpr std::uint32_t kOften = 64;
  if (++refused_in_a_row_ < kOften) return;
  refused_in_a_row_ = 0;
  for (std::size_t tier = 0; tier < reads_.size(); ++tier) forget_rate(tier);
}

void Prefetcher::forget_rate(std::size_t tier) {
  Reads& reads = reads_[tier];
  reads.token_ps = config_.storage[tier].read_token_ps;
  reads.samples.fill(reads.token_ps == 0 ? std::numeric_limits<std::uint64_t>::max() : reads.token_ps);
}

TimeNs Prefetcher::queued_ns(std::size_t tier) const {
  TimeNs takes = 0;
  for (const Read& read : reads_[tier].queue) takes += read.cut ? 0 : read_ns(tier, read.tokens);
  return takes;
}

// ---- what waiting is worth -------------------------------------------------------------------------------

void Prefetcher::ask(std::size_t tier, const StorageAnswer& get) {
  Reads& reads = reads_[tier];
  if (reads.queue.empty()) {
    reads.began = reads.asked = step_time_;
    reads.vague = 0;
    reads.tokens = 0;
  }
  reads.queue.push_back({get.id, get.request, tokens(get.asked), false});
}

// It is the first of the queue that is answered. A step sees it late if a pass had to end first: then it came at some
// time since that began, and so did the next one begin.
void Prefetcher::learn(const StorageAnswer& answer) {
  Reads& reads = reads_[answer.tier];
  KV_CHECK(!reads.queue.empty() && reads.queue.front().id == answer.id, "a tier's gets are answered in their order");
  const Read read = reads.queue.front();
  reads.queue.pop_front();
  const bool whole = answer.pages == answer.asked && !read.cut;
  const TimeNs took = step_time_ - reads.began, unseen = step_time_ - unseen_since_;
  constexpr TimeNs kClear = 8;
  if (whole && kClear * (reads.vague + unseen) <= took) {
    reads.lateness.came(unit_ns(answer.tier, read.tokens), took);
  } else if (whole && took > unseen) {
    reads.lateness.given_up(unit_ns(answer.tier, read.tokens), took - unseen);
  }
  reads.began = step_time_;
  reads.vague = unseen;
  reads.tokens += tokens(answer.pages);
  if (!whole || step_time_ == reads.asked) return;
  // The time since the tier began to read over all that has come since then, both as steps see them, is never less than
  // reading took, and sometimes far more: so the least of the last few is believed.
  refused_in_a_row_ = 0;
  const Wide busy = step_time_ - reads.asked;
  reads.samples[reads.next] = static_cast<std::uint64_t>(busy * 1000 / static_cast<Wide>(reads.tokens));
  reads.next = (reads.next + 1) % reads.samples.size();
  reads.token_ps = *std::ranges::min_element(reads.samples);
}

// Those of a request that are still to come won't; the next one's turn begins.
void Prefetcher::unlearn(RequestId request) {
  for (std::size_t tier = 0; tier < reads_.size(); ++tier) {
    Reads& reads = reads_[tier];
    if (!reads.queue.empty() && reads.queue.front().request == request && !reads.queue.front().cut) {
      reads.lateness.given_up(unit_ns(tier, reads.queue.front().tokens), step_time_ - reads.began);
      reads.began = step_time_;
      reads.vague = 0;
    }
    for (Read& read : reads.queue) read.cut |= read.request == request;
  }
}

// What takes less than a millisecond isn't looked at so closely.
TimeNs Prefetcher::unit_ns(std::size_t tier, Tokens tokens) const {
  constexpr TimeNs kLeast = 1'000'000;
  return std::max(kLeast, read_ns(tier, tokens));
}

TimeNs Prefetcher::read_ns(std::size_t tier, Tokens tokens) const {
  return static_cast<TimeNs>(std::min<Wide>(Wide{tokens} * reads_[tier].token_ps / 1000, kLongest));
}

PrefetchFacts Prefetcher::facts(RequestId request, const Prefetch& prefetch) const {
  PrefetchFacts facts{prefetch.issued, tokens(prefetch.hit), tokens(prefetch.arrived)};
  if (!termination_->weighs_costs()) return facts;
  const bool fetching = prefetch.state == State::fetching;
  const Pages from = fetching ? prefetch.fetch_first + prefetch.arrived : prefetch.first;
  const Pages to = fetching ? prefetch.fetch_first + prefetch.slots.size() : prefetch.keys.size();
  facts.now = step_time_;
  facts.progress = prefetch.progress;
  const TimeNs saves = config_.prefill_ns(tokens(from), tokens(std::max(from, to)));
  facts.saves_ns = saves * bearers(others(&prefetch));
  const auto next = std::ranges::find(prefetch.pieces, false, &Piece::answered);
  if (!fetching) facts.rest_ns = soonest_ns(to - from);
  if (!fetching || next == prefetch.pieces.end()) return facts;
  const TimeNs tail = config_.prefill_ns(tokens(to), tokens(prefetch.keys.size()));
  for (std::size_t tier = 0; tier < reads_.size(); ++tier) {
    TimeNs before = 0, own = 0, overtaken = 0;
    std::size_t behind = 0;
    Lateness::Outlook to_come;
    TimeNs of_unit = -1;  // that it is of: batches are alike, mostly
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
        // It may be late too, and be given up.
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
  Pages pages = 0;
  for (const auto& [request, prefetch] : prefetches_) {
    if (!prefetch.slots.empty()) pages += prefetch.slots.size() - prefetch.committed;
  }
  return pages;
}

void Prefetcher::check_invariants() const {
  Pages occupied = 0;
  std::size_t looking_up = 0, fetching = 0, held = 0;
  for (const auto& [request, prefetch] : prefetches_) {
    occupied += prefetch.occupied;
    const bool waits = is_waited_for(prefetch);
    looking_up += prefetch.state == State::looking_up;
    fetching += prefetch.state == State::fetching;
    held += waits && prefetch.held_since >= 0;
    KV_CHECK(!waits || !prefetch.gone, "a prefetch that is waited for has its request");
    KV_CHECK(waits || prefetch.state == State::ready || prefetch.end_told, "a prefetch that is over was told to end");
    KV_CHECK(!prefetch.end_told || !waits, "a prefetch that was told to end is waited for no more");
    KV_CHECK(prefetch.held_since < 0 || !waits || held_.contains(request), "held requests are known");
    KV_CHECK(waits || prefetch.state == State::draining || prefetch.occupied == 0, "who is done takes up nothing");
    KV_CHECK(prefetch.state != State::landed || prefetch.slots.empty(), "who has landed owns no slots");
    KV_CHECK(prefetch.committed <= prefetch.arrived, "only what has arrived is committed");
  }
  KV_CHECK(looking_up == looking_up_ && fetching == fetching_ && held == held_.size(), "prefetches are counted");
  KV_CHECK(occupied == occupied_, "what prefetches take up of L2 is summed up");
}

}  // namespace kvtwin
