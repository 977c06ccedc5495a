// References of sessions to the pages of their requests (EngineConfig::session_radix), as SGLang's
// --enable-session-radix-cache counts them (srt/mem_cache/unified_cache/session_ref_tracker.py, components/full.py):
//
//   finished   a request that ends refers for its session to the path that it has inserted. If the session refers to a
//              shorter part of the path, that reference moves; if the session has branched, it has one for each branch
//   closed     (the hint session_end) all references of the session go. Requests of the session that wait or run refer
//              to nothing when they end; the next request to arrive opens the session again
//
// Eviction on L1, on L2 and, under write-back, the choice of pages that leave L1 take leaves without references first,
// then those with the fewest references; among equals, the eviction policy decides. A node that is evicted hands its
// references to the node above it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "policy/index/radix_tree.hpp"

namespace kvtwin {

class SessionRadix {
 public:
  // Requires: the tree outlives this object, and its policies are OrdersReferences.
  explicit SessionRadix(RadixTree& tree) : tree_(tree) {}

  // A request of the session (0: none) has arrived. Returns the session's opening, which finished() takes.
  std::uint64_t arrived(std::uint64_t session) {
    if (session == 0) return 0;
    Open& open = open_[session];
    ++open.requests;
    return open.closings;
  }
  // The request has inserted its last pages, to the node `end`.
  void finished(std::uint64_t session, std::uint64_t opening, NodeId end) {
    if (session != 0 && open_.at(session).closings == opening) tree_.refer(session, end);
  }
  // The request is no more.
  void left(std::uint64_t session) {
    const auto open = open_.find(session);
    if (open != open_.end() && --open->second.requests == 0) open_.erase(open);
  }
  void close(std::uint64_t session) {
    if (const auto open = open_.find(session); open != open_.end()) ++open->second.closings;
    tree_.drop_references(session);
  }

 private:
  struct Open {
    std::uint64_t requests = 0, closings = 0;  // since the first of these requests
  };
  RadixTree& tree_;
  std::map<std::uint64_t, Open> open_;  // sessions with requests
};

}  // namespace kvtwin
