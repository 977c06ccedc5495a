// Start here. The way of a request: arrival -> (step) queue -> look up, decide, plan, submit -> completion -> (step)
// commit, and so on. A step happens when no forward pass is in flight and something has changed:
//
//        input              reduction             pass submitted
//   idle ------> agreeing ------------> (step) ------------------> passing
//     ^                                   | nothing to run            | pass complete
//     +-----------------------------------+          agreeing <-------+
//
// A step whose evictions copy pages to L2 holds its pass back until the copies have ended (write-back with windows or
// states; cache/evicted.cpp). Meanwhile the engine is idle, and each further step only acknowledges copies.
//
// All inputs of a step are agreed by its reduction first (one vector: time, arrivals seen, transfers complete), so
// every rank of an engine takes the same step. docs/internals/life-of-a-request.md follows one request.
#include "policy/engine.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/base/wide.hpp"
#include "policy/cache.hpp"
#include "policy/hand_over.hpp"
#include "policy/prefetch/prefetch.hpp"
#include "policy/scheduler.hpp"

namespace kvtwin {

std::vector<Tokens> EngineConfig::windows() const {
  std::vector<Tokens> all;
  for (const PoolConfig& pool : pools) all.push_back(pool.closure == Closure::tail ? pool.window : 0);
  return all;
}

Bytes EngineConfig::page_bytes() const {
  Bytes all = shape.page_bytes();
  for (const KvShape& other : beside) all += other.page_bytes();
  return all;
}

TimeNs EngineConfig::prefill_ns(Tokens from, Tokens to) const {
  const Wide length = Wide{to} - Wide{from};
  const Wide work = length + length * (Wide{to} + Wide{from}) / (2 * Wide{cost_doubling_tokens});
  return static_cast<TimeNs>(std::min(work * Wide{cost_token_ps} / 1000, Wide{100'000} * kNsPerSecond));
}

// The sessions that have given a hint and have not ended. Above kMost, the one whose last hint is the oldest is
// forgotten.
class HintedSessions {
 public:
  bool contains(std::uint64_t session) const { return last_hint_.contains(session); }
  void insert(std::uint64_t session) {
    erase(session);
    by_age_.emplace(last_hint_[session] = ++hints_, session);
    if (last_hint_.size() > kMost) erase(by_age_.begin()->second);
  }
  void erase(std::uint64_t session) {
    const auto known = last_hint_.find(session);
    if (known == last_hint_.end()) return;
    by_age_.erase(known->second);
    last_hint_.erase(known);
  }

 private:
  static constexpr std::size_t kMost = 1U << 16;
  std::map<std::uint64_t, std::uint64_t> last_hint_, by_age_;
  std::uint64_t hints_ = 0;
};

struct Engine::State final : SequenceParts {
  enum class Phase : std::uint8_t { idle, agreeing, passing };
  enum Agreed : std::size_t {
    agreed_time,
    agreed_arrivals,
    agreed_hints,
    agreed_backups,
    agreed_loads,
    agreed_backup_failure,
    agreed_load_failure,
    agreed_pass,     // result of the last pass: 0 = failed, else 1 + the steps done
    agreed_storage,  // first element of StorageHeads; the others follow, as many as the tiers need
  };
  // After the storage heads, of an engine with a role.
  enum AgreedOfPeers : std::size_t { agreed_notices, agreed_writes, agreed_write_failure };
  static_assert(agreed_storage + std::tuple_size_v<StorageHeads> + agreed_write_failure + 1 == kMaxReduceWidth);

  State(const EngineConfig& c, Substrate& s, DecisionLog& decisions, Observer* o)
      : config(c),
        substrate(s),
        sink(s, decisions, o),
        storage(config, s, sink),
        cache(config, s, storage, sink),
        prefetcher(config, cache, storage, sink),
        hand_overs(config, s, cache, sink),
        scheduler(config, cache, prefetcher, hand_overs, sink) {
    KV_CHECK(c.accept_x1024 >= 1024 && c.accept_without_x1024 >= 1024, "a decode step yields a token at least");
    const std::uint64_t max_yield = 1024 * (std::uint64_t{c.draft_tokens} + 1);
    KV_CHECK(c.accept_x1024 <= max_yield && c.accept_without_x1024 <= max_yield,
             "a decode step yields what it verifies");
  }

  void handle(const Arrival& arrival);
  void handle(const Hint& hint);
  bool aborts() const {
    return std::ranges::any_of(hints,
                               [](const ReceivedHint& received) { return received.hint.kind == HintKind::abort; });
  }
  void handle(const Completion& completion);
  void handle(const TimerFired& timer);
  void handle(const Reduction& reduction);
  void handle(const Notice& notice);

  bool has_peers() const { return config.hand_over.role != EngineRole::both; }
  std::size_t peer_values() const { return agreed_storage + storage.heads_width(); }
  std::size_t width() const { return peer_values() + (has_peers() ? kHandOverReduceWidth : 0); }
  bool take_peer_news(const ReduceVector& agreed);
  void write_beside_pass();
  void agree();
  void step(const ReduceVector& agreed);
  bool take_storage_answers(const ReduceVector& agreed);
  void take_arrivals(const ReduceVector& agreed);
  void set_stop_timer(TimeNs step_time);
  std::int64_t pass_outcome() const;
  void finish_pass(std::int64_t outcome);
  void release_pass(const ReduceVector& agreed);
  void run_pass();
  void submit_pass();
  void get(std::size_t sequence, std::vector<SequencePart>& parts) const override;
  void report_prefills();
  void wake(bool ends_burst);

  const EngineConfig config;
  Substrate& substrate;
  const EventSink sink;
  Storage storage;
  Cache cache;
  Prefetcher prefetcher;
  HandOvers hand_overs;
  Scheduler scheduler;

  Phase phase = Phase::idle;
  OperationId reduction_id = OperationId::none;
  std::deque<Request*> arrived;  // not agreed on yet
  std::uint64_t arrivals_taken = 0;
  struct ReceivedHint {
    Hint hint;
    std::uint64_t arrivals = 0;  // before it
  };
  std::deque<ReceivedHint> hints;  // not agreed on yet
  std::uint64_t hints_taken = 0;
  HintedSessions hinted_sessions;  // for reports
  struct Received {
    Notice notice;
    std::vector<SlotId> slots;
  };
  std::deque<Received> notices;  // not agreed on yet
  std::uint64_t notices_taken = 0;
  OperationId stop_timer = OperationId::none;  // for the next end of a wait for a prefetch
  TimeNs stop_time = kNoStop;

  Pass pass;
  std::vector<SequenceWork> sequences;
  OperationId pass_id = OperationId::none;
  TimeNs pass_start = 0, pass_end = 0;
  // Time of the step whose prefill no step can interrupt; kNoStop if the last pass was no prefill.
  TimeNs unseen_since = kNoStop;
  Completion pass_completion;
  bool pass_complete = false, pass_cancelled = false;
  bool pass_held = false;    // formed, and not submitted
  bool load_failed = false;  // until every load is acknowledged: promised pages on the device may be garbage
};

void Engine::handle(const Input& input) {
  std::visit([this](const auto& what) { state_->handle(what); }, input.what);
}

void Engine::State::handle(const Arrival& arrival) {
  Request& request = scheduler.new_request();
  request.record.request = arrival.request;
  request.record.arrival = substrate.now();
  request.record.prompt_tokens = arrival.prompt_tokens;
  request.record.output_tokens = arrival.output_tokens;
  request.priority = arrival.priority;
  request.session = arrival.session;
  request.system_tokens = arrival.system_tokens;
  request.keys.assign(arrival.keys.begin(), arrival.keys.end());
  request.record.part = arrival.part;
  request.record.peer = arrival.peer;
  request.record.attempt = arrival.attempt;
  request.record.hinted = hinted_sessions.contains(arrival.session);
  if (arrival.part != RequestPart::whole) KV_CHECK(has_peers(), "a part of a request arrives at an engine with a role");
  if (arrival.part == RequestPart::prefill) {
    request.record.output_tokens = 1;  // the decode engine generates the others
    hand_overs.begin(arrival);
  }
  const bool matters = arrived.empty() && scheduler.arrival_changes_step();
  arrived.push_back(&request);
  wake(matters);
}

void Engine::State::handle(const Hint& hint) {
  if (hint.kind == HintKind::session_end) {
    hinted_sessions.erase(hint.subject);
  } else if (hint.kind != HintKind::abort && hint.subject != 0) {
    hinted_sessions.insert(hint.subject);
  }
  hints.push_back({hint, arrivals_taken + arrived.size()});
  wake(hint.kind == HintKind::abort && config.poll_steps == 1);
}

// A notice waits for the step that agrees on it. Only the unit `layers` takes room at once, to write a pass in flight
// while it computes. Room decides what is admitted, so `layers` needs ranks in lockstep.
void Engine::State::handle(const Notice& notice) {
  KV_CHECK(has_peers(), "only an engine with a role has peers");
  if (notice.kind == NoticeKind::room && config.hand_over.unit == HandOverUnit::layers) {
    hand_overs.take_room(notice);
    scheduler.write_parked();
    if (phase == Phase::passing && !pass_complete) write_beside_pass();
  } else {
    notices.push_back({notice, {notice.slots.begin(), notice.slots.end()}});
  }
  wake(config.poll_steps == 1);
}

// The pages of the requests that prefill, group by group of layers.
void Engine::State::write_beside_pass() {
  if (config.hand_over.role != EngineRole::prefill || config.hand_over.unit != HandOverUnit::layers) return;
  for (std::size_t i = 0; i < pass.prefill.requests.size(); ++i) {
    const Request& request = *pass.prefill.requests[i];
    if (request.record.part != RequestPart::prefill) continue;
    hand_overs.write(request, request.kv_tokens + pass.prefill.new_tokens[i], pass_id);
  }
}

void Engine::State::handle(const TimerFired& timer) {
  if (timer.id != stop_timer) return;  // an earlier timer, replaced since
  stop_timer = OperationId::none;
  stop_time = kNoStop;
  wake(true);
}

void Engine::State::handle(const Completion& completion) {
  if (completion.id == pass_id) {
    if (pass_complete) return;
    pass_complete = true;
    pass_completion = completion;
    pass_end = substrate.now();
    agree();
    return;
  }
  if (!cache.complete(completion)) {
    if (hand_overs.complete(completion)) return wake(false);
    // A duplicate answer, or the answer to an operation that is no longer of interest, changes nothing.
    if (!storage.complete(completion)) return;
    cache.load_answered(completion.id);
  }
  // Pages that were leased may now be evicted for the request that waits for room; or a prefetch may have landed.
  wake(scheduler.blocked() || scheduler.holds());
}

// Something has changed. Steps now if nothing runs. A decode burst continues, unless the next step would differ.
void Engine::State::wake(bool ends_burst) {
  if (phase == Phase::idle) {
    agree();
  } else if (phase == Phase::passing && ends_burst && pass.steps > 1 && !pass_cancelled && !pass_complete) {
    pass_cancelled = true;
    substrate.cancel(pass_id);
  }
}

void Engine::State::agree() {
  phase = Phase::agreeing;
  ReduceVector values(width());
  values[agreed_time] = substrate.now();
  values[agreed_arrivals] = static_cast<std::int64_t>(arrivals_taken + arrived.size());
  values[agreed_backups] = static_cast<std::int64_t>(cache.backups_complete());
  values[agreed_loads] = static_cast<std::int64_t>(cache.loads_complete());
  values[agreed_backup_failure] = static_cast<std::int64_t>(cache.backup_failure());
  values[agreed_load_failure] = static_cast<std::int64_t>(cache.load_failure());
  values[agreed_pass] = pass_outcome();
  values[agreed_hints] = static_cast<std::int64_t>(hints_taken + hints.size());
  std::copy_n(storage.heads().begin(), storage.heads_width(), values.begin() + agreed_storage);
  if (has_peers()) {
    values[peer_values() + agreed_notices] = static_cast<std::int64_t>(notices_taken + notices.size());
    values[peer_values() + agreed_writes] = static_cast<std::int64_t>(hand_overs.writes_complete());
    values[peer_values() + agreed_write_failure] = static_cast<std::int64_t>(hand_overs.failure());
  }
  reduction_id = substrate.reduce_min(values);
}

void Engine::State::handle(const Reduction& reduction) {
  KV_CHECK(reduction.id == reduction_id && phase == Phase::agreeing, "one reduction a step");
  KV_CHECK(reduction.values.size() >= width(), "a minimum is as wide as our own vector");
  step(reduction.values);
}

// The scheduler's step: result of the last pass, acknowledgements, storage answers, arrivals, next pass.
void Engine::State::step(const ReduceVector& agreed) {
  const auto unsigned_of = [&agreed](Agreed what) { return static_cast<std::uint64_t>(agreed[what]); };
  if (pass_held) return release_pass(agreed);
  cache.begin_step(agreed[agreed_time]);
  load_failed |= unsigned_of(agreed_load_failure) != kNoFailure;
  if (pass_complete) finish_pass(agreed[agreed_pass]);
  if (load_failed && !scheduler.loads_gate_passes()) {
    load_failed = false;  // no pass used the pages
    scheduler.load_failed(unsigned_of(agreed_load_failure), agreed[agreed_time]);
  }
  bool more = cache.commit({unsigned_of(agreed_backups), unsigned_of(agreed_backup_failure)},
                           {unsigned_of(agreed_loads), unsigned_of(agreed_load_failure)});
  more |= take_storage_answers(agreed);
  more |= has_peers() && take_peer_news(agreed);
  take_arrivals(agreed);
  cache.share_sessions();
  // Each round takes one failure and one answer per queue. More may be there already. All ranks see the same.
  if (more) return agree();
  prefetcher.free_released(false);
  scheduler.retry_prefetches(agreed[agreed_time]);
  if (has_peers()) {
    scheduler.write_computed();
    scheduler.send_room();
  }
  if (!cache.loading()) load_failed = false;
  if (config.buffers()) cache.copy_queued(prefetcher.owned_pages());  // before an admission evicts what was inserted
  // While a load has failed, there is no decode either: finished requests would publish pages below garbage.
  const bool formed = !load_failed && !cache.copies_under_way() && scheduler.form(agreed[agreed_time], pass);
  pass_held = formed && cache.copies_under_way();
  cache.end_offload_step();
  if (!cache.copies_under_way()) cache.submit_loads();
  cache.keep_reserve();
  cache.submit_backups(formed && !pass_held);
  set_stop_timer(agreed[agreed_time]);
  unseen_since = formed && !pass.prefill.empty() ? agreed[agreed_time] : kNoStop;
  if (formed && !pass_held) return run_pass();
  phase = Phase::idle;
  if (pass_held) return;
  prefetcher.free_released(true);
  if (config.buffers()) {
    cache.copy_queued(prefetcher.owned_pages());
    cache.submit_backups(false);
  }
  scheduler.poll_next();  // no decode step brings the next poll
  KV_CHECK(scheduler.idle() || cache.anything_in_flight() || storage.anything_in_flight() || hand_overs.writing() ||
               scheduler.awaits_peer() || cache.offload_due(),
           "a request that fits never waits for nothing");
  if (!arrived.empty() || !hints.empty() || cache.acknowledgement_due() || storage.answer_due() || !notices.empty() ||
      hand_overs.acknowledgement_due() || cache.offload_due()) {
    agree();
  }
}

// Submits the pass that waits for copies, if these have ended.
void Engine::State::release_pass(const ReduceVector& agreed) {
  const auto unsigned_of = [&agreed](Agreed what) { return static_cast<std::uint64_t>(agreed[what]); };
  const bool more = cache.commit({unsigned_of(agreed_backups), unsigned_of(agreed_backup_failure)});
  if (more) return agree();
  cache.submit_backups(false);
  if (cache.copies_under_way()) {
    phase = Phase::idle;
    if (cache.backups_due()) agree();
    return;
  }
  pass_held = false;
  if (has_peers()) scheduler.send_room();
  cache.submit_loads();
  if (unsigned_of(agreed_load_failure) == kNoFailure || !scheduler.loads_gate_passes()) return run_pass();
  load_failed = true;  // the pass may need this load, and no gate would stop it
  pass_start = pass_end = substrate.now();
  finish_pass(0);
  agree();
}

void Engine::State::run_pass() {
  submit_pass();
  // Inputs that came during the agreement were not part of it. A burst must not make them wait.
  wake((!arrived.empty() && scheduler.arrival_changes_step()) || (aborts() && config.poll_steps == 1) ||
       (cache.acknowledgement_due() && scheduler.blocked()) || (storage.answer_due() && scheduler.holds()) ||
       (!notices.empty() && config.poll_steps == 1));
}

bool Engine::State::take_storage_answers(const ReduceVector& agreed) {
  const TimeNs now = agreed[agreed_time];
  prefetcher.begin_step(now, std::min(now, unseen_since), scheduler.waiting());
  StorageHeads heads{};
  std::copy_n(agreed.begin() + agreed_storage, storage.heads_width(), heads.begin());
  if (!storage.take(heads)) return false;
  // Loads first: no page is adopted below a load that has not been settled.
  const auto is_load = [](const StorageAnswer& a) { return a.verb == StorageVerb::get && a.memory == Tier::device; };
  for (const StorageAnswer& answer : storage.answers()) {
    if (is_load(answer)) cache.take_direct(answer);
  }
  for (const StorageAnswer& answer : storage.answers()) {
    if (is_load(answer)) continue;
    cache.offloads_blocks() ? cache.take_tier_answer(answer) : prefetcher.take(answer, scheduler.head());
  }
  for (const Storage::Ended& store : storage.ended()) cache.end_store(store.hold, store.done);
  return true;
}

// Notices come before arrivals: a request that is sent again arrives after the notice that its engine is dead.
bool Engine::State::take_peer_news(const ReduceVector& agreed) {
  const auto value = [&](AgreedOfPeers what) { return static_cast<std::uint64_t>(agreed[peer_values() + what]); };
  const TimeNs now = agreed[agreed_time];
  const bool more = hand_overs.commit({value(agreed_writes), value(agreed_write_failure)});
  for (const HandOvers::Ended& ended : hand_overs.take_ended()) scheduler.hand_over_ended(ended, now);
  for (; notices_taken < value(agreed_notices); ++notices_taken) {
    const Received received = std::move(notices.front());
    notices.pop_front();
    Notice notice = received.notice;
    notice.slots = received.slots;
    if (notice.kind == NoticeKind::room) {
      hand_overs.take_room(notice);
      continue;
    }
    // The prefill engine may give a request up before this engine looks at its arrival.
    const auto waits = std::ranges::find_if(arrived, [&](const Request* request) {
      return request->record.request == notice.request && request->record.attempt == notice.attempt;
    });
    if (notice.kind == NoticeKind::withdrawn && waits != arrived.end()) {
      (*waits)->withdrawn = true;
    } else {
      scheduler.take(notice, now);
    }
  }
  return more;
}

// Takes arrivals and hints in the order in which they came.
void Engine::State::take_arrivals(const ReduceVector& agreed) {
  if (!scheduler.polls()) return;  // an abort keeps its place behind its request
  scheduler.polled();
  const auto enqueue_up_to = [&](std::uint64_t arrivals) {
    for (; arrivals_taken < arrivals; ++arrivals_taken) {
      scheduler.enqueue(*arrived.front(), agreed[agreed_time]);
      arrived.pop_front();
    }
  };
  for (; hints_taken < static_cast<std::uint64_t>(agreed[agreed_hints]); ++hints_taken) {
    const auto [hint, arrivals] = hints.front();
    hints.pop_front();
    // A hint comes after what came before it, except in a damaged journal.
    enqueue_up_to(std::min(arrivals, static_cast<std::uint64_t>(agreed[agreed_arrivals])));
    if (hint.kind == HintKind::abort) {
      scheduler.abort(hint.subject, agreed[agreed_time]);
    } else {
      cache.hint(hint, agreed[agreed_time]);
      if (hint.kind == HintKind::prefetch && config.hints == HintRule::obey) {
        scheduler.prefetch_for_hint(cache.keys_of_session(hint.subject), agreed[agreed_time]);
      }
    }
  }
  enqueue_up_to(static_cast<std::uint64_t>(agreed[agreed_arrivals]));
}

// Sets the timer for the end of a wait, because there may be no other input at that time.
void Engine::State::set_stop_timer(TimeNs step_time) {
  const TimeNs next = scheduler.holds() ? prefetcher.next_stop(step_time) : kNoStop;
  if (next == stop_time) return;
  if (stop_timer != OperationId::none) substrate.cancel(stop_timer);
  stop_timer = next == kNoStop ? OperationId::none : substrate.call_at(std::max(next, substrate.now()));
  stop_time = next;
}

void Engine::State::submit_pass() {
  sequences.clear();
  for (const PassPart* part : {&pass.prefill, &pass.decode}) {
    for (std::size_t i = 0; i < part->requests.size(); ++i) {
      const Request& request = *part->requests[i];
      sequences.push_back({request.record.request, request.kv_tokens, part->new_tokens[i], request.slots,
                           std::span(request.keys).first(request.slots.size()), scheduler.step_yield(request)});
    }
  }
  ForwardOperation operation;
  operation.shape = pass.shape;
  operation.steps = pass.steps;
  operation.sequences = sequences;
  // Decoding requests have had their loads.
  if (!pass.prefill.empty() && scheduler.loads_gate_passes()) operation.gates = cache.loads_in_flight();
  if (cache.has_parts()) operation.parts = this;
  pass_complete = pass_cancelled = false;
  pass_start = substrate.now();
  pass_id = substrate.submit(operation);
  phase = Phase::passing;
  report_prefills();
  write_beside_pass();
}

void Engine::State::get(std::size_t sequence, std::vector<SequencePart>& parts) const {
  const std::size_t prefills = pass.prefill.requests.size();
  const bool decodes = sequence >= prefills;
  const PassPart& part = decodes ? pass.decode : pass.prefill;
  const std::size_t at = decodes ? sequence - prefills : sequence;
  const Request& request = *part.requests[at];
  cache.get_parts(request.pools, request.lease, request.kv_tokens, request.kv_tokens + part.new_tokens[at], decodes,
                  parts);
}

void Engine::State::report_prefills() {
  for (std::size_t i = 0; i < pass.prefill.requests.size(); ++i) {
    sink.event_at({.kind = EventKind::prefill_started,
                   .time = pass_start,
                   .tokens = pass.prefill.new_tokens[i],
                   .operation = pass_id,
                   .record = &pass.prefill.requests[i]->record});
  }
}

std::int64_t Engine::State::pass_outcome() const {
  if (!pass_complete) return std::numeric_limits<std::int64_t>::max();
  const bool failed = pass_completion.status == Status::failed || pass_completion.status == Status::gate_failed;
  return failed ? 0 : 1 + static_cast<std::int64_t>(pass_completion.steps);
}

// Counts the steps that every rank has done: a decode burst may have been cut at a later step on this rank.
void Engine::State::finish_pass(std::int64_t outcome) {
  const TimeNs duration = pass_end - pass_start;
  const std::uint64_t steps = outcome == 0 ? 0 : static_cast<std::uint64_t>(outcome - 1);
  const bool gated = scheduler.loads_gate_passes();
  const bool counts = !(load_failed && gated) && steps > 0;
  // The decode part first: its requests were admitted before those of the prefill.
  if (!pass.decode.empty()) scheduler.decode_done(pass.decode, steps, pass_end);
  if (!counts && (!pass.prefill.empty() || (load_failed && gated))) {
    load_failed |= gated && cache.loading();  // the acknowledgements will show which loads failed
    scheduler.prefill_failed(pass.prefill, pass_end);
  } else {
    scheduler.prefill_done(pass.prefill, pass_end, duration - pass_completion.stalled_ns, pass_completion.stalled_ns);
  }
  pass_complete = false;
  const OperationId done = std::exchange(pass_id, OperationId::none);
  sink.event_at({.kind = EventKind::pass_done,
                 .time = pass_end,
                 .pages = pass.decode.empty() ? 0 : steps,
                 .tokens = counts ? pass.shape.prefill_tokens : 0,
                 .duration_ns = duration,
                 .operation = done});
}

// ---- the public face ---------------------------------------------------------------------------------

Engine::Engine(const EngineConfig& config, Substrate& substrate, DecisionLog& decisions, Observer* observer)
    : state_(std::make_unique<State>(config, substrate, decisions, observer)) {}

Engine::~Engine() = default;

bool Engine::idle() const {
  const State& s = *state_;
  return s.phase == State::Phase::idle && s.scheduler.idle() && s.arrived.empty() && !s.cache.anything_in_flight() &&
         !s.storage.anything_in_flight() && !s.prefetcher.any() && s.hand_overs.idle() && s.notices.empty();
}

void Engine::check_invariants() const {
  const State& s = *state_;
  s.scheduler.check_invariants(s.pass_id == OperationId::none && !s.pass_held ? nullptr : &s.pass);
  if (idle()) s.cache.check_rest();
}

std::string Engine::state_summary() const {
  const Scheduler& s = state_->scheduler;
  return std::to_string(s.waiting() + state_->arrived.size()) + " requests wait, " + std::to_string(s.running()) +
         " run" +
         (state_->cache.anything_in_flight() || state_->storage.anything_in_flight() ? ", transfers are in flight"
                                                                                     : "");
}

Pages Engine::pool_used_max(std::size_t at, Tier tier) const { return state_->cache.pool_used_max(at, tier); }

Pages Engine::pages_used_max(Tier tier) const {
  if (tier == Tier::device) return state_->cache.device_used_max();
  if (tier == Tier::host) return state_->cache.host_used_max();
  for (std::size_t i = 0; i < state_->storage.tiers(); ++i) {
    if (state_->storage.tier(i) == tier) return state_->storage.used_max(i);
  }
  return 0;
}

}  // namespace kvtwin
