// Cache, L2 and the storage tiers: holds, adoption of fetched pages, writes to storage.
#include <algorithm>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/cache.hpp"

namespace kvtwin {

bool Cache::can_extend_on_host(NodeId end) const {
  if (config_.host_pages == 0) return false;
  if (end == tree_.root() || host_has_gaps()) return true;
  return tree_.node(end).host.resident() && tree_.node(end).host.arriving == OperationId::none;
}

bool Cache::can_prefetch_below(NodeId end) const {
  if (config_.prefetch_style == PrefetchStyle::sglang && config_.host_pages != 0 && tree_.node(end).host.resident())
    return true;
  return can_extend_on_host(end);
}

// Gives the pages of the chain that only L1 has, from page `first` on to the node `end`, a copy on L2. Returns up to
// which page L2 has had the chain before.
Pages Cache::refill(NodeId end, Pages first, std::span<const SlotId> slots) {
  path_.clear();
  NodeId id = end;
  for (; id != tree_.root() && !tree_.node(id).host.resident(); id = tree_.node(id).parent) path_.push_back(id);
  const Pages had = id == tree_.root() ? 0 : tree_.node(id).facts.depth_pages;
  if (had < first || !can_extend_on_host(id)) return tree_.node(end).facts.depth_pages;
  for (auto at = path_.rbegin(); at != path_.rend(); ++at) {
    const Node& node = tree_.node(*at);
    tree_.set_slots(Tier::host, *at,
                    slots.subspan(node.facts.depth_pages - node.facts.pages - first, node.facts.pages));
    sink_.keys(EventKind::pages_stored, Tier::host, tree_.node(*at).keys());
  }
  return had;
}

// Returns whether a part of the path is still being loaded from a storage tier. If that load fails, nothing may remain
// below that part.
bool Cache::has_direct_load(NodeId end) const {
  for (NodeId id = end; id != tree_.root(); id = tree_.node(id).parent) {
    if (tree_.node(id).device.arriving != OperationId::none && !tree_.node(id).host.resident()) return true;
  }
  return false;
}

// A page of L2 may lie below a page that only L1 has (host_has_gaps). The lease then keeps the upper page on L1 until
// it is on L2 too, because its loss would lose both (RadixTree::lacks_leased_copy).
Hold Cache::hold(NodeId end) {
  Hold hold;
  if (end == tree_.root() || !tree_.node(end).host.resident() || config_.buffers()) return hold;
  hold.host_end = end;
  tree_.lease(Tier::host, end);
  return hold;
}

void Cache::unhold(const Hold& hold) {
  if (hold.host_end != NodeId::none) tree_.release(Tier::host, hold.host_end);
  if (hold.device_end != NodeId::none) tree_.release(Tier::device, hold.device_end);
}

Pages Cache::make_host_room(Pages pages, bool whole) {
  if (host_.available() < pages) evict_host(whole ? pages : pages - host_.available());
  if (host_.available() < pages) grow_host_reserve(pages - host_.available());
  return std::min(pages, host_.available());
}

void Cache::allocate_host(Pages pages, std::vector<SlotId>& slots) {
  const std::size_t before = slots.size();
  const bool room = host_.allocate(pages, slots);
  KV_CHECK(room, "the room was made before");
  host_used_max_ = std::max(host_used_max_, host_.used());
  sink_.slots(EventKind::slots_allocated, Tier::host, std::span(slots).subspan(before));
}

void Cache::free_host(std::span<const SlotId> slots) {
  if (slots.empty()) return;
  host_.release(slots);
  sink_.slots(EventKind::slots_released, Tier::host, slots);
}

// ---- windows and states

// A window that begins before the pages is on L1 or L2 there, because the prefix before them is usable. SGLang reads no
// window then, and its prefix stays without one.
std::vector<StorageOperation::Need> Cache::needs(Pages first, Pages asked) const {
  std::vector<StorageOperation::Need> needs;
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    const FurtherPool& index = *pools_[at].index;
    const bool state = index.closure() == Closure::point;
    const bool whole = first == 0 || asked >= index.tail_pages();
    if (!state && !whole && config_.prefetch_style == PrefetchStyle::sglang) continue;
    needs.push_back({at + 1, state ? 1 : index.tail_pages(), !state});
  }
  return needs;
}

bool Cache::allocate_host_beside(PoolSlots& beside, Pages count) {
  const std::size_t at = beside.pool - 1;
  if (pools_[at].host.available() < count) evict_host_pool(at, count);
  return take_slots(at, Tier::host, count, beside.slots);
}

void Cache::free_host_beside(PoolSlots& beside) {
  free_slots(beside.pool - 1, Tier::host, std::exchange(beside.slots, {}));
}

