// The index: a radix tree over page keys, with a residency per tier, leases, and the sets of leaves that may be
// evicted. All are kept incrementally. The tree decides nothing and moves nothing; Cache does.
// docs/internals/index-and-cache.md has an overview.
//
// A node is a run of pages with one state: all of them on L1 or none, all of them on L2 or none. Before a part of a
// node changes its state, the node is split. The id stays with the *lower* part, so leases and transfers that name the
// id still cover the whole path. A new node takes the upper part.
//
// Residency: the device set is prefix-closed; every node is on L1 or L2. A lease is counted on every node of the path
// up to the root. A leased page is neither evicted nor overwritten. A page that is being written to L2 is not evicted
// either.
//
// Pages leave L1 from the leaves up, so both of these sets are closed downwards:
//
//   evictable   on L1, no device lease, no lease of a copy that it lacks, not being written, and all its children on L1
//               are evictable
//   settled     evictable, or evictable as soon as the pages that are being written have arrived
//
// If pages leave L1 by choice (write-back), only nodes that were chosen with set_leaving() are in these sets.
//
//   device leaf   evictable, no child on L1: device eviction takes these
//   candidate     on L1, no device lease, not chosen, all its children on L1 settled: chosen next
//   shadowed      on L1 and L2, no child on L2, no lease of L2, not chosen, not in transfer: the copy on L2 may go.
//                 With set_host_prefix_closed(false), also with children on L2
//   host leaf     on L2 only, no child, no lease of L1 or L2, not passed over: host eviction takes these. (The
//                 eviction removes pages, and a lease of L1 ahead of a load may name them.) With
//                 set_host_evicts_leaving(), also on both and
//                 chosen to leave L1.
//   clean         on L2 only, not queued, not held, and all its children are clean: L2 can evict these as soon as
//                 leases end. Only with set_counts_clean()
//
// Hints (policy/cache/holds.hpp) count sessions and holds on every node of a path, up to the root. They change the
// order of evictions, and nothing else: a held node that could be evicted is not on offer to the policies of the device
// tier, the host tier and the candidates. A node that only ended sessions have used is evicted before all others.
// References of sessions (policy/cache/session_radix.hpp) count in the same way. The policies order leaves by them.
//
// Keys are chain hashes: equal keys at one place mean equal prefixes. So a child is found by its first key in one
// table, and the point where a request leaves a node by binary search. A node's priority is the highest priority of the
// requests that inserted the node or a node below it.
//
// Cost: match and insert O(nodes on the path * log pages); all else O(pages touched) or O(path).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "policy/base/page_list.hpp"
#include "policy/base/tiers.hpp"
#include "policy/base/types.hpp"
#include "policy/eviction.hpp"
#include "policy/index/further_pool.hpp"
#include "policy/index/node_table.hpp"
#include "policy/index/session_ends.hpp"
#include "policy/index/shadowed_copies.hpp"

namespace kvtwin {

// The roles that an eviction policy can have in a tree. A node has marks for each role but the last one, whose policy
// keeps no marks.
enum class PolicyRole : std::uint8_t { device, host, candidates, shadowed };
constexpr std::size_t kPolicies = 4, kMarks = 3;

// The memory tiers, which the tree indexes.
constexpr Tier kTiersOfTree[] = {Tier::device, Tier::host};

// A node's place on one of them.
struct Residency {
  PageList<SlotId> slots;                    // empty, or one slot per page
  OperationId arriving = OperationId::none;  // the transfer that fills the slots, until acknowledged
  std::uint32_t children = 0;                // of the node, on this tier
  std::uint32_t leases = 0;

