// Prefetches: what L3 has of a waiting request's prompt is brought nearer while the request queues.
//
//            issue                 a hit worth it           all answered
//   (none) --------> looking_up -------------------> fetching -----------> landed --take--> (none)
//      | declined       |  | revoked: miss, too        |  stop, abort        ^
//      v                |  | short, no room, stopped   v                     |
//   retried, maybe      |  +--------> landed        draining (the request has gone on;
//                       | direct                     what arrives still is kept)
//                       +--------> ready: fetched into L1 at admission
//
// By L2: host slots are allocated when the hit is known, for as much of it as fits; the pages come in batches, each
// one operation, and belong to the prefetch until they are committed: the leading ones that have arrived enter the
// index below what was matched, the slots of the others are freed. A batch that falls short ends the prefetch
// there, and cancels those after it. A stop commits what has arrived and cancels the rest.
//
// Each one that is issued is told to end once, in one of these ways (event, reason):
//   completed: prefetch_done none; failed: prefetch_done transfer_failed (a batch fell short);
//   stopped: prefetch_stopped stopped; revoked, that is before a page was asked for: prefetch_revoked, any but aborted;
//   aborted: prefetch_stopped or prefetch_revoked, aborted.
// What arrives after a stop is told by a prefetch_done for the reason `stopped`, which is no end.
// Who waits how long is the Termination policy's; nothing here waits.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "policy/cache.hpp"
#include "policy/config.hpp"
#include "policy/prefetch/lateness.hpp"
#include "policy/prefetch_admission.hpp"
#include "policy/seam/event_sink.hpp"
#include "policy/storage/storage.hpp"
#include "policy/termination.hpp"

namespace kvtwin {

// For the request's ledger, at its admission.
struct PrefetchOutcome {
  std::vector<FetchedRun> runs;  // pages that its prefetch brought to L2, or that are to be loaded straight
  Pages known_end = 0;           // L3 had its pages up to here, when it was asked
  bool stopped = false;
  TimeNs waited = 0;  // from when it could have been admitted but for this, to the prefetch's end
};

class Prefetcher {
 public:
  Prefetcher(const EngineConfig& config, Cache& cache, Storage& storage, const EventSink& sink);

  // A step: answers that are taken, and who is held, are of this time; answers may have come at any time after
  // `unseen_since`. `waiting`: requests that do, for prefetches or for the GPU.
  void begin_step(TimeNs step_time, TimeNs unseen_since, std::size_t waiting);
  // Starts one for the request's first `keys`. Reason::none, or why not; rate_limited may be tried again. `starts`:
  // when the request would be admitted if it didn't wait for this, by a guess.
  Reason issue(RequestId request, std::span<const PageKey> keys, TimeNs step_time, TimeNs starts);
  // An answer that all ranks have, to one of its look-ups or gets into L2. `head`: the request that is next to be
  // admitted, for CachePath::automatic.
  void take(const StorageAnswer& answer, RequestId head);

  // The request could be admitted: does it wait for its prefetch? If it has waited long enough, that is stopped.
  bool holds(RequestId request, TimeNs step_time);
  // When the next wait of those that `holds` said yes to ends, after now; kNoStop if none does by itself.
  TimeNs next_stop(TimeNs step_time) const;
  // Pages to be loaded straight after the first `matched`; none unless a prefetch is ready for that.
  Pages direct_pages(RequestId request, Pages matched) const;
  // The request is admitted, its match ends after `matched` pages.
  PrefetchOutcome finish(RequestId request, Pages matched);
  // Its client has gone.
  void abort(RequestId request);

  // True if issue() reads `starts`.
  bool weighs_costs() const { return admission_->weighs_costs(); }
  // Does the request wait for its prefetch, once it could be admitted?
  bool waits(RequestId request) const;
  bool any() const { return !prefetches_.empty(); }
  // Host slots that prefetches own.
  Pages owned_pages() const;
  void check_invariants() const;

