// Gives hints about sessions an effect under every eviction policy (HintRule::obey). It knows the path that each
// session used last, and marks it in the tree:
//
//   pin(ms)      the path is held: evicted last, on L1 and L2, until the time is over; 0 = until unpin. The hold
//                follows the session, and waits for the first pages of a session that has none yet.
//   share(ms)    like pin, but the hold stays where it is when the session goes on: if a request of the session waits
//                or runs, where that ends. A hold that is refused then is not tried again. The hold survives the
//                session: it ends when no session uses its pages. The pages that storage tiers lack are written there
//                now (Cache::share_sessions()), before the session ends.
//   unpin        ends the hold.
//   session_end  ends the hold. What no other session uses is evicted first, until it is used again. If a request of
//                the session waits or runs, the session ends with it.
//   demote       Cache::demote_sessions()
//   prefetch     Engine, by the keys of the path
//
// With windows and states (EngineConfig::pools), a hold is also on those that a request needs which continues behind
// the path, or, where one is missing, behind the last point above. Those of a node that only ended sessions have used
// are evicted first, as its pages are. A hint to demote stops at a window or a state that L2 lacks.
//
// A hold changes only the order of evictions. Held pages still count as room that can be made, so no request waits for
// the end of a hold. If nothing else on L1 may be evicted for a pool, its oldest hold is dropped. On L2, a write or a
// prefetch that finds only held pages gets no room. Holds take at most the share EngineConfig::hint_share of each pool
// of a tier: a pin above it is refused, and if copies of held pages fill it, the oldest hold is dropped.
//
// Times are those of steps, so all ranks of an engine agree. Requests without a session do not count as users of a page
// when a session ends; their next use of the page takes it out of the first ones again.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "policy/config.hpp"
#include "policy/index/radix_tree.hpp"
#include "policy/seam/event_sink.hpp"
#include "policy/seam/hint.hpp"

namespace kvtwin {

class SessionHolds {
 public:
  // Requires: all references outlive this object.
  SessionHolds(const EngineConfig& config, RadixTree& tree, const EventSink& sink);

  // Ends the holds whose time is over, and those above the share of a tier.
  void begin_step(TimeNs now);
  // A request of the session begins to wait, or has ended.
  void request_began(std::uint64_t session);
  void request_ended(std::uint64_t session);
  // The calls of used() until the next visit() are about this visit's session.
  void visit(const Visit& visit) { visiting_ = visit.session; }
  // The session has used the path to `end`, which has these keys.
  void used(NodeId end, std::span<const PageKey> keys);
  // Requires: no abort.
  void take(const Hint& hint, TimeNs now);
  // Drops the oldest hold. Returns false if there is none.
  bool drop_oldest(Reason reason);

  // Sessions whose pages are to leave L1, and the ends of their paths. The caller takes away those that have left.
  std::vector<std::pair<std::uint64_t, NodeId>> demoting();
  void demoted(std::uint64_t session) { demoting_.erase(session); }
  // A session whose shared pages are to be written to storage.
  struct Sharing {
    std::uint64_t session = 0;
    NodeId end = NodeId::none;  // of the shared path
    bool is_further = false;    // shared() has been called
  };
  std::vector<Sharing> sharing();
  // The writes of the shared pages have begun; `done`: those of all pages.
  void shared(std::uint64_t session, bool done);
  // Returns the keys of the session's last path; none if they are not known. Valid until the next call.
  std::span<const PageKey> keys_of(std::uint64_t session) const;

  // Compares every mark in the tree with the sessions. O(size); for tests.
  void check_invariants();

 private:
  static constexpr TimeNs kForever = std::numeric_limits<TimeNs>::max();
  // Sessions and keys that are known. Above one of these, the session that was used longest ago is forgotten.
  static constexpr std::size_t kMaxSessions = RadixTree::kMaxMarks - 1, kMaxKeys = std::size_t{1} << 22;
  static constexpr std::uint64_t kNoOrder = 0;

  struct Session {
    NodeId end = NodeId::none;       // of the marked path; none: no page is known
    NodeId hold_end = NodeId::none;  // of the held path
    TimeNs until = -1;               // end of the hold that is wanted; -1: none is
    bool is_shared = false;          // the hold is for other sessions too
    bool stays = false;              // the hold does not follow the session
    std::uint64_t order = kNoOrder;  // of the hold: place in by_age_
    std::uint64_t last_use = 0;      // place in by_use_
    std::vector<PageKey> keys;       // if there are storage tiers
  };
  using Sessions = std::map<std::uint64_t, Session>;
  struct Requests {
    std::uint64_t open = 0;
    bool last = false;  // no further request is expected
  };
  enum class EndOf : std::uint8_t { path, hold };

  void settle();
  Session& open(std::uint64_t session);
  void forget(std::uint64_t session);
  void end(std::uint64_t session);
  void stop_sharing(std::uint64_t session);
  bool used_by_others(NodeId hold_end) const;
  void end_survived();
  void move(std::uint64_t session, EndOf what, NodeId& end, NodeId to);
  void hold(std::uint64_t id, Session& session);
  void release(std::uint64_t id, Session& session, Reason reason);
  void report_held();
  Pages unheld_pages(NodeId end, Tier tier) const;
  Pages left_pages(const Session& session, Tier tier) const;
  bool fits_beside(std::uint64_t session, NodeId end) const;
  bool is_above_share(Tier tier) const;
  Pages max_slots(std::size_t pool, Tier tier) const {
    const PoolConfig& of = config_.pools[pool];
    return (tier == Tier::device ? of.device_slots : of.host_slots) * config_.hint_share / 1024;
  }
  Pages max_pages(Tier tier) const {
    return (tier == Tier::device ? config_.device_pages : config_.host_pages) * config_.hint_share / 1024;
  }

  const EngineConfig& config_;
  RadixTree& tree_;
  const EventSink& sink_;
  Sessions sessions_;
  std::map<std::uint64_t, Requests> requests_;               // of the sessions that have some
  std::map<std::uint64_t, std::uint64_t> by_use_, by_age_;   // sessions, the oldest first; of by_age_: holds
  std::set<std::pair<TimeNs, std::uint64_t>> by_end_;        // sessions with a hold that is wanted
  std::set<std::tuple<NodeId, EndOf, std::uint64_t>> ends_;  // nodes and the sessions that name them
  std::set<std::uint64_t> demoting_;
  std::map<std::uint64_t, bool> sharing_;  // sessions with pages to write; true: shared() has been called
  std::set<std::uint64_t> ending_;         // of those: the sessions that end when the writes have begun
  std::set<std::uint64_t> survived_;       // sessions that have ended, with a hold that other sessions keep
  std::uint64_t uses_ = 0, orders_ = kNoOrder, visiting_ = 0;
  std::size_t keys_ = 0;  // of all sessions
  TimeNs now_ = 0;
};

}  // namespace kvtwin
