// Cache, the pools beside pool 0: windows and states. SGLang 0.5.23's rules (mem_cache/unified_radix_cache.py,
// mem_cache/unified_cache/); docs/internals/hybrid-caches.md has them in order.
#include <algorithm>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/cache.hpp"

namespace kvtwin {

// ---- which prefix a request can continue from --------------------------------------------------------

// Shortens the match to its deepest node that every pool accepts.
PrefixMatch Cache::usable(PrefixMatch found) const {
  if (pools_.empty() || found.present == 0) return found;
  std::vector<NodeId> path;
  for (NodeId id = found.end; id != tree_.root(); id = tree_.node(id).parent) path.push_back(id);
  std::vector<FurtherPool::Walk> device, any;
  for (const Beside& pool : pools_) {
    device.emplace_back(*pool.index, false);
    any.emplace_back(*pool.index, true);
  }
  PrefixMatch best;
  best.device_end = best.end = tree_.root();
  best.present = found.present;
  Pages depth = 0, best_depth = 0;
  std::vector<Pages> alone(pools_.size(), 0);  // the deepest point of each pool
  for (auto id = path.rbegin(); id != path.rend(); ++id) {
    const Pages pages = std::min<Pages>(tree_.node(*id).facts.pages, found.present - depth);
    depth += pages;
    bool accepted = true, on_device = tree_.node(*id).device.resident();
    for (std::size_t at = 0; at < pools_.size(); ++at) {
      const bool alone_here = any[at].accepts(*id, pages);
      if (alone_here) alone[at] = depth;
      accepted &= alone_here;
      on_device &= device[at].accepts(*id, pages);
    }
    if (accepted) {
      best.end = *id;
      best_depth = depth;
    }
    if (on_device) {
      best.device_end = *id;
      best.device_pages = depth;
    }
  }
  best.host_pages = best_depth - best.device_pages;
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    const bool window = pools_[at].index->closure() == Closure::tail;
    (window ? best.without_window : best.without_state) = found.present - alone[at];
  }
  return best;
}

// A waiting request looks at the path.
void Cache::use_path(NodeId end) {
  for (const Beside& pool : pools_) pool.index->use(end);
  const std::uint64_t stamp = tree_.next_stamp();
  for (NodeId id = end; id != tree_.root(); id = tree_.node(id).parent) tree_.stamp(id, stamp);
}

// ---- room --------------------------------------------------------------------------------------------

// Returns false, and takes nothing, if too few are free.
bool Cache::take_slots(std::size_t at, Tier tier, Pages count, std::vector<SlotId>& slots) {
  Beside& pool = pools_[at];
  const std::size_t before = slots.size();
  if (!pool.on(tier).allocate(count, slots)) return false;
  Pages& most = pool.used_max[tier == Tier::device ? 0 : 1];
  most = std::max(most, pool.on(tier).used());
  const auto taken = std::span<const SlotId>(slots).subspan(before);
  if (tier == Tier::device) {
    report_device_slots(EventKind::slots_allocated, taken, at + 1);
  } else {
    sink_.slots(EventKind::slots_allocated, tier, taken, at + 1);
  }
  return true;
}

void Cache::free_slots(std::size_t at, Tier tier, std::span<const SlotId> slots) {
  if (slots.empty()) return;
  if (tier == Tier::host && !backups_.beside.empty()) withdraw_copies(backups_.beside[at], slots);
  pools_[at].on(tier).release(slots);
  if (tier == Tier::device) {
    report_device_slots(EventKind::slots_released, slots, at + 1);
  } else {
    sink_.slots(EventKind::slots_released, tier, slots, at + 1);
  }
}

// Frees what the further pools have of a node that leaves the tier.
void Cache::drop_beside(NodeId id, Tier tier) {
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    FurtherPool& index = *pools_[at].index;
    if (!index.has(tier, id)) continue;
    const std::vector<SlotId> slots = index.take(tier, id);
    free_slots(at, tier, slots);
    sink_.event({.kind = EventKind::evicted,
                 .tier = tier,
                 .reason = Reason::lost,
                 .pool = static_cast<std::uint8_t>(at + 1),
                 .pages = slots.size()});
  }
}

// A device leaf goes as a whole, unless a session refers to its pages only. Another node keeps its pages, and loses the
// window or state; a lost window takes the state with it.
void Cache::evict_from_pool(std::size_t at, NodeId victim, Reason reason) {
  const auto is_whole = [&] { return goes_whole(tree_, *pools_[at].index, Tier::device, victim); };
  if (!is_whole()) {
    if (copies_evicted_ && reason != Reason::quota) copy_inner(at, victim);
  }
  if (is_whole()) {  // or has become so: room on L2 for the copy took a node below, whose references this one has now
    evict_from_device(victim, tree_.node(victim).facts.pages);
    return;
  }
  const bool is_leaf = tree_.is_offered(victim, PolicyRole::device);
  for (std::size_t other = 0; other < pools_.size(); ++other) {
    FurtherPool& index = *pools_[other].index;
    if (!goes_with(*pools_[at].index, index, Tier::device, victim, is_leaf)) continue;
    const std::vector<SlotId> slots = index.take(Tier::device, victim);
    free_slots(other, Tier::device, slots);
    sink_.decide(DecisionKind::evict_device, reason, tree_.node(victim).keys().front(), slots.size(), kNoRequest,
                 static_cast<std::uint8_t>(other + 1));
    sink_.event({.kind = EventKind::evicted,
                 .tier = Tier::device,
                 .reason = reason,
                 .pool = static_cast<std::uint8_t>(other + 1),
                 .pages = slots.size()});
  }
}

