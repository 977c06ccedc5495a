// Which page of a tier goes next. The index keeps, per tier, one EvictionPolicy and tells it which leaves
// may be evicted and what happens to nodes; the policy answers with a victim. A policy is one file,
// policy/eviction/NAME.cpp, that defines std::unique_ptr<EvictionPolicy> make_NAME(); the build finds it by its name.
//
// Only the tail of a leaf is ever evicted, so a policy never needs to know the tree.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "policy/types.hpp"

namespace kvtwin {

enum class NodeId : std::uint32_t { none = ~std::uint32_t{0} };

// What a policy may know of a node. Sequence numbers count the index's own operations; never a time.
struct NodeFacts {
  std::uint64_t last_access = 0;  // stamp of the last request that touched it
  std::uint64_t inserted = 0;     // insertion number of its *last* page
  std::uint32_t hits = 0;         // touches since insertion, the insertion counts 1
  std::int32_t priority = 0;
  std::uint32_t pages = 0;
  std::uint64_t depth_pages = 0;  // pages from the root to the node's end
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // `node` has become a leaf that may be evicted, or is one and its facts changed (touched, shortened).
  virtual void offer(NodeId node, const NodeFacts& facts) = 0;
  // It no longer may be: leased, got a child, left the tier. Unknown nodes are ignored.
  virtual void withdraw(NodeId node) = 0;
  // The leaf whose tail goes next; none when nothing is on offer. Doesn't change the offer.
  virtual NodeId victim() = 0;
  // `pages` pages left this tier from the tail of `node` by eviction; for policies that remember ghosts.
  virtual void evicted(NodeId node, const NodeFacts& facts, Pages pages) {
    static_cast<void>(node), static_cast<void>(facts), static_cast<void>(pages);
  }
  // Number of leaves on offer (for invariant checks).
  virtual std::size_t offered() const = 0;
  virtual bool is_offered(NodeId node) const = 0;
};

// Known names, in alphabetical order.
std::span<const std::string_view> eviction_names();
// Null for an unknown name.
std::unique_ptr<EvictionPolicy> make_eviction(std::string_view name);

}  // namespace kvtwin
