// Ranks over leaves. A rank must be total over leaves (facts.inserted is never shared by two), so
// that the victim depends on neither node numbers nor the order of the offers.
#pragma once

#include <compare>
#include <cstdint>

#include "policy/eviction.hpp"

namespace kvtwin {

struct LeafRank {  // smallest goes first
  std::uint64_t first = 0, second = 0, third = 0;
  friend auto operator<=>(const LeafRank&, const LeafRank&) = default;
};

// How deep a node's last page lies, the one that would go: the tokens before it. 0 where depths aren't known, in tiers
// of storage.
inline Tokens last_page_depth(const NodeFacts& facts, Tokens page_tokens) {
  return facts.depth_pages == 0 ? 0 : (facts.depth_pages - 1) * page_tokens;
}

struct RankedLeaf {
  LeafRank rank;
  NodeId node = NodeId::none;
};

}  // namespace kvtwin
