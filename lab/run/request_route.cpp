#include "lab/run/request_route.hpp"

#include <utility>

namespace kvtwin {

RequestRoute::RequestRoute(std::string_view policy, const RouterSetup& setup, TimeNs view_delay)
    : router_(make_router(policy, setup)), view_delay_(view_delay) {}

std::size_t RequestRoute::engine_of(const Input& input) {
  if (const auto* arrival = std::get_if<Arrival>(&input.what)) {
    for (; !late_.empty() && late_.front().due <= input.now; late_.pop_front()) {
      LateNews& late = late_.front();
      late.news.keys = late.keys;
      tell_router(late.news);
    }
    const std::size_t engine = router_->route(*arrival);
    open_[arrival->request] = {engine, false};
    return engine;
  }
  const auto& hint = std::get<Hint>(input.what);
  if (hint.kind != HintKind::abort) return kEveryEngine;  // a hint about a session, whose requests may be on any engine
  const auto at = open_.find(hint.subject);
  return at == open_.end() ? 0 : at->second.engine;  // the request has ended, so every engine ignores the abort
}

void RequestRoute::on_event(std::size_t engine, const Event& event) {
  switch (event.kind) {
    case EventKind::admitted: return set_running(*event.record, true, event.time);
    case EventKind::retracted: return set_running(*event.record, false, event.time);
    case EventKind::prefill_started: return set_running(*event.record, true, event.time);  // again, after a retraction
    case EventKind::finished:
    case EventKind::rejected:
    case EventKind::aborted: return ended(*event.record, event.time);
    case EventKind::pages_stored: return pages(NewsKind::stored, engine, event);
    case EventKind::pages_removed: return pages(NewsKind::removed, engine, event);
    case EventKind::store_done:
      if (spec_of(event.tier).shared) pages(NewsKind::stored_for_all, engine, event);
      return;
    default: return;
  }
}

void RequestRoute::set_running(const RequestRecord& record, bool running, TimeNs now) {
  const auto at = open_.find(record.request);
  if (at == open_.end() || std::exchange(at->second.running, running) == running) return;
  tell({.kind = running ? NewsKind::admitted : NewsKind::left,
        .engine = at->second.engine,
        .prompt = record.prompt_tokens},
       now);
}

void RequestRoute::ended(const RequestRecord& record, TimeNs now) {
  set_running(record, false, now);
  const auto at = open_.find(record.request);
  if (at == open_.end()) return;
  tell({.kind = NewsKind::ended, .engine = at->second.engine}, now);
  open_.erase(at);
}

void RequestRoute::pages(NewsKind kind, std::size_t engine, const Event& event) {
  if (!router_->follows_pages()) return;
  tell({.kind = kind, .engine = engine, .tier = event.tier, .keys = event.keys}, event.time);
}

void RequestRoute::tell(const News& news, TimeNs now) {
  if (view_delay_ == 0) return tell_router(news);
  late_.push_back({now + view_delay_, news, {news.keys.begin(), news.keys.end()}});
}

void RequestRoute::tell_router(const News& news) {
  switch (news.kind) {
    case NewsKind::admitted: return router_->admitted(news.engine, news.prompt);
    case NewsKind::left: return router_->left(news.engine, news.prompt);
    case NewsKind::ended: return router_->ended(news.engine);
    case NewsKind::stored: return router_->stored(news.engine, news.tier, news.keys);
    case NewsKind::removed: return router_->removed(news.engine, news.tier, news.keys);
    case NewsKind::stored_for_all: return router_->stored_for_all(news.engine, news.keys);
  }
}

}  // namespace kvtwin
