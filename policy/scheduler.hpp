// The request scheduler: which requests wait, which run, and what the next forward pass computes.
//
// Continuous batching, prefill first (SGLang's default): as long as a waiting request fits, the next pass is a
// prefill of at most chunk_tokens; else it decodes one token for every running request, `steps` times over. With a
// draft model a step yields more than one on average: accept_x1024 / 1024, the fraction kept by each request until it
// makes a whole token, so that k steps on end yield floor(k * accept).
//
//            reject                     last chunk            last token
//   arrived --------> gone    waiting ------------> running -------------> finished
//      \----------------------^     ^---- retract ----/
//
// Nothing starves: waiting requests are kept in order of arrival, the head is never passed over more than
// overtake_limit times, and what is retracted is the youngest and goes back to its place. Nothing deadlocks:
// a request that passed the length check fits an otherwise empty L1.
// A step costs O(batch), or O(order_window) look-ups for an order that reorders and for requests that are held for
// their prefetches; it doesn't grow with the queue. A waiting request takes its Request and the keys of its prompt's
// pages.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "policy/cache.hpp"
#include "policy/config.hpp"
#include "policy/order.hpp"
#include "policy/prefetch/prefetch.hpp"

namespace kvtwin {

struct Request {
  RequestRecord record;
  std::int32_t priority = 0;
  std::uint64_t session = 0;  // 0 = none
  std::vector<PageKey> keys;  // of its pages, in order; grows with private ones
  std::vector<SlotId> slots;  // device slots of its pages so far
  Pages shared = 0;           // slots[0, shared) are the index's, held by the lease
  NodeId lease = NodeId::none;
  Tokens computed_tokens = 0;    // the most that kv_tokens ever was
  Tokens kv_tokens = 0;          // KV computed or reused
  Tokens prefill_target = 0;     // prompt, and after a retraction the output so far
  Tokens generated = 0;          // output tokens
  std::uint64_t part_x1024 = 0;  // of its next token, that decode steps have yielded so far: < 1024
  Pages counted = 0;             // of its path, that have had its hit (write_threshold); anew after a retraction
  Pages without_draft = 0;       // pages that it reuses and that lack the draft model's KV
  std::uint32_t overtaken = 0;
  std::uint32_t prefetch_attempts = 0;
  TimeNs lacked_ns = 0;    // to compute what no near tier had when it came; if the prefetch admission weighs costs
  bool recompute = false;  // a load of its prefix failed: compute it instead

  Tokens output_left() const { return record.output_tokens - generated; }
};

// What the next forward pass does; built anew each step.
struct Pass {
  bool prefill = false;
  std::uint64_t steps = 1;
  ForwardShape shape;
  std::vector<Request*> requests;
  std::vector<Tokens> new_tokens;  // of each
};

class Scheduler {
 public:
  Scheduler(const EngineConfig& config, Cache& cache, Prefetcher& prefetcher, const EventSink& sink);

  // A blank request to fill in and enqueue; the scheduler owns it until it has finished.
  Request& new_request();
  // Takes it in, or rejects and forgets it.
  void enqueue(Request& request, TimeNs now);

  // The request's client has gone: it ends here, if it hasn't ended.
  void abort(RequestId id, TimeNs now);
  // Prefetches that were declined for lack of room, once more.
  void retry_prefetches(TimeNs now);

  // Fills `pass`; false if there is nothing to do, or nothing that fits yet.
  bool form(TimeNs step_time, Pass& pass);
  // The pass has ended at `end`. Its requests move on.
  void prefill_done(const Pass& pass, TimeNs end, TimeNs compute_ns, TimeNs stalled_ns);
  // Returns the tokens that its steps yielded.
  Tokens decode_done(const Pass& pass, std::uint64_t steps, TimeNs end);
  // Its load failed, so nothing it computed counts: its requests go back and recompute.
  void prefill_failed(const Pass& pass, TimeNs end);

  // Would an arrival be looked at by the next step? (Otherwise a decode burst goes on.)
  bool arrival_matters() const;
  bool blocked() const { return blocked_; }  // the head waits for room
  bool holds() const { return held_ > 0; }   // some wait for their prefetches
  RequestId head() const { return waiting_.empty() ? kNoRequest : waiting_.front()->record.request; }
  std::size_t waiting() const { return waiting_.size(); }
  std::size_t running() const { return running_.size(); }
  bool idle() const { return waiting_.empty() && running_.empty() && chunked_ == nullptr; }

  // Device pages that requests own outside the index.
  Pages owned_pages() const;
  // Every request has the slots and leases that its place says.
  void check_invariants(const Pass* in_flight) const;

 private:
  Pages pages_for(Tokens tokens) const { return (tokens + config_.shape.page_tokens - 1) / config_.shape.page_tokens; }
  bool form_prefill(TimeNs step_time, Pass& pass);
  bool form_decode(TimeNs step_time, Pass& pass);
  void order_window();
  enum class Admission : std::uint8_t { admitted, held, no_room };
  Admission admit(Request& request, TimeNs step_time, Tokens budget);
  std::span<const PageKey> reusable(const Request& request) const;
  Pages first_pages(const Request& request, const PrefixMatch& match, Pages direct, Tokens budget) const;
  void reuse(Request& request, const PrefixMatch& match, bool first);
  void count_hits(RequestRecord& record, const PrefixMatch& match, Pages loaded, const PrefetchOutcome& outcome) const;
  std::deque<Request*>::iterator find_waiting(RequestId id);
  void prefetch(Request& request, TimeNs now);
  TimeNs ahead_ns(Request& request);
  Tokens tail(const Request& request, Pages pages) const;
  Tokens extend(Request& request, Tokens budget, Pass& pass);
  Pages burst_pages(std::uint64_t steps) const;
  std::uint64_t yield_x1024(const Request& request) const;
  Tokens yield_of(const Request& request, std::uint64_t steps) const;
  std::uint64_t steps_left(const Request& request) const;
  bool retract_youngest(TimeNs now);
  void retract(Request& request, Reason reason, TimeNs now);
  void publish(Request& request, bool chunked);
  Visit visit_of(const Request& request, std::span<const PageKey> keys, bool further) const;
  void produce_token(Request& request, TimeNs now);
  void finish(Request& request, TimeNs now);
  void ensure_keys(Request& request, Pages pages);
  Pages reserve_pages(Tokens more_output) const;
  void tell(EventKind kind, const Request& request, TimeNs now);
  void decide(DecisionKind kind, Reason reason, const Request& request, Pages pages);
  void recycle(Request& request);

  const EngineConfig& config_;
  Cache& cache_;
  Prefetcher& prefetcher_;
  const EventSink& sink_;
  const std::unique_ptr<RequestOrder> order_;
  std::deque<Request*> waiting_;   // by ordinal
  std::vector<Request*> running_;  // in order of admission
  Request* chunked_ = nullptr;     // admitted, prompt not yet done; at most one
  std::vector<Request*> candidates_;
  std::vector<std::pair<std::uint64_t, Request*>> ranked_;
  std::vector<std::unique_ptr<Request>> requests_;  // all there ever were at once
  std::vector<Request*> spare_;                     // of those, the unused
  Tokens running_output_left_ = 0;                  // of running_ and chunked_ and of the pass being formed
  std::uint64_t steps_since_reset_ = 0;
  std::uint64_t steps_ = 0;
  TimeNs step_time_ = 0;
  std::deque<std::pair<std::uint64_t, RequestId>> retries_;  // from which step on, whose prefetch
  std::uint32_t held_ = 0;                                   // requests that the last step passed over
  bool blocked_ = false;
};

}  // namespace kvtwin
