// Which page of a tier is evicted next. The index keeps one EvictionPolicy per tier and offers it the leaves that may
// be evicted; the policy returns a victim. A policy is one file, policy/eviction/NAME.cpp, that defines
// std::unique_ptr<EvictionPolicy> make_NAME(const EvictionSetup&); the build finds the file by its name.
//
// Only the tail of a leaf is ever evicted, so a policy never needs to know the tree. Most policies are a rank over the
// leaves on offer (policy/eviction/ranked_leaves.hpp). A policy that learns (LearnsFromVisits), looks ahead at the
// queue (LooksAhead) or takes hints (TakesHints) also implements that interface. docs/contributing/add-a-policy.md
// shows how to write one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "policy/base/parameters.hpp"
#include "policy/base/types.hpp"
#include "policy/seam/hint.hpp"

namespace kvtwin {

enum class NodeId : std::uint32_t { none = ~std::uint32_t{0} };

// What a page holds, as far as the request that brought it told.
enum class PromptRole : std::uint8_t {
  unknown,  // nothing is known; or a part of a prompt, and not where its system prompt ends
  system,   // the system prompt: whole pages before the first turn
  user,     // the rest of the prompt
  output    // generated, at least in part
};
constexpr std::size_t kPromptRoles = 4;

constexpr std::string_view name_of(PromptRole role) {
  constexpr std::string_view kNames[kPromptRoles] = {"unknown", "system", "user", "output"};
  return kNames[static_cast<std::size_t>(role)];
}

// How far the parts of a prompt reach on a path, in whole pages from the root.
struct PromptParts {
  static constexpr std::uint32_t kUnknown = ~std::uint32_t{0};
  std::uint32_t system_pages = kUnknown;
  std::uint32_t prompt_pages = kUnknown;  // the system prompt included

  // `system_tokens`, `prompt_tokens`: 0 = not known.
  static constexpr PromptParts of(Tokens system_tokens, Tokens prompt_tokens, Tokens page_tokens) {
    const auto pages = [page_tokens](Tokens tokens) {
      return tokens == 0 ? kUnknown : static_cast<std::uint32_t>(std::min<Tokens>(tokens / page_tokens, kUnknown - 1));
    };
    return {pages(system_tokens), pages(prompt_tokens)};
  }
  // Parts of a path that has pages of one role only.
  static constexpr PromptParts of(PromptRole role) {
    switch (role) {
      case PromptRole::unknown: break;
      case PromptRole::system: return {kUnknown - 1, kUnknown};
      case PromptRole::user: return {0, kUnknown};
      case PromptRole::output: return {0, 0};
    }
    return {};
  }
  constexpr bool known() const { return system_pages != kUnknown || prompt_pages != kUnknown; }
  // Returns the role of the page that ends `depth_pages` pages from the root.
  constexpr PromptRole role_at(std::uint32_t depth_pages) const {
    if (prompt_pages == 0 || depth_pages > prompt_pages) return PromptRole::output;
    if (system_pages == kUnknown) return PromptRole::unknown;
    return system_pages != 0 && depth_pages <= system_pages ? PromptRole::system : PromptRole::user;
  }
  friend bool operator==(const PromptParts&, const PromptParts&) = default;
};

// What a policy may know about a node. Sequence numbers count operations of the index.
//
// Only `used_at` is a time, in nanoseconds: the Visit::time of the visit that was the last one when the node was
// used. So its clock is that of the visits: the step of the scheduler in simulations and real runs, the timestamps of
// the trace in hitrate, the times that the engine passes in the C interface. Equal `last_access` means equal `used_at`.
struct NodeFacts {
  std::uint64_t last_access = 0;  // stamp of the last request that touched the node
  std::uint64_t inserted = 0;     // insertion number of the node's *last* page
  std::uint32_t hits = 0;         // touches since the insertion, which counts as 1
  std::int32_t priority = 0;
  std::uint32_t pages = 0;
  std::uint32_t depth_pages = 0;  // pages from the root to the node's end
  TimeNs used_at = 0;
  PromptParts parts = {};  // of the request that inserted the node's last page

