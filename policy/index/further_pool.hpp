// The residency of one pool beside the pages of full attention: the KV of a sliding window, or recurrent states. The
// radix tree holds the paths and the residency of pool 0; a pool like this one stands beside it, by node number. A
// model with full attention has none, and pays nothing.
//
// A closure says when a request may continue behind a node:
//
//   tail(W)   the last W pages of the path are in the pool; or all of the path, if it is shorter. One slot per page; a
//             node has slots for all its pages, or none
//   point     the pool has the state at exactly the end of the node. One slot per node
//
// Rules, those of SGLang 0.5.23 (mem_cache/unified_cache): a split leaves a state at the lower part, and divides a
// window. A lease of a tail covers nodes from the end upwards until W pages are covered, with or without slots. It is
// released from the position where it began, because positions survive a split, and nodes do not. Each tier has an
// order of use. On L2 only the nodes that are not on L1 are in it.
//
// Sessions keep windows and states (Keeper), by the end of a path, of which a node of the pool counts the part that
// concerns it:
//
//   tail(W)   the nodes from the end upwards until W pages are covered, with or without slots; of a reference: W + 1
//             pages, as SGLang (components/swa.py)
//   point     the node (components/mamba.py)
//
// The order of use has classes (EvictionTurn), and is an order of use in each class. A node that goes hands its ends
// over to the next point above it (resolve()).
//
// Cost: O(1) per node, but for lease, release, use and keep, which walk at most W pages upwards.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "policy/base/page_list.hpp"
#include "policy/base/types.hpp"
#include "policy/eviction.hpp"
#include "policy/index/session_ends.hpp"

namespace kvtwin {

class RadixTree;

enum class Closure : std::uint8_t { path, tail, point };

// What keeps windows and states: the references of sessions (EngineConfig::session_radix), or the holds of hints
// (EngineConfig::hints).
enum class Keeper : std::uint8_t { reference, hold };

// When a node's slots are evicted: first those of nodes that only ended sessions have used, last those that sessions
// refer to. Those on hold are not on offer.
enum class EvictionTurn : std::uint8_t { ended, ordinary, referenced, on_hold };

class FurtherPool {
 public:
  // `tail_pages`: W of a tail, rounded up to pages. Requires: the tree outlives the pool; `closure` is tail or point.
  FurtherPool(const RadixTree& tree, Closure closure, Pages tail_pages);

  Closure closure() const { return closure_; }
  Pages tail_pages() const { return tail_pages_; }

  bool has(Tier tier, NodeId id) const { return !place(tier, id).slots.empty(); }
  std::span<const SlotId> slots(Tier tier, NodeId id) const { return place(tier, id).slots; }
  // The node becomes the most recently used one. Requires: it has no slots on this tier yet.
  void put(Tier tier, NodeId id, std::span<const SlotId> slots);
  // Requires: it has slots on this tier.
  std::vector<SlotId> take(Tier tier, NodeId id);
  // The transfer that fills the slots; none: it was acknowledged. A split copies it.
  OperationId arriving(Tier tier, NodeId id) const { return place(tier, id).arriving; }
  void set_arriving(Tier tier, NodeId id, OperationId operation);
  // `upper` is new and gets the first `pages` pages of `lower`.
  void split(NodeId upper, NodeId lower, Pages pages);
  // Returns true if nothing is known of the node any more.
  bool is_blank(NodeId id) const;

  // Whether the closure holds, node by node: call it for all nodes of a path, from the top.
  class Walk {
   public:
    // `host`: slots on L2 count, too.
    Walk(const FurtherPool& pool, bool host) : pool_(pool), host_(host) {}
    // `pages`: the first pages of the node, if the path ends inside it.
    bool accepts(NodeId id, Pages pages);

   private:
    const FurtherPool& pool_;
    const bool host_;
    bool whole_ = true;  // all pages so far
    Pages pages_ = 0;    // since the last gap
  };

  // Leases what a request needs that continues behind `end`. Returns the page at which the lease begins.
  Pages lease(Tier tier, NodeId end);
  void release(Tier tier, NodeId end, Pages from);
  bool leased(Tier tier, NodeId id) const { return place(tier, id).leases > 0; }

  // A request continues behind `end`: its nodes become the most recently used ones of their turns, the deepest first.
  void use(NodeId end);
  // The node without a lease that was used least recently, of the first turn, from `first` on, that has one. None if
  // there is none, or if all that there are are on hold.
  NodeId oldest(Tier tier, EvictionTurn first = EvictionTurn::ended) const;
  // The next one of these nodes of the same turn, in the order of use.
  NodeId next_oldest(Tier tier, NodeId id) const { return unleased(tier, place(tier, id).newer); }
  // The next one, of a later turn if its own has no other; none if there is none.
  NodeId following(Tier tier, NodeId id) const;
  EvictionTurn turn(NodeId id) const;
  // The tree's stamp when the node was put here or used last.
  std::uint64_t last_use(Tier tier, NodeId id) const { return place(tier, id).last_use; }

