// The index and the eviction policies for a host: an engine of another project that keeps its own tree, its own page
// slots and its own transfers, and takes only the choice of victims from kvtwin. The host reports each change of its
// tree as a Call and, where it needs room, asks for a victim. include/kvtwin/policy.h is the C interface of this class.
//
// Calls are values, so that they can be recorded (call_journal.hpp) and made again on another tree (`kvtwin replay`).
// With equal calls, two trees give equal answers on every machine. Only the answers to `share` and `victim` depend on
// the policy, so calls that were recorded with one policy can be made on a tree with another one.
//
// Errors: call() accepts any values, because the host is foreign code; a wrong call changes nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "policy/index/radix_tree.hpp"
#include "policy/seam/decision.hpp"
#include "policy/seam/journal.hpp"

namespace kvtwin {

struct HostedSetup {
  std::string eviction = "lru";            // a name, with parameters or without
  Pages device_pages = 0, host_pages = 0;  // capacities; 0 host pages: no such tier
  Tokens page_tokens = 1;
  Tokens doubling_tokens = EvictionSetup{}.doubling_tokens;
  bool whole_nodes = true;       // the host evicts whole nodes
  bool split_refreshes = false;  // a split stamps the lower part
  bool hits_by_count = false;    // a node enters with 0 hits, and only `count` adds hits
};

// Returns `eviction` with the parameters of slru or tlru, which earlier hosts and journals give as numbers beside the
// name. A text with parameters stays.
std::string with_numbers(std::string_view eviction, std::uint32_t slru_protected, Tokens tlru_threshold,
                         Tokens tlru_next_prompt);
inline constexpr std::uint32_t kSlruProtected = 2;  // the default of slru
inline constexpr std::size_t kMaxEvictionBytes = 1024;

// What a call does, and which fields of Call it takes besides. Node 0 is the root.
enum class CallVerb : std::uint8_t {
  clear,   // every node has gone, and every waiting request
  match,   // keys. Splits the node where the match ends. Answer: node (the end), device_pages, host_pages
  insert,  // node (the parent), keys, tier, value (priority). Answer: node (the new one)
  split,   // node, pages (of the upper part). The number stays with the lower part. Answer: node (the upper one)
  place,   // node, tier: the node's pages have been copied to the tier
  drop,    // node, tier: the copies have left the tier, and not as the policy's victim. With its last copy, a node goes
  touch,   // node (end of the path), value (see TouchKind)
  count,   // node: counts a hit of this node alone
  raise,   // node (end of the path), value: raises the priorities on the path to at least this
  lease,   // node (end of the path), tier: the path may not be evicted
  release,  // node, tier: ends one such lease
  visit,    // request, time, session, prompt_tokens, output_tokens, keys, value (1: a further visit of the request)
  queue,    // request, keys: the request begins to wait
  unqueue,  // request: it no longer waits
  hint,     // hint, session, value, time
  share,    // keys, which are about to enter. Answer: device_pages: how many of the first ones may become one node
  victim,   // tier. Answer: node (none: nothing may be evicted), device_pages (of the node)
  evict,    // node, tier, pages: the last pages of the node leave the tier. The node must be on offer, but need not be
            // the victim
};
inline constexpr std::size_t kCallVerbs = 18;
std::string_view name_of(CallVerb verb);

// What a touch does to the nodes of the path.
enum class TouchKind : std::uint8_t {
  recency,     // the visiting request uses the path: stamps the nodes, and tells the policies
  access,      // the same, and counts a hit
  stamp,       // stamps the nodes; a request looks at the path, and may never use it
  stamp_node,  // stamps the last node alone
};

struct Call {
  CallVerb verb = CallVerb::clear;
  Tier tier = Tier::device;  // device or host
  HintKind hint = HintKind::session_end;
  NodeId node{0};
  Pages pages = 0;
  RequestId request = 0;
  TimeNs time = 0;  // from any origin; never decreases
  std::uint64_t session = 0;
  std::int64_t value = 0;
  Tokens prompt_tokens = 0, output_tokens = 0;
  std::span<const PageKey> keys = {};  // borrowed for the call
};

struct Answer {
  NodeId node = NodeId::none;
  Pages device_pages = 0, host_pages = 0;
  friend bool operator==(const Answer&, const Answer&) = default;
};

class HostedTree {
 public:
  // Returns what is wrong with the setup; empty for nothing.
  static std::string error_of(const HostedSetup& setup);
  // Requires: no error.
  explicit HostedTree(const HostedSetup& setup);

  // Returns null and sets `answer`; or returns what is wrong, and changes nothing.
  const char* call(const Call& call, Answer& answer);

  // Victims so far, and their digest. A victim counts with the request of the last visit and the key of its last page.
  DecisionMark mark() const { return {log_.count(), log_.digest()}; }
  const RadixTree& tree() const { return *tree_; }
  // The policy takes queue and unqueue, or hint, into account.
  bool looks_ahead() const { return looks_ahead_; }
  bool takes_hints() const { return takes_hints_; }
  const HostedSetup& setup() const { return setup_; }

  static constexpr std::size_t kMaxKeys = std::size_t{1} << 26;  // of one call

 private:
  struct Leases {
    std::uint32_t device = 0, host = 0;
  };

  void make_tree();
  const char* insert(const Call& call, Answer& answer);
  const char* split(const Call& call, Answer& answer);
  const char* place(const Call& call);
  const char* leave(const Call& call, Pages pages, bool victim);
  const char* touch(const Call& call);
  const char* lease(const Call& call);
  const char* release(const Call& call);
  const char* visit(const Call& call);
  const char* queue(const Call& call);
  const char* unqueue(const Call& call);
  const char* hint(const Call& call);
  const char* choose(const Call& call, Answer& answer);
  bool is_inner(NodeId id) const { return id != tree_->root() && tree_->has(id); }
  bool knows(Tier tier) const { return tier == Tier::device || (tier == Tier::host && setup_.host_pages > 0); }

  const HostedSetup setup_;
  std::unique_ptr<RadixTree> tree_;
  std::unordered_set<PageKey, PageKeyHash> pages_;    // all pages of the tree
  std::unordered_map<std::uint32_t, Leases> leases_;  // that end at the node
  std::unordered_map<RequestId, std::vector<PageKey>> queued_;
  DecisionLog log_;
  bool looks_ahead_ = false, takes_hints_ = false;
  RequestId visitor_ = kNoRequest;
  TimeNs now_ = 0;
  std::vector<SlotId> slots_, freed_;  // the host's tree has the real ones
};

}  // namespace kvtwin
