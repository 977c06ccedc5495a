#include "policy/prefetch/prefetch.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "policy/check.hpp"
#include "policy/mutant.hpp"

namespace kvtwin {
namespace {

__extension__ using Wide = __int128;

// Each part by itself: its operation's end tells when it came.
void note_started(Observer* observer, TimeNs now, Tier tier, RequestId request, const StorageAnswer& get) {
  if (observer == nullptr) return;
  Event event;
  event.kind = EventKind::prefetch_started;
  event.time = now;
  event.tier = tier;
  event.pages = get.asked;
  event.operation = get.id;
  event.request = request;
  observer->on_event(event);
}

}  // namespace

Prefetcher::Prefetcher(const EngineConfig& config, Substrate& substrate, Cache& cache, Storage& storage,
                       DecisionLog& decisions, Observer* observer)
    : config_(config),
      substrate_(substrate),
      cache_(cache),
      storage_(storage),
      decisions_(decisions),
      observer_(observer),
      termination_(make_termination(config)) {
  for (const StorageTierConfig& tier : config.storage) {
    ReadRate& rate = rates_.emplace_back();
    rate.token_ps = tier.read_token_ps;
    rate.samples.fill(tier.read_token_ps == 0 ? std::numeric_limits<std::uint64_t>::max() : tier.read_token_ps);
  }
}

void Prefetcher::begin_step(TimeNs step_time, std::size_t others) {
  step_time_ = step_time;
  others_ = others;
}

// ---- issue -----------------------------------------------------------------------------------------------

Reason Prefetcher::issue(RequestId request, std::span<const PageKey> keys, TimeNs step_time) {
  if (storage_.tiers() == 0 || prefetches_.contains(request)) return Reason::none;
  const PrefixMatch match = cache_.match(keys);
  const Pages first = match.device_pages + match.host_pages;
  const Pages asked = keys.size() - first;
  if (asked == 0) return Reason::none;
  const bool by_host = config_.path != CachePath::direct;
  const Pages limit = config_.host_pages * config_.prefetch_host_share / 1024;
  Reason refused = Reason::none;
  if (tokens(asked) < config_.prefetch_min_tokens) {
    refused = Reason::too_short;
  } else if (by_host && !cache_.can_extend_on_host(match.end)) {
    refused = Reason::not_backed_up;
  } else if (by_host && occupied_ >= limit) {
    refused = Reason::rate_limited;
  }
  decisions_.add({DecisionKind::prefetch, refused, request, keys[first], asked});
  if (refused != Reason::none) {
    note(EventKind::prefetch_declined, request, asked, refused);
    return refused;
  }
  Prefetch prefetch;
  prefetch.keys.assign(keys.begin(), keys.end());
  prefetch.first = first;
  prefetch.issued = prefetch.progress = step_time;
  if (by_host) {
    prefetch.hold = cache_.hold(match.end);
    occupy(prefetch, asked);
  }
  storage_.look_up(0, request, prefetch.keys, first);
  prefetches_.emplace(request, std::move(prefetch));
  note(EventKind::prefetch_issued, request, asked);
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
  const bool direct =
      config_.path == CachePath::direct || (config_.path == CachePath::automatic && head == entry->first);
  if (direct) {
    occupy(prefetch, 0);
    cache_.unhold(std::exchange(prefetch.hold, Hold{}));
    prefetch.state = State::ready;
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
  note(EventKind::prefetch_hit, entry->first, prefetch.hit);
  if (prefetch.hit > wanted)
    note(EventKind::prefetch_shortened, entry->first, prefetch.hit - wanted, Reason::duplicate);
  if (fetched < wanted && !KV_MUTANT(9))
    note(EventKind::prefetch_shortened, entry->first, wanted - fetched, Reason::capacity);
  if (!enough) return false;
  if (room > 0) cache_.allocate_host(room, prefetch.slots);
  occupy(prefetch, room);
  decide(DecisionKind::fetch, room < wanted ? Reason::capacity : Reason::none, entry->first, prefetch, room);
  const Pages fetch_end = prefetch.fetch_first + room;
  for (const FetchedRun& run : prefetch.found) {
    const Pages run_end = std::min(run.first + run.pages, fetch_end);
    Pages at = std::max(run.first, prefetch.fetch_first);
    while (at < run_end) {
      const Pages pages = std::min(run_end - at, config_.storage_batch_pages);
      const auto slots = std::span(prefetch.slots).subspan(at - prefetch.fetch_first, pages);
      ReadRate& rate = rates_[run.tier];
      if (rate.under_way++ == 0) {
        rate.asked = step_time_;
        rate.tokens = 0;
      }
      const StorageAnswer get = storage_.get(run.tier, entry->first, prefetch.keys, at, slots, Tier::host);
      prefetch.pieces.push_back({get, at, false});
      note_started(observer_, substrate_.now(), storage_.tier(run.tier), entry->first, get);
      at += pages;
    }
  }
  prefetch.state = State::fetching;
  if (prefetch.pieces.empty()) land(entry);
  return true;
}

void Prefetcher::take_get(Entry entry, const StorageAnswer& answer) {
  Prefetch& prefetch = entry->second;
  const auto piece = std::ranges::find(prefetch.pieces, answer.id, [](const Piece& p) { return p.get.id; });
  KV_CHECK(piece != prefetch.pieces.end(), "a get belongs to a prefetch");
  piece->get = answer;
  piece->answered = true;
  learn_rate(answer);
  prefetch.arrived = 0;
  bool all = true, gap = false;
  for (const Piece& p : prefetch.pieces) {
    all = all && p.answered;
    if (gap && !KV_MUTANT(6)) continue;
    if (p.answered) prefetch.arrived += p.get.pages;
    gap = !p.answered || p.get.pages < p.get.asked;
  }
  prefetch.failed |= answer.pages < answer.asked && !prefetch.cut;
  if (answer.pages < answer.asked) cut(prefetch);
  if (all) land(entry);
}

// What is still to come wouldn't be of use.
void Prefetcher::cut(Prefetch& prefetch) {
  if (std::exchange(prefetch.cut, true)) return;
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
  decide(DecisionKind::commit, adopted.refused, request, prefetch, adopted.pages);
  if (adopted.pages < pages) note(EventKind::prefetch_wasted, request, pages - adopted.pages, adopted.refused);
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
  if (!prefetch.pieces.empty()) {
    note(EventKind::prefetch_done, entry->first, prefetch.arrived,
         prefetch.stopped  ? Reason::stopped
         : prefetch.failed ? Reason::transfer_failed
                           : Reason::none);
  }
  occupy(prefetch, 0);
  cache_.unhold(std::exchange(prefetch.hold, Hold{}));
  prefetch.state = State::landed;
  prefetch.slots.clear();
  if (prefetch.gone) prefetches_.erase(entry);
}

void Prefetcher::revoke(Entry entry, Reason reason) {
  decide(DecisionKind::revoke, reason, entry->first, entry->second, entry->second.hit);
  note(EventKind::prefetch_revoked, entry->first, entry->second.hit, reason);
  land(entry);
}

// The request goes on without waiting: what has arrived is committed, what hasn't is cancelled.
void Prefetcher::stop(Entry entry, Reason reason) {
  Prefetch& prefetch = entry->second;
  if (prefetch.state == State::looking_up) {
    decide(DecisionKind::revoke, reason, entry->first, prefetch, prefetch.hit);
    note(EventKind::prefetch_revoked, entry->first, prefetch.hit, reason);
  } else {
    decide(DecisionKind::stop, reason, entry->first, prefetch, prefetch.arrived);
    note(EventKind::prefetch_stopped, entry->first, prefetch.slots.size() - prefetch.arrived, reason);
    commit(prefetch, entry->first);
    cut(prefetch);
    if (KV_MUTANT(5)) {
      cache_.free_host(std::span(prefetch.slots).subspan(prefetch.committed));
      prefetch.slots.resize(prefetch.committed);
    }
  }
  prefetch.stopped = true;
  prefetch.state = State::draining;
}

bool Prefetcher::holds(RequestId request, TimeNs step_time) {
  const Entry entry = prefetches_.find(request);
  if (entry == prefetches_.end()) return false;
  Prefetch& prefetch = entry->second;
  if (prefetch.state != State::looking_up && prefetch.state != State::fetching) return false;
  if (prefetch.held_since < 0) prefetch.held_since = step_time;
  if (step_time < termination_->stop_at(facts(prefetch))) return true;
  prefetch.ended = step_time;
  stop(entry, Reason::stopped);
  return false;
}

// Whose time is over and who is held no more, but by others before it, waits for those.
TimeNs Prefetcher::next_stop(TimeNs step_time) const {
  TimeNs next = kNoStop;
  for (const auto& [request, prefetch] : prefetches_) {
    const bool waits = prefetch.state == State::looking_up || prefetch.state == State::fetching;
    if (!waits || prefetch.held_since < 0) continue;
    const TimeNs stop = termination_->stop_at(facts(prefetch));
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
    note(EventKind::prefetch_used, request, std::min(to, std::max(from, matched)) - from);
  }
  if (ready) {
    pin_found(prefetch, false);
    const Pages pages = to > from ? to - from : 0;  // all are used, as they come
    note(EventKind::prefetch_done, request, pages, Reason::none, Tier::device);
    note(EventKind::prefetch_used, request, pages, Reason::none, Tier::device);
  }
  prefetch.gone = true;
  if (prefetch.state == State::landed || ready) prefetches_.erase(entry);
  return outcome;
}

void Prefetcher::abort(RequestId request) {
  const Entry entry = prefetches_.find(request);
  if (entry == prefetches_.end()) return;
  Prefetch& prefetch = entry->second;
  prefetch.gone = true;
  if (prefetch.state == State::looking_up || prefetch.state == State::fetching) stop(entry, Reason::aborted);
  if (prefetch.state == State::ready) {
    pin_found(prefetch, false);
    note(EventKind::prefetch_revoked, request, prefetch.hit, Reason::aborted, Tier::device);
  }
  if (prefetch.state != State::draining) prefetches_.erase(entry);
}

// ---- accounts --------------------------------------------------------------------------------------------

void Prefetcher::occupy(Prefetch& prefetch, Pages pages) {
  occupied_ = occupied_ - prefetch.occupied + pages;
  prefetch.occupied = pages;
}

// ---- what waiting is worth -------------------------------------------------------------------------------

// A sample is the time since a tier began to read over all that has come since then, both as steps see them: never less
// than reading took, sometimes far more. So the least of the last few is believed.
void Prefetcher::learn_rate(const StorageAnswer& answer) {
  ReadRate& rate = rates_[answer.tier];
  --rate.under_way;
  const TimeNs silent = step_time_ - std::max(rate.answered, rate.asked);
  if (silent > patience_ns(rate)) rate.silence += rate.silence == 0 ? silent : (silent - rate.silence) / 8;
  rate.answered = step_time_;
  rate.tokens += tokens(answer.pages);
  if (answer.pages < answer.asked || step_time_ == rate.asked) return;
  const Wide busy = step_time_ - rate.asked;
  rate.samples[rate.next] = static_cast<std::uint64_t>(busy * 1000 / static_cast<Wide>(rate.tokens));
  rate.next = (rate.next + 1) % rate.samples.size();
  rate.token_ps = *std::ranges::min_element(rate.samples);
}

TimeNs Prefetcher::patience_ns(const ReadRate& rate) const {
  constexpr TimeNs kLeast = 10'000'000;
  return std::max(kLeast, static_cast<TimeNs>(3 * tokens(config_.storage_batch_pages) * rate.token_ps / 1000));
}

TimeNs Prefetcher::prefill_ns(Tokens from, Tokens to) const {
  const Wide length = static_cast<Wide>(to) - static_cast<Wide>(from);
  const Wide work =
      length + length * static_cast<Wide>(to + from) / static_cast<Wide>(2 * config_.cost_doubling_tokens);
  return static_cast<TimeNs>(work * static_cast<Wide>(config_.cost_token_ps) / 1000);
}

PrefetchFacts Prefetcher::facts(const Prefetch& prefetch) const {
  PrefetchFacts facts{prefetch.issued, tokens(prefetch.hit), tokens(prefetch.arrived)};
  if (config_.prefetch_policy != PrefetchPolicy::cost_stop) return facts;
  constexpr std::size_t kOthersMost = 8;
  const bool fetching = prefetch.state == State::fetching;
  const Pages asked = prefetch.keys.size() - prefetch.first;
  const Pages from = fetching ? prefetch.fetch_first + prefetch.arrived : prefetch.first;
  const Pages to = fetching ? prefetch.fetch_first + prefetch.slots.size() : prefetch.first + asked;
  facts.progress = prefetch.progress;
  facts.patience_ns = patience_ns({});
  Wide takes = 0, alone = 0;
  for (const FetchedRun& run : prefetch.found) {
    const Pages first = std::max(run.first, from), end = std::min(run.first + run.pages, to);
    if (!fetching || first >= end) continue;
    const Wide left = static_cast<Wide>(tokens(end - first));
    takes += left * static_cast<Wide>(rates_[run.tier].token_ps);
    alone += left * static_cast<Wide>(config_.storage[run.tier].read_token_ps);
    facts.patience_ns = std::max(facts.patience_ns, patience_ns(rates_[run.tier]));
    facts.silence_ns = std::max(facts.silence_ns, rates_[run.tier].silence);
    facts.progress = std::max(facts.progress, rates_[run.tier].answered);  // another's turn is no silence
  }
  // Those before it in the queues make it wait, those behind wait for it; all of them for the GPU, should it compute.
  std::size_t others = others_, behind = 0;
  const Wide own = takes;
  bool before = true;
  for (const auto& [request, other] : prefetches_) {
    if (&other == &prefetch) before = false;
    if (&other == &prefetch || other.state != State::fetching || other.found.empty()) continue;
    ++others;
    const Pages left = other.slots.size() - other.arrived;
    if (before) takes += static_cast<Wide>(tokens(left)) * static_cast<Wide>(rates_[other.found.front().tier].token_ps);
    behind += before ? 0 : 1;
  }
  takes += own * static_cast<Wide>(std::min(behind, kOthersMost));
  const TimeNs saves = prefill_ns(tokens(from), tokens(std::max(from, to)));
  facts.saves_ns = saves * static_cast<TimeNs>(1 + std::min(others, kOthersMost));
  facts.saves_alone_ns = saves * static_cast<TimeNs>(1 + std::min(others_, kOthersMost));
  facts.takes_ns = static_cast<TimeNs>(takes / 1000);
  facts.takes_alone_ns = std::min(facts.saves_alone_ns, static_cast<TimeNs>(alone / 1000));
  return facts;
}

Pages Prefetcher::owned_pages() const {
  Pages pages = 0;
  for (const auto& [request, prefetch] : prefetches_) {
    if (!prefetch.slots.empty()) pages += prefetch.slots.size() - prefetch.committed;
  }
  return pages;
}

void Prefetcher::note(EventKind kind, RequestId request, Pages pages, Reason reason, Tier tier) {
  if (observer_ == nullptr) return;
  Event event;
  event.kind = kind;
  event.time = substrate_.now();
  event.tier = tier;
  event.pages = pages;
  event.request = request;
  event.reason = reason;
  observer_->on_event(event);
}

void Prefetcher::decide(DecisionKind kind, Reason reason, RequestId request, const Prefetch& prefetch, Pages pages) {
  decisions_.add({kind, reason, request, prefetch.keys[prefetch.first], pages});
}

void Prefetcher::check_invariants() const {
  Pages occupied = 0;
  for (const auto& [request, prefetch] : prefetches_) {
    occupied += prefetch.occupied;
    const bool waits = prefetch.state == State::looking_up || prefetch.state == State::fetching;
    KV_CHECK(waits || prefetch.state == State::draining || prefetch.occupied == 0, "who is done takes up nothing");
    KV_CHECK(prefetch.state != State::landed || prefetch.slots.empty(), "who has landed owns no slots");
    KV_CHECK(prefetch.committed <= prefetch.arrived, "only what has arrived is committed");
  }
  KV_CHECK(occupied == occupied_, "what prefetches take up of L2 is summed up");
}

}  // namespace kvtwin
