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
// Cost: O(1) per node, but for lease, release and use, which walk at most W pages upwards.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "policy/base/page_list.hpp"
#include "policy/base/types.hpp"
#include "policy/eviction.hpp"

namespace kvtwin {

class RadixTree;

enum class Closure : std::uint8_t { path, tail, point };

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

  // A request continues behind `end`: its nodes become the most recently used ones, the deepest first.
  void use(NodeId end);
  // The least recently used node without a lease; none if there is none.
  NodeId oldest(Tier tier) const { return unleased(tier, tiers_[index(tier)].oldest); }
  // The next one of these nodes, in the order of use.
  NodeId next_oldest(Tier tier, NodeId id) const { return unleased(tier, place(tier, id).newer); }
  // The tree's stamp when the node was put here or used last.
  std::uint64_t last_use(Tier tier, NodeId id) const { return place(tier, id).last_use; }

  Pages slots_held(Tier tier) const { return tiers_[index(tier)].held; }
  Pages slots_leased(Tier tier) const { return tiers_[index(tier)].leased; }

  // Compares the sums and the orders with a computation from scratch; for tests.
  void check_invariants() const;

 private:
  struct Place {
    PageList<SlotId> slots;
    NodeId newer = NodeId::none, older = NodeId::none;  // in the order of use
    std::uint64_t last_use = 0;
    std::uint32_t leases = 0;
    bool listed = false;
    OperationId arriving = OperationId::none;
  };
  struct Order {
    NodeId newest = NodeId::none, oldest = NodeId::none;
    Pages held = 0, leased = 0;
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

  const RadixTree& tree_;
  const Closure closure_;
  const Pages tail_pages_;
  std::array<std::vector<Place>, 2> places_;  // by tier, by node
  std::array<Order, 2> tiers_;
};

// Returns whether pool `other` loses its part of an inner node, too, when pool `lost` does: a window takes the state
// along.
bool goes_with(const FurtherPool& lost, const FurtherPool& other, Tier tier, NodeId id);

}  // namespace kvtwin
