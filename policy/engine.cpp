// Start here. One request's way: arrival -> (step) queue -> look up, decide, plan, submit -> completion ->
// (step) commit and go on. A step happens when no forward pass is in flight and something has changed:
//
//        input              reduction             pass submitted
//   idle ------> agreeing ------------> (step) ------------------> passing
//     ^                                   | nothing to run            | pass complete
//     +-----------------------------------+          agreeing <-------+
//
// Everything that a step acts on is agreed by its reduction first (one vector: time, arrivals seen,
// transfers complete), so that every rank of an engine takes the same step.
#include "policy/engine.hpp"

#include <algorithm>
#include <deque>
#include <utility>

#include "policy/cache.hpp"
#include "policy/check.hpp"
#include "policy/scheduler.hpp"

namespace kvtwin {

struct Engine::State {
  enum class Phase : std::uint8_t { idle, agreeing, passing };
  enum Agreed : std::size_t { agreed_time, agreed_arrivals, agreed_backups, agreed_loads };

  State(const EngineConfig& c, Substrate& s, DecisionLog& decisions, Observer* o)
      : config(c), substrate(s), observer(o), cache(config, s, decisions, o), scheduler(config, cache, decisions, o) {}

  void handle(const Arrival& arrival);
  void handle(const Hint&) {}  // no policy of this set takes hints
  void handle(const Completion& completion);
  void handle(const TimerFired&) {}
  void handle(const Reduction& reduction);

  void agree();
  void step(const ReduceVector& agreed);
  void finish_pass();
  void submit_pass();
  void tell_prefills();
  void wake(bool ends_burst);

  const EngineConfig config;
  Substrate& substrate;
  Observer* observer;
  Cache cache;
  Scheduler scheduler;

  Phase phase = Phase::idle;
  OperationId reduction_id = OperationId::none;
  std::deque<Request*> arrived;  // not yet agreed on
  std::uint64_t arrivals_taken = 0;

  Pass pass;
  std::vector<SequenceWork> sequences;
  OperationId pass_id = OperationId::none;
  TimeNs pass_start = 0, pass_end = 0;
  Completion pass_completion;
  bool pass_complete = false, pass_cancelled = false;
  bool load_failed = false;  // until every load is acknowledged: what one promised on the device may be garbage
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
  request.keys.assign(arrival.keys.begin(), arrival.keys.end());
  const bool matters = arrived.empty() && scheduler.arrival_matters();
  arrived.push_back(&request);
  wake(matters);
}

void Engine::State::handle(const Completion& completion) {
  if (completion.id == pass_id) {
    pass_complete = true;
    pass_completion = completion;
    pass_end = substrate.now();
    agree();
    return;
  }
  bool failed = false;
  const bool ours = cache.complete(completion, failed);
  KV_CHECK(ours, "a completion belongs to an operation in flight");
  load_failed |= failed;
  wake(scheduler.blocked());  // what was leased may now be evicted for the request that waits for room
}

// Something changed: step now if nothing runs; a decode burst goes on unless the next step would differ.
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
  ReduceVector values{};
  values[agreed_time] = substrate.now();
  values[agreed_arrivals] = static_cast<std::int64_t>(arrivals_taken + arrived.size());
  values[agreed_backups] = static_cast<std::int64_t>(cache.backups_complete());
  values[agreed_loads] = static_cast<std::int64_t>(cache.loads_complete());
  reduction_id = substrate.reduce_min(values);
}

void Engine::State::handle(const Reduction& reduction) {
  KV_CHECK(reduction.id == reduction_id && phase == Phase::agreeing, "one reduction a step");
  step(reduction.values);
}

