// Cache, write-back with windows or states: what an eviction takes from L1 is copied to L2 first, as in SGLang 0.5.23
// (mem_cache/unified_radix_cache.py: _evict_components, backup_node_for_write_back). SGLang waits for each copy. Here
// the index changes as if the copy had ended, and the engine waits for all copies of a step at once.
#include <algorithm>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/cache.hpp"

namespace kvtwin {

// Copies a node, its windows and its state. Windows of the nodes above it go along, as far as the node's window goes.
// Returns false, and copies nothing, if L2 cannot make the room; what it has evicted for that stays evicted. Requires:
// the node is on L1 only.
bool Cache::copy_evicted(NodeId id) {
  const Pages pages = tree_.node(id).facts.pages;
  const PageKey first = tree_.node(id).keys().front();
  const CopiedNodes nodes = uncopied(id);
  if (host_.available() < pages) evict_host(pages - host_.available());
  const bool room = host_.available() >= pages && make_host_room_beside(nodes);
  sink_.decide(DecisionKind::backup, room ? Reason::none : Reason::capacity, first, pages);
  if (!room) {
    sink_.event({.kind = EventKind::backup_dropped, .tier = Tier::host, .reason = Reason::capacity, .pages = pages});
    return false;
  }
  std::vector<SlotId> targets;
  allocate_host(pages, targets);
  const Node& node = tree_.node(id);
  for (std::size_t i = 0; i < pages; ++i) {
    backups_.moves.push_back({node.keys()[i], node.device.slots[i], targets[i]});
  }
  tree_.set_slots(Tier::host, id, targets);
  backups_.queued.pages += pages;
  backups_.beside.resize(pools_.size());
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    for (const NodeId source : nodes[at]) copy_slots_beside(at, source);
  }
  sink_.keys(EventKind::pages_stored, Tier::host, tree_.node(id).keys());
  sink_.event({.kind = EventKind::backup_queued, .tier = Tier::host, .pages = pages});
  return true;
}

// An inner node that is not on L2 is copied before it loses a window or a state. If that fails, they are lost.
void Cache::copy_inner(std::size_t at, NodeId victim) {
  const Beside& pool = pools_[at];
  if (tree_.node(victim).host.resident() || pool.index->has(Tier::host, victim) || pool.host.capacity() == 0) return;
  const Pages slots = slots_of(at, uncopied(at, victim));
  if (pool.host.available() < slots) evict_host_pool(at, slots);
  copy_evicted(victim);
}

// The sources are still there: nothing has run since.
void Cache::copy_again(Transfer&& transfer) {
  backups_.moves.insert(backups_.moves.end(), transfer.moves.begin(), transfer.moves.end());
  backups_.beside.resize(pools_.size());
  for (std::size_t at = 0; at < transfer.moves_beside.size(); ++at) {
    const std::vector<PageMove>& moves = transfer.moves_beside[at];
    backups_.beside[at].insert(backups_.beside[at].end(), moves.begin(), moves.end());
  }
  backups_.queued.pages += transfer.pages;
  sink_.event({.kind = EventKind::backup_retried,
               .tier = Tier::host,
               .reason = Reason::transfer_failed,
               .pages = transfer.pages,
               .operation = transfer.id});
}

// The slots on L2 are given back before the copies to them have been submitted.
void Cache::withdraw_copies(std::vector<PageMove>& moves, std::span<const SlotId> targets) {
  if (moves.empty()) return;
  std::vector<SlotId> sorted(targets.begin(), targets.end());
  std::ranges::sort(sorted);
  std::erase_if(moves, [&](const PageMove& move) { return std::ranges::binary_search(sorted, move.target); });
}

void Cache::release_host(std::span<const SlotId> slots) {
  if (copies_evicted_) {
    withdraw_copies(backups_.moves, slots);
    backups_.queued.pages = backups_.moves.size();
  }
  free_host(slots);
}

// A slot of L1 that a copy still reads has no new page, although the index has given it back, and perhaps taken again.
void Cache::report_device_slots(EventKind kind, std::span<const SlotId> slots, std::size_t pool) {
  if (copies_under_way() || !held_slots_.empty()) {
    held_slots_.push_back({kind, pool, std::vector<SlotId>(slots.begin(), slots.end())});
  } else {
    sink_.slots(kind, Tier::device, slots, pool);
  }
}

void Cache::report_held_slots() {
  if (held_slots_.empty() || copies_under_way()) return;
  for (const HeldSlots& held : std::exchange(held_slots_, {})) {
    sink_.slots(held.kind, Tier::device, held.slots, held.pool);
  }
}

}  // namespace kvtwin
