// Prefetches: while a request waits, pages of its prompt that only L3 has are copied to L2 (or, at its admission, to
// L1).
//
//            issue                 hit admitted           all answered
//   (none) --------> looking_up ----------------> fetching -----------> landed --finish--> (none)
//      | declined       |  | revoked: miss, too     |  stop, abort        ^
//      v                |  | short, no room, ...    v                     |
//   unfulfilled         |  +-----> landed,       draining (the request no longer waits;
//                       |      unfulfilled        pages that still arrive are kept)
//                       | direct
//                       +--------> ready: fetched into L1 at admission
//
// While the request waits, the scheduler may issue again: after an unfulfilled prefetch, and if the prefix that the
// look-up began behind has become shorter. The pages that an earlier prefetch brought still count for the request. A
// prefetch that is draining does not delay the next one of its request: it goes on by itself until its last answer.
//
// Through L2: when the hit is known, host slots are allocated for as much of it as fits. The pages come in batches,
// each of which is one operation. The slots belong to the prefetch until they are committed: the leading pages that
// have arrived enter the index below the matched prefix, and the slots of the others are freed. If a batch falls short,
// the prefetch ends there, and the later batches are cancelled. A stop commits the pages that have arrived and cancels
// the rest.
//
// PrefetchStyle::sglang (SGLang's `unified_radix_cache.py`) differs: the prefetch reads the whole hit, and evicts as
// many pages of L2 as the hit has if the free ones do not suffice. It counts as in flight with all pages that were
// asked for, until its end. A stop ends it: nothing that arrives later is kept, and a look-up that waits for its turn
// is cancelled. Slots that hold nothing to keep are freed one step after the last answer.
//
// With windows or states, the prefetch reads the longest prefix that is usable with them, and then what that prefix
// needs of them. It is of use only as a whole: what has arrived when it ends early is freed.
//
// If L2 is a buffer (HostMode::buffer), nothing enters the index on L2: what has arrived waits in the prefetch's slots
// (staged) for the admission, which loads it to L1. No other request finds it, and no page is held above it. As in
// SGLang, a hit is read as a whole or not at all, without the pages that L1 has got meanwhile.
//
// Each issued prefetch reports exactly one end:
//
//   completed   prefetch_done none
//   failed      prefetch_done transfer_failed: a batch fell short
//   stopped     prefetch_stopped stopped
//   revoked     prefetch_revoked, any reason but aborted: ended before a get was submitted
//   aborted     prefetch_stopped or prefetch_revoked, aborted
//
// Pages that arrive after a stop are reported by a prefetch_done with the reason `stopped`. That event is no end. The
// Termination policy decides how long a request waits.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "policy/cache.hpp"
#include "policy/config.hpp"
#include "policy/prefetch/lateness.hpp"
#include "policy/prefetch_admission.hpp"
#include "policy/seam/event_sink.hpp"
#include "policy/storage/storage.hpp"
#include "policy/termination.hpp"

namespace kvtwin {

// What a request's prefetches have achieved, for the request's record at its admission.
struct PrefetchOutcome {
  std::vector<FetchedRun> runs;  // pages that they brought to L2, or that are to be loaded straight to L1
  Pages known_end = 0;           // by the last look-ups, L3 had the pages up to here
  bool stopped = false;          // the last one
  TimeNs waited = 0;             // time in which only a prefetch held the request back
  std::vector<SlotId> staged;    // with a host buffer: slots with the pages behind the matched ones; the caller's now
};

class Prefetcher {
 public:
  Prefetcher(const EngineConfig& config, Cache& cache, Storage& storage, const EventSink& sink);

  // A step begins. Answers that the step takes have this time; they may have come at any time after `unseen_since`.
  // `waiting`: number of requests that wait, for prefetches or for the GPU.
  void begin_step(TimeNs step_time, TimeNs unseen_since, std::size_t waiting);
  // Starts a prefetch for the request's first `keys`, or declines it. Does nothing while the request waits for an
  // earlier one, and after a stop that was final. `match`: the cached part of `keys`. `starts`: estimate of the time at
  // which the request would be admitted without waiting for the prefetch.
  void issue(RequestId request, std::span<const PageKey> keys, const PrefixMatch& match, TimeNs step_time,
             TimeNs starts);
  // The same for a hint: no request waits for the prefetch, and it ends by itself. Requires: pages come through L2.
  void issue_for_hint(std::span<const PageKey> keys, const PrefixMatch& match, TimeNs step_time);
  // Returns the requests whose prefetch was declined or revoked, since the last call, for a cause that may pass.
  std::vector<RequestId> take_unfulfilled() { return std::exchange(unfulfilled_, {}); }
  // Takes an answer, which all ranks have, to one of its look-ups or gets into L2. `head`: the request that is admitted
  // next, for CachePath::automatic.
  void take(const StorageAnswer& answer, RequestId head);

