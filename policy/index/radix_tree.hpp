// The index: a radix tree over page keys with a residency per tier, leases, and the sets of leaves that may
// be evicted, all kept incrementally. It decides nothing and moves nothing; Cache does.
//
// A node is a run of pages with one state: all of them on L1 or none, all on L2 or none. Where a part of a
// node changes state the node is split first: its id stays with the *lower* part (leases and transfers that
// name an id hold the whole path up to it, so both parts stay covered), a new node takes the upper part.
//
// Residency: the device set is prefix-closed; every node is on L1 or L2. Leases are counted on every node
// of the path up to the root: a leased page is neither evicted nor overwritten. Neither is one that is being
// written to L2.
//
// Pages leave L1 from the leaves up, so what may go is closed downwards: a node belongs only if all its children
// on L1 do.
//   evictable:   on L1, no device lease, not being written, and so are its children on L1.
//   settled:     evictable, or will be as soon as what is being written has arrived.
// Where pages leave L1 by choice (write-back), only those that were chosen, set_leaving, belong to either.
//
//   device leaf: evictable, no child on L1.                   (what device eviction takes next)
//   candidate:   on L1, no device lease, not chosen, all its children on L1 settled. (what is chosen next)
//   shadowed:    on L1 and L2, no child on L2, no lease of L2, not chosen, not being written. (its copy on L2 can go)
//   host leaf:   on L2 only, no child at all, no lease.       (what host eviction takes next; it removes pages:
//                so neither a lease of L2 nor one of L1, ahead of a load, may name them)
//
// Keys are chain hashes: equal keys at one place mean equal prefixes, so that a child is found by its first
// key in one table, and the point where a request leaves a node by binary search.
// A node's priority is the highest of the requests that inserted it or a node below it.
// match and insert cost O(nodes on the path * log pages); the rest O(pages touched) or O(path).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <vector>

#include "policy/base/page_list.hpp"
#include "policy/base/types.hpp"
#include "policy/eviction.hpp"
#include "policy/index/node_table.hpp"

namespace kvtwin {

// Who chooses among a tree's nodes, and keeps marks with them.
enum class PolicyRole : std::uint8_t { device, host, candidates, shadowed };
constexpr std::size_t kPolicies = 4;

// Four cache lines.
struct alignas(64) Node {
  NodeId parent = NodeId::none;
  NodeId first_child = NodeId::none, next_sibling = NodeId::none, previous_sibling = NodeId::none;
  std::uint32_t children = 0, device_children = 0, host_children = 0;
  std::uint32_t settled_children = 0, evictable_children = 0;
  std::uint32_t device_leases = 0, host_leases = 0;
  std::uint32_t backup_hits = 0;      // HiCache's hit_count: requests that inserted it whole; copied on split
  std::uint32_t backup_failures = 0;  // since the last copy that arrived
  bool lacks_draft = false;           // on L1 without the draft model's KV, having come from where it isn't kept
  bool leaving = false;               // chosen to leave L1; until it is touched
  bool settled = false, evictable = false;
  bool alive = false;
  PageKey first_key;                       // looking a node up, or one of a single page, reads no more than the node
  PageList<PageKey> longer_keys;           // all of its keys, if they are more than one
  PageList<SlotId> device;                 // empty, or one slot a key
  PageList<SlotId> host;                   // empty, or one slot a key
  OperationId backup = OperationId::none;  // the D2H transfer that fills `host`, until acknowledged
  OperationId load = OperationId::none;    // the H2D transfer that fills `device`, until acknowledged
  NodeFacts facts;
  std::array<PolicyMarks, kPolicies> marks{};  // by policy

  // One a page.
  std::span<const PageKey> keys() const {
    return longer_keys.empty() ? std::span(&first_key, facts.pages) : std::span<const PageKey>(longer_keys);
  }
  bool on_device() const { return !device.empty(); }
  bool on_host() const { return !host.empty(); }
};
static_assert(sizeof(Node) == 256);

// Longest cached prefix: pages 0 .. device_pages - 1 are on L1, the next host_pages on L2 only.
struct PrefixMatch {
  Pages device_pages = 0;
  Pages host_pages = 0;
  NodeId device_end = NodeId::none;  // the node that holds the last device page; the root if none
  NodeId end = NodeId::none;         // the node that holds the last matched page; the root if none
};

class RadixTree {
 public:
  // `device` and `host` choose victims in their tier; `host` may be null (no such tier). With `candidates`, pages
  // leave L1 by choice, and it says which are chosen next. `shadowed` says whose copy on L2 is dispensable next, L1
  // having the page too.
  RadixTree(std::unique_ptr<EvictionPolicy> device, std::unique_ptr<EvictionPolicy> host,
            std::unique_ptr<EvictionPolicy> candidates = nullptr, std::unique_ptr<EvictionPolicy> shadowed = nullptr);

  NodeId root() const { return NodeId{0}; }
  // The reference, and spans of what it has, last until the next insert, match or split.
  const Node& node(NodeId id) const { return nodes_[static_cast<std::size_t>(id)]; }

  // Length of the match without changing anything.
  PrefixMatch peek(std::span<const PageKey> keys) const;
  // The same, after splitting the last node where `keys` leaves it, so that a match ends at a node's end.
  PrefixMatch match(std::span<const PageKey> keys);

  // A request goes to work: tells the policies.
  void visit(const Visit& visit);
  // Of what is still to come: tells those that want to know.
  void hint(const Hint& hint, TimeNs time);
  void queue(RequestId request, std::span<const PageKey> keys);
  void unqueue(RequestId request, std::span<const PageKey> keys);
  // Of pages that are about to enter the device tier: how many of the first ones may become one node.
  Pages shared_history_prefix(std::span<const PageKey> keys) const;