// Evicts for pool 0 first, then for the window pools. What one eviction frees of another pool counts there, too.
bool Cache::allocate(Pages pages, std::vector<SlotId>& slots, RequestPools& pools) {
  if (blocks_ != nullptr) return allocate_blocks(pages, slots, pools);
  const std::size_t before = slots.size();
  if (!allocate(pages, slots)) return false;
  if (pages == 0) return true;
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    if (pools_[at].index->closure() != Closure::tail) continue;
    make_room_beside(at, pages);
    std::vector<SlotId>& own = pools.parts[at].slots;
    own.resize(before, kNoSlot);
    const bool enough = take_slots(at, Tier::device, pages, own);
    KV_CHECK(enough, "slots counted as evictable can be evicted");
  }
  return true;
}

// Returns the next victim of a pool. Evictions for one allocation go through the turns once, as SGLang's walk does:
// what a session lets go meanwhile waits for the next allocation. On L1, the victim behind a leaf is chosen before the
// leaf goes, whatever the references of the leaf do; and if no other victim is left, the walk begins again, because an
// allocation counts on all that can be evicted.
NodeId Cache::victim_beside(std::size_t at, Tier tier, VictimWalk& walk) const {
  const FurtherPool& index = *pools_[at].index;
  const auto next = [&] { return victims_ ? victims_->in_pool(at, tier, walk.turn) : index.oldest(tier, walk.turn); };
  NodeId victim = std::exchange(walk.chosen, NodeId::none);
  const bool is_there = victim != NodeId::none && index.has(tier, victim) && !index.leased(tier, victim);
  if (!is_there) {
    victim = next();
    if (victim == NodeId::none && tier == Tier::device && walk.turn != EvictionTurn::ended) {
      walk.turn = EvictionTurn::ended;
      victim = next();
    }
    if (victim == NodeId::none) return victim;
    walk.turn = index.turn(victim);
  }
  if (tier == Tier::device && !victims_ && goes_whole(tree_, index, tier, victim)) {
    const NodeId first = index.oldest(tier, walk.turn);  // another one, if the victim has moved since it was chosen
    walk.chosen = first == victim ? index.following(tier, victim) : first;
    if (walk.chosen != NodeId::none) walk.turn = index.turn(walk.chosen);
  }
  return victim;
}

// Evicts until so many slots of the pool are free, or nothing is left to evict.
void Cache::make_room_beside(std::size_t at, Pages slots) {
  for (VictimWalk walk; pools_[at].device.available() < slots;) {
    const NodeId victim = victim_beside(at, Tier::device, walk);
    const bool all_on_hold = victim == NodeId::none && obtainable(pools_[at]) > pools_[at].device.available();
    if (all_on_hold && holds_ != nullptr && holds_->drop_oldest(Reason::capacity)) continue;
    if (victim == NodeId::none) break;
    evict_from_pool(at, victim, Reason::lost);
  }
}

SlotId Cache::take_state(std::size_t at) {
  make_room_beside(at, 1);
  std::vector<SlotId> slot;
  return take_slots(at, Tier::device, 1, slot) ? slot.front() : kNoSlot;
}

// ---- a request ---------------------------------------------------------------------------------------

void Cache::lease_beside(RequestPools& pools, NodeId end) {
  std::vector<Pages> from(pools_.size(), 0);
  for (std::size_t at = 0; at < pools_.size(); ++at) from[at] = pools_[at].index->lease(Tier::device, end);
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    if (pools.lease != NodeId::none) {
      pools_[at].index->release(Tier::device, pools.lease, pools.parts[at].leased_from);
    }
    pools.parts[at].leased_from = from[at];
  }
  pools.lease = end;
}