  bool resident() const { return !slots.empty(); }
};

// Four cache lines.
struct alignas(64) Node {
  NodeId parent = NodeId::none;
  NodeId first_child = NodeId::none, next_sibling = NodeId::none, previous_sibling = NodeId::none;
  std::uint32_t children = 0, settled_children = 0, evictable_children = 0, clean_children = 0;
  std::uint32_t backup_hits = 0;  // HiCache's hit_count: requests that inserted the whole node; copied on split
  std::uint32_t backup_failures : 11 = 0;  // since the last copy that arrived; kMaxBackupFailures stands for more
  std::uint32_t host_readers : 12 = 0;     // pin_host_copy()
  // On L1 without the KV of a further shape in its slots (a draft model's), because the tier that the pages came from
  // does not keep it.
  bool incomplete : 1 = false;
  bool leaving : 1 = false;  // chosen to leave L1; reset when the node is touched
  bool settled : 1 = false, evictable : 1 = false, clean : 1 = false;
  bool alive : 1 = false;
  bool ended : 1 = false;  // set_ended()
  // Waits for room on L2, or on L2 for its write to storage; also of the parts of a split.
  bool queued : 1 = false;
  bool passed_over : 1 = false;  // queued, and pass_over(); not of the upper part of a split
  std::uint16_t sessions = 0, holds = 0;
  std::uint32_t references = 0;   // of sessions to this node or to one below it
  PageKey first_key;              // separate, so that a look-up, and a node of one page, read only the node
  PageList<PageKey> longer_keys;  // all keys, if the node has more than one page
  Residency device, host;
  NodeFacts facts;
  std::array<PolicyMarks, kMarks> marks{};  // by PolicyRole

  // One key per page.
  std::span<const PageKey> keys() const {
    return longer_keys.empty() ? std::span(&first_key, facts.pages) : std::span<const PageKey>(longer_keys);
  }
  const Residency& on(Tier tier) const { return tier == Tier::device ? device : host; }
  Residency& on(Tier tier) { return tier == Tier::device ? device : host; }
};
static_assert(sizeof(Node) == 256);

// The longest cached prefix: pages 0 .. device_pages - 1 are on L1, the next host_pages pages on L2 only.
struct PrefixMatch {
  Pages device_pages = 0;
  Pages host_pages = 0;
  NodeId device_end = NodeId::none;  // the node that holds the last device page; the root if none
  NodeId end = NodeId::none;         // the node that holds the last matched page; the root if none
  // Pages of full attention on L1 or L2. More than the others together if a window or a state is missing (Cache).
  Pages present = 0;
  // Of `present`: the pages behind the last point at which the windows alone, or the states alone, let a request
  // continue.
  Pages without_window = 0, without_state = 0;
  std::uint32_t free_blocks = 0;  // BlockGroups::Hit
  bool waits = false;             // what vLLM's host tier has of it depends on a transfer under way
};

class RadixTree {
 public:
  // `device` and `host` choose the victims of their tier. `host` may be null: no such tier. With `candidates`, pages
  // leave L1 by choice, and `candidates` chooses the next ones. `shadowed` chooses which copy on L2 is dropped next
  // while L1 has the page too (see also order_shadowed_copies). Requires: `shadowed` does not learn from visits.
  RadixTree(std::unique_ptr<EvictionPolicy> device, std::unique_ptr<EvictionPolicy> host,
            std::unique_ptr<EvictionPolicy> candidates = nullptr, std::unique_ptr<EvictionPolicy> shadowed = nullptr);

  // Adds a pool whose residency stands beside the nodes. Requires: an empty tree, and no pages that leave L1 by choice.
  FurtherPool& add_pool(Closure closure, Pages tail_pages);

  NodeId root() const { return NodeId{0}; }
  // The reference, and spans from the node, are valid until the next insert, match or split.
  const Node& node(NodeId id) const { return nodes_[static_cast<std::size_t>(id)]; }

  bool has(NodeId id) const { return static_cast<std::size_t>(id) < nodes_.size() && node(id).alive; }
  // Returns whether the node is leased on L2 and not there: for a copy below, if the host set has gaps, or for a copy
  // whose write failed. Such a node stays on L1 until a copy has arrived, because its loss would lose what is leased.
  bool lacks_leased_copy(NodeId id) const { return lacks_leased_copy(node(id)); }
  // Returns whether the node is on offer to the policy of this role.
  bool is_offered(NodeId id, PolicyRole role) const { return is_offered_to(node(id), role); }
  // Returns false if a key names a page of the tree at another place of the chain. All other functions require a chain.
  bool fits(std::span<const PageKey> keys) const;

