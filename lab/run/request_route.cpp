#include "lab/run/request_route.hpp"

#include <utility>

namespace kvtwin {

RequestRoute::RequestRoute(std::string_view policy, const RouterSetup& setup) : router_(make_router(policy, setup)) {}

std::size_t RequestRoute::engine_of(const Input& input) {
  if (const auto* arrival = std::get_if<Arrival>(&input.what)) {
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
    case EventKind::admitted: return set_running(*event.record, true);
    case EventKind::retracted: return set_running(*event.record, false);
    case EventKind::prefill_started: return set_running(*event.record, true);  // again, after a retraction
    case EventKind::finished:
    case EventKind::rejected:
    case EventKind::aborted: return ended(*event.record);
    case EventKind::pages_stored:
      if (router_->follows_pages()) router_->stored(engine, event.tier, event.keys);
      return;
    case EventKind::pages_removed:
      if (router_->follows_pages()) router_->removed(engine, event.tier, event.keys);
      return;
    default: return;
  }
}

void RequestRoute::set_running(const RequestRecord& record, bool running) {
  const auto at = open_.find(record.request);
  if (at == open_.end() || std::exchange(at->second.running, running) == running) return;
  if (running) {
    router_->admitted(at->second.engine, record.prompt_tokens);
  } else {
    router_->left(at->second.engine, record.prompt_tokens);
  }
}

void RequestRoute::ended(const RequestRecord& record) {
  set_running(record, false);
  const auto at = open_.find(record.request);
  if (at == open_.end()) return;
  router_->ended(at->second.engine);
  open_.erase(at);
}

}  // namespace kvtwin