// The scheduler's step: results of the last pass, acknowledgements, arrivals, next pass.
void Engine::State::step(const ReduceVector& agreed) {
  if (pass_complete) finish_pass();
  cache.commit(static_cast<std::uint64_t>(agreed[agreed_backups]), static_cast<std::uint64_t>(agreed[agreed_loads]));
  for (; arrivals_taken < static_cast<std::uint64_t>(agreed[agreed_arrivals]); ++arrivals_taken) {
    scheduler.enqueue(*arrived.front(), agreed[agreed_time]);
    arrived.pop_front();
  }
  if (!cache.loading()) load_failed = false;
  // Until then not even a decode: what it finishes would be published onto that garbage.
  const bool formed = !load_failed && scheduler.form(agreed[agreed_time], pass);
  cache.submit_loads();
  cache.keep_reserve();
  cache.submit_backups();
  if (formed) {
    submit_pass();
    // Inputs that came while the ranks agreed were not part of it; a burst must not make them wait.
    wake((!arrived.empty() && scheduler.arrival_matters()) || (cache.acknowledgement_due() && scheduler.blocked()));
    return;
  }
  phase = Phase::idle;
  KV_CHECK(scheduler.idle() || cache.anything_in_flight(), "a request that fits never waits for nothing");
  if (!arrived.empty() || cache.acknowledgement_due()) agree();
}

void Engine::State::submit_pass() {
  sequences.clear();
  for (std::size_t i = 0; i < pass.requests.size(); ++i) {
    const Request& request = *pass.requests[i];
    const std::size_t slots = request.slots.size();
    sequences.push_back({request.record.request, request.kv_tokens, pass.new_tokens[i], request.slots,
                         std::span(request.keys).first(slots)});
  }
  ForwardOperation operation;
  operation.shape = pass.shape;
  operation.steps = pass.steps;
  operation.sequences = sequences;
  if (pass.prefill) operation.gates = cache.loads_in_flight();  // who decodes has had its loads
  pass_complete = pass_cancelled = false;
  pass_start = substrate.now();
  pass_id = substrate.submit(operation);
  phase = Phase::passing;
  if (pass.prefill) tell_prefills();
}

void Engine::State::tell_prefills() {
  if (observer == nullptr) return;
  for (std::size_t i = 0; i < pass.requests.size(); ++i) {
    Event event;
    event.kind = EventKind::prefill_started;
    event.time = pass_start;
    event.tokens = pass.new_tokens[i];
    event.operation = pass_id;
    event.record = &pass.requests[i]->record;
    observer->on_event(event);
  }
}

void Engine::State::finish_pass() {
  const TimeNs duration = pass_end - pass_start;
  const std::uint64_t steps = pass_completion.steps;
  const bool counts = !load_failed && pass_completion.status == Status::done;
  if (!pass.prefill) {
    scheduler.decode_done(pass, steps, pass_end);
  } else if (!counts) {
    load_failed |= pass_completion.status == Status::gate_failed;
    scheduler.prefill_failed(pass, pass_end);
  } else {
    scheduler.prefill_done(pass, pass_end, duration - pass_completion.stalled_ns, pass_completion.stalled_ns);
  }
  pass_complete = false;
  const OperationId done = std::exchange(pass_id, OperationId::none);
  if (observer == nullptr) return;
  Event event;
  event.kind = EventKind::pass_done;
  event.operation = done;
  event.time = pass_end;
  event.pages = pass.prefill ? 0 : steps;
  event.tokens = !pass.prefill ? steps * pass.requests.size() : counts ? pass.shape.prefill_tokens : 0;
  event.duration_ns = duration;
  observer->on_event(event);
}

// ---- the public face ---------------------------------------------------------------------------------

Engine::Engine(const EngineConfig& config, Substrate& substrate, DecisionLog& decisions, Observer* observer)
    : state_(std::make_unique<State>(config, substrate, decisions, observer)) {}

Engine::~Engine() = default;

bool Engine::idle() const {
  const State& s = *state_;
  return s.phase == State::Phase::idle && s.scheduler.idle() && s.arrived.empty() && !s.cache.anything_in_flight();
}

void Engine::check_invariants() const {
  const State& s = *state_;
  s.scheduler.check_invariants(s.pass_id == OperationId::none ? nullptr : &s.pass);
}

std::string Engine::state_summary() const {
  const Scheduler& s = state_->scheduler;
  return std::to_string(s.waiting() + state_->arrived.size()) + " requests wait, " + std::to_string(s.running()) +
         " run" + (state_->cache.anything_in_flight() ? ", transfers are in flight" : "");
}

Pages Engine::device_pages_used_max() const { return state_->cache.device_used_max(); }
Pages Engine::host_pages_used_max() const { return state_->cache.host_used_max(); }

}  // namespace kvtwin