// Gives the windows, or the state, to the nodes up to `end` that are on L2 and have none there. Frees the others.
void Cache::put_beside(NodeId end, PoolSlots& beside) {
  const std::size_t at = beside.pool - 1;
  FurtherPool& index = *pools_[at].index;
  const std::span<SlotId> slots = beside.slots;
  Pages last = beside.first + slots.size();
  for (NodeId id = end; id != tree_.root() && last > beside.first; id = tree_.node(id).parent) {
    const Pages begins = tree_.node(id).facts.depth_pages - tree_.node(id).facts.pages;
    const Pages from = std::max(begins, beside.first);
    const auto part = slots.subspan(from - beside.first, last - from);
    const Residency& host = tree_.node(id).host;
    if (host.resident() && host.arriving == OperationId::none && !index.has(Tier::host, id)) {
      if (index.closure() == Closure::tail && from > begins) tree_.split(id, from - begins);
      index.put(Tier::host, id, part);
      std::ranges::fill(part, kNoSlot);
    }
    last = from;
  }
  std::erase(beside.slots, kNoSlot);
  free_host_beside(beside);
}

Cache::Adoption Cache::adopt(std::span<const PageKey> keys, Pages first, std::span<const SlotId> slots,
                             std::span<PoolSlots> beside) {
  const PrefixMatch found = tree_.match(keys);
  const Pages present = found.device_pages + found.host_pages;
  const bool refills = config_.prefetch_style == PrefetchStyle::sglang && present > first && !host_has_gaps() &&
                       !has_direct_load(found.end);
  const Pages had = refills ? refill(found.end, first, slots) : present;
  Adoption adoption;
  if (present < first) {
    adoption.refused = Reason::anchor_lost;
  } else if (!can_extend_on_host(found.end) || has_direct_load(found.end)) {
    adoption.refused = Reason::not_backed_up;
  } else if (had > first) {
    adoption.refused = Reason::duplicate;
  }
  const bool keep = present >= first && had < keys.size() && adoption.refused != Reason::not_backed_up;
  if (!keep && present == keys.size() && adoption.refused != Reason::not_backed_up) {  // they lacked only these
    for (PoolSlots& more : beside) put_beside(found.end, more);
  }
  const Pages skipped = keep ? had - first : slots.size();
  free_host(slots.first(skipped));
  if (!keep) {
    for (PoolSlots& more : beside) free_host_beside(more);
    return adoption;
  }
  adoption.pages = slots.size() - skipped;
  adoption.end = found.end;
  if (present == keys.size()) {
    for (PoolSlots& more : beside) put_beside(found.end, more);
    return adoption;
  }
  const std::span<const SlotId> kept = slots.subspan(present - first);
  const std::int32_t priority = tree_.node(found.end).facts.priority;
  adoption.end = tree_.insert(found.end, keys.subspan(present), {}, kept, tree_.next_stamp(), priority);
  sink_.keys(EventKind::pages_stored, Tier::host, keys.subspan(present));
  storage_.raise_priority(keys.subspan(present), priority);
  for (PoolSlots& more : beside) put_beside(adoption.end, more);
  return adoption;
}

// Writes pages of a node that have arrived on L2 (on L1, without L2) to the first `tiers_to` storage tiers.
void Cache::store_node(NodeId id, Pages first, Pages pages, std::size_t tiers_to) {
  if (tiers_to == 0 || pages == 0) return;
  Hold held = hold(id);
  if (config_.host_pages == 0) {
    held.device_end = id;
    tree_.lease(Tier::device, id);
  }
  const Node& node = tree_.node(id);
  const NodeId parent = node.parent;
  const PageKey* prior = first > 0                ? &node.keys()[first - 1]
                         : parent == tree_.root() ? nullptr
                                                  : &tree_.node(parent).keys().back();
  const std::span<const SlotId> slots = config_.host_pages != 0 ? node.host.slots : node.device.slots;
  const std::uint64_t store = ++last_store_;
  // Pages that a prefetch has read stay for its request. They are written to nearer tiers only.
  const bool leaves = config_.host_mode == HostMode::until_stored && tiers_to == storage_.tiers();
  Store made{held, 0, id, {}, {}, leaves};
  made.jobs = storage_.write(
      store, prior, std::span(node.keys()).subspan(first, pages), std::span(slots).subspan(first, pages),
      config_.host_pages != 0 ? Tier::host : Tier::device, tiers_to, node.facts.priority, 0, node.facts.parts);
  const bool to_end = first + pages == tree_.node(id).facts.pages;
  for (std::size_t at = 0; at < pools_.size() && to_end; ++at) {
    FurtherPool& index = *pools_[at].index;
    if (!index.has(Tier::host, id) || index.arriving(Tier::host, id) != OperationId::none) continue;
    const std::span<const SlotId> own = index.slots(Tier::host, id);
    const std::uint32_t jobs = storage_.write(store, nullptr, std::span(tree_.node(id).keys()).last(own.size()), own,
                                              Tier::host, tiers_to, tree_.node(id).facts.priority, at + 1);
    if (jobs == 0) continue;
    made.jobs += jobs;
    made.beside.emplace_back(at, index.lease(Tier::host, id));
  }
  if (made.jobs == 0) {
    unhold(held);
    if (leaves) leave_host(id);
  } else {
    stores_[store] = std::move(made);
  }
}

