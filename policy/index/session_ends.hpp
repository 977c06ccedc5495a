// The ends of the paths that sessions refer to (EngineConfig::session_radix) or that hints hold: pairs of a session and
// a node. A session has more than one end if its requests have branched. RadixTree and FurtherPool count the pairs on
// the nodes that they concern.
//
// Memory: about 170 bytes per pair.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "policy/base/check.hpp"
#include "policy/eviction.hpp"

namespace kvtwin {

class SessionEnds {
 public:
  struct End {
    std::uint64_t age = 0;  // ends that came later have larger ones
    Pages from = 0;         // add()
  };

  bool has(std::uint64_t session, NodeId node) const { return by_node_.contains({node, session}); }
  // Requires: the pair is new. The session is now the one that got an end last. `from`: the page of the path at which
  // that begins which the session has; for the caller.
  void add(std::uint64_t session, NodeId node, Pages from = 0) {
    Session& of = by_session_[session];
    by_age_.erase(of.age);
    by_age_.emplace(of.age = ++ages_, session);
    const bool is_new = by_node_.emplace(std::pair(node, session), End{ages_, from}).second;
    KV_CHECK(of.nodes.emplace(node, ages_).second && is_new, "a session ends there once");
  }
  // Returns `from`.
  Pages remove(std::uint64_t session, NodeId node) {
    const auto of = by_session_.find(session);
    const auto end = by_node_.find({node, session});
    KV_CHECK(end != by_node_.end() && of->second.nodes.erase(node) == 1, "the session ends there");
    const Pages from = end->second.from;
    by_node_.erase(end);
    if (!of->second.nodes.empty()) return from;
    by_age_.erase(of->second.age);
    by_session_.erase(of);
    return from;
  }

  // Requires: the session ends there.
  Pages from(std::uint64_t session, NodeId node) const { return by_node_.at({node, session}).from; }

  // In the order in which they were added.
  std::vector<NodeId> nodes_of(std::uint64_t session) const {
    const auto of = by_session_.find(session);
    if (of == by_session_.end()) return {};
    std::vector<std::pair<std::uint64_t, NodeId>> by_age;
    for (const auto& [node, age] : of->second.nodes) by_age.emplace_back(age, node);
    return in_order(std::move(by_age));
  }
  // In the order in which they were added.
  std::vector<std::uint64_t> sessions_at(NodeId node) const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> by_age;
    for (auto at = by_node_.lower_bound({node, 0}); at != by_node_.end() && at->first.first == node; ++at) {
      by_age.emplace_back(at->second.age, at->first.second);
    }
    return in_order(std::move(by_age));
  }
  std::size_t pairs() const { return by_node_.size(); }
  // Returns the session that got its last end before all others got theirs. Requires: a pair.
  std::uint64_t oldest() const { return by_age_.begin()->second; }
  // By node, then by session.
  const std::map<std::pair<NodeId, std::uint64_t>, End>& all() const { return by_node_; }

 private:
  struct Session {
    std::map<NodeId, std::uint64_t> nodes;  // with their ages
    std::uint64_t age = 0;                  // place in by_age_
  };
  template <typename Value>
  static std::vector<Value> in_order(std::vector<std::pair<std::uint64_t, Value>>&& by_age) {
    std::ranges::sort(by_age);
    std::vector<Value> values;
    for (const auto& [age, value] : by_age) values.push_back(value);
    return values;
  }

  std::map<std::uint64_t, Session> by_session_;
  std::map<std::uint64_t, std::uint64_t> by_age_;
  std::map<std::pair<NodeId, std::uint64_t>, End> by_node_;
  std::uint64_t ages_ = 0;
};

}  // namespace kvtwin
