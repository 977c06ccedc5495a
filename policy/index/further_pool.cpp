#include "policy/index/further_pool.hpp"

#include <algorithm>

#include "policy/base/check.hpp"
#include "policy/base/mutant.hpp"
#include "policy/index/radix_tree.hpp"

namespace kvtwin {

FurtherPool::FurtherPool(const RadixTree& tree, Closure closure, Pages tail_pages)
    : tree_(tree), closure_(closure), tail_pages_(tail_pages) {
  KV_CHECK(closure != Closure::path, "pool 0 is the only one with the closure of a path");
  KV_CHECK((closure == Closure::tail) == (tail_pages > 0), "a tail has a length");
}

const FurtherPool::Place& FurtherPool::place(Tier tier, NodeId id) const {
  static const Place kBlank;
  const std::vector<Place>& places = places_[index(tier)];
  const auto at = static_cast<std::size_t>(id);
  return at < places.size() ? places[at] : kBlank;
}

FurtherPool::Place& FurtherPool::mutable_place(Tier tier, NodeId id) {
  std::vector<Place>& places = places_[index(tier)];
  const auto at = static_cast<std::size_t>(id);
  if (at >= places.size()) places.resize(at + 1);
  return places[at];
}

bool FurtherPool::is_blank(NodeId id) const {
  for (const Tier tier : kTiersOfTree) {
    const Place& here = place(tier, id);
    if (!here.slots.empty() || here.leases > 0 || here.listed) return false;
  }
  return !is_kept(Keeper::reference, id) && !is_kept(Keeper::hold, id);
}

// ---- the order of use --------------------------------------------------------------------------------

EvictionTurn FurtherPool::turn(NodeId id) const {
  if (is_kept(Keeper::hold, id)) return EvictionTurn::on_hold;
  if (is_kept(Keeper::reference, id)) return EvictionTurn::referenced;
  return tree_.node(id).ended ? EvictionTurn::ended : EvictionTurn::ordinary;
}

void FurtherPool::list(Tier tier, NodeId id, NodeId behind) {
  Place& here = mutable_place(tier, id);
  KV_CHECK(!here.listed, "a node is in the order once");
  here.listed = true;
  here.turn = turn(id);
  here.last_use = tree_.last_stamp();
  KV_CHECK(behind == NodeId::none || place(tier, behind).turn == here.turn, "neighbours in an order have one turn");
  Order& order = this->order(tier, here.turn);
  here.newer = behind;
  here.older = behind == NodeId::none ? order.newest : place(tier, behind).older;
  if (behind == NodeId::none) {
    order.newest = id;
  } else {
    mutable_place(tier, behind).older = id;
  }
  if (here.older == NodeId::none) {
    order.oldest = id;
  } else {
    mutable_place(tier, here.older).newer = id;
  }
}

void FurtherPool::unlist(Tier tier, NodeId id) {
  Place& here = mutable_place(tier, id);
  if (!here.listed) return;
  Order& order = this->order(tier, here.turn);
  here.listed = false;
  if (here.newer == NodeId::none) {
    order.newest = here.older;
  } else {
    mutable_place(tier, here.newer).older = here.older;
  }
  if (here.older == NodeId::none) {
    order.oldest = here.newer;
  } else {
    mutable_place(tier, here.older).newer = here.newer;
  }
  here.newer = here.older = NodeId::none;
}

NodeId FurtherPool::unleased(Tier tier, NodeId at) const {
  while (at != NodeId::none && place(tier, at).leases > 0) at = place(tier, at).newer;
  return at;
}

NodeId FurtherPool::oldest(Tier tier, EvictionTurn first) const {
  for (auto turn = static_cast<std::size_t>(first); turn < static_cast<std::size_t>(EvictionTurn::on_hold); ++turn) {
    const NodeId found = unleased(tier, tiers_[index(tier)].orders[turn].oldest);
    if (found != NodeId::none) return found;
  }
  return NodeId::none;
}

NodeId FurtherPool::following(Tier tier, NodeId id) const {
  const NodeId next = next_oldest(tier, id);
  const auto later = static_cast<std::size_t>(place(tier, id).turn) + 1;
  return next != NodeId::none ? next : oldest(tier, static_cast<EvictionTurn>(later));
}

// The node becomes the most recently used one of its new turn, as in SGLang (_refresh_session_partition).
void FurtherPool::set_turn(NodeId id) {
  for (const Tier tier : kTiersOfTree) {
    if (!place(tier, id).listed || place(tier, id).turn == turn(id)) continue;
    const std::uint64_t last_use = place(tier, id).last_use;
    unlist(tier, id);
    list(tier, id, NodeId::none);
    mutable_place(tier, id).last_use = last_use;
  }
}

// ---- slots -------------------------------------------------------------------------------------------

void FurtherPool::put(Tier tier, NodeId id, std::span<const SlotId> slots) {
  KV_CHECK(slots.size() == (closure_ == Closure::point ? 1 : tree_.node(id).facts.pages), "a slot for each page");
  Place& here = mutable_place(tier, id);
  KV_CHECK(here.slots.empty(), "the node isn't on the tier yet");
  here.slots.append(slots);
  OfTier& of = tiers_[index(tier)];
  of.held += slots.size();
  if (here.leases > 0) of.leased += slots.size();
  if (is_kept(Keeper::hold, id)) of.on_hold += slots.size();
  if (tier == Tier::device) {
    list(tier, id, NodeId::none);
    unlist(Tier::host, id);
  } else if (!has(Tier::device, id)) {
    list(tier, id, NodeId::none);
  }
}

void FurtherPool::set_arriving(Tier tier, NodeId id, OperationId operation) {
  KV_CHECK(has(tier, id), "a transfer fills slots");
  mutable_place(tier, id).arriving = operation;
}

std::vector<SlotId> FurtherPool::take(Tier tier, NodeId id) {
  Place& here = mutable_place(tier, id);
  KV_CHECK(!here.slots.empty(), "the node is on the tier");
  std::vector<SlotId> slots(here.slots.begin(), here.slots.end());
  here.slots = {};
  here.arriving = OperationId::none;
  OfTier& of = tiers_[index(tier)];
  of.held -= slots.size();
  if (here.leases > 0) of.leased -= slots.size();
  if (is_kept(Keeper::hold, id)) of.on_hold -= slots.size();
  unlist(tier, id);
  if (tier == Tier::device && has(Tier::host, id)) list(Tier::host, id, NodeId::none);
  return slots;
}

void FurtherPool::split(NodeId upper, NodeId lower, Pages pages) {
  KV_CHECK(is_blank(upper), "the upper part of a split is new");
  if (closure_ == Closure::point) return;
  if ((is_kept(Keeper::reference, lower) || is_kept(Keeper::hold, lower)) && !KV_MUTANT(15)) {
    keeps_.resize(std::max(keeps_.size(), static_cast<std::size_t>(upper) + 1));
    keeps_[static_cast<std::size_t>(upper)] = keeps_[static_cast<std::size_t>(lower)];
  }
  for (const Tier tier : kTiersOfTree) {
    if (place(tier, lower).slots.empty() && place(tier, lower).leases == 0) continue;
    static_cast<void>(mutable_place(tier, upper));  // both references stay valid
    Place& below = mutable_place(tier, lower);
    Place& above = mutable_place(tier, upper);
    above.slots = below.slots.cut(pages);
    above.leases = below.leases;
    above.arriving = below.arriving;
    if (!below.listed) continue;
    list(tier, upper, lower);
    above.last_use = below.last_use;
  }
}

bool goes_whole(const RadixTree& tree, const FurtherPool& pool, Tier tier, NodeId id) {
  if (!tree.is_offered(id, tier == Tier::device ? PolicyRole::device : PolicyRole::host)) return false;
  return tree.node(id).references == 0 || pool.is_kept(Keeper::reference, id);
}

bool goes_with(const FurtherPool& lost, const FurtherPool& other, Tier tier, NodeId id, bool is_leaf) {
  if (&lost == &other) return true;
  if (!other.has(tier, id) || other.leased(tier, id)) return false;
  return lost.closure() == Closure::tail || (is_leaf && !other.is_kept(Keeper::reference, id));
}

// ---- closures ----------------------------------------------------------------------------------------

bool FurtherPool::Walk::accepts(NodeId id, Pages pages) {
  const bool here = pool_.has(Tier::device, id) || (host_ && pool_.has(Tier::host, id));
  if (pool_.closure_ == Closure::point) return here && pages == pool_.tree_.node(id).facts.pages;
  if (!here) {
    whole_ = false;
    pages_ = 0;
    return false;
  }
  pages_ += pages;
  return whole_ || pages_ >= pool_.tail_pages_;
}

// Visits the nodes from `end` upwards, until they cover so many pages.
template <typename Visit>
void FurtherPool::each_needed(NodeId end, Pages pages, Visit visit) const {
  Pages covered = 0;
  for (NodeId id = end; id != tree_.root() && covered < pages; id = tree_.node(id).parent) {
    covered += tree_.node(id).facts.pages;
    visit(id);
  }
}

void FurtherPool::count_lease(Tier tier, NodeId id) {
  Place& here = mutable_place(tier, id);
  if (here.leases++ == 0) tiers_[index(tier)].leased += here.slots.size();
}

Pages FurtherPool::lease(Tier tier, NodeId end) {
  if (end == tree_.root()) return 0;
  Pages from = tree_.node(end).facts.depth_pages;
  each_needed(end, closure_ == Closure::point ? 1 : tail_pages_, [&](NodeId id) {
    count_lease(tier, id);
    from = tree_.node(id).facts.depth_pages - tree_.node(id).facts.pages;
  });
  return closure_ == Closure::point ? tree_.node(end).facts.depth_pages - 1 : from;
}

void FurtherPool::release(Tier tier, NodeId end, Pages from) {
  for (NodeId id = end; id != tree_.root() && tree_.node(id).facts.depth_pages > from; id = tree_.node(id).parent) {
    Place& here = mutable_place(tier, id);
    KV_CHECK(here.leases > 0, "a lease is released once");
    if (--here.leases == 0) {
      tiers_[index(tier)].leased -= here.slots.size();
      if (tier == Tier::host && here.listed) {  // as SGLang: a node that nothing reads any more is in use until now
        unlist(tier, id);
        list(tier, id, NodeId::none);
      }
    }
    if (closure_ == Closure::point) return;
  }
}

void FurtherPool::use(NodeId end) {
  std::array<NodeId, kTurns> behind;
  behind.fill(NodeId::none);
  each_needed(end, closure_ == Closure::point ? 1 : tail_pages_ + 1, [&](NodeId id) {
    if (!has(Tier::device, id)) return;
    unlist(Tier::device, id);
    NodeId& last = behind[static_cast<std::size_t>(turn(id))];
    list(Tier::device, id, last);
    last = id;
  });
}

// ---- what sessions keep ------------------------------------------------------------------------------

NodeId FurtherPool::resolve(NodeId end) const {
  Walk walk(*this, true);
  for (NodeId id = end; id != NodeId::none && id != tree_.root(); id = tree_.node(id).parent) {
    if (walk.accepts(id, tree_.node(id).facts.pages)) return id;
  }
  return NodeId::none;
}

Pages FurtherPool::pages_of(Keeper keeper) const {
  if (closure_ == Closure::point) return 1;
  return keeper == Keeper::reference ? tail_pages_ + 1 : tail_pages_;
}

void FurtherPool::count_keep(Keeper keeper, NodeId id, bool more) {
  keeps_.resize(std::max(keeps_.size(), static_cast<std::size_t>(id) + 1));
  std::uint32_t& count = keeps_[static_cast<std::size_t>(id)][static_cast<std::size_t>(keeper)];
  KV_CHECK(more || count > 0, "a node is let go once");
  count = more ? count + 1 : count - 1;
  if (count != (more ? 1 : 0)) return;
  for (const Tier tier : kTiersOfTree) {
    if (keeper != Keeper::hold) break;
    Pages& on_hold = tiers_[index(tier)].on_hold;
    const Pages slots = place(tier, id).slots.size();
    on_hold = more ? on_hold + slots : on_hold - slots;
  }
  set_turn(id);
}

void FurtherPool::add_end(Keeper keeper, std::uint64_t session, NodeId end) {
  Pages from = tree_.node(end).facts.depth_pages;
  each_needed(end, pages_of(keeper), [&](NodeId id) {
    count_keep(keeper, id, true);
    from = tree_.node(id).facts.depth_pages - tree_.node(id).facts.pages;
  });
  ends(keeper).add(session, end, closure_ == Closure::point ? tree_.node(end).facts.depth_pages - 1 : from);
}

void FurtherPool::remove_end(Keeper keeper, std::uint64_t session, NodeId end) {
  const Pages from = ends(keeper).remove(session, end);
  for (NodeId id = end; id != tree_.root() && tree_.node(id).facts.depth_pages > from; id = tree_.node(id).parent) {
    count_keep(keeper, id, false);
    if (closure_ == Closure::point) return;
  }
}

void FurtherPool::refer(std::uint64_t session, NodeId end) {
  SessionEnds& of = ends(Keeper::reference);
  if (end == NodeId::none || end == tree_.root() || of.has(session, end)) return;
  NodeId above = tree_.node(end).parent;
  while (above != tree_.root() && !of.has(session, above)) above = tree_.node(above).parent;
  add_end(Keeper::reference, session, end);
  if (above != tree_.root()) remove_end(Keeper::reference, session, above);
}

void FurtherPool::drop_references(std::uint64_t session) {
  for (const NodeId end : ends(Keeper::reference).nodes_of(session)) remove_end(Keeper::reference, session, end);
}

void FurtherPool::hold(std::uint64_t session, NodeId end) {
  SessionEnds& of = ends(Keeper::hold);
  const std::vector<NodeId> before = of.nodes_of(session);
  const bool ends_there = end == NodeId::none || end == tree_.root();
  if (!ends_there && !of.has(session, end)) add_end(Keeper::hold, session, end);
  for (const NodeId old : before) {
    if (old != end) remove_end(Keeper::hold, session, old);
  }
}

Pages FurtherPool::slots_if_held(Tier tier, std::uint64_t session, NodeId end) const {
  const SessionEnds& of = ends_[static_cast<std::size_t>(Keeper::hold)];
  std::vector<NodeId> now;
  if (end != NodeId::none) each_needed(end, pages_of(Keeper::hold), [&](NodeId id) { now.push_back(id); });
  Pages slots = slots_on_hold(tier);
  for (const NodeId id : now) {
    if (!is_kept(Keeper::hold, id)) slots += place(tier, id).slots.size();
  }
  for (const NodeId old : of.nodes_of(session)) {
    const Pages from = of.from(session, old);
    for (NodeId id = old; id != tree_.root() && tree_.node(id).facts.depth_pages > from; id = tree_.node(id).parent) {
      const bool stays = keeps(Keeper::hold, id) > 1 || std::ranges::find(now, id) != now.end();
      if (!stays) slots -= place(tier, id).slots.size();
      if (closure_ == Closure::point) break;
    }
  }
  return slots;
}

void FurtherPool::hand_ends_over(NodeId id) {
  for (const Keeper keeper : {Keeper::reference, Keeper::hold}) {
    SessionEnds& of = ends(keeper);
    for (const std::uint64_t session : of.sessions_at(id)) {
      const NodeId above = resolve(tree_.node(id).parent);
      const bool moves = above != NodeId::none && !of.has(session, above);
      remove_end(keeper, session, id);
      if (moves) add_end(keeper, session, above);
    }
  }
}

// ---- invariants --------------------------------------------------------------------------------------

void FurtherPool::check_invariants() const {
  for (const Tier tier : kTiersOfTree) {
    const OfTier& of = tiers_[index(tier)];
    const std::vector<Place>& places = places_[index(tier)];
    Pages held = 0, leased = 0, on_hold = 0;
    std::size_t listed = 0, in_order = 0;
    for (std::size_t i = 0; i < places.size(); ++i) {
      const auto id = static_cast<NodeId>(i);
      const Place& here = places[i];
      KV_CHECK(tree_.has(id) || is_blank(id), "nothing is known of a node that has gone");
      held += here.slots.size();
      if (here.leases > 0) leased += here.slots.size();
      if (is_kept(Keeper::hold, id)) on_hold += here.slots.size();
      listed += here.listed;
      KV_CHECK(!here.listed || here.turn == turn(id), "a node is in the order of its turn");
      KV_CHECK(here.listed == (!here.slots.empty() && (tier == Tier::device || !has(Tier::device, id))),
               "the nodes that have slots are in the order, those of L2 if they are not on L1");
      if (here.slots.empty()) continue;
      KV_CHECK(here.slots.size() == (closure_ == Closure::point ? 1 : tree_.node(id).facts.pages), "a slot a page");
      // Under write-back, the window of a node on L1 may be on L2 without its pages.
      KV_CHECK(tree_.node(id).on(tier).resident() || (tier == Tier::host && tree_.node(id).device.resident()),
               "no window and no state without the pages of its node");
    }
    for (const Order& order : of.orders) {
      NodeId newer = NodeId::none;
      for (NodeId at = order.newest; at != NodeId::none; at = place(tier, at).older) {
        KV_CHECK(place(tier, at).newer == newer && place(tier, at).listed, "the order is linked");
        KV_CHECK(&of.orders[static_cast<std::size_t>(place(tier, at).turn)] == &order, "an order has one turn");
        newer = at;
        ++in_order;
      }
      KV_CHECK(newer == order.oldest, "an order has two ends");
    }
    KV_CHECK(in_order == listed, "every listed node is in the order");
    KV_CHECK(held == of.held && leased == of.leased && on_hold == of.on_hold, "slots are counted");
  }
  check_keeps();
}

void FurtherPool::check_keeps() const {
  std::vector<std::array<std::uint32_t, kKeepers>> counts(keeps_.size());
  for (std::size_t keeper = 0; keeper < kKeepers; ++keeper) {
    for (const auto& [pair, end] : ends_[keeper].all()) {
      for (NodeId id = pair.first; id != tree_.root() && tree_.node(id).facts.depth_pages > end.from;
           id = tree_.node(id).parent) {
        KV_CHECK(tree_.has(id), "a session keeps nodes of the tree");
        ++counts.at(static_cast<std::size_t>(id))[keeper];
        if (closure_ == Closure::point) break;
      }
    }
  }
  KV_CHECK(counts == keeps_, "a node counts the sessions that keep it");
  for (std::size_t i = 0; i < keeps_.size(); ++i) {
    KV_CHECK(keeps_[i][0] == 0 || tree_.node(static_cast<NodeId>(i)).references > 0,
             "a session that refers to a window or a state refers to the pages");
  }
}

}  // namespace kvtwin
