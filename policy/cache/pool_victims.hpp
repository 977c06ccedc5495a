// The next victim of a pool beside pool 0, or of pool 0 with such pools, by a PoolEviction that weighs worth.
//
// A point is a node behind which a request can continue, by what the pools have on the tier or a nearer one. A node
// whose window is only a part of the window of a point below counts as that point.
//
// Cost: O(nodes in the pool * nodes up to the next point above) per victim. The worth of a node depends on its
// neighbours on the path, so no order of it is kept.
#pragma once

#include <cstddef>
#include <vector>

#include "policy/index/radix_tree.hpp"
#include "policy/pool_eviction.hpp"

namespace kvtwin {

class PoolVictims {
 public:
  struct Pool {
    const FurtherPool* index = nullptr;
    Bytes slot_bytes = 0;
  };
  // Requires: the tree, its pools and `eviction` outlive the object; at least one pool.
  PoolVictims(const RadixTree& tree, std::vector<Pool> pools, Bytes page_bytes, Tokens page_tokens,
              const PoolEviction& eviction);

  // The unleased node that pool `at` evicts next, of the first turn, from `first` on, that has one; none if there is
  // none.
  NodeId in_pool(std::size_t at, Tier tier, EvictionTurn first = EvictionTurn::ended) const;
  // The leaf of L1 that pool 0 evicts next: the one that is worth least of `next`, the choice of the tree's policy, and
  // of the leaves that have a window or a state, and whose turn it is like that of `next`.
  NodeId leaf(NodeId next) const;
  // What the eviction of a node from pool `at` costs and gives. `at` = pools: of a leaf, from pool 0.
  PoolCandidate candidate(std::size_t at, NodeId id, Tier tier) const;

 private:
  bool is_point(NodeId id, Tier tier) const;
  NodeId point_of(NodeId id, Tier tier) const;

  const RadixTree& tree_;
  const std::vector<Pool> pools_;
  const Bytes page_bytes_;
  const Tokens page_tokens_;
  const PoolEviction& eviction_;
  Pages longest_tail_ = 1;
};

}  // namespace kvtwin
