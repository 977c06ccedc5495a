// The request scheduler: which requests wait, which run, and what the next forward pass computes.
//
// Continuous batching. The style (policy/style.hpp) composes each pass from the mechanisms here: the next chunk of a
// prompt, the admission of waiting requests, decode steps of the running requests, retraction. With a draft model, a
// step yields accept_x1024 / 1024 tokens on average. Each request keeps the fraction until it makes a whole token, so k
// steps yield floor(k * accept) tokens.
//
//            reject                               last chunk            last token
//   arrived --------> gone    waiting [+ prefix] ------------> running -------------> finished
//      \----------------------^   ^  \_release_/                   |
//                                 \----------- retract -----------/
//
// "+ prefix": under a style that loads before admission, a waiting request holds its cached prefix while the part of L2
// is loaded.
//
// Nothing starves: waiting requests stay in order of arrival, the head is never passed over more than overtake_limit
// times, and a retracted request goes back to its place. Nothing deadlocks: a request that passed the length check fits
// into an otherwise empty L1, and a waiting request gives its prefix back if only that keeps all others waiting.
//
// Cost: a step is O(batch). With an order that reorders, or with requests that wait for prefetches, it also does
// O(order_window) look-ups. It does not grow with the queue. Memory: a waiting request takes its Request and the keys
// of its prompt's pages.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "policy/cache.hpp"
#include "policy/config.hpp"
#include "policy/hand_over.hpp"
#include "policy/order.hpp"
#include "policy/prefetch/prefetch.hpp"
#include "policy/style.hpp"

namespace kvtwin {

struct Request {
  RequestRecord record;
  std::int32_t priority = 0;
  std::uint64_t session = 0;        // 0 = none
  std::uint64_t session_began = 0;  // Cache::request_of_session_began()
  bool enqueued = false;
  Tokens system_tokens = 0;   // of the prompt; 0 = not known
  std::vector<PageKey> keys;  // keys of its pages, in order; private keys are added as needed
  std::vector<SlotId> slots;  // device slots of its pages so far
  Pages shared = 0;           // slots[0, shared) belong to the index; the lease protects them
  NodeId lease = NodeId::none;
  RequestPools pools;                       // what it has beside pool 0
  Tokens computed_tokens = 0;               // the largest value that kv_tokens has had
  Tokens kv_tokens = 0;                     // KV computed or reused
  Tokens prefill_target = 0;                // prompt; after a retraction, prompt and output so far
  Tokens generated = 0;                     // output tokens
  std::uint64_t yield_remainder_x1024 = 0;  // part of the next token that decode steps have yielded: < 1024
  Cache::Counted counted;                   // the same after a retraction as before the first insert
  Pages without_draft = 0;                  // reused pages that lack the draft model's KV
  bool copies_state = false;                // its next pass begins with a copy of a cached state
  std::uint32_t overtaken = 0;
  std::uint32_t prefetch_attempts = 0;  // in this wait
  Pages looked_up_behind = 0;           // pages on L1 and L2 at the last attempt
  std::uint64_t retry_step = 0;         // its entry in Scheduler::retries_; 0 = none
  Tokens prefill_tokens_before = 0;     // Scheduler::prefill_tokens_ when the request began to wait
  // Time to compute what L1 and L2 lacked at its arrival; only if the prefetch admission weighs costs.
  TimeNs uncached_compute_ns = 0;
  bool recompute = false;       // a load of its prefix failed: compute it instead
  bool matched_before = false;  // it has taken over a cached prefix before, so its hits are counted
  // Prefill part: slots of its pages that the index replaced by its own while they were written to the decode engine.
  std::vector<SlotId> displaced;
  bool needs_room = false;  // prefill part: not admitted before the decode engine has room
  bool gone = false;        // decode part: ended, with leased pages that the prefill engine may still write
  bool withdrawn = false;   // decode part: the prefill engine has given it up before it was expected
  bool received = false;    // decode part: the prompt's pages come from the prefill engine
  bool room_due = false;    // decode part: the prefill engine has not been told of its room
  TimeNs load_since = -1;   // while it waits for the load of its prefix: the step that started the load

  Tokens output_left() const { return record.output_tokens - generated; }
};

// In the order of the requests' numbers.
inline bool is_older(const Request* a, const Request* b) { return a->record.request < b->record.request; }

// Requests of a pass, and the new tokens of each.
struct PassPart {
  std::vector<Request*> requests;
  std::vector<Tokens> new_tokens;

  bool empty() const { return requests.empty(); }
  void clear() {
    requests.clear();
    new_tokens.clear();
  }
  void add(Request& request, Tokens tokens) {
    requests.push_back(&request);
    new_tokens.push_back(tokens);
  }
};

// The next forward pass; built again in each step.
struct Pass {
  std::uint64_t steps = 1;  // more than 1 only without prefill
  ForwardShape shape;
  PassPart prefill, decode;
};

class Scheduler {
 public:
  Scheduler(const EngineConfig& config, Cache& cache, Prefetcher& prefetcher, HandOvers& hand_overs,
            const EventSink& sink);