// The node may have been cut where its windows begin. Then its upper parts are written too.
void Cache::store_path(NodeId end, Pages from, Pages to, std::size_t tiers_to) {
  std::vector<NodeId> nodes{end};
  while (!pools_.empty()) {
    const Node& top = tree_.node(nodes.back());
    if (top.facts.depth_pages - top.facts.pages <= from || top.parent == tree_.root()) break;
    nodes.push_back(top.parent);
  }
  for (auto id = nodes.rbegin(); id != nodes.rend(); ++id) {
    const NodeFacts& facts = tree_.node(*id).facts;
    const Pages begins = facts.depth_pages - facts.pages;
    const Pages first = std::max(from, begins), last = std::min<Pages>(to, facts.depth_pages);
    if (first < last && (*id == end || tree_.node(*id).host.resident())) {
      store_node(*id, first - begins, last - first, tiers_to);
    }
  }
}

// ---- writes that wait (EngineConfig::host_clean_reserve)
//
//   L2, queued --reserve short, or victim--> L2, leased, write under way --> L2, stored: may be evicted
//       |                                         ^
//       +--victim, enough is being written--> passed over: no victim, and the first to be written when L2 next evicts

void Cache::store_arrived(NodeId id) {
  const Node& node = tree_.node(id);
  if (config_.host_clean_reserve == 0 || storage_.knows_all(node.keys())) {
    return store_node(id, 0, node.facts.pages, storage_.tiers());
  }
  tree_.set_queued(id, true);
  queued_.push_back({id, node.facts.pages});
}

void Cache::store_queued(NodeId id) {
  queued_.erase(id);
  tree_.set_queued(id, false);
  store_node(id, 0, tree_.node(id).facts.pages, storage_.tiers());
}

// L2 is to evict the last `pages` pages of the node. Returns false if nothing has to be written before. Takes what it
// writes from `to_write`, and passes the node over if that is 0.
bool Cache::store_before_eviction(NodeId victim, Pages pages, Pages& to_write) {
  if (!tree_.node(victim).queued) return false;
  if (to_write == 0) {
    tree_.pass_over(victim);
    passed_over_.push_back(victim);
    return true;
  }
  to_write -= std::min(to_write, pages);
  const Pages all = tree_.node(victim).facts.pages;
  if (pages < all) tree_.split(victim, all - pages);
  leave_queue(victim);
  store_queued(victim);
  if (!tree_.has(victim) || !tree_.node(victim).host.resident()) return true;  // every tier had it, so it has left
  return tree_.node(victim).host.leases > 0;
}

void Cache::store_passed_over(Pages& to_write) {
  while (to_write > 0 && !passed_over_.empty()) {
    const NodeId id = passed_over_.front();
    passed_over_.pop_front();
    if (!tree_.has(id) || !tree_.node(id).passed_over) continue;
    const Pages all = tree_.node(id).facts.pages;
    store_before_eviction(id, config_.evict_unit == EvictUnit::node ? all : std::min(all, to_write), to_write);
  }
}

// Returns the pages of L2 that are free, or that L2 can evict as soon as the writes under way have ended. With
// HostMode::until_stored, a page leaves L2 then, whether L1 has it or not.
Pages Cache::clean_host_pages() const {
  if (config_.host_mode == HostMode::until_stored) return config_.host_pages - tree_.queued_pages();
  return host_.available() + tree_.clean_host_pages();
}

// L2 had no room for these pages. The reserve at least doubles, so that a small one loses few pages.
void Cache::grow_host_reserve(Pages lost) {
  const Pages waiting = std::min(lost, tree_.queued_pages());
  if (waiting > 0) host_reserve_ = std::min(config_.host_pages, host_reserve_ + std::max(host_reserve_, waiting));
}

// Writes the copies that arrived on L2 first, and what waits below them: L2 evicts from the leaves up.
void Cache::keep_host_reserve() {
  if (config_.host_clean_reserve == 0) return;
  while (clean_host_pages() < host_reserve_ && !queued_.empty()) {
    NodeId top = NodeId::none;  // the node, or what splits have cut off above it
    for (NodeId id = queued_.pop_front().node; tree_.has(id) && tree_.node(id).queued; id = tree_.node(id).parent)
      top = id;
    if (top == NodeId::none) continue;
    std::vector<NodeId> nodes{top};  // parents before children
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      for (NodeId child = tree_.node(nodes[i]).first_child; child != NodeId::none;
           child = tree_.node(child).next_sibling) {
        nodes.push_back(child);
      }
    }
    for (const NodeId id : nodes) {
      if (tree_.has(id) && tree_.node(id).queued) store_queued(id);
    }
  }
}

void Cache::end_store(std::uint64_t hold, bool done) {
  if (offload_ != nullptr) return end_tier_copy(hold, done);
  const auto store = stores_.find(hold);
  KV_CHECK(store != stores_.end(), "a write ends once");
  if (--store->second.jobs > 0) return;
  for (const auto& [at, from] : store->second.beside) pools_[at].index->release(Tier::host, store->second.node, from);
  const Store ended = std::move(store->second);
  stores_.erase(store);
  unhold(ended.hold);
  if (config_.buffers()) return free_written(ended.slots);
  if (ended.leaves) leave_host(ended.node);
}

}  // namespace kvtwin