  // Returns the longest match. Changes nothing.
  PrefixMatch peek(std::span<const PageKey> keys) const;
  // Like peek(), then splits the last node where `keys` leaves it. So the match ends at a node's end.
  PrefixMatch match(std::span<const PageKey> keys);
  // If true, a match that splits a node stamps the lower part, which the match does not use.
  void set_split_refreshes(bool on) { split_refreshes_ = on; }
  // shadowed_victim() is in the order of ShadowedCopies. If pages leave L1 by choice, it may have children on L2.
  // Requires: an empty tree without a policy for this role.
  void order_shadowed_copies() { shadowed_copies_.emplace(); }
  // If true, host_victim() may be on L1 too, and chosen to leave L1. Requires: pages leave L1 by choice.
  void set_host_evicts_leaving(bool on) { host_evicts_leaving_ = on; }
  // If false, a split is never undone: nodes keep their ends, so a caller can name them by number.
  void set_joins_nodes(bool on) { joins_nodes_ = on; }
  // If false, a copy on L2 may go although nodes below it are on L2: L1 has the node. (Implied if pages leave by
  // choice.)
  void set_host_prefix_closed(bool on) { host_prefix_closed_ = on; }
  // If true, copies on L2 may lie below nodes that only L1 has.
  void set_host_has_gaps(bool on) { host_has_gaps_ = on; }
  // If true, clean_host_pages() counts. Requires: an empty tree.
  void set_counts_clean(bool on) { counts_clean_ = on; }
  // Nodes enter with this number of hits.
  void set_first_hits(std::uint32_t hits) { first_hits_ = hits; }

  // A request goes to work. Calls visit() of the policies. Until the next visit, nodes that are used get this time, and
  // nodes that are inserted, or that are used and have no known parts, get the parts.
  void visit(const Visit& visit);
  // Calls the policies that take hints or look ahead at the queue.
  void hint(const Hint& hint, TimeNs time);
  // `splits`: the node in which the wanted pages end is split there.
  void queue(RequestId request, std::span<const PageKey> keys, bool splits = true);
  void unqueue(RequestId request, std::span<const PageKey> keys);
  // For pages that are about to enter the device tier: returns how many of the first pages may become one node.
  Pages shared_history_prefix(std::span<const PageKey> keys) const;

  // Returns a new stamp, for the accesses of one request.
  std::uint64_t next_stamp() { return ++stamp_; }
  std::uint64_t last_stamp() const { return stamp_; }
  // Stamps every node from `end` to the root. An access also counts as a touch. A touched node is no longer chosen to
  // leave L1.
  enum class Touch : std::uint8_t { access, recency_only };
  // Stamps one node.
  void stamp(NodeId id, std::uint64_t stamp);
  void touch(NodeId end, std::uint64_t stamp, Touch kind = Touch::access);
  // Counts a touch of every node on the path that ends behind the first `above` pages, but for the nodes `except`.
  void count_touch(NodeId end, Pages above, std::span<const NodeId> except = {});

  // Adds a leaf below `parent`, which ends right before keys[0], with these slots. facts.last_access = stamp.
  // Requires: `device` or `host` has one slot per page; the other may be empty.
  NodeId insert(NodeId parent, std::span<const PageKey> keys, std::span<const SlotId> device,
                std::span<const SlotId> host, std::uint64_t stamp, std::int32_t priority);

  // Splits a node. `id` keeps the pages from `upper_pages` on. Returns the new upper node. Requires: 0 < upper_pages <
  // pages of the node.
  NodeId split(NodeId id, Pages upper_pages);

  // Changes the residency of a whole node on a tier. Slots are passed in or returned.
  void set_slots(Tier tier, NodeId id, std::span<const SlotId> slots);  // on L1: the parent must be on L1
  // Requires: the node is on both tiers; for L1: no child on L1. If a node that leaves L1 and its only child then have
  // the same state and history, without a lease or transfer, the child's pages join the node: a split is undone, and
  // the child's id goes.
  std::vector<SlotId> clear(Tier tier, NodeId id);
  std::vector<SlotId> discard_host(NodeId id);  // for a copy on L2 that never arrived; nodes below may be leased
  // The transfer that fills the slots; none: it was acknowledged.
  void set_arriving(Tier tier, NodeId id, OperationId operation);
  void set_incomplete(NodeId id) { mutable_node(id).incomplete = true; }  // for as long as the node stays on L1
  void count_backup_hit(NodeId id) { ++mutable_node(id).backup_hits; }
  static constexpr std::uint32_t kMaxBackupFailures = 2047;
  void count_backup_failure(NodeId id) {
    if (node(id).backup_failures < kMaxBackupFailures) ++mutable_node(id).backup_failures;
  }
  void forget_backup_failures(NodeId id) { mutable_node(id).backup_failures = 0; }
  // A node that leaves L2 is no longer queued.
  void set_queued(NodeId id, bool queued);
  // host_victim() and shadowed_victim() do not return the node before it leaves the queue. Requires: it is queued.
  void pass_over(NodeId id);
  void set_leaving(NodeId id);
  // Raises the priority of every node on the path to at least `priority`. An insert does that to the nodes above it
  // (HiCache's rule), so no node has a lower priority than its child. Returns the number of raised pages, which are the
  // last ones of the path. Cost: O(nodes raised).
  Pages raise_priority(NodeId end, std::int32_t priority);