  Pages slots_held(Tier tier) const { return tiers_[index(tier)].held; }
  Pages slots_leased(Tier tier) const { return tiers_[index(tier)].leased; }
  Pages slots_on_hold(Tier tier) const { return tiers_[index(tier)].on_hold; }

  // ---- what sessions keep
  // Returns `end` or the next node above it that has what a request needs; none if there is none. As SGLang looks for
  // it: a window below the node counts with the node's own.
  NodeId resolve(NodeId end) const;
  // The session keeps what belongs to `end` (none, the root: nothing). A reference to a node above it moves there.
  void refer(std::uint64_t session, NodeId end);
  void drop_references(std::uint64_t session);
  // The session's hold moves to `end`; none, the root: it ends.
  void hold(std::uint64_t session, NodeId end);
  // Returns slots_on_hold() as hold() would leave it.
  Pages slots_if_held(Tier tier, std::uint64_t session, NodeId end) const;
  bool is_kept(Keeper keeper, NodeId id) const { return keeps(keeper, id) > 0; }
  // Node::ended has changed.
  void set_turn(NodeId id);
  // The node goes. Requires: it has no slots, and the nodes above it are known.
  void hand_ends_over(NodeId id);

  // Compares the sums and the orders with a computation from scratch; for tests.
  void check_invariants() const;

 private:
  struct Place {
    PageList<SlotId> slots;
    NodeId newer = NodeId::none, older = NodeId::none;  // in the order of use
    std::uint64_t last_use = 0;
    std::uint32_t leases = 0;
    bool listed = false;
    EvictionTurn turn = EvictionTurn::ordinary;  // in whose order the node is
    OperationId arriving = OperationId::none;
  };
  struct Order {
    NodeId newest = NodeId::none, oldest = NodeId::none;
  };
  static constexpr std::size_t kTurns = 4, kKeepers = 2;
  struct OfTier {
    std::array<Order, kTurns> orders;
    Pages held = 0, leased = 0, on_hold = 0;
  };
  static std::size_t index(Tier tier) { return tier == Tier::device ? 0 : 1; }
  const Place& place(Tier tier, NodeId id) const;
  Place& mutable_place(Tier tier, NodeId id);
  NodeId unleased(Tier tier, NodeId at) const;     // `at`, or the next newer node without a lease
  void list(Tier tier, NodeId id, NodeId behind);  // none: becomes the newest
  void unlist(Tier tier, NodeId id);
  template <typename Visit>
  void each_needed(NodeId end, Pages pages, Visit visit) const;
  void count_lease(Tier tier, NodeId id);
  Order& order(Tier tier, EvictionTurn turn) { return tiers_[index(tier)].orders[static_cast<std::size_t>(turn)]; }
  std::uint32_t keeps(Keeper keeper, NodeId id) const {
    const auto at = static_cast<std::size_t>(id);
    return at < keeps_.size() ? keeps_[at][static_cast<std::size_t>(keeper)] : 0;
  }
  SessionEnds& ends(Keeper keeper) { return ends_[static_cast<std::size_t>(keeper)]; }
  Pages pages_of(Keeper keeper) const;
  void add_end(Keeper keeper, std::uint64_t session, NodeId end);
  void remove_end(Keeper keeper, std::uint64_t session, NodeId end);
  void count_keep(Keeper keeper, NodeId id, bool more);
  void check_keeps() const;

  const RadixTree& tree_;
  const Closure closure_;
  const Pages tail_pages_;
  std::array<std::vector<Place>, 2> places_;  // by tier, by node
  std::array<OfTier, 2> tiers_;
  std::vector<std::array<std::uint32_t, kKeepers>> keeps_;  // by node; shorter if nothing is kept behind
  std::array<SessionEnds, kKeepers> ends_;
};

// Returns whether an eviction for the pool takes the node as a whole, with its pages, because it is a leaf. Not if a
// session refers to the pages, and not to the pool's part of the node (components/base.py,
// _can_evict_leaf_atomically).
bool goes_whole(const RadixTree& tree, const FurtherPool& pool, Tier tier, NodeId id);

// Returns whether pool `other` loses its part of a node that keeps its pages, too, when pool `lost` does: a window
// takes the state along. Of a leaf (which goes_whole() is false of), a state takes a window along that no session
// refers to.
bool goes_with(const FurtherPool& lost, const FurtherPool& other, Tier tier, NodeId id, bool is_leaf);

}  // namespace kvtwin
