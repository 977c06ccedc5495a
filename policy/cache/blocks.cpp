// Cache, in vLLM's form: L1 is one pool of blocks for every kind of KV (policy/index/block_groups.hpp). The tree is
// empty then, and leases of its nodes say nothing.
#include <algorithm>

#include "policy/base/check.hpp"
#include "policy/cache.hpp"

namespace kvtwin {

PrefixMatch Cache::match_blocks(std::span<const PageKey> keys) const {
  const Tokens page = config_.shape.page_tokens;
  const BlockGroups::Hit hit = blocks_->find(keys, keys.size() * page);
  PrefixMatch match;
  match.device_pages = hit.tokens / page;
  match.device_end = match.end = tree_.root();
  match.present = hit.longest / page;
  match.free_blocks = hit.free_blocks;
  count_unusable(keys, match);
  return match;
}

// What is there, and cannot be used.
void Cache::count_unusable(std::span<const PageKey> keys, PrefixMatch& match) const {
  const Tokens page = config_.shape.page_tokens;
  const Pages usable = match.device_pages + match.host_pages;
  match.present = std::max(match.present, usable);
  match.without_window = match.without_state = 0;
  if (match.present == usable) return;
  const std::vector<Tokens> alone = blocks_->longest_of_each(keys, match.present * page);
  for (std::size_t at = 0; at < alone.size(); ++at) {
    const Closure closure = config_.block_groups.groups[at].closure;
    const Pages lost = std::min(match.present - alone[at] / page, match.present - usable);
    if (closure == Closure::tail) match.without_window = std::max(match.without_window, lost);
    if (closure == Closure::point) match.without_state = std::max(match.without_state, lost);
  }
}

bool Cache::allocate_blocks(Pages pages, std::vector<SlotId>& slots, RequestPools& pools) {
  const std::size_t before = slots.size();
  if (!blocks_->allocate(pools.tables, 0, (before + pages) * config_.shape.page_tokens)) return false;
  append_slots(pools, before + pages, slots);
  sink_.slots(EventKind::slots_allocated, Tier::device, std::span(slots).subspan(before));
  report_blocks();
  return true;
}

// Appends the slots of the pages up to `pages`.
void Cache::append_slots(const RequestPools& pools, Pages pages, std::vector<SlotId>& slots) const {
  const std::vector<BlockId>& blocks = pools.tables.tables.front().blocks;
  const std::uint32_t of_page = config_.block_groups.groups.front().blocks_per_page;
  while (slots.size() < pages) {
    const BlockId first = blocks[slots.size() * of_page];
    slots.push_back(first == kNoBlock ? kNoSlot : first);
  }
}

// Reports what an allocation or an insert has changed.
void Cache::report_blocks() {
  const BlockGroups::Changes changes = blocks_->take_changes();
  for (const BlockGroups::Changes::Eviction& eviction : changes.evicted) {
    const auto group = static_cast<std::uint8_t>(eviction.group);
    sink_.decide(DecisionKind::evict_device, Reason::lost, eviction.key, 1, kNoRequest, group);
    if (group == 0) continue;
    sink_.event({.kind = EventKind::evicted, .tier = Tier::device, .reason = Reason::lost, .pool = group, .pages = 1});
  }
  if (!changes.went.empty()) {
    sink_.event(
        {.kind = EventKind::evicted, .tier = Tier::device, .reason = Reason::lost, .pages = changes.went.size()});
    sink_.keys(EventKind::pages_removed, Tier::device, changes.went);
  }
  if (!changes.came.empty()) sink_.keys(EventKind::pages_stored, Tier::device, changes.came);
}

}  // namespace kvtwin