bool Cache::enter_pools(std::span<const PageKey> keys, const PrefixMatch& match, Tokens prompt, RequestPools& pools) {
  if (blocks_ != nullptr) {
    const Tokens page = config_.shape.page_tokens;
    const BlockGroups::Hit hit = blocks_->find(keys, keys.size() * page);
    const Tokens to = (match.device_pages + match.host_pages) * page;
    if (match.host_pages > 0 && blocks_->wanted_to_load(hit, to) > blocks_->free_blocks()) return false;
    blocks_->enter(pools.tables, hit, prompt, to);
    leased_blocks_ = 0;
  }
  if (pools_.empty()) return true;
  const Tokens page = config_.shape.page_tokens;
  Tokens matched = match.device_pages * page;
  for (NodeId id = match.end; id != match.device_end; id = tree_.node(id).parent) {
    if (tree_.node(id).host.resident()) matched += tree_.node(id).facts.pages * page;
  }
  const Tokens present = match.present * page;
  const Tokens grid = state_points_ == nullptr ? page : state_points_->grid();
  pools.branch = present / grid * grid > matched ? present / grid * grid : 0;
  pools.parts.resize(pools_.size());
  lease_beside(pools, match.device_end);
  for (const Beside& pool : pools_) {
    if (pool.index->closure() != Closure::point) continue;
    const bool loads =
        match.end != tree_.root() && !pool.index->has(Tier::device, match.end);  // into a slot of the node
    if (obtainable(pool) >= states_of_request() + (loads ? 1 : 0)) continue;
    leave_pools(pools);
    return false;
  }
  if (state_points_ != nullptr) {
    state_points_->learn(present);
    pools.pass_ends = state_points_->pass_ends(matched, prompt, pools.branch);
  }
  return true;
}

void Cache::take_states(RequestPools& pools, NodeId end) {
  if (pools_.empty()) return;
  lease_beside(pools, end);
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    if (pools_[at].index->closure() != Closure::point) continue;
    std::vector<SlotId>& own = pools.parts[at].slots;
    const Pages more = states_of_request() - own.size();
    make_room_beside(at, more);
    const bool enough = take_slots(at, Tier::device, more, own);
    KV_CHECK(enough, "states counted as evictable can be evicted");
    RequestPools::Part& part = pools.parts[at];
    part.copies = pools_[at].index->has(Tier::device, end) && part.load == OperationId::none;
  }
}

bool Cache::has_state(NodeId end) const {
  return std::ranges::any_of(pools_, [end](const Beside& pool) {
    const FurtherPool& index = *pool.index;
    return index.closure() == Closure::point && index.has(Tier::device, end) &&
           index.arriving(Tier::device, end) == OperationId::none;
  });
}

void Cache::leave_pools(RequestPools& pools) {
  if (blocks_ != nullptr) blocks_->leave(pools.tables);
  for (std::size_t at = 0; at < pools.parts.size(); ++at) {
    std::vector<SlotId>& own = pools.parts[at].slots;
    Transfer* const load = load_with_mark(pools.parts[at].load);
    if (load != nullptr && own.front() != kNoSlot) {
      load->orphans.emplace_back(at, std::exchange(own.front(), kNoSlot));
    }
    std::erase(own, kNoSlot);
    free_slots(at, Tier::device, own);
    if (pools.lease != NodeId::none) {
      pools_[at].index->release(Tier::device, pools.lease, pools.parts[at].leased_from);
    }
  }
  pools = {};
}

// Returns a load that has not been acknowledged; null if there is none with this mark.
Cache::Transfer* Cache::load_with_mark(OperationId mark) {
  if (mark == OperationId::none) return nullptr;
  if (mark == mark_of(loads_)) return &loads_.queued;
  const auto at = std::ranges::find(loads_.transfers.all(), mark, &Transfer::mark);
  return at == loads_.transfers.all().end() ? nullptr : &*at;
}

// Appends the windows of `count` pages from page `first` on: the request's own, or those of the path to `end`.
void Cache::add_windows(std::size_t at, NodeId end, const std::vector<SlotId>& own, Pages first, Pages count,
                        std::vector<SlotId>& slots) const {
  const auto begin = static_cast<std::ptrdiff_t>(slots.size());
  for (Pages i = 0; i < count; ++i) slots.push_back(first + i < own.size() ? own[first + i] : kNoSlot);
  for (NodeId id = end; id != tree_.root() && tree_.node(id).facts.depth_pages > first; id = tree_.node(id).parent) {
    const Pages depth = tree_.node(id).facts.depth_pages, top = depth - tree_.node(id).facts.pages;
    const std::span<const SlotId> windows = pools_[at].index->slots(Tier::device, id);
    if (windows.empty()) continue;
    for (Pages i = std::max(first, top); i < std::min(depth, first + count); ++i) {
      SlotId& slot = slots[static_cast<std::size_t>(begin) + (i - first)];
      if (slot == kNoSlot) slot = windows[i - top];
    }
  }
  KV_CHECK(std::ranges::find(slots.begin() + begin, slots.end(), kNoSlot) == slots.end(),
           "the windows that a request attends to are there");
}

