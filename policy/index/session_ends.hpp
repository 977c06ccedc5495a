// The ends of the paths that sessions refer to (EngineConfig::session_radix): pairs of a session and a node. A session
// has more than one end if its requests have branched. RadixTree counts the pairs on the nodes of the paths.
//
// Memory: about 150 bytes per pair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "policy/base/check.hpp"
#include "policy/eviction.hpp"

namespace kvtwin {

class SessionEnds {
 public:
  bool has(std::uint64_t session, NodeId node) const {
    const auto of = by_session_.find(session);
    return of != by_session_.end() && of->second.nodes.contains(node);
  }
  // Requires: the pair is new. The session is now the one that got an end last.
  void add(std::uint64_t session, NodeId node) {
    Session& of = by_session_[session];
    by_age_.erase(of.age);
    by_age_.emplace(of.age = ++ages_, session);
    KV_CHECK(of.nodes.insert(node).second && by_node_.emplace(node, session).second, "a session ends there once");
  }
  void remove(std::uint64_t session, NodeId node) {
    const auto of = by_session_.find(session);
    KV_CHECK(by_node_.erase({node, session}) == 1 && of->second.nodes.erase(node) == 1, "the session ends there");
    if (!of->second.nodes.empty()) return;
    by_age_.erase(of->second.age);
    by_session_.erase(of);
  }

  std::vector<NodeId> nodes_of(std::uint64_t session) const {
    const auto of = by_session_.find(session);
    if (of == by_session_.end()) return {};
    return {of->second.nodes.begin(), of->second.nodes.end()};
  }
  std::vector<std::uint64_t> sessions_at(NodeId node) const {
    std::vector<std::uint64_t> sessions;
    for (auto at = by_node_.lower_bound({node, 0}); at != by_node_.end() && at->first == node; ++at) {
      sessions.push_back(at->second);
    }
    return sessions;
  }
  std::size_t pairs() const { return by_node_.size(); }
  // Returns the session that got its last end before all others got theirs. Requires: a pair.
  std::uint64_t oldest() const { return by_age_.begin()->second; }
  // By node, then by session.
  const std::set<std::pair<NodeId, std::uint64_t>>& all() const { return by_node_; }

 private:
  struct Session {
    std::set<NodeId> nodes;
    std::uint64_t age = 0;  // place in by_age_
  };
  std::map<std::uint64_t, Session> by_session_;
  std::map<std::uint64_t, std::uint64_t> by_age_;
  std::set<std::pair<NodeId, std::uint64_t>> by_node_;
  std::uint64_t ages_ = 0;
};

}  // namespace kvtwin