 private:
  enum class State : std::uint8_t { looking_up, fetching, draining, ready, landed };
  struct Piece {
    StorageAnswer get;
    Pages first = 0;  // of the chain
    bool answered = false;
  };
  struct Prefetch {
    State state = State::looking_up;
    std::vector<PageKey> keys;
    Pages first = 0;  // where L1 and L2 ended
    Pages hit = 0;    // pages that L3 has from there on
    std::vector<FetchedRun> found;
    std::vector<SlotId> slots;  // of chain pages [fetch_first, fetch_first + slots.size())
    Pages fetch_first = 0;
    Pages arrived = 0;    // of those, without a gap
    Pages committed = 0;  // likewise
    std::vector<Piece> pieces;
    bool cut = false;  // a piece fell short, or it was stopped: those in flight are cancelled
    bool stopped = false;
    bool failed = false;  // a look-up, or a get that fell short by itself
    bool gone = false;    // the request
    bool end_told = false;
    TimeNs issued = 0, held_since = -1, progress = 0;
    TimeNs starts = 0;
    TimeNs ended = 0;  // its last answer came, or it was stopped; for accounts only
    Pages occupied = 0;
    Hold hold;
  };
  // A get into L2 that hasn't been answered.
  struct Read {
    OperationId id = OperationId::none;
    RequestId request = kNoRequest;
    Tokens tokens = 0;
    bool cut = false;  // cancelled
  };
  // What a tier is reading, in its order, and what reading has taken.
  struct Reads {
    std::deque<Read> queue;
    TimeNs began = 0;  // the first one, as steps saw it ...
    TimeNs vague = 0;  // ... or as much earlier, at most
    Lateness lateness;
    std::uint64_t token_ps = 0;
    std::array<std::uint64_t, 8> samples{};  // of that; the next one takes the oldest one's place
    std::size_t next = 0;
    TimeNs asked = 0;   // when the queue was empty last
    Tokens tokens = 0;  // that have come since then
  };
  using Entry = std::map<RequestId, Prefetch>::iterator;
  static bool is_waited_for(const Prefetch& prefetch) {
    return prefetch.state == State::looking_up || prefetch.state == State::fetching;
  }

  void take_look_up(Entry entry, const StorageAnswer& answer, RequestId head);
  void decide_on(Entry entry, RequestId head);
  void pin_found(const Prefetch& prefetch, bool pinned);
  bool fetch(Entry entry);
  void take_get(Entry entry, const StorageAnswer& answer);
  void cut(Entry entry);
  void stop(Entry entry, Reason reason);
  void commit(Prefetch& prefetch, RequestId request);
  void land(Entry entry);
  void revoke(Entry entry, Reason reason);
  void enter(Entry entry, State state);
  void tell_end(Entry entry, EventKind kind, Pages pages, Reason reason, Tier tier = Tier::host);
  void forget(Entry entry);
  void occupy(Prefetch& prefetch, Pages pages);
  bool pays(Pages first, Pages pages, TimeNs takes, TimeNs starts) const;
  bool can_pay(Pages first, Pages pages, TimeNs starts) const;
  TimeNs soonest_ns(Pages pages) const;
  std::size_t others(const Prefetch* own) const;
  Pages most_in_flight() const;
  void doubt_rates();
  void forget_rate(std::size_t tier);
  TimeNs queued_ns(std::size_t tier) const;
  void ask(std::size_t tier, const StorageAnswer& get);
  void learn(const StorageAnswer& answer);
  void unlearn(RequestId request);
  TimeNs stop_at(RequestId request, const Prefetch& prefetch) const;
  PrefetchFacts facts(RequestId request, const Prefetch& prefetch) const;
  TimeNs unit_ns(std::size_t tier, Tokens tokens) const;
  TimeNs read_ns(std::size_t tier, Tokens tokens) const;
  Tokens tokens(Pages pages) const { return pages * config_.shape.page_tokens; }

  const EngineConfig& config_;
  Cache& cache_;
  Storage& storage_;
  const EventSink& sink_;
  const std::unique_ptr<Termination> termination_;
  const std::unique_ptr<PrefetchAdmission> admission_;
  std::vector<Reads> reads_;  // by tier
  TimeNs step_time_ = 0, unseen_since_ = 0;
  std::size_t waiting_ = 0;
  std::uint32_t refused_in_a_row_ = 0;        // as too slow
  std::map<RequestId, Prefetch> prefetches_;  // those whose request has gone end with their last answer
  // So that a step looks at those that requests are held for, however many others wait.
  std::size_t looking_up_ = 0, fetching_ = 0;
  std::set<RequestId> held_;  // whom holds() said yes to, as long as the prefetch is waited for
  Pages occupied_ = 0;
};

}  // namespace kvtwin