void Cache::get_parts(const RequestPools& pools, NodeId end, Tokens from, Tokens to, bool decodes,
                      std::vector<SequencePart>& parts) const {
  const Tokens page = config_.shape.page_tokens;
  parts.resize(pools_.size());
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    const RequestPools::Part& own = pools.parts[at];
    SequencePart& part = parts[at];
    part.slots.clear();
    part.points.clear();
    part.from = part.running = kNoSlot;
    if (pools_[at].index->closure() == Closure::tail) {
      const Tokens window = config_.pools[at].window;
      part.first = (std::max(from + 1, window) - window) / page;
      add_windows(at, end, own.slots, part.first, (to + page - 1) / page - part.first, part.slots);
      continue;
    }
    part.running = own.slots.front();
    if (from > 0) part.from = own.copies ? pools_[at].index->slots(Tier::device, end).front() : part.running;
    if (!decodes) {
      const Tokens point = tracked_by_prefill(pools, from, to);
      if (point != 0) part.points.push_back({point, tracking_slot(pools, at, 1)});
      continue;
    }
    for (Tokens length = from + 1; length <= to && state_points_->tracking_slots() > 0; ++length) {
      if (!state_points_->after_decode(length)) continue;
      part.points.push_back({length, tracking_slot(pools, at, static_cast<std::uint32_t>(part.points.size()) + 1)});
    }
  }
}

// The slot of the `ahead`-th state that is tracked from now on.
SlotId Cache::tracking_slot(const RequestPools& pools, std::size_t at, std::uint32_t ahead) const {
  return pools.parts[at].slots[1 + (pools.last + ahead) % state_points_->tracking_slots()];
}

// Gives back the windows that the sequence of this length needs no more, once `interval` tokens have left the window.
// As many pages stay as the tail of an insert needs.
void Cache::release_windows(RequestPools& pools, Tokens length, Pages shared, Tokens interval) {
  const Tokens page = config_.shape.page_tokens;
  for (std::size_t at = 0; at < pools.parts.size(); ++at) {
    if (pools_[at].index->closure() != Closure::tail) continue;
    RequestPools::Part& part = pools.parts[at];
    const Tokens window = config_.pools[at].window;
    if (length < window + part.released + interval) continue;
    part.released = std::max(part.released, shared * page);
    const Tokens kept = std::max<Tokens>(pools_[at].index->tail_pages(), 1) * page;
    Tokens to = length > kept ? length - kept : 0;
    if (state_points_ != nullptr && pools.tracked != 0) {  // an insert will end there
      to = std::min(to, pools.tracked > window ? pools.tracked - window : 0);
    }
    to = to / page * page;
    if (to <= part.released) continue;
    free_windows(pools, at, part.released / page, to / page);
    part.released = to;
  }
}

// A lease of a window holds whole nodes. Cuts the upper node, so that it holds no more than a window.
void Cache::cut_for_lease(std::size_t at, NodeId end) {
  const Pages tail = pools_[at].index->tail_pages();
  if (pools_[at].index->closure() != Closure::tail || end == tree_.root()) return;
  const Pages depth = tree_.node(end).facts.depth_pages;
  if (depth <= tail) return;
  NodeId top = end;
  while (tree_.node(top).facts.depth_pages - tree_.node(top).facts.pages > depth - tail) top = tree_.node(top).parent;
  const Pages first = tree_.node(top).facts.depth_pages - tree_.node(top).facts.pages;
  if (first < depth - tail) tree_.split(top, depth - tail - first);
}

void Cache::release_windows(RequestPools& pools, Tokens length) {
  const Tokens page = config_.shape.page_tokens;
  if (pools.lease != NodeId::none) {
    for (std::size_t at = 0; at < pools_.size(); ++at) cut_for_lease(at, pools.lease);
    lease_beside(pools, pools.lease);
  }
  for (std::size_t at = 0; at < pools.parts.size(); ++at) {
    if (pools_[at].index->closure() != Closure::tail || length <= config_.pools[at].window) continue;
    RequestPools::Part& part = pools.parts[at];
    const bool hands_over = config_.hand_over.role == EngineRole::prefill;
    const Tokens window = config_.pools[at].window;
    const Tokens to = hands_over ? first_window_page(window, length, page) * page : (length - window) / page * page;
    if (to <= part.released) continue;
    free_windows(pools, at, part.released / page, to / page);
    part.released = to;
  }
}

// Frees the request's own windows of the pages [from, to).
void Cache::free_windows(RequestPools& pools, std::size_t at, Pages from, Pages to) {
  std::vector<SlotId>& own = pools.parts[at].slots;
  freed_beside_.clear();
  for (Pages i = from; i < std::min<Pages>(to, own.size()); ++i) {
    if (own[i] != kNoSlot) freed_beside_.push_back(std::exchange(own[i], kNoSlot));
  }
  free_slots(at, Tier::device, freed_beside_);
}

// Returns the length whose state a prefill of the tokens [from, to) leaves in a tracking slot; 0: none.
Tokens Cache::tracked_by_prefill(const RequestPools& pools, Tokens from, Tokens to) const {
  if (state_points_ == nullptr || state_points_->tracking_slots() == 0) return 0;
  const Tokens point = state_points_->after_prefill(from, to, pools.branch);
  return point % config_.shape.page_tokens == 0 ? point : 0;  // else no node can end there
}

