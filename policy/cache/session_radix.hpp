// References of sessions to the pages of their requests (EngineConfig::session_radix), as SGLang's
// --enable-session-radix-cache counts them (srt/mem_cache/unified_cache/session_ref_tracker.py, components/):
//
//   finished   a request that ends refers for its session to the path that it has inserted. If the session refers to a
//              shorter part of the path, that reference moves; if the session has branched, it has one for each branch
//   closed     (the hint session_end) all references of the session go. Requests of the session that wait or run refer
//              to nothing when they end; the next request to arrive opens the session again
//
// Eviction on L1, on L2 and, under write-back, the choice of pages that leave L1 take leaves without references first,
// then those with the fewest references; among equals, the eviction policy decides. A node that is evicted hands its
// references to the node above it.
//
// Windows and states (EngineConfig::pools; components/base.py, swa.py, mamba.py, unified_tree_core.py): each pool
// counts references of its own, by ends of its own (FurtherPool::refer). The end is the node that the request has
// inserted, or the next one above it behind which the pool alone lets a request continue. A reference is to the nodes
// that hold the last W tokens and a page more, or to the one node of the state, whether or not their slots are there at
// the time.
//
//   order      a pool evicts windows or states without references first, then the others; in each part, those that were
//              used least recently. The number of references does not matter. A node that changes sides becomes the
//              most recently used one there. One allocation goes through the order once, and does not come back to what
//              a session has let go meanwhile
//   leaves     a leaf is evicted as a whole for a window or a state only if a session refers to that, or none to the
//              pages. Else it keeps its pages, and loses the window with the state, or the state with a window that no
//              session refers to
//   inner      a window takes the state along, also one that a session refers to
//   pool 0     a leaf that is evicted for its pages goes with its windows and its state
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
