// Which page of a tier goes next. The index keeps, per tier, one EvictionPolicy and tells it which leaves
// may be evicted and what happens to nodes; the policy answers with a victim. A policy is one file,
// policy/eviction/NAME.cpp, that defines std::unique_ptr<EvictionPolicy> make_NAME(const EvictionSetup&); the build
// finds it by its name.
//
// Only the tail of a leaf is ever evicted, so a policy never needs to know the tree. Most are a rank over what is
// offered (policy/eviction/ranked_leaves.hpp); those that learn take part in what happens to nodes that are no leaves.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "policy/hint.hpp"
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
  std::uint32_t depth_pages = 0;  // pages from the root to the node's end
};

// A policy's own, kept with the node: zero when the node enters the tier, copied to both parts when it is split.
struct PolicyMarks {
  std::uint64_t first = 0, second = 0;
};

// A node as a policy sees it. Borrowed for the call.
struct PolicyNode {
  NodeId id = NodeId::none;
  const NodeFacts& facts;
  std::span<const PageKey> keys;  // of its pages; chains, so that the last names all before it
  PolicyMarks& marks;
};

// A request at work on its path: at its admission, and whenever it adds pages (then `further`).
struct Visit {
  RequestId request = kNoRequest;
  TimeNs time = 0;            // the step's
  std::uint64_t session = 0;  // 0 = none
  Tokens prompt_tokens = 0;
  Tokens output_tokens = 0;       // as many as are known by now; never the future
  std::span<const PageKey> keys;  // of its path's pages so far, cached or not
  bool further = false;           // of a request that has made a visit before
};

struct EvictionSetup {
  Pages capacity = 1024;            // of the tier
  Tokens page_tokens = 512;         // a last page may hold fewer
  Tokens doubling_tokens = 53'000;  // depth at which computing a token costs twice what the first one does
  bool prefix_closed = false;       // whatever is in the tier, all above it is: paths come from their first page on
  bool follows_visits = true;       // what a visit uses is told behind it; of storage before and after it, as it moves
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // The node has become a leaf that may be evicted, or is one and its facts or marks changed.
  virtual void offer(const PolicyNode& node) = 0;
  // It no longer may be: leased, got a child, left the tier. Unknown nodes are ignored.
  virtual void withdraw(NodeId node) = 0;
  // The leaf whose tail goes next; none when nothing is on offer. Doesn't change the offer.
  virtual NodeId victim() = 0;
  // Number of leaves on offer (for invariant checks).
  virtual std::size_t offered() const = 0;
  virtual bool is_offered(NodeId node) const = 0;

  // ---- what happens, leaf or not, each before the offer it leads to; for policies that remember
  // What follows, up to the next one, is this request's doing, or makes room for it.
  virtual void visit(const Visit& visit) { static_cast<void>(visit); }
  // All of the node's pages are in the tier now. Facts as of then, marks zero.
  virtual void entered(const PolicyNode& node) { static_cast<void>(node); }
  // The same, of a node that is on another tier too, where the same policy keeps `elsewhere` with it.
  virtual void copied(const PolicyNode& node, const PolicyMarks& elsewhere) {
    static_cast<void>(elsewhere), entered(node);
  }
  // The request's path leads through it, or ends there. Of a path the last node is told first.
  virtual void touched(const PolicyNode& node) { static_cast<void>(node); }
  // The first `upper` pages have become a node of their own, above the rest, which kept the id.
  virtual void split(const PolicyNode& upper, const PolicyNode& lower) {
    static_cast<void>(upper), static_cast<void>(lower);
  }
  // Its last `pages` pages are about to be evicted; it was the victim.
  virtual void evicted(const PolicyNode& node, Pages pages) { static_cast<void>(node), static_cast<void>(pages); }
  // Pages that are about to enter as one node: how many of the first ones share a history, and so may. >= 1.
  virtual Pages alike(std::span<const PageKey> keys) const { return keys.size(); }

  // ---- what is still to come, as far as somebody knows
  // Of a session (Visit::session); never an abort.
  virtual void hint(const Hint& hint, TimeNs time) { static_cast<void>(hint), static_cast<void>(time); }
  // Does it want to know who waits? If so, of each request that begins to wait the pages that it could reuse, after
  // which what the tier has of them is offered again, whole nodes of it; and when it no longer waits, because its visit
  // comes next or its client has gone. Those with smaller numbers are served first, mostly.
  virtual bool looks_ahead() const { return false; }
  virtual void queued(RequestId request, std::span<const PageKey> keys) {
    static_cast<void>(request), static_cast<void>(keys);
  }
  virtual void unqueued(RequestId request) { static_cast<void>(request); }
};

// Known names, in alphabetical order.
std::span<const std::string_view> eviction_names();
// Null for an unknown name.
std::unique_ptr<EvictionPolicy> make_eviction(std::string_view name, const EvictionSetup& setup = {});

}  // namespace kvtwin