void Cache::track_prefill(RequestPools& pools, Tokens from, Tokens to) {
  for (RequestPools::Part& part : pools.parts) part.copies &= from == to;
  const Tokens point = tracked_by_prefill(pools, from, to);
  if (point == 0) return;
  pools.tracked = point;
  pools.last = (pools.last + 1) % state_points_->tracking_slots();
}

void Cache::track_decode(RequestPools& pools, std::span<const PageKey> keys, Tokens from, Tokens tokens, Pages shared) {
  if (blocks_ != nullptr)
    insertable(pools, keys, from + tokens, keys.size() * config_.shape.page_tokens, shared, false);
  if (pools_.empty()) return;
  for (RequestPools::Part& part : pools.parts) part.copies &= tokens == 0;
  for (Tokens length = from + 1; length <= from + tokens; ++length) {
    release_windows(pools, length - 1, shared, config_.window_release_tokens);
    if (state_points_ == nullptr || !state_points_->after_decode(length)) continue;
    pools.earlier = std::exchange(pools.tracked, length);
    pools.last = (pools.last + 1) % state_points_->tracking_slots();
  }
}

// ---- L2 ----------------------------------------------------------------------------------------------

// Returns the nodes whose windows or state a copy of `id` on L2 needs, and that have none there; the deepest first.
std::vector<NodeId> Cache::uncopied(std::size_t at, NodeId id) const {
  const FurtherPool& index = *pools_[at].index;
  std::vector<NodeId> nodes;
  const auto lacks = [&](NodeId node) { return index.has(Tier::device, node) && !index.has(Tier::host, node); };
  if (index.closure() == Closure::point) {
    if (lacks(id)) nodes.push_back(id);
    return nodes;
  }
  Pages covered = 0;
  for (NodeId node = id; node != tree_.root() && covered < index.tail_pages(); node = tree_.node(node).parent) {
    if (!index.has(Tier::device, node) && !index.has(Tier::host, node)) break;
    if (index.arriving(Tier::host, node) != OperationId::none) break;
    if (node != id && !tree_.node(node).host.resident() && !writes_back_) break;
    covered += tree_.node(node).facts.pages;
    if (lacks(node)) nodes.push_back(node);
  }
  return nodes;
}

Cache::CopiedNodes Cache::uncopied(NodeId id) const {
  CopiedNodes nodes(pools_.size());
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    if (pools_[at].host.capacity() != 0) nodes[at] = uncopied(at, id);
  }
  return nodes;
}

// Of windows and states on L1.
Pages Cache::slots_of(std::size_t at, const std::vector<NodeId>& nodes) const {
  Pages slots = 0;
  for (const NodeId node : nodes) slots += pools_[at].index->slots(Tier::device, node).size();
  return slots;
}

// Returns whether L2 has room for these windows and states, after eviction there. States first, then windows.
bool Cache::make_host_room_beside(const CopiedNodes& nodes) {
  for (const Closure closure : {Closure::point, Closure::tail}) {
    for (std::size_t at = 0; at < pools_.size(); ++at) {
      if (pools_[at].index->closure() != closure) continue;
      const Pages slots = slots_of(at, nodes[at]);
      if (pools_[at].host.available() < slots) evict_host_pool(at, slots);
      if (pools_[at].host.available() < slots) return false;
    }
  }
  return true;
}

bool Cache::make_host_room_beside(NodeId id) {
  tree_.lease(Tier::host, id);
  const bool enough = make_host_room_beside(uncopied(id));
  tree_.release(Tier::host, id);
  return enough;
}

// Leases what a copy behind `end` reads or writes on this tier, until the transfer has ended. The request that waits
// for a load may give its own lease up before.
void Cache::lease_copies(Transfer& transfer, std::size_t at, Tier tier, NodeId end) {
  if (copies_evicted_ && tier == Tier::host) {
    tree_.pin_host_copy(end);
  } else {
    tree_.lease(tier, end);
  }
  transfer.beside.push_back({at, end, true, tier, pools_[at].index->lease(tier, end)});
}

// Gives the node's windows, or its state, slots on L2, and queues the moves. Requires: there is room.
void Cache::copy_slots_beside(std::size_t at, NodeId node) {
  FurtherPool& index = *pools_[at].index;
  const std::span<const SlotId> sources = index.slots(Tier::device, node);
  std::vector<SlotId> targets;
  const bool room = take_slots(at, Tier::host, sources.size(), targets);
  KV_CHECK(room, "the room was made before");
  const std::span<const PageKey> keys = tree_.node(node).keys().last(sources.size());
  for (std::size_t i = 0; i < sources.size(); ++i) backups_.beside[at].push_back({keys[i], sources[i], targets[i]});
  index.put(Tier::host, node, targets);
}

// Queues the copies. Requires: there is room for them, and the node is on L2.
void Cache::copy_beside(NodeId id) {
  backups_.beside.resize(pools_.size());
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    FurtherPool& index = *pools_[at].index;
    const std::vector<NodeId> nodes = uncopied(at, id);
    if (pools_[at].host.capacity() == 0 || nodes.empty()) continue;
    lease_copies(backups_.queued, at, Tier::device, id);
    for (const NodeId node : nodes) {
      copy_slots_beside(at, node);
      index.set_arriving(Tier::host, node, mark_of(backups_));
      backups_.queued.beside.push_back({at, node});
    }
  }
}