  // Requires: the request could be admitted now. Returns whether it waits for its prefetch. If it has waited long
  // enough, stops the prefetch.
  bool holds(RequestId request, TimeNs step_time);
  // Returns the first time after now at which a request that holds() held back stops waiting; kNoStop if none does by
  // itself.
  TimeNs next_stop(TimeNs step_time) const;
  // Returns the number of pages to load straight to L1 after the first `matched` pages; 0 unless a prefetch is ready
  // for that.
  Pages direct_pages(RequestId request, Pages matched) const;
  // The request is admitted, and its match ends after `matched` pages.
  PrefetchOutcome finish(RequestId request, Pages matched);
  // The request's client has gone.
  void abort(RequestId request);

  // True if issue() reads `starts`.
  bool weighs_costs() const { return admission_->weighs_costs(); }
  // Returns whether a prefetch of the request is under way: the request will wait for it once it could be admitted.
  bool waits(RequestId request) const;
  bool any() const { return !prefetches_.empty(); }
  // Once a step, after the storage answers: frees the slots that the step before released; if `all`, those of this step
  // too.
  void free_released(bool all);
  // Host slots that prefetches own.
  Pages owned_pages() const;
  // The same, of each pool beside pool 0.
  std::vector<Pages> owned_beside() const;
  void check_invariants() const;

 private:
  enum class State : std::uint8_t { looking_up, fetching, draining, ready, staged, landed };
  struct Piece {
    StorageAnswer get;
    Pages first = 0;  // index in the chain
    bool answered = false;
  };
  struct Prefetch {
    State state = State::looking_up;
    std::vector<PageKey> keys;
    Pages first = 0;  // the first page that neither L1 nor L2 had
    Pages hit = 0;    // pages from there on that L3 has; with needs, after the last look-up the usable ones
    std::vector<StorageOperation::Need> needs;
    Pages usable = 0;  // pages of `hit` that are usable
    std::vector<FetchedRun> found;
    std::size_t pinned_runs = 0;              // of `found`, from the first on
    OperationId look_up = OperationId::none;  // that is not answered yet
    std::vector<SlotId> slots;                // slots of the chain's pages [fetch_first, fetch_first + slots.size())
    std::vector<Cache::PoolSlots> beside;     // of the windows and the state
    Pages fetch_first = 0;
    Pages arrived = 0;    // pages of `slots` that have arrived, without a gap
    Pages committed = 0;  // pages of `slots` that have been committed, without a gap
    Pages staged = 0;     // pages of `slots` that wait for the admission
    Pages given = 0;      // pages of `slots` that were staged, and are not the prefetch's any more
    std::vector<Piece> pieces;
    bool cut = false;  // a batch fell short, or the prefetch was stopped: batches in flight are cancelled
    bool stopped = false;
    bool failed = false;        // a look-up failed, or a get fell short without a cancel
    bool request_gone = false;  // the request was admitted or aborted, or has a newer prefetch
    bool was_final = false;     // the stop: the request gets no further prefetch
    bool for_hint = false;
    bool end_reported = false;
    TimeNs issued = 0, held_since = -1, progress = 0;
    TimeNs starts = 0;
    TimeNs ended = 0;  // the last answer came, or the prefetch was stopped; for reports only
    // Of the request's earlier prefetches in this wait.
    std::vector<FetchedRun> brought;  // pages that they brought to L2, in order
    TimeNs waited = 0;
    // The first wait of the request for a prefetch, and the tokens that this prefetch was to bring.
    TimeNs waits_since = -1;
    Tokens waits_for = 0;
    Pages occupied = 0;
    Hold hold;
  };
  // A get into L2 that is not answered yet.
  struct Read {
    OperationId id = OperationId::none;
    RequestId request = kNoRequest;
    Tokens tokens = 0;
    bool cut = false;  // cancelled
  };
  // The gets of one tier, in order, and how long they have taken.
  struct Reads {
    std::deque<Read> queue;
    TimeNs began = 0;         // start of the first get's turn, as steps saw it ...
    TimeNs uncertain_ns = 0;  // ... and by how much it may have been earlier
    Lateness lateness;
    std::uint64_t token_ps = 0;
    std::array<std::uint64_t, 8> samples{};  // the last values of token_ps, a ring
    std::size_t next = 0;
    TimeNs asked = 0;   // when the queue was last empty
    Tokens tokens = 0;  // tokens that have come since then
  };
  using Prefetches = std::multimap<RequestId, Prefetch>;
  using Entry = Prefetches::iterator;
  static bool is_waited_for(const Prefetch& prefetch) {
    return prefetch.state == State::looking_up || prefetch.state == State::fetching;
  }

