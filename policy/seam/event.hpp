// What happened, for metrics, reports and tests; never read back by the policy. One call a state change.
#pragma once

#include <cstdint>
#include <span>

#include "policy/base/types.hpp"
#include "policy/seam/decision.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

// One request's life. Times are the substrate's; parts of the time to first token sum to it exactly:
// first_token - arrival = queue + prefetch_wait + load_wait + compute.
struct RequestRecord {
  RequestId request = kNoRequest;
  Tokens prompt_tokens = 0;
  Tokens output_tokens = 0;
  TimeNs arrival = 0;
  TimeNs admitted = -1;  // first admission; -1 = never
  TimeNs first_token = -1;
  TimeNs finished = -1;
  // Ledger at first admission: prompt_tokens = hit.sum() + recomputed_after_stop + miss.
  PerTier<Tokens> hit;
  Tokens recomputed_after_stop = 0, miss = 0;
  Tokens reused_without_draft = 0;  // of the hits, those whose pages lack a draft model's KV
  Tokens retracted_recompute = 0;   // computed again after retractions; outside the identity
  TimeNs queue_ns = 0, prefetch_wait_ns = 0, load_wait_ns = 0, compute_ns = 0;
  std::uint32_t retractions = 0;
  std::uint32_t prefill_passes = 0;
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
  load_declined,  // tier device; pages found on L2 or past it that are computed again, reason
  load_done,
  load_failed,         // tier device; pages
  load_direct_done,    // tier device; pages of one get, reason: transfer_failed or none
  transfer_submitted,  // tier: to which; pages: all that was queued for it
  store_queued,        // tier (L3); pages
  store_done,          // likewise
  store_retried,       // likewise
  store_dropped,       // tier, pages, reason
  storage_fell_short,  // tier, pages, cause: of one operation; this rank's
  prefetch_issued,     // pages asked for
  prefetch_declined,   // pages, reason
  prefetch_revoked,    // pages of the hit, reason
  prefetch_hit,        // pages of a hit that is to go to L2: those shortened and those started
  prefetch_shortened,  // pages that aren't fetched, reason: L2 has no room, or others have brought them
  prefetch_started,    // tier; pages of its part of the hit
  prefetch_stopped,    // pages of the hit that hadn't arrived
  prefetch_done,       // pages that arrived, those after a stop too; reason: stopped, transfer_failed or none
  prefetch_used,       // pages that the request found
  prefetch_wasted,     // pages that arrived and weren't kept, reason
  evicted,             // tier; pages, reason: demoted, shadowed, or lost and its kinds
  slots_allocated,
  slots_released,   // tier; slots
  prefill_started,  // record; one for each request of a prefill pass. tokens: of its chunk
  pass_done,        // pages: decode steps; tokens: prefilled or decoded, none if it failed; duration_ns
};

struct Event {
  EventKind kind = EventKind::arrived;
  TimeNs time = 0;
  Tier tier = Tier::device;
  Reason reason = Reason::none;
  Pages pages = 0;
  Tokens tokens = 0;
  TimeNs duration_ns = 0;
  Cause cause = Cause::none;
  OperationId operation = OperationId::none;  // of passes and of transfers from their submission on
  RequestId request = kNoRequest;             // of prefetches; others that are about a request have its record
  const RequestRecord* record = nullptr;      // borrowed for the call
  std::span<const SlotId> slots{};            // borrowed for the call
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_event(const Event& event) = 0;
};

}  // namespace kvtwin
