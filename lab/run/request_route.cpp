#include "lab/run/request_route.hpp"

#include <utility>

#include "policy/base/check.hpp"

namespace kvtwin {

RequestRoute::RequestRoute(std::string_view policy, const RouterSetup& setup, const RouteRoles& roles)
    : roles_(roles), engines_(setup.engines), router_(make_router(policy, setup)) {
  if (roles.prefill == 0) {
    dead_.resize(engines_);
    return;
  }
  KV_CHECK(setup.engines == roles.prefill && roles.decode.engines > 0, "each role has engines");
  decode_router_ = make_router(roles.decode_policy, roles.decode);
  engines_ += roles.decode.engines;
  dead_.resize(engines_);
}

// A router that does not know of dead engines may choose one. Then the living engines take such requests in turn. The
// router still counts them for the dead engine, so that it does not seem idle.
RequestRoute::Part RequestRoute::choose(Router& router, std::size_t first, std::size_t engines,
                                        const Arrival& arrival) {
  Part part;
  part.place = router.route(arrival);
  part.engine = first + part.place;
  if (!dead_[part.engine]) return part;
  ++stand_ins_;
  for (std::size_t i = 0; i < engines; ++i) {
    part.engine = first + (part.place + stand_ins_ + i) % engines;
    if (!dead_[part.engine]) return part;
  }
  KV_CHECK(false, "one engine of each role lives");
  return part;
}

InputRoute::Way RequestRoute::way_of(const Input& input) {
  if (const auto* arrival = std::get_if<Arrival>(&input.what)) {
    Open open;
    open.attempt = arrival->attempt;
    if (roles_.prefill == 0) {
      open.main = choose(*router_, 0, engines_, *arrival);
    } else {
      open.main = choose(*decode_router_, roles_.prefill, engines_ - roles_.prefill, *arrival);
      if (arrival->prompt_tokens >= roles_.min_tokens) open.prefill = choose(*router_, 0, roles_.prefill, *arrival);
    }
    if (roles_.engines_die) {
      open.kept.keys.assign(arrival->keys.begin(), arrival->keys.end());
      open.kept.arrival = *arrival;
    }
    const Way way{open.main.engine, open.prefill.engine};
    open_[arrival->request] = std::move(open);
    return way;
  }
  const auto& hint = std::get<Hint>(input.what);
  // A hint about a session, whose requests may be on any engine.
  if (hint.kind != HintKind::abort) return {kEveryEngine, kNoEngine};
  const auto at = open_.find(hint.subject);
  // If the request has ended, every engine ignores the abort.
  if (at == open_.end() || at->second.main.engine == kNoEngine) return {0, kNoEngine};
  return {at->second.main.engine, at->second.prefill.engine};
}

void RequestRoute::engine_lost(std::size_t engine) {
  dead_[engine] = true;
  router_of(engine).gone(place_of(engine));
  for (auto at = open_.begin(); at != open_.end();) {
    Open& open = at->second;
    const Tokens prompt = open.kept.arrival.prompt_tokens;
    if (open.main.engine == engine) {
      // The prefill engine hears of the loss too, and ends its part of this attempt.
      end(open.main, prompt);
      end(open.prefill, prompt);
      again_.push_back(std::move(open.kept));
    } else if (open.prefill.engine == engine) {
      end(open.prefill, prompt);
    }
    const bool over = open.main.engine == kNoEngine && open.prefill.engine == kNoEngine;
    at = over ? open_.erase(at) : std::next(at);
  }
}

bool RequestRoute::sent_again(Input& input) {
  if (again_.empty()) return false;
  sent_ = std::move(again_.front());
  again_.pop_front();
  ++sent_.arrival.attempt;
  sent_.arrival.part = RequestPart::whole;
  sent_.arrival.peer = 0;
  sent_.arrival.keys = sent_.keys;
  input.what = sent_.arrival;
  ++resent_;
  return true;
}

void RequestRoute::on_event(std::size_t engine, const Event& event) {
  const auto running = [&](bool runs) {
    const auto at = open_.find(event.record->request);
    if (at == open_.end() || at->second.attempt != event.record->attempt) return;
    for (Part* part : {&at->second.main, &at->second.prefill}) {
      if (part->engine == engine) set_running(*part, *event.record, runs);
    }
  };
  switch (event.kind) {
    case EventKind::admitted: return running(true);
    case EventKind::retracted:
    case EventKind::fell_back: return running(false);
    case EventKind::prefill_started: return running(true);  // again, after a retraction
    case EventKind::finished:
    case EventKind::rejected:
    case EventKind::aborted:
    case EventKind::handed_over:
    case EventKind::hand_over_dropped: return ended(engine, *event.record);
    case EventKind::pages_stored:
      if (router_of(engine).follows_pages()) router_of(engine).stored(place_of(engine), event.tier, event.keys);
      return;
    case EventKind::pages_removed:
      if (router_of(engine).follows_pages()) router_of(engine).removed(place_of(engine), event.tier, event.keys);
      return;
    default: return;
  }
}

void RequestRoute::set_running(Part& part, const RequestRecord& record, bool running) {
  if (std::exchange(part.running, running) == running) return;
  if (running) {
    router_of(part.engine).admitted(part.place, record.prompt_tokens);
  } else {
    router_of(part.engine).left(part.place, record.prompt_tokens);
  }
}

void RequestRoute::end(Part& part, Tokens prompt) {
  if (part.engine == kNoEngine) return;
  if (part.running) router_of(part.engine).left(part.place, prompt);
  router_of(part.engine).ended(part.place);
  part = {};
}

void RequestRoute::ended(std::size_t engine, const RequestRecord& record) {
  const auto at = open_.find(record.request);
  if (at == open_.end() || at->second.attempt != record.attempt) return;
  Open& open = at->second;
  for (Part* part : {&open.main, &open.prefill}) {
    if (part->engine == engine) end(*part, record.prompt_tokens);
  }
  if (open.main.engine == kNoEngine && open.prefill.engine == kNoEngine) open_.erase(at);
}

}  // namespace kvtwin