// A node that L2 has already got a window or a state: copies it, too.
void Cache::add_copies(NodeId end) {
  if (pools_.empty() || !tree_.node(end).host.resident()) return;
  if (tree_.node(end).host.arriving == OperationId::none && make_host_room_beside(end)) copy_beside(end);
}

// Returns whether an eviction of the node from L1 would lose a window or a state, because L2 has none. Sets `under_way`
// if a copy is.
bool Cache::lacks_copy_beside(NodeId id, bool& under_way) const {
  bool lacks = false;
  for (const Beside& pool : pools_) {
    lacks |= pool.index->has(Tier::device, id) && !pool.index->has(Tier::host, id);
    under_way |= pool.index->arriving(Tier::host, id) != OperationId::none;
  }
  return lacks;
}

// Evicts so many slots. A host leaf goes as a whole, as a device leaf does; another node loses the window or state.
void Cache::evict_host_pool(std::size_t at, Pages slots) {
  const Pages target = pools_[at].host.available() + slots;
  for (VictimWalk walk; pools_[at].host.available() < target;) {
    const NodeId victim = victim_beside(at, Tier::host, walk);
    if (victim == NodeId::none) return;
    if (goes_whole(tree_, *pools_[at].index, Tier::host, victim)) {
      evict_host_node(victim, tree_.node(victim).facts.pages);
      continue;
    }
    const bool is_leaf = tree_.is_offered(victim, PolicyRole::host);
    for (std::size_t other = 0; other < pools_.size(); ++other) {
      FurtherPool& index = *pools_[other].index;
      if (!goes_with(*pools_[at].index, index, Tier::host, victim, is_leaf)) continue;
      free_slots(other, Tier::host, index.take(Tier::host, victim));
    }
  }
}

// The windows that a request which continues behind `end` needs from L2, from the top.
std::vector<NodeId> Cache::windows_to_load(std::size_t at, NodeId end) const {
  const FurtherPool& index = *pools_[at].index;
  std::vector<NodeId> nodes;
  const Pages needed = index.closure() == Closure::point ? 1 : index.tail_pages();
  Pages covered = 0;
  for (NodeId id = end; id != tree_.root() && covered < needed; id = tree_.node(id).parent) {
    covered += tree_.node(id).facts.pages;
    if (!index.has(Tier::device, id)) nodes.push_back(id);
  }
  std::ranges::reverse(nodes);
  return nodes;
}

bool Cache::loads_beside(const PrefixMatch& match) const {
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    if (!windows_to_load(at, match.end).empty()) return true;
  }
  return false;
}

// Makes room for a load of the part of the path that L1 lacks. Takes the slot of the request's own state first, as
// SGLang does. Returns false, and takes nothing, if there is too little room.
bool Cache::make_load_room(const PrefixMatch& match, Pages pages, RequestPools& pools) {
  // Under write-back, an eviction on L1 evicts on L2. The attempt counts as a use on L2.
  std::vector<Pages> from;
  for (const Beside& pool : pools_) from.push_back(pool.index->lease(Tier::host, match.end));
  tree_.pin_host_copy(match.end);
  const bool enough = try_load_room(match, pages, pools);
  tree_.unpin_host_copy(match.end);
  for (std::size_t at = 0; at < pools_.size(); ++at) pools_[at].index->release(Tier::host, match.end, from[at]);
  return enough;
}

bool Cache::try_load_room(const PrefixMatch& match, Pages pages, RequestPools& pools) {
  // If there is too little room, the request continues behind the part on L1, whose windows it leases already.
  std::vector<Pages> from;
  for (const Beside& pool : pools_) from.push_back(pool.index->lease(Tier::device, match.end));
  bool enough = true;
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    if (pools_[at].index->closure() != Closure::point) continue;
    const SlotId own = take_state(at);
    enough = enough && own != kNoSlot;
    if (own != kNoSlot) pools.parts[at].slots.push_back(own);
  }
  if (pages > device_.available()) evict_device(pages - device_.available());
  enough = enough && device_.available() >= pages;
  for (std::size_t at = 0; at < pools_.size() && enough; ++at) {
    Pages slots = 0;
    for (const NodeId id : windows_to_load(at, match.end)) slots += pools_[at].index->slots(Tier::host, id).size();
    if (pools_[at].device.available() < slots) make_room_beside(at, slots);
    enough = pools_[at].device.available() >= slots;
  }
  if (enough) lease_beside(pools, match.end);
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    pools_[at].index->release(Tier::device, match.end, from[at]);
    if (enough || pools_[at].index->closure() != Closure::point) continue;
    free_slots(at, Tier::device, pools.parts[at].slots);
    pools.parts[at].slots.clear();
  }
  return enough;
}