  Entry find(RequestId request);
  const Prefetch* find(RequestId request) const;
  void inherit(Prefetch& prefetch, Entry from);
  void look_up(std::size_t tier, Entry entry);
  static std::vector<FetchedRun> runs_between(const Prefetch& prefetch, Pages from, Pages to);
  void take_look_up(Entry entry, const StorageAnswer& answer, RequestId head);
  void decide_after_look_ups(Entry entry, RequestId head);
  void unpin_found(Prefetch& prefetch);
  void cut_to_usable(Prefetch& prefetch);
  bool fetch(Entry entry);
  bool allocate_beside(Prefetch& prefetch);
  void free_beside(Prefetch& prefetch);
  void free_staged(Entry entry, Reason reason);
  void take_staged(Entry entry, Pages matched, PrefetchOutcome& outcome);
  static bool is_whole(const Prefetch& prefetch);
  void get(Entry entry, std::size_t tier, Pages first, std::span<const SlotId> slots, std::size_t pool);
  void take_get(Entry entry, const StorageAnswer& answer);
  void cut(Entry entry);
  void stop(Entry entry, Reason reason);
  void commit(Prefetch& prefetch, RequestId request);
  void land(Entry entry);
  void revoke(Entry entry, Reason reason);
  void enter(Entry entry, State state);
  void report_end(Entry entry, EventKind kind, Pages pages, Reason reason, Tier tier = Tier::host);
  void forget(Entry entry);
  void occupy(Prefetch& prefetch, Pages pages);
  bool is_admitted(Pages first, Pages pages, TimeNs takes, TimeNs starts) const;
  bool may_be_admitted(Pages first, Pages pages, TimeNs starts) const;
  TimeNs fastest_read_ns(Pages pages) const;
  std::size_t delayed_requests(const Prefetch* own) const;
  Pages max_in_flight_pages() const;
  void count_refusal();
  void reset_rate(std::size_t tier);
  TimeNs queued_ns(std::size_t tier) const;
  void queue_read(std::size_t tier, const StorageAnswer& get);
  void record_read(const StorageAnswer& answer);
  void give_up_reads(RequestId request);
  TimeNs stop_at(RequestId request, const Prefetch& prefetch) const;
  PrefetchFacts facts(RequestId request, const Prefetch& prefetch) const;
  TimeNs unit_ns(std::size_t tier, Tokens tokens) const;
  TimeNs read_ns(std::size_t tier, Tokens tokens) const;
  void release(std::span<const SlotId> slots);
  // Identifies the prefetch in events; none before the gets.
  static OperationId first_get(const Prefetch& prefetch) {
    return prefetch.pieces.empty() ? OperationId::none : prefetch.pieces.front().get.id;
  }
  bool whole() const { return config_.prefetch_style == PrefetchStyle::sglang; }
  Tokens tokens(Pages pages) const { return pages * config_.shape.page_tokens; }
  // Tokens of pool 0 that have the bytes of so many objects of the get's pool.
  Tokens tokens(const StorageAnswer& get, Pages objects) const {
    if (get.pool == 0) return tokens(objects);
    return objects * config_.shape.page_tokens * storage_.object_bytes(get.pool) / config_.page_bytes() + 1;
  }

  const EngineConfig& config_;
  Cache& cache_;
  Storage& storage_;
  const EventSink& sink_;
  const std::unique_ptr<Termination> termination_;
  const std::unique_ptr<PrefetchAdmission> admission_;
  std::vector<Reads> reads_;  // by tier
  TimeNs step_time_ = 0, unseen_since_ = 0;
  std::size_t waiting_ = 0;
  std::uint32_t refusals_in_a_row_ = 0;  // as too slow
  // Also those whose request has gone, until their last answer. Of a request's prefetches, the last is the newest.
  Prefetches prefetches_;
  // Kept so that a step looks only at the prefetches that hold a request back, however many others there are.
  std::size_t looking_up_ = 0, fetching_ = 0;  // of requests, not of hints
  std::set<RequestId> held_;                   // requests that holds() held back, while they wait for the prefetch
  RequestId next_hint_ = kFirstHintRequest;
  std::vector<RequestId> unfulfilled_;
  std::vector<SlotId> released_, released_before_;  // in this step, and in the step before; not free yet
  Pages occupied_ = 0;
};

}  // namespace kvtwin