  // A new stamp for one request's accesses.
  std::uint64_t next_stamp() { return ++stamp_; }
  // Stamps every node from `end` to the root; an access also counts as a touch. Who was to leave L1 stays.
  enum class Touch : std::uint8_t { access, recency_only };
  void touch(NodeId end, std::uint64_t stamp, Touch kind = Touch::access);

  // Adds a leaf below `parent` (which ends exactly before keys[0]) on these slots. Not yet touched:
  // facts.hits = 1, last_access = stamp. Exactly one of device and host may be empty.
  NodeId insert(NodeId parent, std::span<const PageKey> keys, std::span<const SlotId> device,
                std::span<const SlotId> host, std::uint64_t stamp, std::int32_t priority);

  // Splits so that `id` keeps the pages from `upper_pages` on; returns the new upper node.
  // 0 < upper_pages < pages of the node.
  NodeId split(NodeId id, Pages upper_pages);

  // Residency changes of a whole node; slots are handed over or back.
  void set_device(NodeId id, std::span<const SlotId> slots);  // load-back, un-evict: parent must be on L1
  void set_host(NodeId id, std::span<const SlotId> slots);
  // No child on L1; the node must be on L2. If that leaves it and an only child in one state and history, with
  // no lease and no transfer on either, the child's pages join the node (a split is undone); the child's id goes.
  std::vector<SlotId> clear_device(NodeId id);
  std::vector<SlotId> clear_host(NodeId id);    // the node must be on L1
  std::vector<SlotId> discard_host(NodeId id);  // likewise, of a copy that never arrived: leased for what lies below
  void set_backup(NodeId id, OperationId operation);
  void set_load(NodeId id, OperationId operation) { mutable_node(id).load = operation; }
  void set_lacks_draft(NodeId id) { mutable_node(id).lacks_draft = true; }  // as long as it stays on L1
  void count_backup_hit(NodeId id) { ++mutable_node(id).backup_hits; }
  void count_backup_failure(NodeId id) { ++mutable_node(id).backup_failures; }
  void forget_backup_failures(NodeId id) { mutable_node(id).backup_failures = 0; }
  void set_leaving(NodeId id);
  // Raises every node of the path to at least this. An insert does that to the nodes above it (HiCache's rule), so that
  // no node's priority is below its child's. Returns the pages that were raised: the path's last ones. Cost: O(nodes
  // raised).
  Pages raise_priority(NodeId end, std::int32_t priority);

  // Removes the last `pages` pages of a childless, unleased node from every tier (the node, if all);
  // released slots are appended.
  void remove_tail(NodeId id, Pages pages, std::vector<SlotId>& device, std::vector<SlotId>& host);

  void lease_device(NodeId end);  // the whole path
  void release_device(NodeId end);
  void lease_host(NodeId end);
  void release_host(NodeId end);

  // Victims, by the tier's policy; none if nothing may be evicted.
  NodeId device_victim() { return victim(PolicyRole::device); }
  NodeId host_victim() { return victim(PolicyRole::host); }
  bool leaves_by_choice() const { return static_cast<bool>(policy(PolicyRole::candidates)); }
  NodeId shadowed_victim() { return victim(PolicyRole::shadowed); }
  NodeId candidate() { return victim(PolicyRole::candidates); }
  // Call it before the last `pages` pages of such a victim leave that tier.
  void notify_evicted(PolicyRole role, NodeId id, Pages pages);

  Pages device_pages() const { return device_pages_; }  // on L1
  Pages host_pages() const { return host_pages_; }      // on L2 (with or without a device copy)
  Pages evictable_device_pages() const { return evictable_pages_; }
  Pages settled_device_pages() const { return settled_pages_; }
  Pages unleased_device_pages() const { return device_pages_ - leased_device_pages_; }
  std::size_t nodes() const { return live_; }  // without the root

  // Every invariant above against a recomputation. O(size); for tests.
  void check_invariants() const;

 private:
  Node& mutable_node(NodeId id) { return nodes_[static_cast<std::size_t>(id)]; }
  NodeId new_node();
  void free_node(NodeId id);
  void link_child(NodeId parent, NodeId child);
  void unlink_child(NodeId child);
  auto first_key() const {
    return [this](NodeId id) -> const PageKey& { return node(id).first_key; };
  }
  NodeId child_of(NodeId parent, const PageKey& first) const;
  bool classify(NodeId id);  // into settled and evictable; true if that changed
  void refresh(NodeId id);   // classifies it, offers or withdraws it; and those above as far as that changes them
  void reoffer(NodeId id);
  void withdraw(NodeId id);
  void join_only_child(NodeId id);
  void reoffer_path(NodeId end);
  const InstalledPolicy& policy(PolicyRole role) const { return policies_[static_cast<std::size_t>(role)]; }
  NodeId victim(PolicyRole role) { return policy(role) ? policy(role)->victim() : NodeId::none; }
  PolicyNode seen(NodeId id, std::size_t role);
  void notify_entered(NodeId id, bool device);
  void check_node(NodeId id) const;
  void check_children(NodeId id) const;

  std::pmr::vector<Node> nodes_;
  std::vector<NodeId> free_nodes_;
  NodeTable by_first_key_;
  std::array<InstalledPolicy, kPolicies> policies_;  // a null policy: no such role
  std::uint64_t stamp_ = 0, insertions_ = 0;
  Pages device_pages_ = 0, host_pages_ = 0, leased_device_pages_ = 0;
  Pages settled_pages_ = 0, evictable_pages_ = 0;
  bool looks_ahead_ = false;  // a policy does
  std::size_t live_ = 0;
};

}  // namespace kvtwin