// Queues the loads of windows and states. A state is also loaded into the request's own slot.
void Cache::load_beside(const PrefixMatch& match, RequestPools& pools) {
  loads_.beside.resize(pools_.size());
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    FurtherPool& index = *pools_[at].index;
    const std::vector<NodeId> nodes = windows_to_load(at, match.end);
    if (!nodes.empty()) lease_copies(loads_.queued, at, Tier::host, match.end);
    for (const NodeId id : nodes) {
      const std::span<const SlotId> sources = index.slots(Tier::host, id);
      std::vector<SlotId> targets;
      const bool room = take_slots(at, Tier::device, sources.size(), targets);
      KV_CHECK(room, "the room was made before");
      const std::span<const PageKey> keys = tree_.node(id).keys().last(sources.size());
      for (std::size_t i = 0; i < sources.size(); ++i) loads_.beside[at].push_back({keys[i], sources[i], targets[i]});
      if (index.closure() == Closure::point) {
        loads_.beside[at].push_back({keys.back(), sources.front(), pools.parts[at].slots.front()});
        pools.parts[at].load = mark_of(loads_);
      }
      loads_.queued.beside.push_back({at, id});
      index.put(Tier::device, id, targets);
      index.set_arriving(Tier::device, id, mark_of(loads_));
    }
    if (!nodes.empty()) lease_copies(loads_.queued, at, Tier::device, match.end);
  }
}

void Cache::acknowledge_beside(const Transfer& transfer, Tier target, bool done) {
  std::vector<NodeId> copied;
  for (const BesideCopy& copy : transfer.beside) {
    FurtherPool& index = *pools_[copy.pool].index;
    if (copy.leases) {
      index.release(copy.leased_on, copy.node, copy.leased_from);
      if (copies_evicted_ && copy.leased_on == Tier::host) {
        tree_.unpin_host_copy(copy.node);
      } else {
        tree_.release(copy.leased_on, copy.node);
      }
      continue;
    }
    for (NodeId id = copy.node; id != tree_.root() && index.arriving(target, id) == transfer.mark;
         id = tree_.node(id).parent) {
      index.set_arriving(target, id, OperationId::none);
      if (!done) free_slots(copy.pool, target, index.take(target, id));
      if (std::ranges::find(copied, id) == copied.end()) copied.push_back(id);
    }
  }
  for (const auto& [at, slot] : transfer.orphans) free_slots(at, Tier::device, {&slot, 1});
  if (target == Tier::device || !done) return;
  for (const NodeId id : copied) {  // those that L2 had before; the others are stored once they are there
    const Residency& host = tree_.node(id).host;
    if (host.resident() && host.arriving == OperationId::none) {
      store_node(id, 0, tree_.node(id).facts.pages, storage_.tiers());
    }
  }
}

// ---- an insert ---------------------------------------------------------------------------------------

Tokens Cache::insertable(RequestPools& pools, std::span<const PageKey> keys, Tokens computed, Tokens cached,
                         Pages shared, bool last) {
  if (blocks_ != nullptr) {
    blocks_->publish(pools.tables, keys, std::min(computed, cached));
    if (offload_ != nullptr) offload(pools, keys, std::min(computed, cached));
    if (!last) blocks_->release(pools.tables, computed);
    report_blocks();
    return 0;
  }
  if (pools_.empty()) return cached;
  Tokens length = cached;
  const Tokens page = config_.shape.page_tokens;
  if (state_points_ == nullptr) {
    pools.ends_at_branch = pools.branch > shared * page && pools.branch <= cached;
    if (pools.ends_at_branch) length = pools.branch;
  } else {
    const bool tracks = state_points_->tracking_slots() > 0;
    std::uint32_t slot = 0;
    if (!tracks) {
      // The state is that of all computed tokens, and a node ends with a page.
      if (cached != computed || computed % page != 0) length = 0;
    } else if (pools.tracked <= cached) {
      length = pools.tracked;
      slot = 1 + pools.last;
    } else {  // the last state is that of tokens that are not cached
      length = pools.earlier <= cached ? pools.earlier : 0;
      slot = 1 + (pools.last + 1) % state_points_->tracking_slots();
    }
    if (length < shared * page) length = 0;  // the index has more, and the state would be of another length
    for (std::size_t at = 0; at < pools_.size() && length > 0; ++at) {
      if (pools_[at].index->closure() != Closure::point) continue;
      std::vector<SlotId>& own = pools.parts[at].slots;
      SlotId& tracked = own[slot];
      // A request that goes on gets another slot for the one that it gives. Without tracking, its next pass begins with
      // a copy of the state that it has given.
      const SlotId other = last ? kNoSlot : take_state(at);
      if (!last && other == kNoSlot) return 0;
      pools.given = std::exchange(tracked, other);
      pools.parts[at].copies = !tracks && !last;
    }
  }
  if (!last && length > 0) release_windows(pools, length - 1, shared, 1);
  return length;
}