  // Returns a blank request to fill in and enqueue. Ownership: the scheduler's, until the request has finished.
  Request& new_request();
  // Adds the request to the queue, or rejects it and takes it back.
  void enqueue(Request& request, TimeNs now);

  // The request's client has gone. Ends the request, if it has not ended.
  void abort(RequestId id, TimeNs now);
  // A step begins. Issues prefetches again that were declined, or that found too little.
  void retry_prefetches(TimeNs now);

  // Fills `pass`. Returns false if there is nothing to do, or if nothing fits yet.
  bool form(TimeNs step_time, Pass& pass);
  // The prefill of the pass has ended at `end`. Its requests continue.
  void prefill_done(const PassPart& part, TimeNs end, TimeNs compute_ns, TimeNs stalled_ns);
  // The same for `steps` decode steps.
  void decode_done(const PassPart& part, std::uint64_t steps, TimeNs end);
  // The pass, or a load of it, failed, so its prefill does not count: the requests go back to the queue and compute
  // again.
  void prefill_failed(const PassPart& part, TimeNs end);
  // The load with this number (Cache::load_failure) has failed. Waiting requests that hold pages of this load give
  // their prefix back. Call it before the failure is acknowledged.
  void load_failed(std::uint64_t load, TimeNs now);
  // False with vLLM's offloading: the cache reads what a look-up finds in a storage tier.
  // A hint wants these pages of a session on L2.
  void prefetch_for_hint(std::span<const PageKey> keys, TimeNs now);
  bool prefetches() const { return !config_.storage.empty() && !cache_.offloads_blocks(); }
  // True: a prefill pass waits for all loads in flight. False: no request that runs uses pages that are being loaded.
  bool loads_gate_passes() const { return !style_->loads_before_admission(); }

  // ---- requests in two parts (scheduler_parts.cpp)
  // Writes the pages that have been computed and that the decode engines have room for.
  // Requires: no pass is in flight; or only write_parked().
  void write_computed();
  void write_parked();
  // Tells prefill engines of the room for their prompts, unless copies of evictions still read it.
  void send_room();
  // The writes of a prefill part have ended: all are done, or have failed too often.
  void hand_over_ended(const HandOvers::Ended& ended, TimeNs now);
  void take(const Notice& notice, TimeNs now);  // every kind but `room`
  // Returns whether a request waits for another engine.
  bool awaits_peer() const;

  // Of the next decode steps.
  StepYield step_yield(const Request& request) const;

  // Returns whether an arrival can change the next step. If not, a decode burst continues.
  bool arrival_changes_step() const;
  // Returns whether this step looks at new requests and hints (poll_steps). Always true if no request runs.
  bool polls() const { return running_.empty() || steps_unpolled_ >= config_.poll_steps; }
  void polled() { steps_unpolled_ = 0; }
  void poll_next() { steps_unpolled_ = config_.poll_steps; }  // the next step looks
  bool blocked() const {
    return blocked_ || !expected_.empty();
  }                                         // the head of the queue waits for room, or a decode part does
  bool holds() const { return held_ > 0; }  // some requests wait for prefetches, or for the peer's room
  RequestId head() const { return waiting_.empty() ? kNoRequest : waiting_.front()->record.request; }
  std::size_t waiting() const { return waiting_.size(); }
  std::size_t running() const { return running_.size(); }
  bool idle() const {
    return waiting_.empty() && running_.empty() && chunked_ == nullptr && parked_.empty() && expected_.empty() &&
           leased_.empty();
  }

  // Device pages that requests own outside the index.
  Pages owned_pages() const;
  // Checks that every request has the slots and leases of its state.
  void check_invariants(const Pass* in_flight) const;

