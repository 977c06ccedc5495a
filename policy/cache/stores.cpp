// Cache, L2 and the storage tiers: holds, adoption of fetched pages, writes to storage.
#include <algorithm>

#include "policy/base/check.hpp"
#include "policy/cache.hpp"

namespace kvtwin {

bool Cache::can_extend_on_host(NodeId end) const {
  if (config_.host_pages == 0) return false;
  if (end == tree_.root() || tree_.leaves_by_choice()) return true;
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

// Under write-back, a page of L2 may lie below a page that only L1 has. The loss of the upper page would lose both, so
// it is leased too.
Hold Cache::hold(NodeId end) {
  Hold hold;
  if (end == tree_.root() || !tree_.node(end).host.resident()) return hold;
  hold.host_end = end;
  tree_.lease(Tier::host, end);
  NodeId above = end;  // a copy that is being written may fail
  while (above != tree_.root() && tree_.node(above).host.resident() &&
         tree_.node(above).host.arriving == OperationId::none) {
    above = tree_.node(above).parent;
  }
  if (above == tree_.root() || !tree_.leaves_by_choice()) return hold;
  hold.device_end = above;
  tree_.lease(Tier::device, above);
  return hold;
}

void Cache::unhold(const Hold& hold) {
  if (hold.host_end != NodeId::none) tree_.release(Tier::host, hold.host_end);
  if (hold.device_end != NodeId::none) tree_.release(Tier::device, hold.device_end);
}

Pages Cache::make_host_room(Pages pages, bool whole) {
  if (host_.available() < pages) evict_host(whole ? pages : pages - host_.available());
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

Cache::Adoption Cache::adopt(std::span<const PageKey> keys, Pages first, std::span<const SlotId> slots) {
  const PrefixMatch found = tree_.match(keys);
  const Pages present = found.device_pages + found.host_pages;
  const bool refills = config_.prefetch_style == PrefetchStyle::sglang && present > first &&
                       !tree_.leaves_by_choice() && !has_direct_load(found.end);
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
  const Pages skipped = keep ? had - first : slots.size();
  free_host(slots.first(skipped));
  if (!keep) return adoption;
  adoption.pages = slots.size() - skipped;
  adoption.end = found.end;
  if (present == keys.size()) return adoption;
  const std::span<const SlotId> kept = slots.subspan(present - first);
  const std::int32_t priority = tree_.node(found.end).facts.priority;
  adoption.end = tree_.insert(found.end, keys.subspan(present), {}, kept, tree_.next_stamp(), priority);
  sink_.keys(EventKind::pages_stored, Tier::host, keys.subspan(present));
  storage_.raise_priority(keys.subspan(present), priority);
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
  const std::uint32_t jobs =
      storage_.write(store, prior, std::span(node.keys()).subspan(first, pages), std::span(slots).subspan(first, pages),
                     config_.host_pages != 0 ? Tier::host : Tier::device, tiers_to, node.facts.priority);
  if (jobs == 0) {
    unhold(held);
  } else {
    stores_[store] = {held, jobs};
  }
}

void Cache::store_path(NodeId end, Pages from, Pages to, std::size_t tiers_to) {
  const NodeFacts& facts = tree_.node(end).facts;
  const Pages begins = facts.depth_pages - facts.pages;
  const Pages first = std::max(from, begins), last = std::min<Pages>(to, facts.depth_pages);
  if (first < last) store_node(end, first - begins, last - first, tiers_to);
}

void Cache::end_store(std::uint64_t hold) {
  const auto store = stores_.find(hold);
  KV_CHECK(store != stores_.end(), "a write ends once");
  if (--store->second.jobs > 0) return;
  unhold(store->second.hold);
  stores_.erase(store);
}

}  // namespace kvtwin