  // Removes the last `pages` pages of a childless, unleased node from every tier; the whole node, if these are all its
  // pages. Appends the released slots.
  void remove_tail(NodeId id, Pages pages, std::vector<SlotId>& device, std::vector<SlotId>& host);

  void lease(Tier tier, NodeId end);  // the whole path
  void release(Tier tier, NodeId end);
  // The copy on L2 of this node alone stays. A split leaves the pin at the lower part.
  void pin_host_copy(NodeId id);
  void unpin_host_copy(NodeId id);

  // ---- hints. A session or a hold counts on the node `end` and on all nodes above it. When a node that has a count
  // goes, the ends that named it move to another node of the path.
  enum class Mark : std::uint8_t { session, hold };
  static constexpr std::uint32_t kMaxMarks = 0xFFFF;  // of each kind
  void mark(Mark mark, NodeId end);
  void unmark(Mark mark, NodeId end);
  // The nodes on the path that no session marks and no hold holds are evicted first, until they are used.
  void set_ended(NodeId end);
  struct Moved {
    NodeId from = NodeId::none, to = NodeId::none;
  };
  // The session's hold on windows and states moves to point_up_to(end); `end` none: it goes. mark() and unmark() count
  // holds on pages.
  void hold_beside(std::uint64_t session, NodeId end);
  // Returns the last node up to `end` behind which a request can continue; none if there is none.
  NodeId point_up_to(NodeId end) const;
  const std::vector<std::unique_ptr<FurtherPool>>& pools() const { return pools_; }
  // Returns the moves of ends since the last call, in order.
  std::vector<Moved> take_moved() { return std::exchange(moved_, {}); }
  bool any_moved() const { return !moved_.empty(); }
  Pages held_pages(Tier tier) const { return sums(tier).held; }

  // ---- references of sessions. Beyond kMaxReferences, the session that referred last before all others drops its own.
  static constexpr std::size_t kMaxReferences = std::size_t{1} << 22;
  // The session refers to the path that ends at `end`, and to the windows and the state that each pool has there or
  // next above. Its reference to the nearest node above it moves there.
  void refer(std::uint64_t session, NodeId end);
  void drop_references(std::uint64_t session);
  // While true, nodes on offer keep the rank of the references that they had. SGLang ranks the leaves once for all
  // evictions of an allocation, and room for their copies on L2 may take references from them meanwhile.
  void keep_ranks(bool on);

  // The next victim: a node of ended sessions, else by the policy of the role; none if no node may be evicted, or if
  // all that may be are held.
  NodeId device_victim() { return victim(PolicyRole::device); }
  NodeId host_victim() { return victim(PolicyRole::host); }
  bool leaves_by_choice() const { return static_cast<bool>(policy(PolicyRole::candidates)); }
  NodeId shadowed_victim() { return shadowed_copies_ ? shadowed_copies_->next() : victim(PolicyRole::shadowed); }
  NodeId candidate() { return victim(PolicyRole::candidates); }
  // Requires: called before the last `pages` pages of such a victim leave the tier.
  void notify_evicted(PolicyRole role, NodeId id, Pages pages);

  // On this memory tier; on L2 with or without a copy on L1.
  Pages pages(Tier tier) const { return sums(tier).pages; }
  Pages evictable_device_pages() const { return evictable_pages_; }
  Pages settled_device_pages() const { return settled_pages_; }
  Pages queued_pages() const { return queued_pages_; }
  Pages clean_host_pages() const { return clean_pages_; }
  Pages unleased_device_pages() const { return device_.pages - device_.leased; }
  std::size_t nodes() const { return live_; }  // without the root