 private:
  // Returns the largest number of decode steps before the next poll or retry.
  std::uint64_t steps_to_poll(std::uint64_t max_steps) const {
    if (looks_up_again_) return 1;
    if (!retries_.empty()) max_steps = std::min(max_steps, retries_.begin()->first - steps_);
    if (config_.poll_steps == 1) return max_steps;
    return std::min(max_steps, config_.poll_steps - std::min<std::uint64_t>(steps_unpolled_, config_.poll_steps - 1));
  }
  Pages pages_for(Tokens tokens) const { return (tokens + config_.shape.page_tokens - 1) / config_.shape.page_tokens; }
  class Builder;
  enum class Admission : std::uint8_t { admitted, held, no_room };
  Admission admit(Request& request, Tokens budget, Pages reserved);
  Admission take_over(Request& request, Tokens budget, Pages reserved);
  bool has_room(const Request& request, Pages device_pages, Pages cached, Tokens budget, Pages reserved) const;
  void enter(Request& request);
  bool arriving(const Request& request) const;
  void settle_loads();
  void await_writes();
  std::span<const PageKey> reusable(const Request& request) const;
  Pages first_chunk_end(const Request& request, Pages cached, Tokens budget) const;
  void take_over_prefix(Request& request, const PrefixMatch& match);
  void count_hits(RequestRecord& record, const PrefixMatch& match, Pages loaded, const PrefetchOutcome& outcome) const;
  std::deque<Request*>::iterator find_waiting(RequestId id);
  void prefetch(Request& request, TimeNs now);
  bool retries(const Request& request) const;
  bool look_up_again(Request& request, const PrefixMatch& match);
  TimeNs queued_compute_ns(Request& request);
  Tokens first_chunk_tokens(const Request& request, Pages pages) const;
  std::uint64_t yield_x1024(const Request& request) const;
  Tokens yield_of(const Request& request, std::uint64_t steps) const;
  std::uint64_t steps_left(const Request& request) const;
  bool retract_victim(TimeNs now);
  void retract(Request& request, Reason reason, TimeNs now);
  void give_pages_back(Request& request);
  void release_prefix(Request& request, Reason reason);
  enum class Publish : std::uint8_t { chunk, prompt, end };
  void publish(Request& request, Publish after);
  std::span<const PageKey> cacheable(const Request& request) const;
  Visit visit_of(const Request& request, std::span<const PageKey> keys, bool further) const;
  void produce_token(Request& request, TimeNs now);
  void finish(Request& request, TimeNs now);
  void ensure_keys(Request& request, Pages pages);
  Pages reserve_pages(Tokens more_output) const;
  void report(EventKind kind, const Request& request, TimeNs now);
  void decide(DecisionKind kind, Reason reason, const Request& request, Pages pages);
  void recycle(Request& request);
  void insert_waiting(Request& request);
  void reject(Request& request, TimeNs now);
  void expect(Request& request, TimeNs now);
  void lease_expected();
  bool lease_pages(Request& request);
  void park(Request& request, TimeNs now);
  void free_displaced(Request& request);
  bool retract_parked();
  void end_part(Request& request, Reason reason, TimeNs now);
  void receive(Request& request, TimeNs now);
  void fall_back(Request& request, Reason reason, TimeNs now);
  void free_leased(Request& request);
  bool abort_part(RequestId id, Reason reason, TimeNs now);
  void lose_peer(std::uint32_t peer, TimeNs now);
  Request* find_part(RequestId id, std::uint32_t attempt);

  const EngineConfig& config_;
  Cache& cache_;
  Prefetcher& prefetcher_;
  HandOvers& hand_overs_;
  const EventSink& sink_;
  const std::unique_ptr<RequestOrder> order_;
  const std::unique_ptr<EngineStyle> style_;
  std::deque<Request*> waiting_;   // by request number
  std::vector<Request*> holders_;  // waiting requests that hold a prefix, by the time of the load
  std::vector<Request*> running_;  // in order of admission
  Request* chunked_ = nullptr;     // admitted, with a part of its prompt not computed; at most one
  std::vector<Request*> parked_;   // prefill parts whose prompt has been computed
  std::deque<Request*> expected_;  // decode parts without pages, by request number
  std::vector<Request*> leased_;   // decode parts whose prompt a prefill engine will write
  std::set<std::uint32_t> lost_;   // dead peers
  std::vector<Request*> candidates_;
  std::vector<std::pair<std::uint64_t, Request*>> ranked_;
  std::vector<Request*> decoding_;                  // running requests for whose next steps there is room
  const Request* no_room_ = nullptr;                // the waiting request that did not fit in this step
  std::vector<std::unique_ptr<Request>> requests_;  // as many as there were at once
  std::vector<Request*> spare_;                     // the unused ones of requests_
  Tokens running_output_left_ = 0;                  // of running_, chunked_, leased_ and the pass that is being formed
  std::uint64_t steps_since_reset_ = 0;
  std::uint64_t steps_unpolled_ = 0;  // decode steps since the last look at new requests
  std::uint64_t steps_ = 0;           // each decode step of a burst counts
  Tokens prefill_tokens_ = 0;         // of all passes so far
  TimeNs step_time_ = 0;
  std::set<std::pair<std::uint64_t, RequestId>> retries_;  // the step from which on to retry, and the request
  std::uint32_t held_ = 0;                                 // requests that the last step passed over
  bool blocked_ = false;
  bool awaits_writes_ = false;   // no request is admitted: StorageBacklog::block
  bool looks_up_again_ = false;  // a request that could have been admitted in this step was looked up again
};

}  // namespace kvtwin
