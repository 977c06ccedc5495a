#include "policy/index/radix_tree.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/base/mutant.hpp"

namespace kvtwin {
namespace {

// Returns the number of leading pages that are equal. Requires: the first pages are equal. Keys are chain hashes: if a
// page is equal, all pages before it are. So one comparison is enough if all are equal, else a binary search.
std::size_t shared_pages(std::span<const PageKey> a, std::span<const PageKey> b) {
  const std::size_t length = std::min(a.size(), b.size());
  if (a[length - 1] == b[length - 1]) return length;
  std::size_t equal = 1, different = length - 1;  // pages [0, equal) are equal, page `different` is not
  while (equal < different) {
    const std::size_t middle = equal + (different - equal) / 2;
    if (a[middle] == b[middle]) {
      equal = middle + 1;
    } else {
      different = middle;
    }
  }
  return equal;
}

void take_tail(PageList<SlotId>& whole, std::size_t count, std::vector<SlotId>& taken) {
  if (whole.empty()) return;
  taken.insert(taken.end(), whole.end() - count, whole.end());
  whole.drop_tail(count);
}

// Returns whether both parts could be one node: they have the same state and history, and neither has a lease or a
// transfer.
bool is_one_node(const Node& upper, const Node& lower) {
  const auto idle = [](const Node& node) {
    return node.device.leases == 0 && node.host.leases == 0 && node.host.arriving == OperationId::none &&
           node.device.arriving == OperationId::none;
  };
  return upper.children == 1 && idle(upper) && idle(lower) && upper.device.resident() == lower.device.resident() &&
         upper.host.resident() == lower.host.resident() && upper.incomplete == lower.incomplete &&
         upper.queued == lower.queued && upper.passed_over == lower.passed_over &&
         upper.backup_hits == lower.backup_hits && upper.backup_failures == lower.backup_failures &&
         upper.facts.last_access == lower.facts.last_access && upper.facts.hits == lower.facts.hits &&
         upper.facts.priority == lower.facts.priority && upper.sessions == lower.sessions &&
         upper.holds == lower.holds && upper.ended == lower.ended && upper.references == lower.references &&
         upper.facts.inserted + lower.facts.pages == lower.facts.inserted;
}

bool is_device_leaf(const Node& node) { return node.evictable && node.device.children == 0; }

bool is_shadowed(const Node& node) {
  return node.device.resident() && node.host.resident() && node.host.children == 0 && node.host.leases == 0 &&
         node.host_readers == 0 && !node.leaving && !node.passed_over && node.host.arriving == OperationId::none &&
         (node.device.arriving == OperationId::none || KV_MUTANT(4));
}

bool is_candidate(const Node& node) {
  return node.device.resident() && node.device.leases == 0 && !node.leaving &&
         node.settled_children == node.device.children;
}

Tier tier_of(std::size_t role) { return static_cast<PolicyRole>(role) == PolicyRole::host ? Tier::host : Tier::device; }

// Returns whether the node's pages are in the tier of this role.
bool is_in_tier_of(const Node& node, std::size_t role) { return node.on(tier_of(role)).resident(); }

}  // namespace

RadixTree::RadixTree(std::unique_ptr<EvictionPolicy> device, std::unique_ptr<EvictionPolicy> host,
                     std::unique_ptr<EvictionPolicy> candidates, std::unique_ptr<EvictionPolicy> shadowed)
    : policies_{std::move(device), std::move(host), std::move(candidates), std::move(shadowed)} {
  KV_CHECK(static_cast<bool>(policy(PolicyRole::device)), "the device tier needs an eviction policy");
  KV_CHECK(policy(PolicyRole::shadowed).learner == nullptr, "the policy of shadowed copies keeps no marks");
  for (const auto& installed : policies_) looks_ahead_ |= installed.looks_ahead != nullptr;
  Node& top = nodes_.emplace_back();  // the root: no pages, counts as on every tier, is never offered
  top.alive = true;
  top.facts.priority = std::numeric_limits<std::int32_t>::min();
}

FurtherPool& RadixTree::add_pool(Closure closure, Pages tail_pages) {
  KV_CHECK(live_ == 0, "pools are added to an empty tree");
  joins_nodes_ = false;  // a node's end may have a state
  return *pools_.emplace_back(std::make_unique<FurtherPool>(*this, closure, tail_pages));
}

// ---- nodes -------------------------------------------------------------------------------------------

NodeId RadixTree::new_node() {
  NodeId id{};
  if (free_nodes_.empty()) {
    KV_CHECK(nodes_.size() < static_cast<std::size_t>(NodeId::none), "the index has a number for every node");
    id = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back();
  } else {
    id = free_nodes_.back();
    free_nodes_.pop_back();
  }
  mutable_node(id).alive = true;
  ++live_;
  return id;
}

void RadixTree::withdraw(NodeId id) {
  for (const auto& policy : policies_) {
    if (policy) policy->withdraw(id);
  }
  for (auto& listed : ended_) {
    if (any_ended_) listed.erase({node(id).facts.last_access, id});
  }
  if (shadowed_copies_) shadowed_copies_->set(id, ShadowedCopies::State::absent);
}

// Requires: the node's parent is still known.
void RadixTree::free_node(NodeId id) {
  for (const auto& pool : pools_) {
    pool->hand_ends_over(id);
    KV_CHECK(pool->is_blank(id), "a node goes with all that the pools have of it");
  }
  const Node& n = node(id);
  if (n.sessions > 0 || n.holds > 0) moved_.push_back({id, n.parent});
  if (n.references > 0) give_references_up(id);
  ranks_.erase(id);
  mutable_node(id) = Node{};
  free_nodes_.push_back(id);
  --live_;
}

void RadixTree::link_child(NodeId parent, NodeId child) {
  Node& above = mutable_node(parent);
  Node& below = mutable_node(child);
  below.parent = parent;
  below.previous_sibling = NodeId::none;
  below.next_sibling = above.first_child;
  if (above.first_child != NodeId::none) mutable_node(above.first_child).previous_sibling = child;
  above.first_child = child;
  ++above.children;
  above.device.children += below.device.resident();
  above.host.children += below.host.resident();
  above.settled_children += below.settled;
  above.evictable_children += below.evictable;
  above.clean_children += below.clean;
}

void RadixTree::unlink_child(NodeId child) {
  Node& below = mutable_node(child);
  Node& above = mutable_node(below.parent);
  if (below.previous_sibling == NodeId::none) {
    above.first_child = below.next_sibling;
  } else {
    mutable_node(below.previous_sibling).next_sibling = below.next_sibling;
  }
  if (below.next_sibling != NodeId::none) mutable_node(below.next_sibling).previous_sibling = below.previous_sibling;
  --above.children;
  above.device.children -= below.device.resident();
  above.host.children -= below.host.resident();
  above.settled_children -= below.settled;
  above.evictable_children -= below.evictable;
  above.clean_children -= below.clean;
}

NodeId RadixTree::child_of(NodeId parent, const PageKey& first) const {
  const NodeId found = by_first_key_.find(first, first_key());
  KV_CHECK(found == NodeId::none || node(found).parent == parent, "two equal keys name two equal prefixes");
  return found;
}

bool RadixTree::classify(NodeId id) {
  Node& n = mutable_node(id);
  Node& parent = mutable_node(n.parent);
  const bool may_go = n.device.resident() && (n.device.leases == 0 || KV_MUTANT(2)) && !lacks_leased_copy(n) &&
                      (n.leaving || !leaves_by_choice());
  const bool settled = may_go && n.settled_children == n.device.children;
  const bool evictable =
      may_go && (n.host.arriving == OperationId::none || KV_MUTANT(3)) && n.evictable_children == n.device.children;
  const bool clean = is_clean(n);
  const bool changed = settled != n.settled || evictable != n.evictable || clean != n.clean;
  const auto count = [&n](bool now, bool before, std::uint32_t& above, Pages& sum) {
    if (now == before) return;
    above = now ? above + 1 : above - 1;
    sum = now ? sum + n.facts.pages : sum - n.facts.pages;
  };
  count(settled, n.settled, parent.settled_children, settled_pages_);
  count(evictable, n.evictable, parent.evictable_children, evictable_pages_);
  count(clean, n.clean, parent.clean_children, clean_pages_);
  n.settled = settled;
  n.evictable = evictable;
  n.clean = clean;
  return changed;
}

void RadixTree::refresh(NodeId id) {
  for (; id != root(); id = node(id).parent) {
    const bool changed = classify(id);
    const Node& n = node(id);
    for (std::size_t role = 0; role < kPolicies; ++role) {
      const InstalledPolicy& policy = policies_[role];
      if (!policy) continue;
      if (is_offered_to(n, static_cast<PolicyRole>(role))) {
        policy->offer(policy_view(id, role));
      } else {
        policy->withdraw(id);
      }
    }
    if (any_ended_) list_ended(id);
    if (shadowed_copies_) shadowed_copies_->set(id, shadowed_state(n));
    if (!changed) return;
  }
}

// The node's facts have changed, but not its state.
void RadixTree::reoffer(NodeId id) {
  for (std::size_t role = 0; role < kPolicies; ++role) {
    if (!policies_[role] || !is_offered_to(node(id), static_cast<PolicyRole>(role))) continue;
    policies_[role]->offer(policy_view(id, role));
  }
}

// ---- the policies ------------------------------------------------------------------------------------

bool RadixTree::is_host_leaf(const Node& n) const {
  return n.host.resident() && (!n.device.resident() || (n.leaving && host_evicts_leaving_)) && n.children == 0 &&
         n.host.leases == 0 && n.device.leases == 0 && !n.passed_over;
}

// Returns whether the node is on offer to the policy of this role.
bool RadixTree::is_offered_to(const Node& n, PolicyRole role) const {
  const bool held = n.holds > 0;
  switch (role) {
    case PolicyRole::device: return is_device_leaf(n) && !held;
    case PolicyRole::host: return is_host_leaf(n) && !held;
    case PolicyRole::candidates: return is_candidate(n) && !held;
    case PolicyRole::shadowed: return is_shadowed(n);
  }
  return false;
}

PolicyNode RadixTree::policy_view(NodeId id, std::size_t role) {
  Node& n = mutable_node(id);
  std::uint32_t references = n.references;
  if (const auto ranked = ranks_.find(id); ranked != ranks_.end()) references = ranked->second;
  // Which copy L2 drops of pages that stay on L1 does not depend on sessions, as in SGLang.
  if (static_cast<PolicyRole>(role) == PolicyRole::shadowed) references = 0;
  return {id, n.facts, n.keys(), role < kMarks ? n.marks[role] : unused_marks_, references};
}

ShadowedCopies::State RadixTree::shadowed_state(const Node& n) const {
  using State = ShadowedCopies::State;
  if (!n.host.resident()) return State::absent;
  if (!n.device.resident() || n.leaving) return State::left;
  if (n.host.arriving != OperationId::none || (n.device.arriving != OperationId::none && !KV_MUTANT(4)))
    return State::in_transfer;
  // Without write-back, the copies on L2 stay prefix-closed.
  const bool needed_below = n.host.children > 0 && !leaves_by_choice() && host_prefix_closed_;
  if (n.host.leases > 0 || n.host_readers > 0 || needed_below || n.passed_over) return State::held;
  const std::uint32_t children_that_stay = n.device.children - (leaves_by_choice() ? n.settled_children : 0);
  return n.device.leases == 0 && children_that_stay == 0 ? State::last : State::first;
}

void RadixTree::visit(const Visit& visit) {
  now_ = visit.time;
  parts_ = visit.parts;
  for (const auto& policy : policies_) {
    if (policy.learner != nullptr) policy.learner->visit(visit);
  }
}

void RadixTree::hint(const Hint& hint, TimeNs time) {
  for (const auto& policy : policies_) {
    if (policy.takes_hints != nullptr) policy.takes_hints->hint(hint, time);
  }
}

void RadixTree::queue(RequestId request, std::span<const PageKey> keys, bool splits) {
  if (!looks_ahead_) return;
  for (const auto& policy : policies_) {
    if (policy.looks_ahead != nullptr) policy.looks_ahead->queued(request, keys);
  }
  reoffer_path(splits ? match(keys).end : peek(keys).end);
}

void RadixTree::unqueue(RequestId request, std::span<const PageKey> keys) {
  if (!looks_ahead_) return;
  for (const auto& policy : policies_) {
    if (policy.looks_ahead != nullptr) policy.looks_ahead->unqueued(request);
  }
  reoffer_path(peek(keys).end);
}

void RadixTree::reoffer_path(NodeId end) {
  for (NodeId at = end; at != root(); at = node(at).parent) reoffer(at);
}

Pages RadixTree::shared_history_prefix(std::span<const PageKey> keys) const {
  if (keys.size() == 1) return 1;
  Pages pages = keys.size();
  for (const PolicyRole role : {PolicyRole::device, PolicyRole::candidates}) {
    const LearnsFromVisits* const learner = policy(role).learner;
    if (learner != nullptr) pages = std::min(pages, learner->shared_history_prefix(keys));
  }
  return pages;
}

void RadixTree::notify_evicted(PolicyRole role, NodeId id, Pages pages) {
  const auto notify = [&](PolicyRole to) {
    if (policy(to).learner == nullptr) return;
    policy(to).learner->evicted(policy_view(id, static_cast<std::size_t>(to)), pages);
  };
  notify(role);
  // The policy of the candidates learns from every page that leaves L1.
  if (role == PolicyRole::device) notify(PolicyRole::candidates);
}

void RadixTree::notify_entered(NodeId id, Tier tier) {
  const Node& n = node(id);
  const std::size_t other = static_cast<std::size_t>(tier == Tier::device ? PolicyRole::host : PolicyRole::device);
  const bool there = policies_[other] && is_in_tier_of(n, other);
  for (std::size_t role = 0; role < kPolicies; ++role) {
    if (tier_of(role) != tier) continue;
    if (role < kMarks) mutable_node(id).marks[role] = {};
    LearnsFromVisits* const learner = policies_[role].learner;
    if (learner == nullptr) continue;
    if (there) {
      learner->copied(policy_view(id, role), n.marks[other]);
    } else {
      learner->entered(policy_view(id, role));
    }
  }
}

// ---- looking up --------------------------------------------------------------------------------------

bool RadixTree::fits(std::span<const PageKey> keys) const {
  for (NodeId above = root(); !keys.empty();) {
    const NodeId id = by_first_key_.find(keys.front(), first_key());
    if (id == NodeId::none) return true;
    const Node& child = node(id);
    if (child.parent != above) return false;
    if (child.facts.pages >= keys.size()) return true;
    if (shared_pages(child.keys(), keys) < child.facts.pages) return true;
    keys = keys.subspan(child.facts.pages);
    above = id;
  }
  return true;
}

PrefixMatch RadixTree::peek(std::span<const PageKey> keys) const {
  PrefixMatch match{0, 0, root(), root(), 0};
  while (!keys.empty()) {
    const NodeId id = child_of(match.end, keys.front());
    if (id == NodeId::none) break;
    const Node& child = node(id);
    const std::size_t shared = shared_pages(child.keys(), keys);
    match.end = id;
    if (child.device.resident()) {
      match.device_end = id;
      match.device_pages += shared;
    } else {
      match.host_pages += shared;
    }
    if (shared < child.facts.pages) break;
    keys = keys.subspan(shared);
  }
  match.present = match.device_pages + match.host_pages;
  return match;
}

PrefixMatch RadixTree::match(std::span<const PageKey> keys) {
  PrefixMatch match = peek(keys);
  const NodeFacts& last = node(match.end).facts;
  const Pages beyond = last.depth_pages - (match.device_pages + match.host_pages);
  if (beyond == 0) return match;
  const NodeId upper = split(match.end, last.pages - beyond);
  if (split_refreshes_) {
    if (!pools_.empty()) stamp(upper, next_stamp());  // the request may continue from a node above
    stamp(match.end, next_stamp());
  }
  if (match.device_end == match.end) match.device_end = upper;
  match.end = upper;
  return match;
}

void RadixTree::stamp(NodeId id, std::uint64_t stamp) {
  use_again(id);
  NodeFacts& facts = mutable_node(id).facts;
  facts.last_access = stamp;
  facts.used_at = now_;
  reoffer(id);
}

void RadixTree::touch(NodeId end, std::uint64_t stamp, Touch kind) {
  for (NodeId at = end; at != root(); at = node(at).parent) {
    use_again(at);
    Node& touched = mutable_node(at);
    touched.facts.last_access = stamp;
    touched.facts.used_at = now_;
    if (!touched.facts.parts.known()) touched.facts.parts = parts_;
    if (kind == Touch::access) ++touched.facts.hits;
    for (std::size_t role = 0; role < kPolicies; ++role) {
      LearnsFromVisits* const learner = policies_[role].learner;
      if (learner != nullptr && is_in_tier_of(touched, role)) learner->touched(policy_view(at, role));
    }
    if (touched.leaving) {
      touched.leaving = false;
      refresh(at);
    } else {
      reoffer(at);
    }
  }
}

void RadixTree::count_touch(NodeId end, Pages above, std::span<const NodeId> except) {
  for (NodeId at = end; at != root() && node(at).facts.depth_pages > above; at = node(at).parent) {
    if (std::ranges::find(except, at) != except.end()) continue;
    ++mutable_node(at).facts.hits;
    reoffer(at);
  }
}

// ---- growing, splitting, shrinking -------------------------------------------------------------------

NodeId RadixTree::insert(NodeId parent, std::span<const PageKey> keys, std::span<const SlotId> device,
                         std::span<const SlotId> host, std::uint64_t stamp, std::int32_t priority) {
  KV_CHECK(!keys.empty() && node(parent).alive, "a new node has pages and a parent");
  KV_CHECK(!device.empty() || !host.empty(), "every page is on a tier");
  KV_CHECK(device.empty() || device.size() == keys.size(), "one device slot a page");
  KV_CHECK(host.empty() || host.size() == keys.size(), "one host slot a page");
  KV_CHECK(device.empty() || parent == root() || node(parent).device.resident(), "the device set is prefix-closed");
  const NodeId id = new_node();
  KV_CHECK(by_first_key_.insert(keys.front(), id, first_key()), "a page is inserted once");
  insertions_ += keys.size();

  Node& leaf = mutable_node(id);
  leaf.first_key = keys.front();
  if (keys.size() > 1) leaf.longer_keys.append(keys);
  leaf.device.slots.append(device);
  leaf.host.slots.append(host);
  leaf.facts.last_access = stamp;
  leaf.facts.used_at = now_;
  leaf.facts.parts = parts_;
  leaf.facts.inserted = insertions_;
  leaf.facts.hits = first_hits_;
  leaf.facts.priority = priority;
  leaf.facts.pages = static_cast<std::uint32_t>(keys.size());
  leaf.facts.depth_pages = node(parent).facts.depth_pages + leaf.facts.pages;
  for (const Tier tier : kTiersOfTree) {
    if (leaf.on(tier).resident()) sums(tier).pages += keys.size();
  }
  link_child(parent, id);
  raise_priority(parent, priority);
  for (const Tier tier : kTiersOfTree) {
    if (leaf.on(tier).resident()) notify_entered(id, tier);
  }
  refresh(id);
  refresh(parent);
  return id;
}

NodeId RadixTree::split(NodeId id, Pages upper_pages) {
  KV_CHECK(id != root() && node(id).alive, "the root has nothing to split");
  KV_CHECK(upper_pages > 0 && upper_pages < node(id).facts.pages, "both parts of a split have pages");
  const NodeId upper_id = new_node();
  Node& upper = mutable_node(upper_id);
  Node& lower = mutable_node(id);
  unlink_child(id);
  const NodeId parent = lower.parent;
  upper.longer_keys = lower.longer_keys.cut(upper_pages);
  for (const Tier tier : kTiersOfTree) {
    upper.on(tier).slots = lower.on(tier).slots.cut(upper_pages);
    upper.on(tier).leases = lower.on(tier).leases;
    upper.on(tier).arriving = lower.on(tier).arriving;
  }
  upper.sessions = lower.sessions;
  upper.holds = lower.holds;
  upper.ended = lower.ended;
  upper.references = lower.references;
  upper.first_key = std::exchange(lower.first_key, lower.longer_keys[0]);
  const std::uint64_t lower_pages = lower.facts.pages - upper_pages;
  if (upper_pages == 1) upper.longer_keys = {};
  if (lower_pages == 1) lower.longer_keys = {};
  by_first_key_.renumber(upper.first_key, id, upper_id);
  KV_CHECK(by_first_key_.insert(lower.first_key, id, first_key()), "a page is inserted once");

  upper.backup_hits = lower.backup_hits;
  upper.backup_failures = lower.backup_failures;
  upper.incomplete = lower.incomplete;
  upper.leaving = lower.leaving;
  upper.queued = lower.queued;
  upper.settled = lower.settled;  // the upper part's only child is the lower one
  upper.evictable = lower.evictable;
  upper.clean = lower.clean;
  upper.facts = lower.facts;
  lower.facts.pages = static_cast<std::uint32_t>(lower_pages);
  upper.facts.pages = static_cast<std::uint32_t>(upper_pages);
  upper.facts.depth_pages -= lower.facts.pages;
  upper.facts.inserted -= lower_pages;  // the pages of a node were inserted one after the other
  upper.marks = lower.marks;

  link_child(parent, upper_id);
  link_child(upper_id, id);
  for (const auto& pool : pools_) pool->split(upper_id, id, upper_pages);
  for (std::size_t role = 0; role < kPolicies; ++role) {
    LearnsFromVisits* const learner = policies_[role].learner;
    if (learner != nullptr && is_in_tier_of(upper, role))
      learner->split(policy_view(upper_id, role), policy_view(id, role));
  }
  refresh(id);  // the node has fewer pages; the upper part is no leaf
  if (shadowed_copies_) shadowed_copies_->set(upper_id, shadowed_state(upper));
  return upper_id;
}

// Undoes a split. Otherwise a node that is demoted page by page would become a chain of single pages, which every later
// match, load and eviction would have to walk.
void RadixTree::join_only_child(NodeId id) {
  constexpr std::uint32_t kMaxGrandchildren = 16;  // each grandchild gets a new parent
  Node& upper = mutable_node(id);
  const NodeId lower_id = upper.first_child;
  if (!joins_nodes_) return;
  if (looks_ahead_) return;      // one part may be wanted and the other not
  if (split_refreshes_) return;  // a later split of the joined node would refresh its rest
  if (lower_id == NodeId::none || !is_one_node(upper, node(lower_id))) return;
  Node& lower = mutable_node(lower_id);
  if (lower.children > kMaxGrandchildren) return;
  withdraw(lower_id);
  by_first_key_.erase(lower.first_key, lower_id);
  unlink_child(lower_id);
  while (lower.first_child != NodeId::none) {
    const NodeId grandchild = lower.first_child;
    unlink_child(grandchild);
    link_child(id, grandchild);
  }
  if (upper.longer_keys.empty()) upper.longer_keys.append({&upper.first_key, 1});
  if (lower.longer_keys.empty()) lower.longer_keys.append({&lower.first_key, 1});
  upper.longer_keys.join(std::move(lower.longer_keys));
  for (const Tier tier : kTiersOfTree) upper.on(tier).slots.join(std::move(lower.on(tier).slots));
  upper.facts.pages += lower.facts.pages;
  upper.facts.depth_pages = lower.facts.depth_pages;
  upper.facts.inserted = lower.facts.inserted;
  upper.facts.parts = lower.facts.parts;
  upper.marks = lower.marks;  // policies keep what they know about a node's end, which is the lower part's
  free_node(lower_id);
}

void RadixTree::remove_tail(NodeId id, Pages pages, std::vector<SlotId>& device, std::vector<SlotId>& host) {
  Node& leaf = mutable_node(id);
  KV_CHECK(id != root() && leaf.alive && pages > 0 && pages <= leaf.facts.pages, "the tail is part of a node");
  KV_CHECK(leaf.children == 0, "only a leaf's tail is removed");
  KV_CHECK(leaf.device.leases == 0 && leaf.host.leases == 0, "a leased page is not removed");
  KV_CHECK(leaf.host.arriving == OperationId::none && leaf.device.arriving == OperationId::none,
           "a page in transfer is not removed");
  for (const Tier tier : kTiersOfTree) {
    if (leaf.on(tier).resident()) sums(tier).pages -= pages;
    if (leaf.on(tier).resident() && leaf.holds > 0) sums(tier).held -= pages;
  }
  if (leaf.settled) settled_pages_ -= pages;
  if (leaf.evictable) evictable_pages_ -= pages;
  if (leaf.queued) queued_pages_ -= pages;
  if (leaf.clean) clean_pages_ -= pages;
  if (pages == leaf.facts.pages) {
    device.insert(device.end(), leaf.device.slots.begin(), leaf.device.slots.end());
    host.insert(host.end(), leaf.host.slots.begin(), leaf.host.slots.end());
    const NodeId parent = leaf.parent;
    by_first_key_.erase(leaf.first_key, id);
    unlink_child(id);
    withdraw(id);
    free_node(id);
    refresh(parent);
    return;
  }
  take_tail(leaf.device.slots, pages, device);
  take_tail(leaf.host.slots, pages, host);
  leaf.facts.pages -= static_cast<std::uint32_t>(pages);
  leaf.longer_keys.drop_tail(leaf.facts.pages == 1 ? leaf.longer_keys.size() : pages);
  leaf.facts.depth_pages -= static_cast<std::uint32_t>(pages);
  leaf.facts.inserted -= pages;
  refresh(id);
}

// ---- residency ---------------------------------------------------------------------------------------

void RadixTree::set_slots(Tier tier, NodeId id, std::span<const SlotId> slots) {
  Node& target = mutable_node(id);
  Residency& here = target.on(tier);
  KV_CHECK(id != root() && target.alive && !here.resident(), "the node isn't on the tier yet");
  KV_CHECK(slots.size() == target.facts.pages, "one slot a page");
  KV_CHECK(tier == Tier::host || target.parent == root() || node(target.parent).device.resident(),
           "the device set is prefix-closed");
  here.slots = PageList<SlotId>(slots);
  sums(tier).pages += target.facts.pages;
  if (here.leases > 0) sums(tier).leased += target.facts.pages;
  if (target.holds > 0) sums(tier).held += target.facts.pages;
  ++mutable_node(target.parent).on(tier).children;
  notify_entered(id, tier);
  refresh(id);
  refresh(target.parent);
}

std::vector<SlotId> RadixTree::take_slots(Tier tier, NodeId id) {
  Node& target = mutable_node(id);
  KV_CHECK(target.alive && target.device.resident() && target.host.resident(), "every page stays on a tier");
  Residency& here = target.on(tier);
  std::vector<SlotId> slots(here.slots.begin(), here.slots.end());
  here.slots = {};
  sums(tier).pages -= target.facts.pages;
  if (here.leases > 0) sums(tier).leased -= target.facts.pages;
  if (target.holds > 0) sums(tier).held -= target.facts.pages;
  --mutable_node(target.parent).on(tier).children;
  if (tier == Tier::host) set_queued(id, false);
  return slots;
}

std::vector<SlotId> RadixTree::clear(Tier tier, NodeId id) {
  Node& target = mutable_node(id);
  KV_CHECK(target.on(tier).leases == 0, "a leased page is not evicted");
  if (tier == Tier::host) return discard_host(id);
  KV_CHECK(target.device.children == 0, "the device set is prefix-closed");
  KV_CHECK(target.host.arriving == OperationId::none, "a page that is being written is not evicted");
  std::vector<SlotId> slots = take_slots(tier, id);
  target.leaving = target.incomplete = false;
  classify(id);  // before the node grows
  join_only_child(id);
  refresh(id);
  refresh(target.parent);
  return slots;
}

std::vector<SlotId> RadixTree::discard_host(NodeId id) {
  std::vector<SlotId> slots = take_slots(Tier::host, id);
  refresh(id);
  refresh(node(id).parent);
  return slots;
}

void RadixTree::set_arriving(Tier tier, NodeId id, OperationId operation) {
  mutable_node(id).on(tier).arriving = operation;
  refresh(id);
}

void RadixTree::set_queued(NodeId id, bool queued) {
  Node& node = mutable_node(id);
  if (node.queued) queued_pages_ -= node.facts.pages;
  if (queued) queued_pages_ += node.facts.pages;
  node.queued = queued;
  const bool returns = node.passed_over && !queued;
  if (returns) node.passed_over = false;
  if (returns || counts_clean_) refresh(id);
}

void RadixTree::pass_over(NodeId id) {
  KV_CHECK(node(id).queued, "only a node that waits for its write is passed over");
  mutable_node(id).passed_over = true;
  refresh(id);
}

void RadixTree::set_leaving(NodeId id) {
  if (shadowed_copies_ && node(id).host.resident()) shadowed_copies_->give_place(id);
  mutable_node(id).leaving = true;
  refresh(id);
}

Pages RadixTree::raise_priority(NodeId end, std::int32_t priority) {
  Pages raised = 0;
  for (NodeId at = end; at != NodeId::none && node(at).facts.priority < priority; at = node(at).parent) {
    mutable_node(at).facts.priority = priority;
    raised += node(at).facts.pages;
    if (at != root()) reoffer(at);
  }
  return raised;
}

// ---- leases ------------------------------------------------------------------------------------------

void RadixTree::lease(Tier tier, NodeId end) {
  for (NodeId at = end; at != NodeId::none; at = node(at).parent) {
    Node& leased = mutable_node(at);
    KV_CHECK(leased.alive, "only a cached node is leased");
    if (leased.on(tier).leases++ > 0) continue;
    if (leased.on(tier).resident()) sums(tier).leased += leased.facts.pages;
    refresh(at);
  }
}

void RadixTree::release(Tier tier, NodeId end) {
  for (NodeId at = end; at != NodeId::none; at = node(at).parent) {
    Node& leased = mutable_node(at);
    KV_CHECK(leased.alive && leased.on(tier).leases > 0, "a lease is released once");
    if (--leased.on(tier).leases > 0) continue;
    if (leased.on(tier).resident()) sums(tier).leased -= leased.facts.pages;
    refresh(at);
  }
}

void RadixTree::pin_host_copy(NodeId id) {
  constexpr std::uint32_t kMaxReaders = (1 << 12) - 1;
  KV_CHECK(node(id).host_readers < kMaxReaders, "the loads of one copy are few enough to count");
  ++mutable_node(id).host_readers;
  refresh(id);
}

void RadixTree::unpin_host_copy(NodeId id) {
  KV_CHECK(node(id).host_readers > 0, "a pin is taken away once");
  --mutable_node(id).host_readers;
  refresh(id);
}

// ---- hints -------------------------------------------------------------------------------------------

// A node keeps its flag while it is listed by its last access.
void RadixTree::use_again(NodeId id) {
  if (!node(id).ended) return;
  mutable_node(id).ended = false;
  list_ended(id);
  for (const auto& pool : pools_) pool->set_turn(id);
}

void RadixTree::list_ended(NodeId id) {
  const Node& n = node(id);
  const std::pair place(n.facts.last_access, id);
  for (std::size_t role = 0; role < kPolicies; ++role) {
    const auto as = static_cast<PolicyRole>(role);
    if (n.ended && policies_[role] && as != PolicyRole::shadowed && is_offered_to(n, as)) {
      ended_[role].insert(place);
    } else if (!ended_[role].empty()) {
      ended_[role].erase(place);
    }
  }
}

void RadixTree::mark(Mark mark, NodeId end) {
  for (NodeId at = end; at != root(); at = node(at).parent) {
    Node& n = mutable_node(at);
    KV_CHECK(n.alive, "only a cached node is marked");
    std::uint16_t& count = mark == Mark::hold ? n.holds : n.sessions;
    KV_CHECK(count < kMaxMarks, "marks are few enough to count");
    const bool first = count++ == 0;
    use_again(at);
    if (!first || mark != Mark::hold) continue;
    for (const Tier tier : kTiersOfTree) {
      if (n.on(tier).resident()) sums(tier).held += n.facts.pages;
    }
    refresh(at);
  }
}

void RadixTree::unmark(Mark mark, NodeId end) {
  for (NodeId at = end; at != root(); at = node(at).parent) {
    Node& n = mutable_node(at);
    std::uint16_t& count = mark == Mark::hold ? n.holds : n.sessions;
    KV_CHECK(n.alive && count > 0, "a mark is taken away once");
    if (--count > 0 || mark != Mark::hold) continue;
    for (const Tier tier : kTiersOfTree) {
      if (n.on(tier).resident()) sums(tier).held -= n.facts.pages;
    }
    refresh(at);
  }
}

void RadixTree::set_ended(NodeId end) {
  any_ended_ = true;
  for (NodeId at = end; at != root(); at = node(at).parent) {
    Node& n = mutable_node(at);
    if (n.sessions > 0 || n.holds > 0 || n.references > 0) return;
    n.ended = true;
    list_ended(at);
    for (const auto& pool : pools_) pool->set_turn(at);
  }
}

NodeId RadixTree::point_up_to(NodeId end) const {
  std::vector<NodeId> path;
  for (NodeId at = end; at != NodeId::none && at != root(); at = node(at).parent) path.push_back(at);
  std::vector<FurtherPool::Walk> walks;
  for (const auto& pool : pools_) walks.emplace_back(*pool, true);
  NodeId point = NodeId::none;
  for (auto at = path.rbegin(); at != path.rend(); ++at) {
    bool accepted = true;
    for (FurtherPool::Walk& walk : walks) accepted &= walk.accepts(*at, node(*at).facts.pages);
    if (accepted) point = *at;
  }
  return point;
}

void RadixTree::hold_beside(std::uint64_t session, NodeId end) {
  if (pools_.empty()) return;
  const NodeId point = point_up_to(end);
  for (const auto& pool : pools_) pool->hold(session, point);
}

// ---- references of sessions --------------------------------------------------------------------------

void RadixTree::refer(std::uint64_t session, NodeId end) {
  if (end == root()) return;
  if (!session_ends_.has(session, end)) refer_to_pages(session, end);
  for (const auto& pool : pools_) pool->refer(session, pool->resolve(end));
  while (session_ends_.pairs() > kMaxReferences) drop_references(session_ends_.oldest());
}

void RadixTree::refer_to_pages(std::uint64_t session, NodeId end) {
  NodeId above = node(end).parent;
  while (above != root() && !session_ends_.has(session, above)) above = node(above).parent;
  for (NodeId at = end; at != above; at = node(at).parent) {
    use_again(at);
    ++mutable_node(at).references;
    reoffer(at);
  }
  session_ends_.add(session, end);
  if (above != root()) session_ends_.remove(session, above);
}

void RadixTree::drop_references(std::uint64_t session) {
  for (const NodeId end : session_ends_.nodes_of(session)) {
    session_ends_.remove(session, end);
    drop_reference(end);
  }
  for (const auto& pool : pools_) pool->drop_references(session);
}

void RadixTree::drop_reference(NodeId end) {
  for (NodeId at = end; at != root(); at = node(at).parent) {
    KV_CHECK(node(at).references > 0, "a reference is dropped once");
    const bool keeps_rank = keeps_ranks_ && policy(PolicyRole::device)->is_offered(at);
    if (keeps_rank) ranks_.try_emplace(at, node(at).references);
    --mutable_node(at).references;
    if (!keeps_rank) reoffer(at);
  }
}

void RadixTree::keep_ranks(bool on) {
  keeps_ranks_ = on;
  if (on) return;
  for (const auto& [id, references] : std::exchange(ranks_, {})) reoffer(id);
}

// A node goes. The node above it gets the sessions that end there, unless they end there already.
void RadixTree::give_references_up(NodeId id) {
  const NodeId above = node(id).parent;
  for (const std::uint64_t session : session_ends_.sessions_at(id)) {
    session_ends_.remove(session, id);
    if (above == root()) continue;
    if (session_ends_.has(session, above)) {
      if (!KV_MUTANT(14)) drop_reference(above);
    } else {
      session_ends_.add(session, above);
    }
  }
}

// ---- invariants --------------------------------------------------------------------------------------

void RadixTree::check_node(NodeId id) const {
  const Node& n = node(id);
  const Node& parent = node(n.parent);
  KV_CHECK(n.first_key == n.keys().front() && by_first_key_.find(n.first_key, first_key()) == id,
           "a node is found by its first key");
  KV_CHECK(n.facts.pages == n.keys().size() && n.facts.pages > 0, "a node knows its pages");
  KV_CHECK(n.facts.depth_pages == parent.facts.depth_pages + n.facts.pages, "a node knows its depth");
  KV_CHECK(n.facts.inserted >= n.facts.pages && n.facts.inserted <= insertions_, "pages are numbered as inserted");
  KV_CHECK(n.device.resident() || n.host.resident(), "every page is on a tier");
  KV_CHECK(!n.device.resident() || n.device.slots.size() == n.facts.pages, "one device slot a page");
  KV_CHECK(!n.host.resident() || n.host.slots.size() == n.facts.pages, "one host slot a page");
  KV_CHECK(!n.device.resident() || n.parent == root() || parent.device.resident(), "the device set is prefix-closed");
  KV_CHECK(n.facts.priority <= parent.facts.priority, "a node's priority is at least its child's");
  const bool may_go =
      n.device.resident() && n.device.leases == 0 && !lacks_leased_copy(n) && (n.leaving || !leaves_by_choice());
  KV_CHECK(n.settled == (may_go && n.settled_children == n.device.children), "the settled nodes are closed downwards");
  KV_CHECK(n.evictable == (may_go && n.host.arriving == OperationId::none && n.evictable_children == n.device.children),
           "the evictable nodes are closed downwards");
  KV_CHECK(n.clean == is_clean(n), "the clean nodes are closed downwards");
  KV_CHECK(!n.leaving || n.device.resident(), "a node that leaves L1 is on L1");
  KV_CHECK(!n.incomplete || n.device.resident(), "an incomplete node is on L1");
  KV_CHECK(!n.passed_over || n.queued, "a node that is passed over waits for its write");
  KV_CHECK(!n.ended || (n.sessions == 0 && n.holds == 0 && n.references == 0),
           "only what no session has is evicted first");
  for (std::size_t role = 0; role < kPolicies; ++role) {
    const bool first = n.ended && static_cast<PolicyRole>(role) != PolicyRole::shadowed && policies_[role] &&
                       is_offered_to(n, static_cast<PolicyRole>(role));
    KV_CHECK(ended_[role].contains({n.facts.last_access, id}) == first, "the nodes of ended sessions are listed");
    if (!policies_[role]) continue;
    KV_CHECK(policies_[role]->is_offered(id) == is_offered_to(n, static_cast<PolicyRole>(role)),
             "a node is on offer exactly to the policies of its roles");
  }
  KV_CHECK(!shadowed_copies_ || shadowed_copies_->agrees(id, shadowed_state(n)), "copies on both tiers are in order");
}

void RadixTree::check_children(NodeId id) const {
  const Node& n = node(id);
  std::uint64_t children = 0, device_children = 0, device_leases = 0, host_leases = 0;
  std::uint64_t host_children = 0, settled = 0, evictable = 0, clean = 0, sessions = 0, holds = 0;
  NodeId previous = NodeId::none;
  for (NodeId at = n.first_child; at != NodeId::none; at = node(at).next_sibling) {
    const Node& child = node(at);
    KV_CHECK(child.alive && child.parent == id && child.previous_sibling == previous, "siblings are linked");
    ++children;
    if (child.device.resident()) ++device_children;
    host_children += child.host.resident();
    settled += child.settled;
    evictable += child.evictable;
    clean += child.clean;
    device_leases += child.device.leases;
    host_leases += child.host.leases;
    sessions += child.sessions;
    holds += child.holds;
    previous = at;
  }
  KV_CHECK(children == n.children && device_children == n.device.children && host_children == n.host.children,
           "a node knows its children");
  KV_CHECK(settled == n.settled_children && evictable == n.evictable_children && clean == n.clean_children,
           "a node counts its settled, its evictable and its clean children");
  KV_CHECK(device_leases <= n.device.leases && host_leases <= n.host.leases, "a lease holds the whole path");
  KV_CHECK(id == root() || (sessions <= n.sessions && holds <= n.holds), "a mark is on the whole path");
}

void RadixTree::check_references() const {
  std::vector<std::uint32_t> references(nodes_.size());
  for (const auto& [pair, end] : session_ends_.all()) {
    for (NodeId at = pair.first; at != root(); at = node(at).parent) {
      KV_CHECK(has(at), "a session refers to nodes of the tree");
      ++references[static_cast<std::size_t>(at)];
    }
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    KV_CHECK(!nodes_[i].alive || nodes_[i].references == references[i], "a node counts the references to its paths");
  }
}

void RadixTree::check_invariants() const {
  for (const auto& pool : pools_) pool->check_invariants();
  check_references();
  std::size_t live = 0, children = 0, listed = 0;
  std::array<std::size_t, kPolicies> offered{};
  Sums device, host;
  Pages settled = 0, evictable = 0, queued = 0, clean = 0;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const auto id = static_cast<NodeId>(i);
    const Node& n = nodes_[i];
    if (!n.alive) continue;
    check_children(id);
    children += n.children;
    if (id == root()) continue;
    check_node(id);
    ++live;
    for (const Tier tier : kTiersOfTree) {
      Sums& to = tier == Tier::device ? device : host;
      if (n.on(tier).resident()) to.pages += n.facts.pages;
      if (n.on(tier).resident() && n.on(tier).leases > 0) to.leased += n.facts.pages;
      if (n.on(tier).resident() && n.holds > 0) to.held += n.facts.pages;
    }
    if (n.settled) settled += n.facts.pages;
    if (n.evictable) evictable += n.facts.pages;
    if (n.queued) queued += n.facts.pages;
    if (n.clean) clean += n.facts.pages;
    listed += shadowed_copies_ && shadowed_copies_->is_listed(id);
    for (std::size_t role = 0; role < kPolicies; ++role)
      offered[role] += is_offered_to(n, static_cast<PolicyRole>(role));
  }
  // Every node is in one list of children, and depths grow downwards: so the nodes form one tree.
  KV_CHECK(children == live && live == live_ && by_first_key_.size() == live, "all nodes hang below the root");
  KV_CHECK(nodes_.size() == live + free_nodes_.size() + 1, "a node is live or free");
  KV_CHECK(device.pages == device_.pages && host.pages == host_.pages, "pages are counted");
  KV_CHECK(!shadowed_copies_ || shadowed_copies_->listed() == listed, "no other copy is in the order");
  KV_CHECK(device.leased == device_.leased && host.leased == host_.leased, "leased pages are counted");
  KV_CHECK(device.held == device_.held && host.held == host_.held, "held pages are counted");
  for (const auto& of_role : ended_) {
    for (const auto& [stamp, id] : of_role) KV_CHECK(has(id) && node(id).ended, "no other node is listed as ended");
  }
  KV_CHECK(queued == queued_pages_ && clean == clean_pages_, "queued and clean pages are counted");
  KV_CHECK(settled == settled_pages_ && evictable == evictable_pages_, "settled and evictable pages are counted");
  for (std::size_t role = 0; role < kPolicies; ++role) {
    KV_CHECK(!policies_[role] || policies_[role]->offered() == offered[role], "no other node is on offer");
  }
}

}  // namespace kvtwin