  // Returns the time since the last use. `now`: Visit::time of the last visit.
  TimeNs age(TimeNs now) const { return now - used_at; }
  // Returns the role of the node's last page, which is the next one to be evicted.
  PromptRole role() const { return parts.role_at(depth_pages); }
};

// Two words that a policy stores with a node. The index sets both to zero when the node enters the tier, and copies
// both to each part when the node is split.
struct PolicyMarks {
  std::uint64_t first = 0, second = 0;
};

// A node as a policy sees it. Borrowed for the call.
struct PolicyNode {
  NodeId id = NodeId::none;
  const NodeFacts& facts;
  std::span<const PageKey> keys;  // the keys of the node's pages, a chain: the last key names all earlier pages too
  PolicyMarks& marks;
  std::uint32_t references = 0;  // of sessions (EngineConfig::session_radix); else 0
};

// A request that is at work on its path. The first visit is at the admission. Each time the request adds pages, it
// makes a further visit.
struct Visit {
  RequestId request = kNoRequest;
  TimeNs time = 0;            // of the scheduler's step
  std::uint64_t session = 0;  // 0 = none
  Tokens prompt_tokens = 0;
  Tokens output_tokens = 0;       // as many as are known by now; never the future length
  std::span<const PageKey> keys;  // of the path's pages so far, cached or not
  bool further = false;           // the request has made a visit before
  PromptParts parts = {};         // of the request's path
};

struct EvictionSetup {
  Pages capacity = 1024;            // of the tier
  Tokens page_tokens = 512;         // the last page of a path may hold fewer
  Tokens doubling_tokens = 53'000;  // depth at which computing a token costs twice what the first one does
  bool prefix_closed = false;       // if a page is in the tier, all pages above it are too
  // True for the device and host tiers: touched() is called after the visit() it belongs to. False for storage tiers,
  // where pages move before and after the visit.
  bool follows_visits = true;
  bool whole_nodes = false;    // the whole victim is evicted, not only as many pages of the victim's tail as are needed
  Parameters parameters = {};  // of the policy; its make function reads them
};

// What every policy implements. A policy that needs more also derives from one or more of the interfaces below. The
// index finds the interfaces when the policy is installed (InstalledPolicy), and makes no call that the policy does not
// implement.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // The node has become a leaf that may be evicted, or is such a leaf and its facts or marks have changed.
  virtual void offer(const PolicyNode& node) = 0;
  // The node may no longer be evicted: it is leased, has got a child, or has left the tier. Unknown nodes are ignored.
  virtual void withdraw(NodeId node) = 0;
  // Returns the leaf whose tail is evicted next; none if no leaf is on offer. Does not change which leaves are on
  // offer.
  virtual NodeId victim() = 0;
  // Returns the number of leaves on offer. For invariant checks.
  virtual std::size_t offered() const = 0;
  virtual bool is_offered(NodeId node) const = 0;
};

// Optional: the policy learns from events of all nodes, not only of leaves. Each of these calls comes before the
// offer() that results from the same event.
class LearnsFromVisits {
 public:
  virtual ~LearnsFromVisits() = default;
  // The calls that follow, up to the next visit(), are caused by this request or make room for it.
  virtual void visit(const Visit& visit) { static_cast<void>(visit); }
  // All pages of the node have just entered the tier. The facts are current, the marks are zero.
  virtual void entered(const PolicyNode& node) { static_cast<void>(node); }
  // Like entered(), for a node that is also on another tier with the same policy. `elsewhere`: the node's marks there.
  virtual void copied(const PolicyNode& node, const PolicyMarks& elsewhere) {
    static_cast<void>(elsewhere), entered(node);
  }
  // The request's path leads through the node or ends there. The calls for one path begin with its last node.
  virtual void touched(const PolicyNode& node) { static_cast<void>(node); }
  // A node was split. Its first pages are the new node `upper`. The rest, `lower`, has kept the id.
  virtual void split(const PolicyNode& upper, const PolicyNode& lower) {
    static_cast<void>(upper), static_cast<void>(lower);
  }
  // The node was the victim. Its last `pages` pages are about to be evicted.
  virtual void evicted(const PolicyNode& node, Pages pages) { static_cast<void>(node), static_cast<void>(pages); }
  // Returns how many of the first pages may form one node: pages for which the policy remembers the same history.
  // Requires: at least one key; the pages are about to enter. Returns at least 1.
  virtual Pages shared_history_prefix(std::span<const PageKey> keys) const { return keys.size(); }
};

// Optional: the policy looks ahead at the queue. A request with a smaller number is usually served first.
class LooksAhead {
 public:
  virtual ~LooksAhead() = default;
  // The request begins to wait and could reuse these pages. After the call, the nodes that hold some of these pages in
  // the tier are offered again.
  virtual void queued(RequestId request, std::span<const PageKey> keys) = 0;
  // The request no longer waits: its visit comes next, or its client has gone.
  virtual void unqueued(RequestId request) = 0;
};

// Optional: the policy takes hints about sessions (Visit::session).
class TakesHints {
 public:
  virtual ~TakesHints() = default;
  // Requires: the hint is not an abort.
  virtual void hint(const Hint& hint, TimeNs time) = 0;
};

// Optional, without functions: of the leaves on offer, the policy evicts those with the fewest PolicyNode::references
// first. An offer() follows each change of a leaf's references.
class OrdersReferences {
 public:
  virtual ~OrdersReferences() = default;
};

// A policy with the optional interfaces that it implements. A pointer is null if the policy lacks the interface.
struct InstalledPolicy {
  InstalledPolicy(std::unique_ptr<EvictionPolicy> installed)
      : policy(std::move(installed)),
        learner(dynamic_cast<LearnsFromVisits*>(policy.get())),
        looks_ahead(dynamic_cast<LooksAhead*>(policy.get())),
        takes_hints(dynamic_cast<TakesHints*>(policy.get())) {}

  explicit operator bool() const { return policy != nullptr; }
  EvictionPolicy* operator->() const { return policy.get(); }

  std::unique_ptr<EvictionPolicy> policy;
  LearnsFromVisits* learner;
  LooksAhead* looks_ahead;
  TakesHints* takes_hints;
};

// Known names, in alphabetical order.
std::span<const std::string_view> eviction_names();
// `text`: a name, with parameters or without (policy/choices.hpp). Null for a text with a fault.
std::unique_ptr<EvictionPolicy> make_eviction(std::string_view text, const EvictionSetup& setup = {});

}  // namespace kvtwin
