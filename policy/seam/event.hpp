// Events, for metrics, reports and tests. The policy never reads them. One call per state change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "policy/base/types.hpp"
#include "policy/seam/decision.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

// The record of one request. Times are the substrate's. The parts of the time to first token sum to it exactly:
// first_token - arrival = queue + prefetch_wait + load_wait + compute + hand_over. The first token of a prefill part is
// the end of its prompt.
struct RequestRecord {
  RequestId request = kNoRequest;
  Tokens prompt_tokens = 0;
  Tokens output_tokens = 0;
  TimeNs arrival = 0;
  TimeNs admitted = -1;  // first admission; -1 = never
  TimeNs first_token = -1;
  TimeNs finished = -1;
  // Tokens at first admission: prompt_tokens = hit.sum() + recomputed_after_stop + miss.
  PerTier<Tokens> hit;
  Tokens recomputed_after_stop = 0, miss = 0;
  Tokens unusable = 0;                           // of these, on L1 or L2, and a window or a state is missing there
  Tokens without_window = 0, without_state = 0;  // of the unusable ones: windows alone, states alone do not allow them
  Tokens reused_without_draft = 0;               // hit tokens whose pages lack a draft model's KV
  Tokens retracted_recompute = 0;                // computed again after retractions; not part of the sum
  TimeNs queue_ns = 0, prefetch_wait_ns = 0, load_wait_ns = 0, compute_ns = 0;
  TimeNs hand_over_ns = 0;  // decode part: from the arrival to the last page
  RequestPart part = RequestPart::whole;
  std::uint32_t peer = 0, attempt = 0;  // see Arrival
  std::uint32_t retractions = 0;
  std::uint32_t prefill_passes = 0;
  bool hinted = false;  // at the arrival, its session had given a hint, and had not ended since
  Reason rejected = Reason::none;
};

enum class EventKind : std::uint8_t {
  arrived,
  admitted,
  first_token,
  finished,
  rejected,
  retracted,  // record
  aborted,    // record
  backup_queued,
  backup_done,
  backup_dropped,  // tier host; pages, reason
  backup_retried,  // tier host; pages
  backup_awaited,  // tier device; pages that a request lacks until a write-back is done
  load_queued,
  load_declined,  // tier device; pages found on L2 or L3 that are computed again, reason
  load_done,
  load_failed,         // tier device; pages
  load_direct_done,    // tier device; pages of one get, reason: transfer_failed or none
  transfer_submitted,  // tier: the target; pages: all that were queued for it
  store_queued,        // tier (L3); pages
  store_done,          // tier (L3); pages, keys
  store_retried,       // tier (L3); pages
  store_dropped,       // tier, pages, reason, keys
  store_awaited,       // pages whose writes in flight keep requests from being admitted; 0: no longer
  storage_fell_short,  // tier, pages, cause, duration_ns: of one operation on this rank
  prefetch_issued,     // pages requested
  prefetch_declined,   // pages, reason
  prefetch_revoked,    // pages of the hit, reason
  prefetch_hit,        // pages of a hit that will go to L2: sum of the shortened and the started ones
  prefetch_shortened,  // pages that are not fetched, reason: L2 has no room, or other requests have brought them
  prefetch_started,    // tier; pages of one batch
  prefetch_stopped,    // pages of the hit that had not arrived
  prefetch_done,       // pages that arrived, also after a stop; reason: stopped, transfer_failed or none
  prefetch_used,       // pages that the request found
  prefetch_wasted,     // pages that arrived and were not kept; reason, stopped: after a stop in SGLang's style
  evicted,             // tier; pages, reason: demoted, shadowed, or lost and similar reasons; keys of storage tiers
  pages_stored,        // tier device or host; keys, in the order of the chain: from now on, a match finds them there
  pages_removed,       // tier device or host; keys: from now on, no match finds them there
  slots_allocated,
  slots_released,   // tier; slots
  prefill_started,  // record; one event per request of a prefill pass; tokens: of its chunk
  pass_done,        // pages: decode steps; tokens: of the prefill; 0 of each part that failed; duration_ns
  // Requests in two parts:
  expected,             // decode part: record; pages leased for the prompt
  fell_back,            // decode part: record; reason: the decode engine computes the prompt itself
  prefilled,            // prefill part: record; the prompt has been computed
  hand_over_submitted,  // prefill part: request; pages, operation
  hand_over_ended,      // prefill part: request; pages, operation; reason: transfer_failed or none
  handed_over,          // prefill part: record; its end: the decode engine has all pages
  hand_over_dropped,    // prefill part: record; its end without a hand-over, and the reason
  // Hints that the cache obeys:
  held,        // pages as in DecisionKind::hold; reason: none or quota (refused)
  unheld,      // pages as in DecisionKind::unhold; reason: none, expired, quota (over the share), capacity (for room)
  held_pages,  // tier device or host; pages of it that are held from now on
};

struct Event {
  EventKind kind = EventKind::arrived;
  TimeNs time = 0;
  Tier tier = Tier::device;
  Reason reason = Reason::none;
  // Of evicted, of stores and of slots: 1 + the number of a pool beside pool 0; pages: its slots, no keys.
  std::uint8_t pool = 0;
  Pages pages = 0;
  Tokens tokens = 0;
  TimeNs duration_ns = 0;
  Cause cause = Cause::none;
  // Of passes, and of transfers after their submission. A stopped, done or late prefetch has its first read here.
  OperationId operation = OperationId::none;
  RequestId request = kNoRequest;         // of prefetches; other events about a request have its record
  const RequestRecord* record = nullptr;  // borrowed for the call
  std::span<const SlotId> slots{};        // borrowed for the call
  std::span<const PageKey> keys{};        // borrowed for the call
  std::size_t engine = 0;                 // of several engines; set where their events come together
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_event(const Event& event) = 0;
};

}  // namespace kvtwin
