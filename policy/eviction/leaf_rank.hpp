// Ranks of leaves. A rank must be a total order over the leaves, so that the victim depends neither on node numbers nor
// on the order of the offers. (No two leaves have the same facts.inserted.)
#pragma once

#include <compare>
#include <cstdint>

#include "policy/eviction.hpp"

namespace kvtwin {

struct LeafRank {  // the smallest is evicted first
  std::uint64_t first = 0, second = 0, third = 0;
  friend auto operator<=>(const LeafRank&, const LeafRank&) = default;
};

// Returns the depth of a node's last page, which is evicted first: the tokens before that page. Returns 0 in storage
// tiers, where depths are not known.
inline Tokens last_page_depth(const NodeFacts& facts, Tokens page_tokens) {
  return facts.depth_pages == 0 ? 0 : (facts.depth_pages - 1) * page_tokens;
}

struct RankedLeaf {
  LeafRank rank;
  NodeId node = NodeId::none;
};

}  // namespace kvtwin