// The nodes on the path to `end`, from page `from` on, get the request's windows where they have none. `is_new`: the
// node has just been inserted; it is cut so that a lease of its end needs no more than a window.
void Cache::give_windows(RequestPools& pools, NodeId end, Pages from, bool is_new) {
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    FurtherPool& index = *pools_[at].index;
    if (index.closure() != Closure::tail) continue;
    RequestPools::Part& part = pools.parts[at];
    const auto put = [&](NodeId id) {
      const NodeFacts& facts = tree_.node(id).facts;
      const auto slots = std::span(part.slots).subspan(facts.depth_pages - facts.pages, facts.pages);
      KV_CHECK(std::ranges::find(slots, kNoSlot) == slots.end(), "a request gives whole windows");
      index.put(Tier::device, id, slots);
      std::ranges::fill(slots, kNoSlot);
    };
    std::vector<NodeId> path;
    for (NodeId id = end; id != tree_.root() && tree_.node(id).facts.depth_pages > from; id = tree_.node(id).parent) {
      if (!index.has(Tier::device, id)) path.push_back(id);
    }
    for (auto id = path.rbegin(); id != path.rend(); ++id) {
      const Pages depth = tree_.node(*id).facts.depth_pages, first = depth - tree_.node(*id).facts.pages;
      const Pages live = std::max<Pages>(first, part.released / config_.shape.page_tokens);
      if (live >= depth) continue;
      if (live > first) cut_off_.push_back(tree_.split(*id, live - first));
      if (is_new && depth - live > index.tail_pages()) {
        cut_off_.push_back(tree_.split(*id, depth - live - index.tail_pages()));
        put(cut_off_.back());
      }
      put(*id);
    }
  }
}

void Cache::give_states(RequestPools& pools, NodeId end) {
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    FurtherPool& index = *pools_[at].index;
    if (index.closure() == Closure::tail || index.has(Tier::device, end)) {
      index.use(end);
    } else if (pools.given != kNoSlot) {
      index.put(Tier::device, end, {&pools.given, 1});
      pools.given = kNoSlot;
      if (config_.states_per_path > 0) limit_states(at, end);
    }
  }
}

// Drops states from the top of the path, but for those of forks, leaves, leases and holds, and the last one.
void Cache::limit_states(std::size_t at, NodeId end) {
  FurtherPool& index = *pools_[at].index;
  path_.clear();
  for (NodeId id = end; id != tree_.root(); id = tree_.node(id).parent) {
    if (index.has(Tier::device, id)) path_.push_back(id);
  }
  std::size_t excess = path_.size() > config_.states_per_path ? path_.size() - config_.states_per_path : 0;
  for (auto id = path_.rbegin(); id != path_.rend() && excess > 0 && *id != end; ++id) {
    if (index.leased(Tier::device, *id) || tree_.node(*id).children != 1) continue;
    if (tree_.is_offered(*id, PolicyRole::device) || index.is_kept(Keeper::hold, *id)) continue;
    evict_from_pool(at, *id, Reason::quota);
    --excess;
  }
}

void Cache::inserted(RequestPools& pools, NodeId end, Tokens computed, Pages shared, bool last) {
  if (pools_.empty()) return;
  if (end != NodeId::none) lease_beside(pools, end);
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    if (pools_[at].index->closure() != Closure::point || pools.given == kNoSlot) continue;
    RequestPools::Part& part = pools.parts[at];
    if (std::exchange(part.copies, false)) std::swap(pools.given, part.slots.front());  // it was not wanted
    free_slots(at, Tier::device, {&pools.given, 1});
    pools.given = kNoSlot;
  }
  if (!last) pools.tracked = pools.earlier = 0;
  if (!std::exchange(pools.ends_at_branch, false)) return;
  pools.branch = 0;
  if (!last) release_windows(pools, computed - 1, shared, 1);
}

void Cache::check_pools(std::span<const RequestPools* const> requests, std::span<const Pages> prefetch_beside) const {
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    Pages owned = 0;
    for (const RequestPools* const request : requests) {
      if (request->parts.empty()) continue;
      const RequestPools::Part& part = request->parts[at];
      owned += part.slots.size() - static_cast<Pages>(std::ranges::count(part.slots, kNoSlot));
    }
    const auto add_orphans = [&](const Transfer& load) {
      owned += static_cast<Pages>(std::ranges::count(load.orphans, at, &std::pair<std::size_t, SlotId>::first));
    };
    add_orphans(loads_.queued);
    for (const Transfer& load : loads_.transfers.all()) add_orphans(load);
    for (const Tier tier : kTiersOfTree) {
      pools_[at].on(tier).check_invariants();
      const Pages held = pools_[at].index->slots_held(tier);
      const Pages fetched = at < prefetch_beside.size() ? prefetch_beside[at] : 0;
      KV_CHECK(pools_[at].on(tier).used() == held + (tier == Tier::device ? owned : fetched),
               "each slot has one owner");
    }
  }
}

}  // namespace kvtwin