  // Compares every invariant above with a computation from scratch. O(size); for tests.
  void check_invariants() const;

 private:
  struct Sums {
    Pages pages = 0, leased = 0, held = 0;  // of all nodes on a memory tier
  };
  const Sums& sums(Tier tier) const { return tier == Tier::device ? device_ : host_; }
  Sums& sums(Tier tier) { return tier == Tier::device ? device_ : host_; }
  Node& mutable_node(NodeId id) { return nodes_[static_cast<std::size_t>(id)]; }
  NodeId new_node();
  void free_node(NodeId id);
  void link_child(NodeId parent, NodeId child);
  void unlink_child(NodeId child);
  auto first_key() const {
    return [this](NodeId id) -> const PageKey& { return node(id).first_key; };
  }
  NodeId child_of(NodeId parent, const PageKey& first) const;
  bool is_clean(const Node& n) const {
    return counts_clean_ && !n.device.resident() && !n.queued && n.holds == 0 && n.clean_children == n.children;
  }
  bool lacks_leased_copy(const Node& n) const {
    return !n.host.resident() && n.host.leases > 0 && (host_has_gaps_ || n.backup_failures > 0);
  }
  bool classify(NodeId id);  // sets settled, evictable and clean; true if one of them changed
  void refresh(NodeId id);   // classify(), then offer or withdraw; continues upwards while the classification changes
  void reoffer(NodeId id);
  void withdraw(NodeId id);
  void join_only_child(NodeId id);
  void reoffer_path(NodeId end);
  const InstalledPolicy& policy(PolicyRole role) const { return policies_[static_cast<std::size_t>(role)]; }
  NodeId victim(PolicyRole role) {
    const auto& first = ended_[static_cast<std::size_t>(role)];
    if (!first.empty()) return first.begin()->second;
    return policy(role) ? policy(role)->victim() : NodeId::none;
  }
  void use_again(NodeId id);
  void give_references_up(NodeId id);
  void refer_to_pages(std::uint64_t session, NodeId end);
  void drop_reference(NodeId end);
  PolicyNode policy_view(NodeId id, std::size_t role);
  bool is_host_leaf(const Node& node) const;
  bool is_offered_to(const Node& node, PolicyRole role) const;
  void list_ended(NodeId id);
  ShadowedCopies::State shadowed_state(const Node& node) const;
  void notify_entered(NodeId id, Tier tier);
  std::vector<SlotId> take_slots(Tier tier, NodeId id);
  void check_node(NodeId id) const;
  void check_children(NodeId id) const;
  void check_references() const;

  std::pmr::vector<Node> nodes_;
  std::vector<std::unique_ptr<FurtherPool>> pools_;
  std::vector<NodeId> free_nodes_;
  NodeTable by_first_key_;
  std::array<InstalledPolicy, kPolicies> policies_;  // null: the role is not used
  std::uint64_t stamp_ = 0, insertions_ = 0;
  TimeNs now_ = 0;            // of the last visit
  PromptParts parts_;         // of the last visit
  PolicyMarks unused_marks_;  // of the role that keeps none
  std::optional<ShadowedCopies> shadowed_copies_;
  bool split_refreshes_ = false, host_evicts_leaving_ = false, joins_nodes_ = true, host_prefix_closed_ = true,
       host_has_gaps_ = false, counts_clean_ = false;
  std::uint32_t first_hits_ = 1;
  Sums device_, host_;
  Pages settled_pages_ = 0, evictable_pages_ = 0, queued_pages_ = 0, clean_pages_ = 0;
  // The nodes of ended sessions that are on offer, by role: by their last access.
  std::array<std::set<std::pair<std::uint64_t, NodeId>>, kPolicies> ended_;
  bool any_ended_ = false;  // set_ended() has been called
  std::vector<Moved> moved_;
  SessionEnds session_ends_;
  bool keeps_ranks_ = false;
  std::map<NodeId, std::uint32_t> ranks_;  // references that nodes had, while they are ranked by these
  bool looks_ahead_ = false;               // a policy implements LooksAhead
  std::size_t live_ = 0;
};

}  // namespace kvtwin
