#include "policy/cache/holds.hpp"

#include <algorithm>

#include "policy/base/check.hpp"
#include "policy/base/mutant.hpp"

namespace kvtwin {

SessionHolds::SessionHolds(const EngineConfig& config, RadixTree& tree, const EventSink& sink)
    : config_(config), tree_(tree), sink_(sink) {}

void SessionHolds::begin_step(TimeNs now) {
  now_ = now;
  settle();
  while (!by_end_.empty() && by_end_.begin()->first <= now) {
    const std::uint64_t id = by_end_.begin()->second;
    release(id, sessions_.at(id), Reason::expired);
  }
  end_survived();
  for (const Tier tier : kTiersOfTree) {
    while (is_above_share(tier) && drop_oldest(Reason::quota)) {
    }
  }
}

void SessionHolds::request_began(std::uint64_t session) {
  if (session == 0) return;
  Requests& requests = requests_[session];
  ++requests.open;
  requests.last = false;
  demoting_.erase(session);
  ending_.erase(session);
}

void SessionHolds::request_ended(std::uint64_t session) {
  if (session == 0) return;
  const auto requests = requests_.find(session);
  KV_CHECK(requests != requests_.end(), "a request of a session ends once");
  if (--requests->second.open > 0) return;
  const bool last = requests->second.last;
  requests_.erase(requests);
  if (last) end(session);
}

void SessionHolds::used(NodeId end, std::span<const PageKey> keys) {
  if (visiting_ == 0 || end == tree_.root()) return;
  settle();
  Session& session = open(visiting_);
  move(visiting_, EndOf::path, session.end, end);
  if (!config_.storage.empty()) {
    keys_ += keys.size() - session.keys.size();
    session.keys.assign(keys.begin(), keys.end());
  }
  survived_.erase(visiting_);
  if (session.is_shared && !session.stays) sharing_.emplace(visiting_, false);
  if (session.until >= 0 && !session.stays) hold(visiting_, session);
  while (keys_ > kMaxKeys && by_use_.size() > 1) forget(by_use_.begin()->second);
}

void SessionHolds::take(const Hint& hint, TimeNs now) {
  if (hint.subject == 0) return;
  settle();
  now_ = now;
  const auto known = sessions_.find(hint.subject);
  switch (hint.kind) {
    case HintKind::pin:
    case HintKind::share: {
      constexpr TimeNs kMs = 1'000'000;
      Session& session = open(hint.subject);
      by_end_.erase({session.until, hint.subject});
      const bool bounded = hint.value > 0 && hint.value < (kForever - now) / kMs;
      session.until = bounded ? now + hint.value * kMs : kForever;
      by_end_.emplace(session.until, hint.subject);
      session.is_shared = hint.kind == HintKind::share;
      session.stays = false;
      survived_.erase(hint.subject);
      ending_.erase(hint.subject);
      sharing_.erase(hint.subject);
      if (session.is_shared && (session.end != NodeId::none || session.hold_end != NodeId::none)) {
        sharing_.emplace(hint.subject, false);
      }
      if (session.order != kNoOrder) {  // renewed: now the newest one
        by_age_.erase(session.order);
        by_age_.emplace(session.order = ++orders_, hint.subject);
      }
      hold(hint.subject, session);
      return;
    }
    case HintKind::unpin:
      if (known != sessions_.end() && known->second.until >= 0) release(hint.subject, known->second, Reason::none);
      return;
    case HintKind::session_end:
      if (const auto requests = requests_.find(hint.subject); requests != requests_.end()) {
        requests->second.last = true;
      } else {
        end(hint.subject);
      }
      return;
    case HintKind::demote:
      if (known != sessions_.end()) demoting_.insert(hint.subject);
      return;
    case HintKind::prefetch:
    case HintKind::tool_call_pending:
    case HintKind::abort: return;
  }
}

bool SessionHolds::drop_oldest(Reason reason) {
  settle();
  if (by_age_.empty()) return false;
  const std::uint64_t id = by_age_.begin()->second;
  release(id, sessions_.at(id), reason);
  return true;
}

std::vector<std::pair<std::uint64_t, NodeId>> SessionHolds::demoting() {
  settle();
  std::vector<std::pair<std::uint64_t, NodeId>> all;
  for (const std::uint64_t id : demoting_) {
    if (!requests_.contains(id)) all.emplace_back(id, sessions_.at(id).end);
  }
  return all;
}

std::vector<SessionHolds::Sharing> SessionHolds::sharing() {
  settle();
  std::vector<Sharing> all;
  std::vector<std::uint64_t> without_pages;
  for (const auto& [id, is_further] : sharing_) {
    const Session& session = sessions_.at(id);
    const bool held = session.hold_end != NodeId::none && (session.stays || session.end == NodeId::none);
    const NodeId end = held ? session.hold_end : session.end;
    if (end == NodeId::none) {
      without_pages.push_back(id);
    } else if (session.stays || !requests_.contains(id)) {
      all.push_back({id, end, is_further});
    }
  }
  for (const std::uint64_t id : without_pages) stop_sharing(id);
  return all;
}

void SessionHolds::shared(std::uint64_t id, bool done) {
  Session& session = sessions_.at(id);
  session.stays = session.is_shared;
  sharing_.at(id) = true;
  if (done) stop_sharing(id);
}

void SessionHolds::stop_sharing(std::uint64_t id) {
  sharing_.erase(id);
  if (ending_.erase(id) > 0) end(id);
}

std::span<const PageKey> SessionHolds::keys_of(std::uint64_t session) const {
  const auto known = sessions_.find(session);
  return known == sessions_.end() ? std::span<const PageKey>() : std::span<const PageKey>(known->second.keys);
}

// Ends that named a node which has gone move up, or to the node that took its pages.
void SessionHolds::settle() {
  if (!tree_.any_moved()) return;
  for (const RadixTree::Moved& moved : tree_.take_moved()) {
    const NodeId to = moved.to == tree_.root() ? NodeId::none : moved.to;
    for (auto at = ends_.lower_bound({moved.from, EndOf::path, 0}); at != ends_.end() && std::get<0>(*at) == moved.from;
         at = ends_.lower_bound({moved.from, EndOf::path, 0})) {
      const auto [from, what, id] = *at;
      Session& session = sessions_.at(id);
      (what == EndOf::path ? session.end : session.hold_end) = to;
      ends_.erase(at);
      if (to != NodeId::none) ends_.emplace(to, what, id);
    }
  }
}

// Returns the session, which is now the one that was used last.
SessionHolds::Session& SessionHolds::open(std::uint64_t session) {
  if (sessions_.size() >= kMaxSessions && !sessions_.contains(session)) forget(by_use_.begin()->second);
  Session& opened = sessions_[session];
  by_use_.erase(opened.last_use);
  by_use_.emplace(opened.last_use = ++uses_, session);
  return opened;
}

void SessionHolds::end(std::uint64_t id) {
  settle();
  const auto known = sessions_.find(id);
  if (known == sessions_.end()) return;
  if (sharing_.contains(id)) {
    ending_.insert(id);
    return;
  }
  Session& session = known->second;
  const NodeId end = session.end;
  move(id, EndOf::path, session.end, NodeId::none);
  const bool survives = session.is_shared && session.hold_end != NodeId::none && used_by_others(session.hold_end);
  if (survives) {
    survived_.insert(id);
  } else {
    forget(id);
  }
  if (end != NodeId::none) tree_.set_ended(end);
}

// Requires: the session that holds the path is not counted.
bool SessionHolds::used_by_others(NodeId hold_end) const { return tree_.node(hold_end).sessions > 0; }

// Holds of sessions that have ended go when no other session uses their pages, or when their time is over.
void SessionHolds::end_survived() {
  for (auto at = survived_.begin(); at != survived_.end();) {
    const std::uint64_t id = *at++;
    const Session& session = sessions_.at(id);
    const NodeId held = session.hold_end;
    if (held != NodeId::none && used_by_others(held)) continue;
    forget(id);
    if (held != NodeId::none) tree_.set_ended(held);
  }
}

void SessionHolds::forget(std::uint64_t id) {
  Session& session = sessions_.at(id);
  if (session.until >= 0) release(id, session, Reason::none);
  move(id, EndOf::path, session.end, NodeId::none);
  keys_ -= session.keys.size();
  by_use_.erase(session.last_use);
  demoting_.erase(id);
  sharing_.erase(id);
  ending_.erase(id);
  survived_.erase(id);
  sessions_.erase(id);
}

// Moves a mark in the tree. The new path is marked first, so that what both have stays marked.
void SessionHolds::move(std::uint64_t session, EndOf what, NodeId& end, NodeId to) {
  const RadixTree::Mark mark = what == EndOf::hold ? RadixTree::Mark::hold : RadixTree::Mark::session;
  if (end == to) return;
  if (to != NodeId::none) tree_.mark(mark, to);
  if (end != NodeId::none && !(KV_MUTANT(13) && what == EndOf::hold && to != NodeId::none)) tree_.unmark(mark, end);
  if (what == EndOf::hold) tree_.hold_beside(session, to);
  if (end != NodeId::none) ends_.erase({end, what, session});
  if (to != NodeId::none) ends_.emplace(to, what, session);
  end = to;
}

Pages SessionHolds::unheld_pages(NodeId end, Tier tier) const {
  Pages pages = 0;
  for (NodeId id = end; id != tree_.root() && tree_.node(id).holds == 0; id = tree_.node(id).parent) {
    if (tree_.node(id).on(tier).resident()) pages += tree_.node(id).facts.pages;
  }
  return pages;
}

// Returns the pages that this session's hold alone holds, and that its new path does not have.
Pages SessionHolds::left_pages(const Session& session, Tier tier) const {
  if (session.hold_end == NodeId::none) return 0;
  std::vector<NodeId> path;
  for (NodeId id = session.end; id != tree_.root(); id = tree_.node(id).parent) path.push_back(id);
  std::ranges::sort(path);
  Pages pages = 0;
  for (NodeId id = session.hold_end; id != tree_.root(); id = tree_.node(id).parent) {
    const Node& node = tree_.node(id);
    if (node.holds == 1 && node.on(tier).resident() && !std::ranges::binary_search(path, id)) pages += node.facts.pages;
  }
  return pages;
}

// Returns whether the share of every pool of windows or states allows the hold. What adds nothing fits.
bool SessionHolds::fits_beside(std::uint64_t session, NodeId end) const {
  if (tree_.pools().empty()) return true;
  const NodeId point = tree_.point_up_to(end);
  for (std::size_t at = 0; at < tree_.pools().size(); ++at) {
    const FurtherPool& pool = *tree_.pools()[at];
    for (const Tier tier : kTiersOfTree) {
      const Pages slots = pool.slots_if_held(tier, session, point);
      if (slots > max_slots(at, tier) && slots > pool.slots_on_hold(tier)) return false;
    }
  }
  return true;
}

bool SessionHolds::is_above_share(Tier tier) const {
  if (tree_.held_pages(tier) > max_pages(tier)) return true;
  for (std::size_t at = 0; at < tree_.pools().size(); ++at) {
    if (tree_.pools()[at]->slots_on_hold(tier) > max_slots(at, tier)) return true;
  }
  return false;
}

// Holds the session's path, if the share of both tiers allows it; if not, an earlier hold stays where it is.
void SessionHolds::hold(std::uint64_t id, Session& session) {
  if (session.end == NodeId::none || session.end == session.hold_end) return;
  Pages more = 0;
  bool fits = true;
  for (const Tier tier : kTiersOfTree) {
    const Pages pages = unheld_pages(session.end, tier);
    fits = fits && (pages == 0 || tree_.held_pages(tier) + pages - left_pages(session, tier) <= max_pages(tier));
    more += pages;
  }
  fits = fits && fits_beside(id, session.end);
  const Reason refused = fits ? Reason::none : Reason::quota;
  sink_.decide(DecisionKind::hold, refused, tree_.node(session.end).keys().back(), more);
  sink_.event({.kind = EventKind::held, .reason = refused, .pages = more});
  if (!fits) return;
  move(id, EndOf::hold, session.hold_end, session.end);
  if (session.order == kNoOrder) by_age_.emplace(session.order = ++orders_, id);
  report_held();
}

void SessionHolds::release(std::uint64_t id, Session& session, Reason reason) {
  by_end_.erase({session.until, id});
  session.until = -1;
  session.is_shared = session.stays = false;
  if (session.order == kNoOrder) return;
  by_age_.erase(session.order);
  session.order = kNoOrder;
  if (session.hold_end == NodeId::none) return;  // all of it has gone
  const PageKey key = tree_.node(session.hold_end).keys().back();
  const Pages before = tree_.held_pages(Tier::device) + tree_.held_pages(Tier::host);
  move(id, EndOf::hold, session.hold_end, NodeId::none);
  const Pages freed = before - tree_.held_pages(Tier::device) - tree_.held_pages(Tier::host);
  sink_.decide(DecisionKind::unhold, reason, key, freed);
  sink_.event({.kind = EventKind::unheld, .reason = reason, .pages = freed});
  report_held();
}

void SessionHolds::report_held() {
  for (const Tier tier : kTiersOfTree) {
    sink_.event({.kind = EventKind::held_pages, .tier = tier, .pages = tree_.held_pages(tier)});
  }
}

void SessionHolds::check_invariants() {
  settle();
  std::map<NodeId, std::uint64_t> marks, holds;
  for (const auto& [end, what, id] : ends_) {
    const Session& session = sessions_.at(id);
    KV_CHECK(end == (what == EndOf::path ? session.end : session.hold_end), "a session knows its ends");
    for (NodeId at = end; at != tree_.root(); at = tree_.node(at).parent) {
      KV_CHECK(tree_.has(at), "the end of a session is in the tree");
      ++(what == EndOf::path ? marks : holds)[at];
    }
  }
  std::vector<NodeId> below{tree_.root()};
  for (std::size_t i = 0; i < below.size(); ++i) {
    const Node& node = tree_.node(below[i]);
    const auto count = [&](const std::map<NodeId, std::uint64_t>& of) {
      const auto found = of.find(below[i]);
      return found == of.end() ? 0 : found->second;
    };
    KV_CHECK(node.sessions == count(marks) && node.holds == count(holds), "a node has the marks of its sessions");
    for (NodeId child = node.first_child; child != NodeId::none; child = tree_.node(child).next_sibling) {
      below.push_back(child);
    }
  }
  std::size_t keys = 0, held = 0, wanted = 0;
  for (const auto& [id, session] : sessions_) {
    keys += session.keys.size();
    held += session.order != kNoOrder;
    wanted += session.until >= 0;
    KV_CHECK(session.until >= 0 || session.order == kNoOrder, "a hold has an end");
  }
  KV_CHECK(keys == keys_ && held == by_age_.size() && wanted == by_end_.size() && sessions_.size() == by_use_.size(),
           "sessions are listed once");
  for (const auto& [id, is_further] : sharing_) KV_CHECK(sessions_.contains(id), "a session that shares is known");
  for (const std::uint64_t id : ending_) {
    KV_CHECK(sharing_.contains(id) && !requests_.contains(id), "a session ends late because of its writes only");
  }
  for (const std::uint64_t id : survived_) {
    KV_CHECK(sessions_.at(id).end == NodeId::none, "a session that has ended uses no page");
  }
}

}  // namespace kvtwin
