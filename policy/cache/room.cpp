// Cache, room on L1 and L2: allocation, eviction, and under write-back the choice of pages that leave L1.
#include <algorithm>

#include "policy/base/check.hpp"
#include "policy/cache.hpp"

namespace kvtwin {

bool Cache::allocate(Pages pages, std::vector<SlotId>& slots) {
  if (pages == 0) return true;
  if (pages > obtainable_pages()) return false;
  take_pages(pages, slots);
  return true;
}

// Requires: so many pages of pool 0 are free, or can be evicted.
void Cache::take_pages(Pages pages, std::vector<SlotId>& slots) {
  if (pages > device_.available()) evict_device(pages - device_.available());
  const std::size_t before = slots.size();
  const bool enough = device_.allocate(pages, slots);
  KV_CHECK(enough, "pages counted as evictable can be evicted");
  device_used_max_ = std::max(device_used_max_, device_.used());
  report_device_slots(EventKind::slots_allocated, std::span(slots).subspan(before));
}

void Cache::free(std::span<const SlotId> slots) {
  if (slots.empty() || blocks_ != nullptr) return;
  if (config_.private_loads && !direct_loads_.empty()) {
    std::vector<SlotId> rest;
    for (const SlotId slot : slots) (is_loading(slot) ? given_back_ : rest).push_back(slot);
    return release_device(rest);
  }
  release_device(slots);
}

void Cache::release_device(std::span<const SlotId> slots) {
  if (slots.empty()) return;
  device_.release(slots);
  report_device_slots(EventKind::slots_released, slots);
}

void Cache::prepare(Pages pages) {
  if (tree_.leaves_by_choice()) choose_leaving(pages, false);
}

Room Cache::make_room(Pages pages, NodeId kept) {
  if (pages <= obtainable_pages()) return Room::now;
  if (pages > promised_pages() || !pools_.empty() || blocks_ != nullptr) return Room::never;
  tree_.lease(Tier::device, kept);
  choose_leaving(pages, false, true);
  if (pages > obtainable_pages() && !writes_under_way()) choose_leaving(pages, true, true);
  tree_.release(Tier::device, kept);
  if (pages <= obtainable_pages()) return Room::now;
  if (!writes_under_way()) return Room::never;  // pages are held for a storage tier, and become free when that has them
  sink_.event({.kind = EventKind::backup_awaited, .tier = Tier::device, .pages = pages - obtainable_pages()});
  return Room::later;
}

// Pages with a copy, and pages that cannot get one, only have to be chosen. Other pages are written first. Each round
// settles at least one page, passes over a node that may not be lost, or is the last. If all candidates are held, drops
// holds only if `drops_holds`.
void Cache::choose_leaving(Pages target, bool may_lose, bool drops_holds) {
  std::vector<NodeId> kept;
  choose_leaving(target, may_lose, drops_holds, kept);
  for (const NodeId id : kept) tree_.release(Tier::device, id);
}

// Leases the nodes that it passes over, and adds them to `kept`.
void Cache::choose_leaving(Pages target, bool may_lose, bool drops_holds, std::vector<NodeId>& kept) {
  for (;;) {
    const Pages ready = device_.available() + tree_.settled_device_pages();
    const NodeId next = ready >= target ? NodeId::none : tree_.candidate();
    if (next == NodeId::none && ready < target && drops_holds && holds_ != nullptr &&
        holds_->drop_oldest(Reason::capacity))
      continue;
    if (next == NodeId::none) return;
    const Node& node = tree_.node(next);
    const Pages all = node.facts.pages;
    Pages take = config_.evict_unit == EvictUnit::node ? all : std::min(all, target - ready);
    bool write = !node.host.resident() && node.backup_failures <= config_.backup_retries;
    if (write && arriving(next)) {  // if the load of a page above fails, the node goes at once
      if (!may_lose) return;
      write = false;
    }
    if (write) {
      const Pages writable = writable_pages(node, take);
      if (writable == 0 && (!may_lose || (config_.host_evicts_leaving && writes_under_way()))) return;
      write = writable > 0;
      if (write) take = writable;
    }
    if (!write && tree_.lacks_leased_copy(next)) {  // SGLang declines to drop it, and goes on (drop_subtree_no_host)
      tree_.lease(Tier::device, next);
      kept.push_back(next);
      continue;
    }
    if (take < all) tree_.split(next, all - take);
    if (write) {
      sink_.decide(DecisionKind::backup, Reason::none, tree_.node(next).keys().front(), take);
      store(next);
    }
    tree_.set_leaving(next);
  }
}

// Returns for how many of the last `wanted` pages of the node L2 has room, after eviction there.
Pages Cache::writable_pages(const Node& node, Pages wanted) {
  const bool whole = config_.evict_unit == EvictUnit::node;
  if (whole && node.facts.pages > host_.capacity()) return 0;
  if (host_.available() < wanted) evict_host(wanted - host_.available());
  const Pages room = std::min(wanted, host_.available());
  return whole && room < wanted ? 0 : room;
}

Pages Cache::evict_device(Pages pages) {
  Pages evicted = 0;
  tree_.keep_ranks(copies_evicted_);
  while (evicted < pages) {
    const NodeId next = tree_.device_victim(), victim = victims_ ? victims_->leaf(next) : next;
    const bool all_on_hold = victim == NodeId::none && tree_.evictable_device_pages() > 0;
    if (all_on_hold && holds_ != nullptr && holds_->drop_oldest(Reason::capacity)) continue;
    if (victim == NodeId::none) break;
    const Pages all = tree_.node(victim).facts.pages;
    const Pages take = config_.evict_unit == EvictUnit::node ? all : std::min(all, pages - evicted);
    evict_from_device(victim, take);
    evicted += take;
  }
  if (copies_evicted_) tree_.keep_ranks(false);
  return evicted;
}

// Hints to demote wait here for the copies under way, and for the end of the session's request.
void Cache::demote_sessions() {
  for (const auto& [session, end] : holds_->demoting()) {
    if (!demote(end)) holds_->demoted(session);
  }
}

// Evicts the pages of the path from L1, from its end up to the first page that another session uses or that L2 lacks.
// Returns whether more may leave later.
bool Cache::demote(NodeId end) {
  for (NodeId id = end, above = end; id != NodeId::none && id != tree_.root(); id = above) {
    above = tree_.node(id).parent;
    if (!tree_.node(id).device.resident()) continue;
    bool under_way = tree_.node(id).host.arriving != OperationId::none;
    if (tree_.node(id).sessions > 1 || !tree_.node(id).host.resident() || lacks_copy_beside(id, under_way))
      return false;
    if (tree_.node(id).device.leases > 0 || under_way) return true;
    if (tree_.node(id).device.children > 0) return false;
    if (tree_.leaves_by_choice() && !tree_.node(id).leaving) tree_.set_leaving(id);
    if (!tree_.node(id).evictable) return true;
    evict_from_device(id, tree_.node(id).facts.pages);
  }
  return false;
}

// Evicts the last `pages` pages of a device leaf.
void Cache::evict_from_device(NodeId victim, Pages pages) {
  if (copies_evicted_ && !tree_.node(victim).host.resident()) copy_evicted(victim);
  const Node& node = tree_.node(victim);
  const Pages kept = node.facts.pages - pages;
  const bool demote = node.host.resident();
  const Reason reason = demote ? Reason::demoted : loss_of(node);
  if (reason == Reason::host_pressure) grow_host_reserve(pages);
  sink_.decide(DecisionKind::evict_device, reason, node.keys()[kept], pages);
  sink_.keys(EventKind::pages_removed, Tier::device, node.keys().subspan(kept));
  tree_.notify_evicted(PolicyRole::device, victim, pages);
  freed_device_.clear();
  if (demote) {
    if (kept > 0) tree_.split(victim, kept);
    drop_beside(victim, Tier::device);
    freed_device_ = clear_device(victim);
  } else {
    drop_below(victim, reason);
    if (kept == 0) {
      if (node.queued) leave_queue(victim);
      drop_beside(victim, Tier::device);
      drop_beside(victim, Tier::host);
    }
    freed_host_.clear();
    tree_.remove_tail(victim, pages, freed_device_, freed_host_);
  }
  free(freed_device_);
  sink_.event({.kind = EventKind::evicted, .tier = Tier::device, .reason = reason, .pages = pages});
}

Reason Cache::loss_of(const Node& node) const {
  if (!writes_back_) return Reason::lost;
  return node.backup_failures > config_.backup_retries ? Reason::transfer_failed : Reason::host_pressure;
}

// After a page is lost, pages below it that only L2 has could not be reached.
void Cache::drop_below(NodeId top, Reason reason) {
  if (tree_.node(top).children == 0) return;
  std::vector<NodeId> below{top};
  for (std::size_t i = 0; i < below.size(); ++i) {
    for (NodeId child = tree_.node(below[i]).first_child; child != NodeId::none;
         child = tree_.node(child).next_sibling) {
      below.push_back(child);
    }
  }
  for (; below.size() > 1; below.pop_back()) remove_host_copy(below.back(), reason);
}

// Drops the only copy of a node, and with it the node.
void Cache::remove_host_copy(NodeId id, Reason reason) {
  const Node& node = tree_.node(id);
  const Pages pages = node.facts.pages;
  KV_CHECK(!node.device.resident(), "below a device leaf there are only host pages");
  sink_.decide(DecisionKind::evict_host, reason, node.keys().front(), pages);
  sink_.keys(EventKind::pages_removed, Tier::host, node.keys());
  if (node.queued) leave_queue(id);
  std::vector<SlotId> none;
  freed_host_.clear();
  drop_beside(id, Tier::host);
  tree_.remove_tail(id, pages, none, freed_host_);
  release_host(freed_host_);
  sink_.event({.kind = EventKind::evicted, .tier = Tier::host, .reason = reason, .pages = pages});
}

// Under write-back, pages that are chosen to leave keep their copy, else the reserve would lose its clean pages.
// Writes what waits for its write first (with write-back, the page is copied again when it leaves L1), up to `to_write`
// pages, which it takes from that.
Pages Cache::reclaim_shadowed(Pages pages, Pages& to_write) {
  Pages reclaimed = 0;
  while (reclaimed < pages) {
    const NodeId victim = tree_.shadowed_victim();
    if (victim == NodeId::none) break;
    const Pages all = tree_.node(victim).facts.pages;
    const Pages take = config_.evict_unit == EvictUnit::node ? all : std::min(all, pages - reclaimed);
    if (!writes_back_ && store_before_eviction(victim, take, to_write)) continue;
    if (take < tree_.node(victim).facts.pages) tree_.split(victim, all - take);
    drop_shadowed_copy(victim);
    reclaimed += take;
  }
  return reclaimed;
}

// Drops the copy on L2 of a node that L1 has too.
void Cache::drop_shadowed_copy(NodeId id) {
  sink_.decide(DecisionKind::evict_host, Reason::shadowed, tree_.node(id).keys().front(), tree_.node(id).facts.pages);
  sink_.keys(EventKind::pages_removed, Tier::host, tree_.node(id).keys());
  if (tree_.node(id).queued) leave_queue(id);
  freed_host_ = tree_.clear(Tier::host, id);
  release_host(freed_host_);
  sink_.event(
      {.kind = EventKind::evicted, .tier = Tier::host, .reason = Reason::shadowed, .pages = freed_host_.size()});
}

Pages Cache::evict_host(Pages pages) {
  Pages to_write = pages;  // no more than room is wanted
  store_passed_over(to_write);
  Pages evicted = reclaim_shadowed(pages, to_write);
  while (evicted < pages) {
    const NodeId victim = tree_.host_victim();
    if (victim == NodeId::none) break;
    const Pages all = tree_.node(victim).facts.pages;
    const Pages take = config_.evict_unit == EvictUnit::node ? all : std::min(all, pages - evicted);
    const bool on_device = tree_.node(victim).device.resident();
    const bool arrives = tree_.node(victim).host.arriving != OperationId::none;
    if (on_device && arrives) break;  // the end of the copy makes the room
    if (store_before_eviction(victim, take, to_write)) continue;
    if (on_device) evict_from_device(victim, take);
    evict_host_node(victim, take);
    evicted += take;
  }
  return evicted;
}

// Evicts the last `pages` pages of a host leaf.
void Cache::evict_host_node(NodeId victim, Pages pages, Reason reason) {
  const std::span<const PageKey> keys = tree_.node(victim).keys().last(pages);
  sink_.decide(DecisionKind::evict_host, reason, keys.front(), pages);
  sink_.keys(EventKind::pages_removed, Tier::host, keys);
  tree_.notify_evicted(PolicyRole::host, victim, pages);
  freed_device_.clear();
  freed_host_.clear();
  if (pages == tree_.node(victim).facts.pages) {
    if (tree_.node(victim).queued) leave_queue(victim);
    drop_beside(victim, Tier::host);
  }
  tree_.remove_tail(victim, pages, freed_device_, freed_host_);
  release_host(freed_host_);
  sink_.event({.kind = EventKind::evicted, .tier = Tier::host, .reason = reason, .pages = pages});
}

void Cache::path_slots(NodeId end, const RequestPools& pools, std::vector<SlotId>& slots) const {
  if (blocks_ != nullptr) {
    slots.clear();
    const Pages pages = pools.tables.tables.front().blocks.size() / config_.block_groups.groups.front().blocks_per_page;
    return append_slots(pools, pages, slots);
  }
  const Pages depth = end == tree_.root() ? 0 : tree_.node(end).facts.depth_pages;
  slots.resize(depth);
  for (NodeId id = end; id != tree_.root(); id = tree_.node(id).parent) {
    const Node& node = tree_.node(id);
    std::ranges::copy(node.device.slots,
                      slots.begin() + static_cast<std::ptrdiff_t>(node.facts.depth_pages - node.device.slots.size()));
  }
}

Pages Cache::incomplete_pages(NodeId end) const {
  Pages pages = 0;
  if (config_.draft_restored) return pages;
  for (NodeId id = end; id != tree_.root(); id = tree_.node(id).parent) {
    if (tree_.node(id).incomplete) pages += tree_.node(id).facts.pages;
  }
  return pages;
}

}  // namespace kvtwin
