#include "lab/experiment/request_route.hpp"

#include <limits>
#include <utility>

#include "policy/base/check.hpp"

namespace kvtwin {

RequestRoute::RequestRoute(std::string_view policy, const RouterSetup& setup, TimeNs view_delay,
                           const RouteRoles& roles)
    : roles_(roles), engines_(setup.engines), router_(make_router(policy, setup)), view_delay_(view_delay) {
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
  part.engine = part.chosen = first + router.route(arrival);
  if (!dead_[part.engine]) return part;
  ++stand_ins_;
  for (std::size_t i = 0; i < engines; ++i) {
    part.engine = first + (part.chosen - first + stand_ins_ + i) % engines;
    if (!dead_[part.engine]) return part;
  }
  KV_CHECK(false, "one engine of each role lives");
  return part;
}

InputRoute::Way RequestRoute::way_of(const Input& input) {
  if (const auto* arrival = std::get_if<Arrival>(&input.what)) {
    tell_late_news(input.now);
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
  at->second.kept.aborted = true;
  return {at->second.main.engine, at->second.prefill.engine};
}

void RequestRoute::engine_lost(std::size_t engine) {
  dead_[engine] = true;
  if (lost_) lost_(engine);
  tell_late_news(std::numeric_limits<TimeNs>::max());
  router_of(engine).gone(place_of(engine));
  // The routers know this at once, whatever the delay.
  const TimeNs delay = std::exchange(view_delay_, 0);
  for (auto at = open_.begin(); at != open_.end();) {
    Open& open = at->second;
    const Tokens prompt = open.kept.arrival.prompt_tokens;
    if (open.main.engine == engine) {
      // The prefill engine hears of the loss too, and ends its part of this attempt.
      end(open.main, prompt, 0);
      end(open.prefill, prompt, 0);
      again_.push_back(std::move(open.kept));
    } else if (open.prefill.engine == engine) {
      end(open.prefill, prompt, 0);
    }
    const bool over = open.main.engine == kNoEngine && open.prefill.engine == kNoEngine;
    at = over ? open_.erase(at) : std::next(at);
  }
  view_delay_ = delay;
}

bool RequestRoute::sent_again(Input& input) {
  if (std::exchange(sent_.aborted, false)) {
    input.what = Hint{.kind = HintKind::abort, .subject = sent_.arrival.request};
    return true;
  }
  if (again_.empty()) return false;
  sent_ = std::move(again_.front());
  again_.pop_front();
  ++sent_.arrival.attempt;
  sent_.arrival.part = RequestPart::whole;
  sent_.arrival.peer = 0;
  sent_.arrival.keys = sent_.keys;
  input.what = sent_.arrival;
  return true;
}

void RequestRoute::on_event(std::size_t engine, const Event& event) {
  const auto running = [&](bool runs) {
    const auto at = open_.find(event.record->request);
    if (at == open_.end() || at->second.attempt != event.record->attempt) return;
    for (Part* part : {&at->second.main, &at->second.prefill}) {
      if (part->engine == engine) set_running(*part, event.record->prompt_tokens, runs, event.time);
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
    case EventKind::hand_over_dropped: return ended(engine, *event.record, event.time);
    case EventKind::pages_stored: return pages(NewsKind::stored, engine, event);
    case EventKind::pages_removed: return pages(NewsKind::removed, engine, event);
    case EventKind::store_done:
      if (spec_of(event.tier).shared) pages(NewsKind::stored_for_all, engine, event);
      return;
    default: return;
  }
}

void RequestRoute::set_running(Part& part, Tokens prompt, bool running, TimeNs now) {
  if (std::exchange(part.running, running) == running) return;
  tell({.kind = running ? NewsKind::admitted : NewsKind::left, .engine = part.chosen, .prompt = prompt}, now);
}

void RequestRoute::end(Part& part, Tokens prompt, TimeNs now) {
  if (part.engine == kNoEngine) return;
  set_running(part, prompt, false, now);
  tell({.kind = NewsKind::ended, .engine = part.chosen}, now);
  part = {};
}

void RequestRoute::ended(std::size_t engine, const RequestRecord& record, TimeNs now) {
  const auto at = open_.find(record.request);
  if (at == open_.end() || at->second.attempt != record.attempt) return;
  Open& open = at->second;
  for (Part* part : {&open.main, &open.prefill}) {
    if (part->engine == engine) end(*part, record.prompt_tokens, now);
  }
  if (open.main.engine == kNoEngine && open.prefill.engine == kNoEngine) open_.erase(at);
}

bool RequestRoute::follows_pages() const {
  return router_->follows_pages() || (decode_router_ != nullptr && decode_router_->follows_pages());
}

void RequestRoute::pages(NewsKind kind, std::size_t engine, const Event& event) {
  if (kind == NewsKind::stored_for_all ? !follows_pages() : !router_of(engine).follows_pages()) return;
  tell({.kind = kind, .engine = engine, .tier = event.tier, .keys = event.keys}, event.time);
}

void RequestRoute::tell(const News& news, TimeNs now) {
  if (view_delay_ == 0) return tell_router(news);
  late_.push_back({now + view_delay_, news, {news.keys.begin(), news.keys.end()}});
}

void RequestRoute::tell_late_news(TimeNs until) {
  for (; !late_.empty() && late_.front().due <= until; late_.pop_front()) {
    LateNews& late = late_.front();
    late.news.keys = late.keys;
    tell_router(late.news);
  }
}

void RequestRoute::tell_router(const News& news) {
  Router& router = router_of(news.engine);
  const std::size_t engine = place_of(news.engine);
  switch (news.kind) {
    case NewsKind::admitted: return router.admitted(engine, news.prompt);
    case NewsKind::left: return router.left(engine, news.prompt);
    case NewsKind::ended: return router.ended(engine);
    case NewsKind::stored: return router.stored(engine, news.tier, news.keys);
    case NewsKind::removed: return router.removed(engine, news.tier, news.keys);
    case NewsKind::stored_for_all:
      for (Router* each : {router_.get(), decode_router_.get()}) {
        if (each != nullptr && each->follows_pages()) each->stored_for_all(news.keys);
      }
      return;
  }
}

}  // namespace kvtwin
